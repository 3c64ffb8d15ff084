"""The HTTP client of a run: on time, without memory, and clear about what went wrong."""

from __future__ import annotations

import asyncio
import json as jsonlib
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx

from sync_assets.clock import Deadline, within
from sync_assets.upstream.address import checked_url
from sync_assets.upstream.answers import fault_of
from sync_assets.upstream.errors import AuthFailed, RetryLater, SyncError
from sync_assets.upstream.redaction import one_line, shown_url
from sync_assets.upstream.secrets import SecretResolver
from sync_assets.upstream.wire import WireTransport

log = logging.getLogger(__name__)

# Seconds before each, give or take half: what is gone in a moment must not cost a run. Beneath them aiohttp sends a PUT
# or DELETE once more when its connection was cut, which a pool of connections the server has closed needs.
_QUICK_RETRIES = (0.1, 0.5)


@dataclass(frozen=True)
class UpstreamResponse:
    """An answer that was waited for to its end.

    Attributes:
        status: the HTTP status.
        headers: by lower-case name.
        body: the bytes as they came.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not JSON.
        """
        return jsonlib.loads(self.body)


class UpstreamClient:
    """Sends for all accounts of a run and keeps nothing of one for another. An async context manager.

    No cookies, no redirects, no proxy or credentials from the environment; answers are asked for uncompressed.

    Args:
        secrets: resolves `secret_ref`; the default allows `env:SYNC_SECRET_…` only.
        request_timeout: seconds for one sending, from connecting to the last byte of the answer.
        max_connections: open at once.
    """

    def __init__(
        self,
        *,
        secrets: SecretResolver | None = None,
        request_timeout: float = 30.0,
        max_connections: int = 100,
    ) -> None:
        self._secrets = secrets or SecretResolver()
        self._request_timeout = request_timeout
        self._max_connections = max_connections
        self._transport: WireTransport | None = None

    async def __aenter__(self) -> UpstreamClient:
        self._transport = WireTransport(self._max_connections)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    async def request(
        self,
        method: str,
        url: str,
        *,
        deadline: Deadline,
        secret_ref: str | None = None,
        json: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: Collection[int] = (),
    ) -> UpstreamResponse:
        """Send a request and return its answer; passing faults are tried at most twice more inside the deadline.

        A POST or PATCH without an `Idempotency-Key` is sent once: it may have been done though nobody heard of it.

        Args:
            method: the HTTP method.
            url: an absolute http or https URL, its path already quoted; it goes out as it is.
            deadline: the account's. Nothing is sent after it, and what is under way is aborted.
            secret_ref: the bearer's reference; None: no `Authorization`.
            json: sent as JSON, keys sorted. Not together with `content`.
            content: the body itself.
            headers: for this request.
            accept: statuses besides 2xx that are an answer and no fault.

        Raises:
            SyncError: by what to do about it; see `sync_assets.upstream.errors`.
        """
        address = checked_url(url)
        what = f"{method} {shown_url(url)}"
        sent_headers = httpx.Headers({"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "sync-assets"})
        if json is not None:
            content = jsonlib.dumps(json, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
            sent_headers["Content-Type"] = "application/json"
        sent_headers.update(headers or {})

        async def send() -> UpstreamResponse:
            if secret_ref is not None:
                sent_headers["Authorization"] = f"Bearer {await self._secrets.fetch(secret_ref)}"
            return await self._send(httpx.Request(method, address, headers=sent_headers, content=content))

        keyed = "Idempotency-Key" in sent_headers
        repeatable = keyed or method.upper() not in {"POST", "PATCH"}
        for pause in (*_QUICK_RETRIES, None) if repeatable else (None,):
            try:
                return await self._attempt(send, what, deadline, accept, keyed=keyed)
            except RetryLater as fault:
                wait = 0.0 if pause is None else pause * random.uniform(0.5, 1.5)
                if pause is None or fault.retry_after is not None or deadline.remaining() <= wait:
                    raise
                log.debug("trying again: %s", fault.detail)
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self,
        send: Callable[[], Coroutine[Any, Any, UpstreamResponse]],
        what: str,
        deadline: Deadline,
        accept: Collection[int],
        *,
        keyed: bool,
    ) -> UpstreamResponse:
        """One sending, and what its answer or its failure means."""
        seconds = min(self._request_timeout, deadline.remaining())
        if seconds <= 0:
            raise RetryLater(f"{what} was not sent: the account's time was over")
        try:
            answer = await within(send(), seconds)
        except asyncio.TimeoutError:
            raise RetryLater(f"{what} was not answered to the end within {seconds:.3g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError) as error:
            raise _fault_of_connection(what, error) from None
        fault = fault_of(what, answer.status, answer.headers, answer.body, keyed=keyed)
        if fault is not None and answer.status not in accept:
            raise fault
        return answer

    async def _send(self, request: httpx.Request) -> UpstreamResponse:
        if self._transport is None:
            raise RuntimeError("open the client first: async with UpstreamClient() as client")
        response = await self._transport.handle_async_request(request)
        try:
            # raw: nobody's compressed bytes are blown up here
            body = b"".join([chunk async for chunk in response.aiter_raw()])
        finally:
            await response.aclose()
        return UpstreamResponse(response.status_code, {k.lower(): v for k, v in response.headers.items()}, body)


def _fault_of_connection(what: str, error: BaseException) -> SyncError:
    """What to do when there was no answer at all."""
    link: BaseException | None = error
    while link is not None:
        # A handshake that is refused (certificate, protocol, no TLS there at all) will be refused again; one that is
        # cut off by a peer going down is a lost connection like any other, and aiohttp reports it as such.
        if isinstance(link, aiohttp.ClientSSLError):
            return AuthFailed(f"{what}: no secure connection: {one_line(str(link), 200)}")
        if isinstance(link, aiohttp.InvalidURL | httpx.InvalidURL | httpx.UnsupportedProtocol):
            return AuthFailed(f"{what} cannot be sent: the address is malformed")
        link = link.__cause__
    return RetryLater(f"{what} failed: {one_line(str(error), 200) or type(error).__name__}")
