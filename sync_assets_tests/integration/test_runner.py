"""The loop on a real Postgres: bounded, contained, on time, and handing back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import datetime, timedelta, timezone

import psycopg
import pytest

from sync_assets.account_sync import LeaseLost
from sync_assets.claims import ClaimedAccount, Selection, SettingsError
from sync_assets.clock import Deadline
from sync_assets.runner import AccountResult, RunOptions
from sync_assets.sync_run import blocking
from sync_assets.upstream import AuthFailed, RateLimited
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, table_at
from sync_assets_tests.runner_rig import fine, run_loop


def test_a_run_works_everything_and_says_so(database_url: str) -> None:
    results: list[AccountResult] = []
    with table_at(database_url) as table:
        table.add(*(f"a{n}" for n in range(50)))
        summary = asyncio.run(run_loop(database_url, fine, on_result=results.append))
        assert (summary.claimed, summary.succeeded, summary.failed, summary.sent, summary.rejected) == (
            50,
            50,
            0,
            100,
            50,
        )
        assert str(summary).startswith("claimed 50, succeeded 50, failed 0, records sent 100, rejected 50 in ")
        assert {result.account_id for result in results} == set(table.column("status"))
        assert set(table.column("status").values()) == {"IDLE"}
        assert summary.seconds > 0


def test_no_more_is_claimed_than_can_start_at_once(database_url: str) -> None:
    """P3 (T15): no lease is spent waiting in a queue, and no transaction is open while the work is done (T19)."""
    most = 0

    async def counts(account: ClaimedAccount, deadline: Deadline) -> None:
        nonlocal most
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            cursor = await connection.execute(
                "SELECT (SELECT count(*) FROM sync.account_config WHERE status = 'IN_PROGRESS'), "
                "(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND state LIKE 'idle in transaction%'), (SELECT count(*) FROM sync.account_config)"
            )
            row = await cursor.fetchone()
        assert row is not None
        most = max(most, row[0])
        assert row[1] == 0

    with table_at(database_url) as table:
        table.add(*(f"a{n:02}" for n in range(40)))
        summary = asyncio.run(run_loop(database_url, counts, options=RunOptions(concurrency=4)))
        assert summary.succeeded == 40
        # those being worked, and those whose result is just being written
        assert 1 <= most <= 8


class _Textless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("it broke"), "bug", "ValueError: it broke"),
        (ValueError(), "bug", "ValueError"),
        (_Textless(), "bug", "_Textless"),
        (SystemExit(3), "bug", "SystemExit: 3"),
        (KeyboardInterrupt(), "bug", "KeyboardInterrupt"),
        (GeneratorExit(), "bug", "GeneratorExit"),
        (asyncio.CancelledError("of its own"), "bug", "CancelledError: of its own"),
        (AuthFailed("401 at https://api.example"), "auth", "401 at https://api.example"),
        (RateLimited("429", retry_after=timedelta(seconds=90)), "rate_limited", "429"),
        (ValueError("nul \0 and \ud800 lone"), "bug", "ValueError: nul"),
        (ValueError("Authorization: Bearer abcdef123456"), "bug", "Bearer ***"),
    ],
)
def test_one_account_throws_and_the_rest_completes(
    database_url: str, error: BaseException, kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P5, P11 (T13): whatever it throws, that account is FAILED and only that one; the log can be written."""

    async def throws(account: ClaimedAccount, deadline: Deadline) -> None:
        if account.account_id == "bad":
            raise error

    with table_at(database_url) as table:
        table.add("a", "bad", "c")
        summary = asyncio.run(run_loop(database_url, throws, options=RunOptions(concurrency=1)))
        assert (summary.succeeded, summary.failed) == (2, 1)
        assert table.column("status") == {"a": "IDLE", "bad": "FAILED", "c": "IDLE"}
        row = table.row("bad")
        assert (row["error_kind"], row["failures"]) == (kind, 1)
        assert text in row["last_error"]
        assert "abcdef123456" not in row["last_error"] + caplog.text
        caplog.text.encode()  # raises where a log file could not hold it
        assert ("failed with a bug" in caplog.text) == (kind == "bug")
        assert (row["not_before"] is not None) == (kind == "rate_limited")


def test_an_account_that_is_late_is_really_cancelled(database_url: str) -> None:
    """P5: by the monotonic clock, with its work ended before the row is free again."""
    ended: list[str] = []

    async def hangs(account: ClaimedAccount, deadline: Deadline) -> None:
        if account.account_id == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                assert deadline.passed()
                ended.append(table.row("slow")["status"])

    with table_at(database_url) as table:
        table.add("a", "slow", "c")
        options = RunOptions(account_timeout_seconds=0.5)
        summary = asyncio.run(run_loop(database_url, hangs, options=options))
        assert (summary.succeeded, summary.failed) == (2, 1)
        assert ended == ["IN_PROGRESS"]
        row = table.row("slow")
        assert (row["status"], row["error_kind"], row["last_error"]) == (
            "FAILED",
            "timeout",
            "not finished within its 0.5 s",
        )


def test_the_lease_cancels_what_no_limit_does(database_url: str) -> None:
    """P1: no live run works an account after its lease."""
    left: list[float] = []

    async def hangs(account: ClaimedAccount, deadline: Deadline) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append(account.lease_ends.remaining())

    with table_at(database_url) as table:
        table.add("slow")
        summary = asyncio.run(run_loop(database_url, hangs, lease=2.0))
        assert summary.failed == 1
        assert left[0] > 0
        assert table.row("slow")["status"] == "FAILED"


def test_work_that_will_not_end_is_left_to_its_lease(database_url: str) -> None:
    """P1, P3: calling it failed would let another run start beside it; the next takes over after the lease."""

    async def will_not(account: ClaimedAccount, deadline: Deadline) -> None:
        while account.account_id == "stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with table_at(database_url) as table:
        table.add("a", "stubborn", "c")
        summary = blocking(run_loop(database_url, will_not, lease=2.0, options=RunOptions(account_timeout_seconds=0.2)))
        assert (summary.claimed, summary.succeeded, summary.lost) == (3, 2, 1)
        assert table.row("stubborn")["status"] == "IN_PROGRESS"
        summary = asyncio.run(run_loop(database_url, fine, Selection.due(NEXT_TICK), holder="next/1"))
        assert (summary.taken_over, summary.succeeded) == (1, 3)


def test_a_run_that_was_frozen_past_its_lease_still_ends_its_work(database_url: str) -> None:
    """P3: what woke too late is cancelled and told as late, not as work that would not end. Nobody took it over."""
    ended: list[str] = []

    async def frozen(account: ClaimedAccount, deadline: Deadline) -> None:
        time.sleep(1.2)  # noqa: ASYNC251  # as SIGSTOP does: nothing of this process runs
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(account.account_id)

    with table_at(database_url) as table:
        table.add("a")
        summary = asyncio.run(run_loop(database_url, frozen, Selection.accounts(["a"]), lease=1.0))
        assert ended == ["a"]
        assert (summary.failed, summary.lost) == (1, 0)
        assert table.row("a")["error_kind"] == "timeout"


def test_an_account_whose_last_run_died_is_worked_alone(database_url: str) -> None:
    """P5 (T24): an account that kills its run takes nobody along twice."""
    working: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def notes(account: ClaimedAccount, deadline: Deadline) -> None:
        for other in working:
            beside[other].add(account.account_id)
        beside[account.account_id] = set(working)
        working.add(account.account_id)
        await asyncio.sleep(0.01)
        working.discard(account.account_id)

    with table_at(database_url) as table:
        table.add(*(f"a{n}" for n in range(10)))
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        dead = {"status": "IN_PROGRESS", "started_at": hour_ago, "lease": timedelta(seconds=1), "claimed_by": "dead/1"}
        table.add("first time", **dead)
        table.add("killer", "other", **dead, failures=1, error_kind="crashed")
        summary = asyncio.run(run_loop(database_url, notes, options=RunOptions(concurrency=5)))
        assert (summary.succeeded, summary.taken_over) == (13, 3)
        assert beside["killer"] == beside["other"] == set()
        assert any(beside[name] for name in beside), "nothing was worked side by side: nothing was shown"


def test_a_suspect_that_waited_too_long_for_its_turn_is_given_up(database_url: str) -> None:
    """P1: its lease was spent waiting for the others, so it gets a whole one at the next tick."""

    async def slow(account: ClaimedAccount, deadline: Deadline) -> None:
        assert account.account_id == "slow"
        await asyncio.sleep(1.2)

    with table_at(database_url) as table:
        table.add("slow")
        table.add("killer", status="FAILED", failures=1, error_kind="crashed")
        summary = asyncio.run(run_loop(database_url, slow, lease=2.0))
        assert (summary.succeeded, summary.given_up) == (1, 1)
        row = table.row("killer")
        assert (row["status"], row["last_tick"]) == ("FAILED", TICK)


def test_a_lease_lost_in_the_middle_writes_nothing(database_url: str) -> None:
    """P4."""

    async def loses(account: ClaimedAccount, deadline: Deadline) -> None:
        raise LeaseLost

    with table_at(database_url) as table:
        table.add("a")
        summary = asyncio.run(run_loop(database_url, loses))
        assert summary.lost == 1
        assert table.row("a")["failures"] == 0


def test_named_accounts_are_worked_once_each_and_no_other(database_url: str) -> None:
    """P6: by hand, through the same claim, whatever they wait for; also when they fail."""
    seen: list[str] = []

    async def fails(account: ClaimedAccount, deadline: Deadline) -> None:
        seen.append(account.account_id)
        raise RateLimited("429", retry_after=timedelta(hours=1))

    with table_at(database_url) as table:
        table.add("a", "b", "c", not_before=datetime.now(timezone.utc) + timedelta(hours=1))
        summary = asyncio.run(
            run_loop(database_url, fails, Selection.accounts(["a", "b", "a"]), options=RunOptions(concurrency=1))
        )
        assert sorted(seen) == ["a", "b"]
        assert (summary.claimed, summary.failed) == (2, 2)
        assert table.row("c")["status"] == "IDLE"


def test_reporting_that_fails_fails_no_sync(database_url: str) -> None:
    def broken(result: AccountResult) -> None:
        raise RuntimeError("the event store is away")

    with table_at(database_url) as table:
        table.add("a", "b")
        assert asyncio.run(run_loop(database_url, fine, on_result=broken)).succeeded == 2
        assert set(table.column("status").values()) == {"IDLE"}


def test_a_connection_killed_while_the_work_is_done_costs_nothing(database_url: str) -> None:
    """P3, P8 (T11): recorded on a new connection, the work not done again."""
    seen: list[str] = []

    async def kills(account: ClaimedAccount, deadline: Deadline) -> None:
        seen.append(account.account_id)
        table.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'sync-assets'"
        )

    with table_at(database_url) as table:
        table.add("a", "b", "c")
        summary = asyncio.run(run_loop(database_url, kills, options=RunOptions(concurrency=1)))
        assert summary.succeeded == 3
        assert sorted(seen) == ["a", "b", "c"]
        assert set(table.column("status").values()) == {"IDLE"}


@pytest.mark.parametrize("limit", [0.0, -1.0, 55.0, 600.0])
def test_a_limit_that_does_not_fit_in_the_lease_is_refused_before_anything_is_claimed(
    database_url: str, limit: float
) -> None:
    """P12."""
    with table_at(database_url) as table:
        table.add("a")
        with pytest.raises(SettingsError, match="does not fit: the lease is 60 s, of which 54 s"):
            asyncio.run(run_loop(database_url, fine, options=RunOptions(account_timeout_seconds=limit)))
        assert table.row("a")["status"] == "IDLE"


def test_a_fault_in_the_run_itself_hands_back_and_is_raised(database_url: str) -> None:
    """P3: a bug of ours, or a database fault that no retry mends, holds nothing."""

    async def breaks(account: ClaimedAccount, deadline: Deadline) -> None:
        if account.account_id == "b":
            table.connection.execute("ALTER SEQUENCE sync.account_config_claim_seq RENAME TO gone")
            return
        await asyncio.Event().wait()

    with table_at(database_url) as table:
        table.add("a", "b")
        with pytest.raises(psycopg.errors.UndefinedTable):
            asyncio.run(run_loop(database_url, breaks, options=RunOptions(concurrency=2)))
        assert set(table.column("status").values()) == {"IDLE"}
