"""The soak's upstream: moody by a seed, it refuses older claims, and writes down what it accepted before it says so.

    python -m sync_assets_tests.soak.upstream FOLDER SEED

It runs until its standard input ends. `POST /_calm` ends all moods.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import urllib.parse
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

from sync_assets_tests.soak.events import EventLog

PORT_FILE = "upstream.port"

# Weights of what is done with a request. The first five accept it; of `stall` and `drop` the client never hears.
_MOODS = {"quick": 52, "slow": 20, "stall": 8, "drop": 8, "late": 2, "cut": 2, "500": 4, "503": 1, "429": 3}
_RETRY_AFTER = 1


class MoodyUpstream:
    """The server; lives in one event loop.

    Args:
        log: what it saw and did.
        seed: of its moods, drawn in the order of arrival.
    """

    def __init__(self, log: EventLog, seed: int) -> None:
        self._log = log
        self._random = random.Random(seed)
        self._numbers = count()
        self._calm = False
        self._newest: dict[str, int] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/_calm", self._on_calm)
        app.router.add_route("*", "/accounts/{account}/records/{record}", self._on_request)
        return app

    async def _on_calm(self, _: web.Request) -> web.Response:
        self._calm = True
        return web.Response()

    async def _on_request(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        document: dict[str, Any] = json.loads(body) if body else {}
        account = request.match_info["account"]
        seq = int(request.headers.get("Sync-Claim-Seq", "0"))
        mood = "quick" if self._calm else self._random.choices(list(_MOODS), list(_MOODS.values()))[0]
        status = self._status(account, seq, document, mood)
        number = next(self._numbers)
        authorization = request.headers.get("Authorization")
        self._log.write(
            event="request",
            number=number,
            method=request.method,
            account=urllib.parse.unquote(account),
            record=request.match_info["record"],
            key=request.headers.get("Idempotency-Key"),
            claim_seq=seq or None,
            version=document.get("version"),
            body_hash=hashlib.sha256(body).hexdigest(),
            authorization_hash=hash_of(authorization) if authorization else None,
            verdict={200: "accepted", 412: "stale", 422: "rejected", 429: "limited"}.get(status, "failed"),
            retry_after=_RETRY_AFTER if status == 429 else None,
        )
        how = "gone"
        try:
            await asyncio.sleep(self._seconds(mood))
            how = "dropped" if mood in {"drop", "cut"} else "answered"
            if how == "dropped" and request.transport is not None:
                request.transport.abort()
            headers = {"Retry-After": str(_RETRY_AFTER)} if status == 429 else {}
            return web.Response(status=status, headers=headers)
        finally:
            self._log.write(event="ended", number=number, how=how)

    def _status(self, account: str, seq: int, document: dict[str, Any], mood: str) -> int:
        if seq < self._newest.get(account, 0):
            return 412  # what an upstream can do with the claim number: an older claim changes nothing any more
        self._newest[account] = seq
        if mood in {"500", "503", "429"}:
            return int(mood)
        if mood == "cut":
            return 500
        return 422 if isinstance(document.get("data"), dict) and document["data"].get("refuse") else 200

    def _seconds(self, mood: str) -> float:
        low, high = {"slow": (0.1, 0.5), "late": (0.8, 1.4), "stall": (2.0, 6.0)}.get(mood, (0.005, 0.06))
        return 0.0 if self._calm else self._random.uniform(low, high)


def hash_of(authorization: str) -> str:
    """What is written down of an `Authorization` header, which itself must be in no file."""
    return hashlib.sha256(authorization.encode()).hexdigest()


async def _serve(folder: Path, seed: int) -> None:
    log = EventLog(folder / "upstream.jsonl")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    runner = web.AppRunner(
        MoodyUpstream(log, seed).app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    half = folder / f"{PORT_FILE}.new"
    half.write_text(str(runner.addresses[0][1]))
    half.rename(folder / PORT_FILE)
    watch = asyncio.create_task(log.watch_stalls(event="stall"))
    await stop.wait()
    watch.cancel()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
