"""A TCP proxy between psycopg and Postgres that loses answers after the commit, cuts, swallows all, or delivers late.

It runs in a thread of its own:

    with FaultyProxy(database_url) as proxy:
        proxy.lose_reply(CLAIM)
        ... use proxy.url ...
        assert proxy.lost == [CLAIM]
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

import psycopg

CLAIM = b"-- The claim: "
SETTLE = b"-- Write back what became of claimed accounts."
HAND_BACK = b"-- Put claimed accounts back without a result"
ACKNOWLEDGE = b"-- Write back what became of records"
"""How the statements begin, as they pass by."""

_FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
SHUTTING_DOWN = b"E" + (len(_FIELDS) + 4).to_bytes(4, "big") + _FIELDS
"""The message with which a server ends a session, wherever that session is: also between a commit and its answer."""

_PATIENCE = 15.0
_CHUNK = 1 << 16
_READY = b"Z"
_WRITTEN = b"UPDATE "
"""The tag of a claim's, a settle's or a hand-back's answer."""
_BLACK_HOLE_SECONDS = 3.0
_LATE_SECONDS = (2.5, 5.0)


class FaultyProxy:
    """A proxy to one database.

    Args:
        database_url: the database behind it, reached over a Unix socket or TCP.
        seed: of which connections are met, where a fault meets a share of them.
        note: told of each connection that a fault has met, in the proxy's thread.

    Attributes:
        port: where it listens on 127.0.0.1.
        url: the database through the proxy.
        lost: the statements whose answers were lost, in that order.
        last_words: of the server, in place of an answer that is lost.
        silently: whether the connection of an answer that is lost stays open, as when a network drops packets.
    """

    def __init__(self, database_url: str, *, seed: int = 0, note: Callable[[str], object] = lambda _: None) -> None:
        known = psycopg.conninfo.conninfo_to_dict(database_url)
        self._host, self._port = str(known.get("host", "127.0.0.1")), int(str(known.get("port", 5432)))
        self._known = known
        self._random = random.Random(seed)
        self.note = note
        self.lost: list[bytes] = []
        self.last_words = b""
        self.silently = False
        self._armed: list[bytes] = []
        self._any_write = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_PATIENCE)
        user, password = quote(str(self._known.get("user", "")), safe=""), self._known.get("password")
        login = f"{user}:{quote(str(password), safe='')}" if password else user
        # in plain text, or it could not tell one statement from another
        self.url = (
            f"postgresql://{login}@127.0.0.1:{self.port}/{quote(str(self._known['dbname']), safe='')}"
            "?sslmode=disable&gssencmode=disable"
        )
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    def lose_reply(self, *statements: bytes, last_words: bytes = b"", silently: bool = False) -> None:
        """Once for each: let the statement be done and committed, then cut its connection instead of answering.

        Args:
            statements: which. They are known by their text, which is sent only until they are prepared.
            last_words: what the server says in place of the answers.
            silently: do not cut it, and let nothing through on it any more.
        """
        self._armed.extend(statements)
        self.last_words = last_words
        self.silently = silently

    def lose_reply_to_next_write(self) -> None:
        """Once: the same for whichever claim, settle or hand-back is answered next."""
        self._any_write = True

    def cut(self, share: float = 1.0) -> None:
        """Cut this share of the connections."""
        self._meet(share, "cut", _Link.abort)

    def black_hole(self, share: float = 1.0) -> None:
        """Let nothing through any more on this share of the connections, and cut them in the end."""

        def swallow(link: _Link) -> None:
            link.swallowing = True
            self._loop.call_later(_BLACK_HOLE_SECONDS, link.abort)

        self._meet(share, "black hole", swallow)

    def deliver_late(self, share: float = 1.0) -> None:
        """On this share of the connections, keep what is sent next until a lease is over; it arrives all the same."""

        def delay(link: _Link) -> None:
            link.late_by = self._random.uniform(*_LATE_SECONDS)

        self._meet(share, "delivered late", delay)

    def _meet(self, share: float, kind: str, fault: Callable[[_Link], None]) -> None:
        async def meet() -> None:
            for link in [link for link in self._links if self._random.random() < share]:
                self.note(f"proxy: {kind}")
                fault(link)

        asyncio.run_coroutine_threadsafe(meet(), self._loop).result(_PATIENCE)

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _stop(self) -> None:
        self._server.close()
        for link in self._links:
            link.abort()
        while self._links:
            await asyncio.wait({link.task for link in self._links})

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._host.startswith("/"):
                server = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
            else:
                server = await asyncio.open_connection(self._host, self._port)
        except OSError:  # it is down
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def wanted(self, sent: bytes) -> bytes | None:
        """Which of the armed statements the client is sending; it is armed no more."""
        for statement in self._armed:
            if statement in sent:
                self._armed.remove(statement)
                return statement
        return None

    def wanted_write(self, answer: bytes) -> bytes | None:
        """Whether this begins the answer that is to be lost, whichever write it belongs to; no other is any more."""
        if not self._any_write or _WRITTEN not in answer:
            return None
        self._any_write = False
        return _WRITTEN


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection of the client's, and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultyProxy, client: _Stream, server: _Stream) -> None:
        self.swallowing = False
        self.late_by = 0.0
        self._proxy = proxy
        self._client = client
        self._server = server
        self._losing: bytes | None = None
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def run(self) -> None:
        ways = {asyncio.create_task(self._upwards()), asyncio.create_task(self._downwards())}
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

    async def _upwards(self) -> None:
        with suppress(OSError):
            while sent := await self._client[0].read(_CHUNK):
                if self.swallowing:
                    continue
                self._losing = self._losing or self._proxy.wanted(sent)
                if self.late_by:
                    # whoever sent it may be gone by then: that is the point
                    await asyncio.sleep(self.late_by)
                    self.late_by = 0.0
                self._server[1].write(sent)
                await self._server[1].drain()

    async def _downwards(self) -> None:
        with suppress(OSError):
            while answer := await self._server[0].read(_CHUNK):
                if self.swallowing:
                    continue
                self._losing = self._losing or self._proxy.wanted_write(answer)
                if self._losing is None:
                    self._client[1].write(answer)
                    await self._client[1].drain()
                elif answer[-6:-5] == _READY:  # ReadyForQuery is the last message, and is sent after the commit
                    self._proxy.lost.append(self._losing)
                    self._proxy.note("proxy: reply lost after the commit")
                    self._client[1].write(self._proxy.last_words)
                    if not self._proxy.silently:
                        return
                    self.swallowing = True
