"""The demo's upstream: who may come in, what is applied once, its moods, and that it never outlives who started it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import pytest

from sync_assets.clock import Deadline
from sync_assets.local import demo_upstream
from sync_assets.local.demo_upstream import DemoUpstream, Mood
from sync_assets.upstream import AuthFailed, RateLimited, Rejected, RetryLater, SyncError, UpstreamClient

WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def upstream() -> Iterator[DemoUpstream]:
    with DemoUpstream() as running:
        yield running


@pytest.fixture
def secrets(upstream: DemoUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in upstream.environment.items():
        monkeypatch.setenv(name, value)


def put(
    upstream: DemoUpstream, account: str, record: str = "contact-1", *, key: str, email: str = "ada@acme.example"
) -> httpx.Response:
    return httpx.put(
        f"{upstream.url}/accounts/{account}/records/{record}",
        json={"id": record, "version": 1, "data": {"email": email}},
        headers={"Authorization": f"Bearer {upstream.environment['SYNC_SECRET_DEMO']}", "Idempotency-Key": key},
        timeout=WAIT_SECONDS,
        trust_env=False,
    )


def delete(upstream: DemoUpstream, account: str, *, key: str) -> int:
    headers = {"Authorization": f"Bearer {upstream.environment['SYNC_SECRET_DEMO']}", "Idempotency-Key": key}
    url = f"{upstream.url}/accounts/{account}/records/contact-1"
    return httpx.delete(url, headers=headers, timeout=WAIT_SECONDS, trust_env=False).status_code


def counts(upstream: DemoUpstream) -> dict[str, int]:
    answer: dict[str, int] = httpx.get(upstream.url, timeout=WAIT_SECONDS, trust_env=False).json()
    return answer


def test_a_record_is_made_changed_and_deleted(upstream: DemoUpstream) -> None:
    before = counts(upstream)
    assert put(upstream, "one two%2F3", key="a1").status_code == 201
    assert put(upstream, "one two%2F3", key="a2").status_code == 200
    assert counts(upstream)["records"] == before["records"] + 1
    assert delete(upstream, "one two%2F3", key="a3") == 200
    assert delete(upstream, "one two%2F3", key="a4") == 404
    assert counts(upstream)["records"] == before["records"]


def test_p8_the_same_key_gives_the_same_answer_and_applies_once_also_at_once(upstream: DemoUpstream) -> None:
    before = counts(upstream)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: put(upstream, "birch-005", key="same"), range(8)))
    assert {(answer.status_code, answer.text) for answer in answers} == {(201, '{"id": "birch-005/contact-1"}')}
    after = counts(upstream)
    assert after["applied"] == before.get("applied", 0) + 1
    assert after["replayed"] == before.get("replayed", 0) + 7


def test_p8_a_key_used_for_another_request_is_refused(upstream: DemoUpstream) -> None:
    put(upstream, "cedar-010", key="once")
    assert put(upstream, "cedar-010", key="once", email="bao@cedar.example").status_code == 422
    assert put(upstream, "cedar-010", "contact-2", key="once").status_code == 422
    assert put(upstream, "cedar-010", key="").status_code == 400


def test_without_the_right_token_nobody_comes_in(upstream: DemoUpstream) -> None:
    before = counts(upstream).get("applied", 0)
    url = f"{upstream.url}/accounts/acme-001/records/contact-1"
    expired = upstream.environment["SYNC_SECRET_DEMO_EXPIRED"]
    for given in (b"", f"Bearer {expired}".encode(), b"Bearer \xe4"):
        headers = {b"Authorization": given}
        assert httpx.put(url, json={}, headers=headers, timeout=WAIT_SECONDS, trust_env=False).status_code == 401
    assert counts(upstream).get("applied", 0) == before


def test_a_body_that_is_not_a_record_is_refused(upstream: DemoUpstream) -> None:
    token = upstream.environment["SYNC_SECRET_DEMO"]
    url = f"{upstream.url}/accounts/acme-001/records/contact-1"
    for n, body in enumerate((b"", b"[]", b"{}", b'{"data": 1}', b"\xff")):
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"no-record-{n}"}
        answer = httpx.put(url, content=body, headers=headers, timeout=WAIT_SECONDS, trust_env=False)
        assert answer.status_code == 400


def account(mood: Mood) -> str:
    [account_id] = [account_id for account_id, its in demo_upstream.MOODS.items() if its is mood]
    return account_id


@pytest.mark.parametrize(
    ("account_id", "secret", "email", "fault"),
    [
        (account(Mood.DOWN), "SYNC_SECRET_DEMO", "ada@acme.example", RetryLater),
        (account(Mood.DROPS), "SYNC_SECRET_DEMO", "ada@acme.example", RetryLater),
        (account(Mood.LIMITED), "SYNC_SECRET_DEMO", "ada@acme.example", RateLimited),
        ("acme-001", "SYNC_SECRET_DEMO", "ada at acme.example", Rejected),
        ("acme-001", "SYNC_SECRET_DEMO_EXPIRED", "ada@acme.example", AuthFailed),
        ("acme-001", "SYNC_SECRET_MISSING", "ada@acme.example", AuthFailed),
    ],
)
@pytest.mark.usefixtures("secrets")
def test_each_mood_is_a_fault_of_its_kind_to_our_client(
    upstream: DemoUpstream, account_id: str, secret: str, email: str, fault: type[SyncError]
) -> None:
    async def send() -> None:
        async with UpstreamClient(allow_private=True) as client:
            await client.request(
                "PUT",
                f"{upstream.url}/accounts/{account_id}/records/contact-1",
                deadline=Deadline.after(WAIT_SECONDS),
                secret_ref=f"env:{secret}",
                json={"data": {"email": email}},
                headers={"Idempotency-Key": f"{account_id} {secret} {email}"},
            )

    with pytest.raises(fault) as caught:
        asyncio.run(send())
    wait = timedelta(seconds=demo_upstream.RETRY_AFTER_SECONDS)
    assert caught.value.retry_after == (wait if fault is RateLimited else None)


def test_a_slow_account_is_answered_all_the_same(upstream: DemoUpstream) -> None:
    assert put(upstream, account(Mood.SLOW), key="slow").status_code == 201


def connection_to(url: str) -> socket.socket:
    """An idle connection: the kernel closes it when the server's process is gone."""
    where = urlsplit(url)
    assert where.hostname is not None
    return socket.create_connection((where.hostname, where.port or 80), timeout=WAIT_SECONDS)


def test_it_is_gone_when_the_context_is_left() -> None:
    with DemoUpstream() as running:
        url = running.url
        assert counts(running) == {"accounts": 0, "records": 0}
        idle = connection_to(url)
    with idle:
        assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connection_to(url)


STARTER = """
import sys
from sync_assets.local.demo_upstream import DemoUpstream
with DemoUpstream() as upstream:
    print(upstream.url, flush=True)
    sys.stdin.read()
"""


def test_it_is_gone_when_the_process_that_started_it_is_killed() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    with starter:
        url = starter.stdout.readline().strip()
        with connection_to(url) as idle:
            starter.kill()
            assert idle.recv(1) == b"", f"the upstream at {url} lives on {WAIT_SECONDS} s after its parent"


def test_p11_its_token_is_in_no_command_line() -> None:
    with DemoUpstream() as running:
        assert running._process is not None
        assert running.environment["SYNC_SECRET_DEMO"] not in str(running._process.args)


def test_p12_one_that_cannot_start_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", os.devnull + "-no-such-python")
    with pytest.raises(OSError, match="no-such-python"), DemoUpstream():
        pass
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    with pytest.raises(RuntimeError, match="demo's upstream ended at once"), DemoUpstream():
        pass
