"""P5: an upstream that answers without end, or with a bomb, costs its account and little else."""

from __future__ import annotations

import asyncio
import gzip
import re
import tracemalloc

import pytest

from sync_assets.clock import monotonic
from sync_assets.upstream import AuthFailed, Rejected, RetryLater, UpstreamResponse
from sync_assets_tests.recording_upstream import PATIENCE
from sync_assets_tests.security.raw_upstream import RawUpstream, ask

MEBIBYTE = 1024 * 1024
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@pytest.mark.parametrize("length", [b"Content-Length: 10000000000", b"Transfer-Encoding: chunked"])
def test_a_body_without_end_is_read_to_the_cap_and_cut_off(length: bytes) -> None:
    async def endless(upstream: RawUpstream, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n")
        await upstream.endless(writer, CHUNK)

    tracemalloc.start()
    try:
        came, upstream = ask(endless, waits_for_cut=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(came, Rejected)
    assert "answered 200 with more than 1048576 bytes" in came.detail
    assert "raise max_response_bytes" in came.detail
    # what the system's own buffers take comes on top; the rest of the 10 GB was never sent
    assert MEBIBYTE <= upstream.sent < 24 * MEBIBYTE
    assert most < 16 * MEBIBYTE


def test_the_cap_is_a_setting_and_exact() -> None:
    async def ten(_: RawUpstream, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789")
        await writer.drain()

    whole, _ = ask(ten, max_response_bytes=10)
    assert isinstance(whole, UpstreamResponse)
    assert whole.body == b"0123456789"
    cut, _ = ask(ten, max_response_bytes=9)
    assert isinstance(cut, Rejected)


@pytest.mark.parametrize(("status", "kind"), [(500, RetryLater), (422, Rejected), (403, AuthFailed)])
def test_a_refusal_means_the_same_however_long_its_page_is(status: int, kind: type[Exception]) -> None:
    async def endless(upstream: RawUpstream, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d Odd\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        await upstream.endless(writer, CHUNK)

    came, _ = ask(endless, waits_for_cut=True, max_response_bytes=100_000)
    assert isinstance(came, kind)
    assert f"answered {status}" in str(came)
    assert len(str(came)) < 500


def test_a_compressed_bomb_stays_as_small_as_it_came() -> None:
    bomb = gzip.compress(b"\0" * (200 * MEBIBYTE), 9)
    assert len(bomb) < MEBIBYTE

    async def compressed(_: RawUpstream, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
        await writer.drain()

    tracemalloc.start()
    try:
        came, _ = ask(compressed)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(came, AuthFailed)
    assert "answered 200 compressed (gzip)" in came.detail
    assert most < 16 * MEBIBYTE


@pytest.mark.parametrize(
    ("start", "block"),
    [
        (b"HTTP/1.1 200 ", b"O" * 4096),  # a status line
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\n", b"X-Many: x\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"Set-Cookie: " + b"c" * 4000 + b"\r\n"),
    ],
)
def test_a_header_bomb_is_cut_off(start: bytes, block: bytes) -> None:
    async def endless(upstream: RawUpstream, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        await upstream.endless(writer, block)

    began = monotonic()
    came, upstream = ask(endless, waits_for_cut=True)
    assert isinstance(came, RetryLater)
    assert "not answered to the end" not in came.detail, "it was the limit that ended it, not the time"
    assert monotonic() - began < PATIENCE
    assert upstream.sent < 24 * MEBIBYTE
    assert len(came.detail) < 500


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_a_byte_a_second_before_the_body_ends_with_the_time(start: bytes) -> None:
    """The body itself: test_upstream_client."""

    async def slow(_: RawUpstream, writer: asyncio.StreamWriter) -> None:
        for byte in start + b"HTTP/1.1 200 OK" * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            if byte in b"\n ":
                await asyncio.sleep(0.2)

    began = monotonic()
    came, _ = ask(slow, seconds=0.7)
    assert isinstance(came, RetryLater)
    assert re.search(r"was not answered to the end within 0\.[67]", came.detail)
    assert monotonic() - began < PATIENCE / 2


@pytest.mark.parametrize(
    "answer",
    [
        b"canary",
        b"HTTP/1.1 canary OK\r\n\r\n",
        b"HTTP/9.9 200 canary\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncanary\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: canary\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: canary\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"canary" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: canary\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncanary",
    ],
)
def test_p11_an_answer_that_cannot_be_read_is_not_quoted(answer: bytes) -> None:
    """Aiohttp quotes it escaped twice, so that a secret an upstream repeats would not be known for one."""

    async def write(_: RawUpstream, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    came, _ = ask(write)
    assert isinstance(came, RetryLater | UpstreamResponse)
    assert "canary" not in str(came) or isinstance(came, UpstreamResponse)
