"""The connection pool, and requests that go out exactly as they were written."""

from __future__ import annotations

from typing import Any, cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from yarl import URL

from sync_assets.upstream.guard import PublicResolver, public_socket

_LONGEST_LINE = 8190  # bytes, of a status line or a header of an answer
_MOST_HEADERS = 128


class _Verbatim:
    """An aiohttp session to which URLs are final.

    Given as text, aiohttp tidies them first: `%2E%2E` becomes `..` and takes the part before it away, so that a
    record named `..` would be written to another resource.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def request(self, *, url: str, **options: Any) -> Any:
        return self._session.request(url=URL(url, encoded=True), **options)


class WireTransport(AiohttpTransport):
    """The httpx transport over one aiohttp session of ours: no cookies, no proxy or netrc from the environment.

    Used without httpx's own client, which would keep cookies and log the full address of every request. Make it in
    the event loop that uses it.

    Args:
        max_connections: open at once.
        allow_private: whether addresses that are not on the internet may be connected to.
    """

    def __init__(self, max_connections: int, *, allow_private: bool) -> None:
        tls = httpx.create_ssl_context()
        super().__init__(verify=tls, trust_env=False)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=max_connections,
                ssl=tls,
                resolver=None if allow_private else PublicResolver(),
                socket_factory=None if allow_private else public_socket,
            ),
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            max_headers=_MOST_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )

    def get_client(self) -> aiohttp.ClientSession:
        """What requests are made with; asked again for each, since it is no `ClientSession` by class."""
        return cast("aiohttp.ClientSession", _Verbatim(self._session))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()
