"""A TCP proxy between psycopg and Postgres that loses the server's answer after the commit, or cuts everything.

It runs in a thread of its own:

    with FaultyProxy(database_url) as proxy:
        proxy.lose_reply(CLAIM)
        ... use proxy.url ...
        assert proxy.lost == [CLAIM]
"""

from __future__ import annotations

import asyncio
import threading
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


class FaultyProxy:
    """A proxy to one database.

    Args:
        database_url: the database behind it, reached over a Unix socket or TCP.

    Attributes:
        url: the database through the proxy.
        lost: the statements whose answers were lost, in that order.
        last_words: of the server, in place of an answer that is lost.
        silently: whether the connection of an answer that is lost stays open, as when a network drops packets.
    """

    def __init__(self, database_url: str) -> None:
        known = psycopg.conninfo.conninfo_to_dict(database_url)
        self._host, self._port = str(known.get("host", "127.0.0.1")), int(str(known.get("port", 5432)))
        self._known = known
        self.lost: list[bytes] = []
        self.last_words = b""
        self.silently = False
        self._armed: list[bytes] = []
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_PATIENCE)
        user, password = quote(str(self._known.get("user", "")), safe=""), self._known.get("password")
        login = f"{user}:{quote(str(password), safe='')}" if password else user
        # in plain text, or it could not tell one statement from another
        self.url = (
            f"postgresql://{login}@127.0.0.1:{port}/{quote(str(self._known['dbname']), safe='')}"
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
            statements: which.
            last_words: what the server says in place of the answers.
            silently: do not cut it, and never answer on it again.
        """
        self._armed.extend(statements)
        self.last_words = last_words
        self.silently = silently

    def cut(self) -> None:
        """Cut every connection there is."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(_PATIENCE)

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()
        while self._links:
            await asyncio.wait({link.task for link in self._links})

    async def _cut(self) -> None:
        for link in self._links:
            link.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            server = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            server = await asyncio.open_connection(self._host, self._port)
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


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection of the client's, and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultyProxy, client: _Stream, server: _Stream) -> None:
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
                self._losing = self._losing or self._proxy.wanted(sent)
                self._server[1].write(sent)
                await self._server[1].drain()

    async def _downwards(self) -> None:
        with suppress(OSError):
            while answer := await self._server[0].read(_CHUNK):
                if self._losing is None:
                    self._client[1].write(answer)
                    await self._client[1].drain()
                elif answer[-6:-5] == _READY:  # ReadyForQuery is the last message, and is sent after the commit
                    self._proxy.lost.append(self._losing)
                    self._client[1].write(self._proxy.last_words)
                    while self._proxy.silently and await self._server[0].read(_CHUNK):
                        pass
                    return
