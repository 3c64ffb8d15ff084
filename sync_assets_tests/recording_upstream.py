"""An upstream that writes down every request and misbehaves on demand: a real HTTP server on loopback.

In this process, in a thread of its own:

    with RecordingUpstream() as upstream:
        upstream.answer(500, account="a", times=2)
        ... push to upstream.url ...
        assert [call.status for call in upstream.calls] == [500, 500, 200]

As a process of its own, which survives the death of whoever calls it, with the same methods on the handle:

    with UpstreamProcess(tmp_path) as upstream:
        ...

Moods are set for everybody, an account, or one record; the most specific one wins.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from aiohttp import web

from sync_assets.clock import monotonic
from sync_assets_tests.upstream_log import Call, assert_no_overlap, read_log

__all__ = ["PATIENCE", "Call", "RecordingUpstream", "Upstream", "UpstreamProcess", "assert_no_overlap", "read_log"]

PATIENCE = 15.0
"""Seconds a test waits for something before it says what did not happen."""


@dataclass
class _Mood:
    """What is done with a request: answer (at once), stall (until released), drop (the connection), trickle."""

    kind: str = "answer"
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    times: int | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Upstream(ABC):
    """What a test does with an upstream, wherever that runs."""

    url: str

    @property
    @abstractmethod
    def calls(self) -> list[Call]:
        """Every request so far, in the order of arrival."""

    @abstractmethod
    def _wait_for_news(self, seconds: float) -> None:
        """Return when something has happened, or after so long."""

    def answer(
        self,
        status: int,
        account: str | None = None,
        record: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        times: int | None = None,
    ) -> None:
        """Answer so: `times` times and then as before, or until `clear`."""
        mood = {"status": status, "headers": dict(headers or {}), "body": body, "times": times}
        self._control("mood", account=account, record=record, kind="answer", **mood)

    def stall(self, account: str | None = None, record: str | None = None, *, times: int | None = None) -> None:
        """Keep requests waiting until `release`, or until the client goes away."""
        self._control("mood", account=account, record=record, kind="stall", times=times)

    def drop(self, account: str | None = None, record: str | None = None, *, times: int | None = None) -> None:
        """Take the whole request, then cut the connection without an answer."""
        self._control("mood", account=account, record=record, kind="drop", times=times)

    def trickle(self, account: str | None = None, record: str | None = None, *, times: int | None = None) -> None:
        """Answer 200 at once, and then send the body a byte a second."""
        self._control("mood", account=account, record=record, kind="trickle", times=times)

    def release(self, account: str | None = None, record: str | None = None) -> None:
        """Let what was stalled under this very account and record go on, and stall no more."""
        self._control("release", account=account, record=record)

    def clear(self) -> None:
        """Forget all moods, and release what is stalled."""
        self._control("clear")

    def of(self, account: str) -> list[Call]:
        """The calls of one account."""
        return [call for call in self.calls if call.account == account]

    def wait_for(self, predicate: Callable[[list[Call]], object], what: str, timeout: float = PATIENCE) -> list[Call]:
        """Wait until `predicate` holds for the calls so far; blocks this thread."""
        until = time.monotonic() + timeout
        while True:
            calls = self.calls
            if predicate(calls):
                return calls
            left = until - time.monotonic()
            if left <= 0:
                listed = "\n".join(map(str, calls[-20:]))
                raise AssertionError(f"not within {timeout} s: {what}. {len(calls)} calls, the last ones:\n{listed}")
            self._wait_for_news(left)

    def _control(self, command: str, **arguments: Any) -> None:
        request = urllib.request.Request(  # noqa: S310 our own server
            f"{self.url}/_control/{command}", data=json.dumps(arguments).encode(), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PATIENCE) as answer:
            answer.read()


class _Server:
    """The server itself; lives in one event loop."""

    def __init__(self, log: Path | None, on_news: Callable[[], None]) -> None:
        self.calls: list[Call] = []
        self.moods: dict[tuple[str | None, str | None], _Mood] = {}
        self._on_news = on_news
        self._log = log.open("a", encoding="utf-8") if log else None
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/_control/{command}", self._on_control)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._on_request)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        self._clear()
        if self._runner:
            await self._runner.cleanup()
        if self._log:
            self._log.close()

    def _clear(self) -> None:
        for mood in self.moods.values():
            mood.released.set()
        self.moods.clear()

    async def _on_control(self, request: web.Request) -> web.Response:
        arguments = await request.json()
        key = (arguments.pop("account", None), arguments.pop("record", None))
        match request.match_info["command"]:
            case "mood" | "release" as command:
                before = self.moods.pop(key, None)
                if before:
                    before.released.set()
                if command == "mood":
                    self.moods[key] = _Mood(**arguments)
            case "clear":
                self._clear()
            case _:
                return web.Response(status=404)
        return web.Response()

    def _mood(self, call: Call) -> _Mood:
        for key in ((call.account, call.record), (call.account, None), (None, None)):
            mood = self.moods.get(key)
            if mood is None:
                continue
            if mood.times is None:
                return mood
            if mood.times > 0:
                mood.times -= 1
                return mood
        return _Mood()

    def _write(self, event: str, call: Call) -> None:
        if self._log:
            self._log.write(json.dumps({"event": event, **call.for_log()}) + "\n")
            self._log.flush()
        self._on_news()

    async def _on_request(self, request: web.Request) -> web.StreamResponse:
        started = monotonic()
        body = await request.read()
        account, record = _parse_path(request.raw_path)
        seq = request.headers.get("Sync-Claim-Seq")
        call = Call(
            number=len(self.calls),
            method=request.method,
            raw_path=request.raw_path,
            account=account,
            record=record,
            key=request.headers.get("Idempotency-Key"),
            claim_seq=int(seq) if seq and seq.isdecimal() else None,
            body_hash=hashlib.sha256(body).hexdigest(),
            authorized="Authorization" in request.headers,
            started=started,
            body=body,
            headers={name.lower(): value for name, value in request.headers.items()},
        )
        self.calls.append(call)
        self._write("started", call)
        try:
            return await self._answer(request, call)
        except asyncio.CancelledError:
            call.aborted = True
            raise
        finally:
            call.ended = monotonic()
            self._write("ended", call)

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        mood = self._mood(call)
        if mood.kind == "stall":
            await mood.released.wait()
        elif mood.kind == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        elif mood.kind == "trickle":
            call.status = 200
            response = web.StreamResponse(headers={"Content-Length": "3600"})
            await response.prepare(request)
            while True:
                await response.write(b" ")
                await asyncio.sleep(1)
        usual = 404 if call.account is None else 204 if call.method == "DELETE" else 200
        call.status = mood.status or usual
        text = mood.body
        if text is None and call.status == 200:
            text = json.dumps({"external_id": f"ext-{call.account}-{call.record}"})
        return web.Response(status=call.status, headers=mood.headers, text=text)


def _parse_path(raw_path: str) -> tuple[str | None, str | None]:
    """Account and record out of `/accounts/{account_id}/records/{record_id}`, whose parts may hold a quoted slash."""
    parts = raw_path.partition("?")[0].split("/")
    if len(parts) != 5 or parts[1] != "accounts" or parts[3] != "records" or not (parts[2] and parts[4]):
        return None, None
    return urllib.parse.unquote(parts[2]), urllib.parse.unquote(parts[4])


@final
class RecordingUpstream(Upstream):
    """The upstream in a thread of this process."""

    def __init__(self, log: Path | None = None) -> None:
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recording-upstream", daemon=True)
        self._server = _Server(log, self._notify)

    def __enter__(self) -> RecordingUpstream:
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(PATIENCE)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    @property
    def calls(self) -> list[Call]:
        return list(self._server.calls)

    def _notify(self) -> None:
        with self._news:
            self._news.notify_all()

    def _wait_for_news(self, seconds: float) -> None:
        with self._news:  # short, since the news may have come between the look and this wait
            self._news.wait(min(seconds, 0.05))


@final
class UpstreamProcess(Upstream):
    """The upstream as a process of its own. Bodies and headers are not told by it: the log has hashes."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "upstream.jsonl"
        self._port_file = folder / "upstream.port"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> UpstreamProcess:
        files = ["--log", str(self.log), "--port-file", str(self._port_file)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sync_assets_tests.recording_upstream", *files, "--until-stdin-ends"],
            stdin=subprocess.PIPE,  # a test run that is killed leaves no server behind
        )
        until = time.monotonic() + PATIENCE
        while not self._port_file.exists():
            assert self._process.poll() is None, "the recording upstream ended before it listened"
            assert time.monotonic() < until, f"the recording upstream did not listen within {PATIENCE} s"
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{self._port_file.read_text()}"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        with self._process:
            self._process.terminate()
            self._process.wait(PATIENCE)

    @property
    def calls(self) -> list[Call]:
        return read_log(self.log)

    def _wait_for_news(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))


async def _serve(log: Path, port_file: Path, until_stdin_ends: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    server = _Server(log, lambda: None)
    url = await server.start()
    half = port_file.with_suffix(".new")
    half.write_text(url.rpartition(":")[2])
    os.replace(half, port_file)  # noqa: PTH105 whoever waits for the file must never read half of it
    await stop.wait()
    await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--until-stdin-ends", action="store_true")
    options = parser.parse_args()
    asyncio.run(_serve(options.log, options.port_file, options.until_stdin_ends))
