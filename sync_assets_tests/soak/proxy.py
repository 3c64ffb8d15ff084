"""A TCP proxy to Postgres that cuts connections, swallows all, delivers late, or loses the answer to a commit."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress

_CHUNK = 1 << 16
_PATIENCE = 15.0
_BLACK_HOLE_SECONDS = 3.0
_LATE_SECONDS = (2.5, 5.0)
_WRITTEN = b"UPDATE "
"""The tag of a claim's, a settle's or a hand-back's answer, sent after its commit."""


class SoakProxy:
    """The proxy, in a thread of its own.

    Args:
        socket: the server's Unix socket.
        seed: of which connections are met.
        note: told of each connection that a fault has met, in the proxy's thread.

    Attributes:
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, socket: str, seed: int, note: Callable[[str], object]) -> None:
        self._socket = socket
        self._note = note
        self._random = random.Random(seed)
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="soak-proxy", daemon=True)
        self._losing = 0

    def __enter__(self) -> SoakProxy:
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_PATIENCE)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    def cut(self) -> None:
        """Cut half of the connections."""
        self._loop.call_soon_threadsafe(self._cut)

    def black_hole(self) -> None:
        """Let nothing through any more on half of the connections, and cut them in the end."""
        self._loop.call_soon_threadsafe(self._black_hole)

    def deliver_late(self) -> None:
        """On half of the connections, keep what is sent next until a lease is over; it arrives all the same."""
        self._loop.call_soon_threadsafe(self._deliver_late)

    def lose_reply(self) -> None:
        """Cut the connection on which the next answer to a committed write comes, instead of handing it on."""
        self._loop.call_soon_threadsafe(self._lose_reply)

    def _cut(self) -> None:
        for link in self._some():
            self._note("proxy: cut")
            link.abort()

    def _black_hole(self) -> None:
        for link in self._some():
            self._note("proxy: black hole")
            link.swallowing = True
            self._loop.call_later(_BLACK_HOLE_SECONDS, link.abort)

    def _deliver_late(self) -> None:
        for link in self._some():
            self._note("proxy: delivered late")
            link.late_by = self._random.uniform(*_LATE_SECONDS)

    def _lose_reply(self) -> None:
        self._losing = 1

    def _some(self) -> list[_Link]:
        return [link for link in self._links if self._random.random() < 0.5]

    def loses(self, answer: bytes) -> bool:
        """Whether this answer is the one that was to be lost."""
        if not self._losing or _WRITTEN not in answer:
            return False
        self._losing = 0
        self._note("proxy: reply lost after the commit")
        return True

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _stop(self) -> None:
        self._server.close()
        tasks = {link.task for link in self._links}
        for link in self._links:
            link.abort()
        if tasks:
            await asyncio.wait(tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_unix_connection(self._socket)
        except OSError:  # it is down
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection of a client's, and the one to the server that belongs to it."""

    def __init__(self, proxy: SoakProxy, client: _Stream, server: _Stream) -> None:
        self.swallowing = False
        self.late_by = 0.0
        self._proxy = proxy
        self._client = client
        self._server = server
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def run(self) -> None:
        ways = {
            asyncio.create_task(self._pass_on(self._client[0], self._server[1], answers=False)),
            asyncio.create_task(self._pass_on(self._server[0], self._client[1], answers=True)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abort()
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    def abort(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                if self.swallowing:
                    continue
                if answers and self._proxy.loses(data):
                    return
                if not answers and self.late_by:
                    # whoever sent it may be gone by then: that is the point
                    await asyncio.sleep(self.late_by)
                    self.late_by = 0.0
                target.write(data)
                await target.drain()
