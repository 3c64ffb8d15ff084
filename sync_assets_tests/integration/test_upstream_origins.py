"""An origin that keeps failing is left alone for the run; and a run against one that is down comes to its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest

from sync_assets.claims import Selection, SettingsError
from sync_assets.clock import Deadline
from sync_assets.runner import AccountResult, Summary
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking
from sync_assets.upstream import (
    AuthFailed,
    OriginDown,
    RateLimited,
    Rejected,
    RetryLater,
    SyncError,
    UpstreamClient,
    client,
)
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table, table_at
from sync_assets_tests.recording_upstream import PATIENCE, RecordingUpstream

Ask = Callable[..., Awaitable[SyncError | None]]


@pytest.fixture
def nobody() -> Iterator[str]:
    """Where nobody answers, nor ever will: bound and not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_QUICK_RETRIES", (0.0, 0.0))


def during_a_run(work: Callable[[Ask], Awaitable[None]], **options: object) -> None:
    """One client, as a run has it; `ask(url)` is a request of some account and returns its fault."""

    async def run() -> None:
        async with UpstreamClient(allow_private=True, **options) as of_the_run:  # type: ignore[arg-type]

            async def ask(url: str, seconds: float = PATIENCE, method: str = "PUT") -> SyncError | None:
                try:
                    await of_the_run.request(method, url, deadline=Deadline.after(seconds))
                except SyncError as fault:
                    return fault
                return None

            await work(ask)

    asyncio.run(run())


def record(upstream: RecordingUpstream, account: str) -> str:
    return f"{upstream.url}/accounts/{account}/records/r"


@pytest.mark.parametrize("mood", ["answer", "drop", "stall"])
def test_after_five_in_a_row_nothing_more_is_sent_to_an_origin(
    upstream: RecordingUpstream, mood: str, caplog: pytest.LogCaptureFixture
) -> None:
    {"answer": lambda: upstream.answer(502), "drop": upstream.drop, "stall": upstream.stall}[mood]()

    async def work(ask: Ask) -> None:
        for n in range(5):
            assert isinstance(await ask(record(upstream, f"a{n}")), RetryLater)
        calls = len(upstream.calls)
        down = await ask(record(upstream, "b"))
        assert isinstance(down, OriginDown)
        url = upstream.url
        assert down.detail == (
            f"PUT {record(upstream, 'b')} was not sent: {url} failed 5 times in a row and is left alone for the rest "
            "of this run"
        )
        upstream.clear()
        assert isinstance(await ask(record(upstream, "c")), OriginDown), "for the rest of the run"
        assert len(upstream.calls) == calls
        with RecordingUpstream() as other:
            assert await ask(record(other, "b")) is None, "another origin is another matter"

    during_a_run(work, request_timeout=0.2)
    assert caplog.messages == [f"{upstream.url} failed 5 times in a row: it is left alone for the rest of this run"]
    during_a_run(lambda ask: succeeds(ask, record(upstream, "d")))


async def succeeds(ask: Ask, url: str) -> None:
    assert await ask(url) is None


def test_any_answer_ends_the_row(upstream: RecordingUpstream) -> None:
    """P5: what an upstream has against some accounts says nothing of the others."""
    upstream.answer(500, "bad")
    answers = {"ok": 200, "mistaken": 422, "unknown": 404, "limited": 429, "locked": 403, "early": 425}
    kinds = {"mistaken": Rejected, "unknown": Rejected, "limited": RateLimited, "locked": AuthFailed}
    for account, status in answers.items():
        upstream.answer(status, account)

    async def work(ask: Ask) -> None:
        for account in answers:
            for _ in range(4):
                assert isinstance(await ask(record(upstream, "bad")), RetryLater)
            fault = await ask(record(upstream, account))
            assert isinstance(fault, kinds.get(account, RetryLater | None))

    during_a_run(work)


def test_what_an_account_does_wrong_is_not_the_origins_fault(upstream: RecordingUpstream) -> None:
    """No time, too little time, no secret, no TLS there: five of each, and it is still sent to."""
    upstream.stall("slow")

    async def work(ask: Ask) -> None:
        for seconds in (0.0, 0.1):
            for _ in range(6):
                assert isinstance(await ask(record(upstream, "slow"), seconds), RetryLater)
        for _ in range(6):
            assert isinstance(await ask(record(upstream, "a").replace("http:", "https:")), AuthFailed)
        assert await ask(record(upstream, "a")) is None

    during_a_run(work)


def test_a_request_that_has_seen_for_itself_fails_as_usual(upstream: RecordingUpstream) -> None:
    """Eight under way when it goes down: each has its own fault. What is answered late brings it back."""
    upstream.answer(500)
    upstream.stall("late")

    async def work(ask: Ask) -> None:
        late = asyncio.ensure_future(ask(record(upstream, "late")))
        await asyncio.to_thread(upstream.wait_for, lambda calls: len(calls) == 1, "one is under way")
        faults = await asyncio.gather(*(ask(record(upstream, f"a{n}")) for n in range(8)))
        assert [type(fault) for fault in faults] == [RetryLater] * 8
        assert isinstance(await ask(record(upstream, "b")), OriginDown)
        upstream.clear()
        assert await late is None
        assert await ask(record(upstream, "b")) is None

    during_a_run(work)


def test_a_request_whose_origin_goes_down_before_its_quick_retry_fails_as_usual(
    upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_QUICK_RETRIES", (1.0, 1.0))
    upstream.answer(500)

    async def work(ask: Ask) -> None:
        first = asyncio.ensure_future(ask(record(upstream, "first")))
        await asyncio.to_thread(upstream.wait_for, lambda calls: calls and calls[0].ended, "it has failed once")
        for n in range(5):  # a POST without a key is sent once
            assert isinstance(await ask(record(upstream, f"a{n}"), method="POST"), RetryLater)
        assert isinstance(await ask(record(upstream, "b")), OriginDown)
        assert isinstance(await first, RetryLater)
        assert len(upstream.of("first")) == 1

    during_a_run(work)


def test_no_more_at_once_at_one_origin_than_set_and_waiting_is_on_the_accounts_time(
    upstream: RecordingUpstream,
) -> None:
    upstream.stall("slow")

    async def work(ask: Ask) -> None:
        slow = [asyncio.ensure_future(ask(record(upstream, "slow"))) for _ in range(5)]
        await asyncio.to_thread(upstream.wait_for, lambda calls: len(calls) == 2, "two are under way")
        waited = await ask(record(upstream, "b"), 0.3)
        assert isinstance(waited, RetryLater)
        with RecordingUpstream() as other:
            assert await ask(record(other, "b")) is None
        assert len(upstream.calls) == 2, "neither of those that wait was sent"
        upstream.release("slow")
        assert await asyncio.gather(*slow) == [None] * 5

    during_a_run(work, connections_per_origin=2)


def test_well_origins_are_forgotten(upstream: RecordingUpstream) -> None:
    """Each account may have an origin of its own: a hundred thousand of them must not add up."""

    async def run() -> None:
        async with UpstreamClient(allow_private=True) as of_the_run:
            await of_the_run.request("PUT", record(upstream, "a"), deadline=Deadline.after(PATIENCE))
            assert of_the_run._origins._known == {}

    asyncio.run(run())


@pytest.mark.parametrize("name", ["request_timeout_seconds", "connections_per_origin", "max_response_bytes"])
def test_p12_a_limit_that_cannot_be_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is 0; expected more than 0"):
        SyncSettings(**{name: 0})  # type: ignore[arg-type]


def push_all(database_url: str, selection: Selection, upstream_url: str) -> tuple[Summary, dict[str, AccountResult]]:
    results: dict[str, AccountResult] = {}
    again: list[str] = []
    stop = StopSignal()

    def note(result: AccountResult) -> None:
        if result.account_id in results:
            again.append(result.account_id)
            stop.set()  # it would go on for ever
        results[result.account_id] = result

    report = run_blocking(
        ClaimSettings(database_url),
        SyncSettings(concurrency=4, upstream_url=upstream_url, allow_private_upstreams=True),
        selection,
        run_id="run-a",
        stop=stop,
        on_result=note,
    )
    assert again == [], "an account came round twice in one run"
    return report.summary, results


def claims_made(table: Table) -> int:
    row = table.connection.execute("SELECT last_value FROM sync.account_config_claim_seq").fetchone()
    assert row is not None
    return int(row["last_value"])


@pytest.mark.parametrize("selection", [Selection.due(TICK), Selection.all(), Selection.changed()])
def test_t29_a_run_against_an_upstream_that_is_down_ends_with_each_account_claimed_once(
    database_url: str, nobody: str, upstream: RecordingUpstream, selection: Selection
) -> None:
    """P2, P5 (T29): no loop of claim and hand-back; nothing counted; and the next tick has them all again."""
    with table_at(database_url) as table:
        accounts = [f"a{n:02}" for n in range(30)]
        table.add(*accounts)
        table.set(accounts[:10], status="FAILED", failures=3)
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        dead = {"status": "IN_PROGRESS", "started_at": hour_ago, "lease": timedelta(seconds=1), "claimed_by": "dead/1"}
        table.set(accounts[20:25], **dead)
        table.connection.execute(
            "INSERT INTO sync.account_record (account_id, record_id, data) "
            "SELECT account_id, 'r', '{}' FROM sync.account_config"
        )
        failures = table.column("failures")
        summary, results = push_all(database_url, selection, nobody)
        assert (summary.claimed, len(results), claims_made(table)) == (30, 30, 30)
        assert (summary.succeeded, summary.handed_back, summary.lost) == (0, 0, 0)
        failed = {account for account, result in results.items() if result.outcome == "failed"}
        assert 5 <= len(failed) <= 5 + 4, "those whose own requests failed, and no more than were under way then"
        assert summary.given_up == 30 - len(failed)
        taken_over = set(accounts[20:25])
        for account in accounts:
            row = table.row(account)
            if account in failed:
                assert (row["status"], row["error_kind"]) == ("FAILED", "retry")
            else:
                as_before = "FAILED" if account in {*accounts[:10], *taken_over} else "IDLE"
                assert (row["status"], results[account].outcome) == (as_before, "given_up")
                assert row["failures"] == failures[account] + (account in taken_over)
                assert "left alone for the rest of this run" in (results[account].error or "")
        if selection.tick is not None:
            again, _ = push_all(database_url, selection, nobody)
            assert again.claimed == 0, "it counts for the next tick"
        after, _ = push_all(database_url, Selection.due(NEXT_TICK), upstream.url)
        assert (after.claimed, after.succeeded) == (30, 30)
