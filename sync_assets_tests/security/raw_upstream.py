"""A client in an event loop with a server that writes bytes of its own making."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from sync_assets.clock import Deadline
from sync_assets.upstream import SyncError, UpstreamClient, UpstreamResponse
from sync_assets_tests.recording_upstream import PATIENCE

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


class RawUpstream:
    """Answers every request with what `write` writes.

    Attributes:
        sent: bytes that were taken off its hands.
        requests: how many came.
        cut: whether the client closed the connection while it was writing.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.sent = 0
        self.requests = 0
        self.cut = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # small buffers, so that what the client leaves unread is soon felt here
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        writer.transport.set_write_buffer_limits(high=65536)
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            await self._write(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.cut.set()
        finally:
            writer.close()

    async def endless(self, writer: asyncio.StreamWriter, block: bytes) -> None:
        """Write without end, or until the client is gone."""
        while True:
            writer.write(block)
            await writer.drain()
            self.sent += len(block)


def ask(
    make: Callable[[RawUpstream, asyncio.StreamWriter], Awaitable[None]],
    *,
    seconds: float = PATIENCE,
    waits_for_cut: bool = False,
    **options: Any,
) -> tuple[UpstreamResponse | SyncError, RawUpstream]:
    """One POST, which is never tried again, to such a server; and what it came to.

    Args:
        make: writes the answer.
        seconds: the account's time.
        waits_for_cut: the server must see the connection close while the client is still open.
        options: of the client.
    """

    async def run() -> tuple[UpstreamResponse | SyncError, RawUpstream]:
        upstream = RawUpstream(lambda writer: make(upstream, writer))
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        async with server, UpstreamClient(allow_private=True, **options) as client:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
            came: UpstreamResponse | SyncError
            try:
                came = await client.request("POST", url, deadline=Deadline.after(seconds), json={})
            except SyncError as error:
                came = error
            if waits_for_cut:
                await asyncio.wait_for(upstream.cut.wait(), PATIENCE)
        return came, upstream

    return asyncio.run(run())
