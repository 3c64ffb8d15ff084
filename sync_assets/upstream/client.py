"""The HTTP client of a run: on time, without memory, and clear about what went wrong."""

from __future__ import annotations

import asyncio
import json as jsonlib
import logging
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx

from sync_assets.clock import Deadline, within
from sync_assets.upstream.address import checked_url
from sync_assets.upstream.answers import compressed, fault_of, unreadable
from sync_assets.upstream.errors import AuthFailed, OriginDown, RetryLater, SyncError
from sync_assets.upstream.guard import RefusedAddressError
from sync_assets.upstream.origins import Origin, Origins
from sync_assets.upstream.redaction import one_line, shown_url
from sync_assets.upstream.secrets import SecretResolver
from sync_assets.upstream.wire import WireTransport

log = logging.getLogger(__name__)

# Seconds before each, give or take half: what is gone in a moment must not cost a run. Beneath them aiohttp sends a PUT
# or DELETE once more when its connection was cut, which a pool of connections the server has closed needs.
_QUICK_RETRIES = (0.1, 0.5)

MAX_RESPONSE_BYTES = 1024 * 1024
"""The most of an answer's body that is read, unless set otherwise."""


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


@dataclass(frozen=True)
class _Fault:
    """How one sending failed, and whether that says something of the origin: not of the request or the account."""

    error: SyncError
    of_origin: bool = False


@dataclass(frozen=True)
class _Sending:
    """What is sent, as often as it takes."""

    what: str
    request: httpx.Request
    secret_ref: str | None
    accept: Collection[int]

    @property
    def keyed(self) -> bool:
        return "Idempotency-Key" in self.request.headers

    @property
    def repeatable(self) -> bool:
        return self.keyed or self.request.method.upper() not in {"POST", "PATCH"}


class UpstreamClient:
    """Sends for all accounts of a run and keeps nothing of one for another. An async context manager.

    No cookies, no redirects, no proxy or credentials from the environment; answers are asked for uncompressed.
    Addresses that are not on the internet are refused. An origin that fails five times in a row is left alone.

    Args:
        secrets: resolves `secret_ref`; the default allows `env:SYNC_SECRET_…` only.
        request_timeout: seconds for one sending, from connecting to the last byte of the answer.
        max_connections: open at once.
        connections_per_origin: of these, to one scheme, host and port; None: all of them.
        max_response_bytes: of an answer's body; what has more is given up on, and its connection closed.
        allow_private: whether private, local and reserved addresses may be connected to as well.
    """

    def __init__(
        self,
        *,
        secrets: SecretResolver | None = None,
        request_timeout: float = 30.0,
        max_connections: int = 100,
        connections_per_origin: int | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        allow_private: bool = False,
    ) -> None:
        self._secrets = secrets or SecretResolver()
        self._request_timeout = request_timeout
        self._max_connections = max_connections
        self._max_response_bytes = max_response_bytes
        self._allow_private = allow_private
        self._origins = Origins(min(connections_per_origin or max_connections, max_connections))
        self._transport: WireTransport | None = None

    async def __aenter__(self) -> UpstreamClient:
        self._transport = WireTransport(self._max_connections, allow_private=self._allow_private)
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
        sent_headers = httpx.Headers({"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "sync-assets"})
        if json is not None:
            content = jsonlib.dumps(json, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
            sent_headers["Content-Type"] = "application/json"
        sent_headers.update(headers or {})
        request = httpx.Request(method, address, headers=sent_headers, content=content)
        with self._origins.at(address) as origin:
            return await self._tried(
                _Sending(f"{method} {shown_url(url)}", request, secret_ref, accept), origin, deadline
            )

    async def _tried(self, sending: _Sending, origin: Origin, deadline: Deadline) -> UpstreamResponse:
        earlier: _Fault | None = None
        for pause in (*_QUICK_RETRIES, None) if sending.repeatable else (None,):
            came = await self._attempt(sending, origin, deadline)
            if isinstance(came, UpstreamResponse):
                return came
            if earlier is not None and isinstance(came.error, OriginDown):
                came = earlier  # this request has seen for itself
            error = came.error
            wait = 0.0 if pause is None else pause * random.uniform(0.5, 1.5)
            passes = isinstance(error, RetryLater) and error.retry_after is None
            if pause is None or not passes or deadline.remaining() <= wait:
                if came.of_origin:
                    origin.failed(deadline)
                raise error
            log.debug("trying again: %s", error.detail)
            earlier = came
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, sending: _Sending, origin: Origin, deadline: Deadline) -> UpstreamResponse | _Fault:
        """One sending inside the account's time, waiting for its turn included."""
        seconds = deadline.remaining()
        if seconds <= 0:
            return _Fault(RetryLater(f"{sending.what} was not sent: the account's time was over"))
        try:
            return await within(self._in_turn(sending, origin), seconds)
        except asyncio.TimeoutError:
            return _Fault(_late(sending, seconds))
        except SyncError as error:  # the secret's
            return _Fault(error)

    async def _in_turn(self, sending: _Sending, origin: Origin) -> UpstreamResponse | _Fault:
        seconds = self._request_timeout
        if sending.secret_ref is not None:
            try:
                secret = await within(self._secrets.fetch(sending.secret_ref), seconds)
            except asyncio.TimeoutError:
                return _Fault(
                    RetryLater(f"{sending.what} was not sent: its secret did not come within {seconds:.3g} s")
                )
            sending.request.headers["Authorization"] = f"Bearer {secret}"
        async with origin.turns:
            if origin.down:
                return _Fault(
                    OriginDown(
                        f"{sending.what} was not sent: {origin.name} failed {origin.failures} times in a row and is "
                        "left alone for the rest of this run"
                    )
                )
            try:
                answer = await within(self._send(sending.request), seconds)
            except asyncio.TimeoutError:
                return _Fault(_late(sending, seconds), of_origin=True)
            except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError) as error:
                fault = _fault_of_connection(sending, error)
                return _Fault(fault, of_origin=isinstance(fault, RetryLater))
            return self._judged(sending, answer, origin)

    def _judged(self, sending: _Sending, answer: UpstreamResponse, origin: Origin) -> UpstreamResponse | _Fault:
        """What the answer means."""
        body, most = answer.body, self._max_response_bytes
        excerpt = b"" if compressed(answer.headers) else body
        fault = fault_of(sending.what, answer.status, answer.headers, excerpt, keyed=sending.keyed)
        if answer.status >= 500 and isinstance(fault, RetryLater):
            return _Fault(fault, of_origin=True)
        origin.answered()
        if fault is not None and answer.status not in sending.accept:
            return _Fault(fault)
        if fault is not None:  # what was asked for all the same; nobody needs its page about it
            return answer if excerpt and len(body) <= most else UpstreamResponse(answer.status, answer.headers, b"")
        bad = unreadable(sending.what, answer.status, answer.headers, body, most)
        return _Fault(bad) if bad is not None else answer

    async def _send(self, request: httpx.Request) -> UpstreamResponse:
        if self._transport is None:
            raise RuntimeError("open the client first: async with UpstreamClient() as client")
        response = await self._transport.handle_async_request(request)
        body = bytearray()
        try:
            # raw: nobody's compressed bytes are blown up here
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self._max_response_bytes:
                    break
        finally:
            await response.aclose()  # what was not read to the end is not drained: its connection is closed
        headers = {name.lower(): value for name, value in response.headers.items()}
        return UpstreamResponse(response.status_code, headers, bytes(body[: self._max_response_bytes + 1]))


def _late(sending: _Sending, seconds: float) -> RetryLater:
    return RetryLater(f"{sending.what} was not answered to the end within {seconds:.3g} s")


def _fault_of_connection(sending: _Sending, error: BaseException) -> SyncError:
    """What to do when there was no answer at all."""
    what = sending.what
    link: BaseException | None = error
    while link is not None:
        # A handshake that is refused (certificate, protocol, no TLS there at all) will be refused again; one that is
        # cut off by a peer going down is a lost connection like any other, and aiohttp reports it as such.
        if isinstance(link, aiohttp.ClientSSLError):
            return AuthFailed(f"{what}: no secure connection: {one_line(str(link), 200)}")
        if isinstance(link, aiohttp.InvalidURL | httpx.InvalidURL | httpx.UnsupportedProtocol):
            return AuthFailed(f"{what} cannot be sent: the address is malformed")
        if isinstance(link, RefusedAddressError):  # which address it has is not for whoever wrote the name to learn
            return AuthFailed(
                f"the host {sending.request.url.host} is not on the internet, and nothing was sent to it; set base_url "
                "to a public address, or SYNC_ALLOW_PRIVATE_UPSTREAMS=1 if upstreams may be in a private network"
            )
        if isinstance(link, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
            # its text quotes what came, escaped twice: a secret in it would not be known for one
            return RetryLater(f"{what} failed: its answer cannot be read: {type(link.__cause__ or link).__name__}")
        link = link.__cause__
    return RetryLater(f"{what} failed: {one_line(str(error), 200) or type(error).__name__}")
