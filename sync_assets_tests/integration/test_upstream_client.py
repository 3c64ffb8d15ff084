"""The client against a real server: what reaches the wire, on time, and nothing of one account with another."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import TypeVar

import pytest

from sync_assets.clock import Deadline, monotonic
from sync_assets.upstream import (
    AuthFailed,
    RateLimited,
    Rejected,
    RetryLater,
    SecretResolver,
    SyncError,
    UpstreamClient,
    UpstreamResponse,
)
from sync_assets_tests.recording_upstream import PATIENCE, RecordingUpstream

T = TypeVar("T")


def with_client(work: Callable[[UpstreamClient], Awaitable[T]], request_timeout: float = PATIENCE) -> T:
    async def run() -> T:
        async with UpstreamClient(request_timeout=request_timeout, allow_private=True) as client:
            return await work(client)

    return asyncio.run(run())


def send(
    url: str, *, method: str = "PUT", seconds: float = PATIENCE, request_timeout: float = PATIENCE, **options: object
) -> UpstreamResponse:
    async def work(client: UpstreamClient) -> UpstreamResponse:
        return await client.request(method, url, deadline=Deadline.after(seconds), **options)  # type: ignore[arg-type]

    return with_client(work, request_timeout)


def fault(url: str, **options: object) -> SyncError:
    with pytest.raises(SyncError) as caught:
        send(url, **options)  # type: ignore[arg-type]
    return caught.value


def test_a_request_as_it_reaches_the_wire(upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex()
    monkeypatch.setenv("SYNC_SECRET_A", secret)
    upstream.answer(201, headers={"X-One": "1"}, body='{"id": 5}')
    answer = send(
        f"{upstream.url}/accounts/a/records/r",
        json={"b": 1, "a": "é"},
        secret_ref="env:SYNC_SECRET_A",
        headers={"Idempotency-Key": "k", "Sync-Claim-Seq": "7"},
    )
    assert (answer.status, answer.json(), answer.headers["x-one"]) == (201, {"id": 5}, "1")
    [call] = upstream.calls
    assert (call.method, call.key, call.claim_seq, call.authorization) == ("PUT", "k", 7, f"Bearer {secret}")
    assert call.body == '{"a":"é","b":1}'.encode()
    assert call.headers["accept-encoding"] == "identity"
    assert call.headers["content-type"] == "application/json"


def test_without_a_reference_there_is_no_authorization(upstream: RecordingUpstream) -> None:
    send(f"{upstream.url}/accounts/a/records/r", method="DELETE")
    [call] = upstream.calls
    assert not call.authorized
    assert call.body == b""
    assert "content-type" not in call.headers


@pytest.mark.parametrize(
    "path", ["%2E%2E", "%2E", "a%2Fb", "a%252Fb", "a%20b", "%F0%9F%98%80", "%3Fx%23y", "%2B+~", "a%40b%3A"]
)
def test_a_path_goes_out_as_it_was_written(upstream: RecordingUpstream, path: str) -> None:
    send(f"{upstream.url}/accounts/{path}/records/{path}")
    assert upstream.calls[0].raw_path == f"/accounts/{path}/records/{path}"


def test_p11_no_cookie_and_no_credential_travels_on(
    upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "AB":
        monkeypatch.setenv(f"SYNC_SECRET_{name}", f"{name}-{secrets.token_hex()}")
    upstream.answer(200, headers={"Set-Cookie": "session=of-a; Path=/"})

    async def work(client: UpstreamClient) -> None:
        for account, ref in (("a", "env:SYNC_SECRET_A"), ("b", "env:SYNC_SECRET_B"), ("a", None)):
            url = f"{upstream.url}/accounts/{account}/records/r"
            await client.request("PUT", url, deadline=Deadline.after(PATIENCE), secret_ref=ref, json={})

    with_client(work)
    assert [call.headers.get("cookie") for call in upstream.calls] == [None, None, None]
    bearers = [call.authorization for call in upstream.calls]
    assert bearers[0] is not None
    assert bearers[0].startswith("Bearer A-")
    assert bearers[1] is not None
    assert bearers[1].startswith("Bearer B-")
    assert bearers[2] is None


def test_no_proxy_and_no_netrc_of_the_environment(
    upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password pw\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    send(f"{upstream.url}/accounts/a/records/r")
    assert not upstream.calls[0].authorized


def test_p11_nothing_is_logged_of_a_request(upstream: RecordingUpstream, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        send(f"{upstream.url}/accounts/a/records/r?token=hidden")
    assert caplog.records == []


def test_errors_name_the_request_without_query_and_secret(
    upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secrets.token_hex()
    monkeypatch.setenv("SYNC_SECRET_A", secret)
    url = f"{upstream.url}/accounts/a/records/r"
    upstream.answer(422, body=f"you sent Bearer {secret} and {secret}")
    rejected = fault(f"{url}?token=hidden", secret_ref="env:SYNC_SECRET_A")
    assert isinstance(rejected, Rejected)
    assert rejected.detail == f"PUT {url} answered 422: you sent Bearer *** and ***"


def test_a_redirect_is_not_followed(upstream: RecordingUpstream) -> None:
    upstream.answer(307, "a", headers={"Location": f"{upstream.url}/accounts/b/records/r"})
    assert isinstance(fault(f"{upstream.url}/accounts/a/records/r"), Rejected)
    assert [call.account for call in upstream.calls] == ["a"]


def test_an_accepted_status_is_an_answer(upstream: RecordingUpstream) -> None:
    upstream.answer(404)
    assert send(f"{upstream.url}/accounts/a/records/r", method="DELETE", accept={404}).status == 404


def test_p8_passing_faults_are_tried_at_most_twice_more(upstream: RecordingUpstream) -> None:
    url = f"{upstream.url}/accounts/a/records/r"
    upstream.answer(500, times=2)
    assert send(url, headers={"Idempotency-Key": "k"}, json={"a": 1}).status == 200
    assert len({(call.key, call.body) for call in upstream.calls}) == 1
    assert len(upstream.calls) == 3
    upstream.answer(500)
    assert isinstance(fault(url), RetryLater)
    assert len(upstream.calls) == 6


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_p8_what_may_have_been_done_is_repeated_only_with_a_key(upstream: RecordingUpstream, method: str) -> None:
    upstream.drop()
    url = f"{upstream.url}/accounts/a/records/r"
    assert isinstance(fault(url, method=method), RetryLater)
    assert len(upstream.calls) == 1
    assert isinstance(fault(url, method=method, headers={"Idempotency-Key": "k"}), RetryLater)
    assert len(upstream.calls) == 1 + 3


def test_a_dropped_connection_is_a_passing_fault(upstream: RecordingUpstream) -> None:
    upstream.drop(times=1)
    assert send(f"{upstream.url}/accounts/a/records/r").status == 200
    upstream.drop()
    assert isinstance(fault(f"{upstream.url}/accounts/a/records/r"), RetryLater)


def test_nobody_there_is_a_passing_fault() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else can be given the port
        taken.bind(("127.0.0.1", 0))
        refused = fault(f"http://127.0.0.1:{taken.getsockname()[1]}/x?token=hidden")
    assert isinstance(refused, RetryLater)
    assert "hidden" not in refused.detail


def test_a_server_that_does_not_speak_http_is_a_passing_fault() -> None:
    async def run() -> SyncError:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"SSH-2.0-OpenSSH\r\n")
            await writer.drain()
            writer.close()

        async with (
            await asyncio.start_server(nonsense, "127.0.0.1", 0) as server,
            UpstreamClient(allow_private=True) as client,
        ):
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            with pytest.raises(SyncError) as caught:
                await client.request("GET", url, deadline=Deadline.after(PATIENCE))
        return caught.value

    assert isinstance(asyncio.run(run()), RetryLater)


def test_p9_a_rate_limit_is_not_tried_again_and_its_time_is_kept(upstream: RecordingUpstream) -> None:
    url = f"{upstream.url}/accounts/a/records/r"
    upstream.answer(429, headers={"Retry-After": "7"})
    limited = fault(url)
    assert isinstance(limited, RateLimited)
    assert limited.retry_after == timedelta(seconds=7)
    assert len(upstream.calls) == 1
    date = "Sun, 06 Nov 2033 08:49:37 GMT"  # the server's clock is what counts, however wrong it is
    later = format_datetime(parsedate_to_datetime(date) + timedelta(minutes=2), usegmt=True)
    upstream.answer(503, headers={"Date": date, "Retry-After": later})
    unavailable = fault(url)
    assert isinstance(unavailable, RateLimited)
    assert unavailable.retry_after == timedelta(minutes=2)
    assert len(upstream.calls) == 2


def test_p9_a_passing_fault_that_names_a_time_is_not_tried_before_it(upstream: RecordingUpstream) -> None:
    upstream.answer(500, headers={"Retry-After": "1"})
    assert fault(f"{upstream.url}/accounts/a/records/r").retry_after == timedelta(seconds=1)
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("mood", ["stall", "trickle"])
def test_the_whole_request_has_one_deadline(upstream: RecordingUpstream, mood: str) -> None:
    """A byte a second would keep a timeout for each chunk content for ever."""
    getattr(upstream, mood)()
    started = monotonic()
    late = fault(f"{upstream.url}/accounts/a/records/r", seconds=1.2)
    assert isinstance(late, RetryLater)
    assert re.search(r"not answered to the end within 1\.[12]\d* s$", late.detail)
    assert monotonic() - started < PATIENCE / 2
    [call] = upstream.wait_for(lambda calls: calls[0].ended, "the server saw the connection close")
    assert call.aborted


def test_the_request_timeout_ends_a_sending(upstream: RecordingUpstream) -> None:
    upstream.stall(times=1)
    assert send(f"{upstream.url}/accounts/a/records/r", request_timeout=0.3).status == 200
    upstream.wait_for(lambda calls: calls[0].aborted, "the first sending was aborted")


def test_past_the_deadline_nothing_is_sent(upstream: RecordingUpstream) -> None:
    late = fault(f"{upstream.url}/accounts/a/records/r", seconds=0)
    assert isinstance(late, RetryLater)
    assert "was not sent" in late.detail
    assert upstream.calls == []


@pytest.mark.parametrize("mood", ["stall", "trickle"])
def test_cancelling_really_aborts_the_call(upstream: RecordingUpstream, mood: str) -> None:
    getattr(upstream, mood)()

    async def work(client: UpstreamClient) -> None:
        url = f"{upstream.url}/accounts/a/records/r"
        task = asyncio.ensure_future(client.request("PUT", url, deadline=Deadline.after(60)))
        await asyncio.to_thread(upstream.wait_for, lambda calls: len(calls) == 1, "the request arrived")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # while the client is still open: it is this call that is closed, not the pool
        closed = await asyncio.to_thread(upstream.wait_for, lambda calls: calls[0].ended, "the connection closed")
        assert closed[0].aborted
        upstream.clear()
        await client.request("PUT", url, deadline=Deadline.after(PATIENCE))

    with_client(work)
    assert [call.status for call in upstream.calls][-1] == 200


def test_cancelling_many_leaves_the_pool_usable(upstream: RecordingUpstream) -> None:
    upstream.stall("slow")

    async def run() -> None:
        async with UpstreamClient(max_connections=5, allow_private=True) as client:
            deadline = Deadline.after(PATIENCE)
            slow = [
                asyncio.ensure_future(
                    client.request("PUT", f"{upstream.url}/accounts/slow/records/{n}", deadline=deadline)
                )
                for n in range(20)
            ]
            await asyncio.to_thread(upstream.wait_for, lambda calls: len(calls) == 5, "the pool is full")
            for task in slow:
                task.cancel()
            await asyncio.wait(slow)
            answers = await asyncio.gather(
                *(
                    client.request("PUT", f"{upstream.url}/accounts/quick/records/{n}", deadline=deadline)
                    for n in range(20)
                )
            )
            assert [answer.status for answer in answers] == [200] * 20

    asyncio.run(run())
    assert len(upstream.of("slow")) == 5, "what waited for a connection was never sent"


def test_no_secure_connection_is_for_the_owner_to_mend(upstream: RecordingUpstream) -> None:
    refused = fault(upstream.url.replace("http:", "https:") + "/accounts/a/records/r")
    assert isinstance(refused, AuthFailed)
    assert "no secure connection" in refused.detail


def test_p12_a_bad_address_or_secret_sends_nothing(upstream: RecordingUpstream) -> None:
    for url in ("ftp://h/x", "nonsense", "http://me:pa55@h/"):
        bad = fault(url)
        assert isinstance(bad, AuthFailed)
        assert "pa55" not in bad.detail
    missing = fault(f"{upstream.url}/accounts/a/records/r", secret_ref="env:SYNC_SECRET_NOT_THERE")
    assert isinstance(missing, AuthFailed)
    assert "SYNC_SECRET_NOT_THERE" in missing.detail
    assert upstream.calls == []


def test_a_users_resolver_that_hangs_is_bounded(upstream: RecordingUpstream) -> None:
    release = threading.Event()

    def hang(_: str) -> str:
        release.wait(PATIENCE)
        return "late"

    async def run() -> SyncError:
        async with UpstreamClient(secrets=SecretResolver(custom=hang), allow_private=True) as client:
            with pytest.raises(SyncError) as caught:
                await client.request("PUT", upstream.url, deadline=Deadline.after(0.2), secret_ref="vault:a")
        release.set()
        return caught.value

    assert isinstance(asyncio.run(run()), RetryLater)
    assert upstream.calls == []


def test_a_compressed_answer_is_refused_as_it_came(upstream: RecordingUpstream) -> None:
    """Small bytes can stand for very many; what has none, or only says no, is what it is."""
    url = f"{upstream.url}/accounts/a/records/r"
    upstream.answer(200, headers={"Content-Encoding": "identity, GZip"}, body="not gzip at all")
    bad = fault(url)
    assert isinstance(bad, AuthFailed)
    assert bad.detail == (
        f"PUT {url} answered 200 compressed (identity, GZip), though it was asked not to; set base_url to where "
        "answers come uncompressed"
    )
    assert len(upstream.calls) == 1
    upstream.answer(422, headers={"Content-Encoding": "gzip"}, body="not gzip at all")
    assert fault(url).detail == f"PUT {url} answered 422"
    assert send(url, accept={422}).body == b""
    upstream.answer(200, headers={"Content-Encoding": "gzip"}, body="")
    assert send(url).body == b""
    upstream.answer(200, headers={"Content-Encoding": "identity"}, body="plain")
    assert send(url).body == b"plain"


def test_a_handshake_that_is_cut_off_is_a_passing_fault() -> None:
    async def run() -> SyncError:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        async with (
            await asyncio.start_server(hang_up, "127.0.0.1", 0) as server,
            UpstreamClient(allow_private=True) as client,
        ):
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            with pytest.raises(SyncError) as caught:
                await client.request("GET", url, deadline=Deadline.after(PATIENCE))
        return caught.value

    assert isinstance(asyncio.run(run()), RetryLater)
