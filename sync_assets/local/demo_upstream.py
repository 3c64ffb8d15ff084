"""The demo's external API: a real HTTP server on loopback, with a mind of its own about some accounts.

`DemoUpstream` starts it as a process of its own (`python -m sync_assets.local.demo_upstream`), which ends when its
standard input does: when whoever started it is gone, however that came about.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from types import TracebackType

from aiohttp import web

from sync_assets.clock import Deadline

SECRET_VARIABLE = "SYNC_SECRET_DEMO"  # noqa: S105 a variable's name
EXPIRED_SECRET_VARIABLE = "SYNC_SECRET_DEMO_EXPIRED"  # noqa: S105 a variable's name

RETRY_AFTER_SECONDS = 300
"""What a rate limited account is told to wait."""

_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_WORK_SECONDS = 0.02  # of every request, so that one sees a run making progress
_SLOW_SECONDS = 2.0


class Mood(Enum):
    """How the upstream treats an account, other than well."""

    DOWN = "answers 500"
    DROPS = "cuts the connection"
    LIMITED = "answers 429 with Retry-After"
    SLOW = "answers after some seconds"


MOODS: Mapping[str, Mood] = {
    "lantern-033": Mood.DOWN,
    "clover-062": Mood.DROPS,
    "bramble-108": Mood.LIMITED,
    "granite-225": Mood.SLOW,
}
"""The accounts that are not treated well. A record whose e-mail is not one is refused for any account."""


class _Api:
    """The accounts' records as the upstream has them, in memory."""

    def __init__(self, secret: str) -> None:
        self._authorization = f"Bearer {secret}".encode()
        self._records: dict[tuple[str, str], object] = {}
        self._answered: dict[str, tuple[str, int, dict[str, object]]] = {}
        self._counts: Counter[str] = Counter()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", self._about)
        path = "/accounts/{account_id}/records/{record_id}"
        app.router.add_put(path, self._change)
        app.router.add_delete(path, self._change)
        return app

    async def _about(self, _: web.Request) -> web.Response:
        accounts = len({account for account, _ in self._records})
        return web.json_response({"accounts": accounts, "records": len(self._records), **self._counts})

    async def _change(self, request: web.Request) -> web.Response:
        body = await request.read()
        mood = MOODS.get(request.match_info["account_id"])
        await asyncio.sleep(_SLOW_SECONDS if mood is Mood.SLOW else _WORK_SECONDS)
        # No await from here on: of two requests with one key, one is applied and the other gets its answer again.
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._authorization):
            return self._refuse(401, "the token is missing, unknown or has expired")
        if mood is Mood.DROPS and request.transport is not None:
            request.transport.abort()
        if mood in (Mood.DOWN, Mood.DROPS):
            return self._refuse(500, "something broke here")
        if mood is Mood.LIMITED:
            return self._refuse(429, "too many requests", {"Retry-After": str(RETRY_AFTER_SECONDS)})
        return self._once(request, body)

    def _once(self, request: web.Request, body: bytes) -> web.Response:
        """Apply a request, or give the answer it had when it came before."""
        key = request.headers.get("Idempotency-Key")
        if not key:
            return self._refuse(400, "an Idempotency-Key is needed")
        asked = hashlib.sha256(f"{request.method} {request.raw_path}\n".encode() + body).hexdigest()
        if key not in self._answered:
            record = (request.match_info["account_id"], request.match_info["record_id"])
            status, answer = self._apply(request.method, *record, body)
            self._answered[key] = (asked, status, answer)
            self._counts["applied" if status < 300 else f"refused with {status}"] += 1
            return web.json_response(answer, status=status)
        earlier, status, answer = self._answered[key]
        if earlier != asked:
            return self._refuse(422, "this Idempotency-Key was used for another request")
        self._counts["replayed"] += 1
        return web.json_response(answer, status=status)

    def _apply(self, method: str, account_id: str, record_id: str, body: bytes) -> tuple[int, dict[str, object]]:
        record = (account_id, record_id)
        if method == "DELETE":
            if self._records.pop(record, None) is None:
                return 404, {"error": f"{account_id} has no record {record_id}"}
            return 200, {"id": record_id, "deleted": True}
        try:
            data = json.loads(body)["data"]
            email = data.get("email", "@")
        except (ValueError, KeyError, TypeError, AttributeError):
            return 400, {"error": 'expected {"id": …, "version": …, "data": {…}}'}
        if "@" not in str(email):
            return 422, {"error": f"{email!r} is not an e-mail address"}
        status = 200 if record in self._records else 201
        self._records[record] = data
        return status, {"id": f"{account_id}/{record_id}"}

    def _refuse(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> web.Response:
        self._counts[f"refused with {status}"] += 1
        return web.json_response({"error": why}, status=status, headers=headers)


class DemoUpstream:
    """The demo's upstream in a process of its own, from entering to leaving the context.

    Attributes:
        url: where it answers; set while the context is entered.
    """

    url: str

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(24)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DemoUpstream:
        # A session of its own: the Ctrl-C that stops a run must not take away what the run is still talking to.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sync_assets.local.demo_upstream"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, SECRET_VARIABLE: self._secret},
            start_new_session=True,
        )
        try:
            self.url = _first_line(self._process, Deadline.after(_START_SECONDS))
        except BaseException:
            self._stop(self._process)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._stop(self._process)

    @property
    def environment(self) -> dict[str, str]:
        """The variables for the process that syncs: where the upstream is, its token, and one it does not take."""
        return {
            "SYNC_UPSTREAM_URL": self.url,
            "SYNC_ALLOW_PRIVATE_UPSTREAMS": "1",  # it is on loopback
            SECRET_VARIABLE: self._secret,
            EXPIRED_SECRET_VARIABLE: f"expired-{self._secret[::-1]}",
        }

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_SECONDS)


def _first_line(process: subprocess.Popen[bytes], deadline: Deadline) -> str:
    """The line the server prints once it answers."""
    if process.stdout is None:
        raise RuntimeError("the process was started without a pipe")
    ready, _, _ = select.select([process.stdout], [], [], deadline.remaining())
    line = process.stdout.readline().decode().strip() if ready else ""
    if not line:
        why = "ended at once" if ready else f"did not answer within {_START_SECONDS:g} s"
        raise RuntimeError(f"the demo's upstream {why}; what it printed is above")
    return line


async def _serve(secret: str) -> None:
    runner = web.AppRunner(_Api(secret).app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        parent = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(parent), sys.stdin)
        await parent.read()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(os.environ[SECRET_VARIABLE]))
