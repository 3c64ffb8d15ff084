"""P9, T24: what waits after failures, for how long, and what no tick claims any more until somebody says so."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sync_assets.account_sync import SyncResult
from sync_assets.claims import ClaimedAccount, Explanation, Fate, RetryPolicy, Selection, Verdict
from sync_assets.clock import Deadline
from sync_assets_tests.claims_rig import INFINITY, TICK, Table, claims_at, failed, ids, succeeded
from sync_assets_tests.runner_rig import fine, run_loop

_A_DAY = RetryPolicy().max_backoff_seconds
_INFINITY = "infinity"
_DEAD = {"status": "IN_PROGRESS", "lease": timedelta(seconds=1), "claimed_by": "dead/1", "error_kind": "crashed"}


def _hour_ago() -> datetime:
    return datetime.now(timezone.utc) - timedelta(hours=1)


def _known(table: Table, account_id: str, **columns: Any) -> None:
    """An account whose configuration has been claimed as it is."""
    table.add(account_id)
    table.set(account_id, claimed_generation=table.row(account_id)["generation"], **columns)


@pytest.mark.parametrize(
    ("failures", "policy", "seconds"),
    [
        (0, RetryPolicy(), None),
        (0, RetryPolicy(backoff_seconds=60.0), 60.0),
        (1, RetryPolicy(backoff_seconds=60.0), 120.0),
        (4, RetryPolicy(backoff_seconds=60.0), 960.0),
        (4, RetryPolicy(backoff_seconds=60.0, max_backoff_seconds=600.0), 600.0),
        (2**31 - 1, RetryPolicy(backoff_seconds=60.0), _A_DAY),
        (3, RetryPolicy(max_failures=5), None),
        (3, RetryPolicy(max_failures=5, backoff_seconds=60.0), 480.0),
    ],
)
def test_p9_each_failure_waits_twice_as_long_as_the_one_before(
    database_url: str, table: Table, failures: int, policy: RetryPolicy, seconds: float | None
) -> None:
    async def fail() -> None:
        async with claims_at(database_url, retry_policy=policy) as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)
            assert await claims.settle(failed(account)) is Fate.RECORDED

    table.add("a", failures=failures)
    asyncio.run(fail())
    row = table.row("a")
    if seconds is None:
        assert row["next_attempt_at"] is None
    else:
        assert 0 <= (row["next_attempt_at"] - row["started_at"]).total_seconds() - seconds < 30


def test_p9_after_max_failures_no_tick_claims_it_and_a_success_by_hand_frees_it(
    database_url: str, table: Table
) -> None:
    async def work() -> None:
        async with claims_at(database_url, retry_policy=RetryPolicy(max_failures=2, backoff_seconds=60.0)) as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)
            await claims.settle(failed(account))
            assert table.row("a")["next_attempt_at"] == INFINITY
            assert await claims.claim(Selection.due(TICK + timedelta(days=365_000)), 1) == []
        async with claims_at(database_url, "run-b/1") as claims:
            assert await claims.claim(Selection.all(), 1) == []
            assert await claims.claim(Selection.changed(), 1) == []
            [account] = await claims.claim(Selection.accounts(["a"]), 1)
            assert account.quarantined
            await claims.settle(succeeded(account))

    _known(table, "a", failures=1)
    asyncio.run(work())
    row = table.row("a")
    assert (row["status"], row["failures"], row["next_attempt_at"]) == ("IDLE", 0, None)


def test_p7_p9_a_changed_configuration_leaves_quarantine_also_when_its_run_gives_it_up(
    database_url: str, table: Table
) -> None:
    """The wait was that of the configuration before; the next tick has the new one, if its upstream was down now."""

    async def claim() -> ClaimedAccount:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.changed(), 1)
            return account

    _known(table, "a", status="FAILED", failures=9, next_attempt_at=_INFINITY)
    table.set("a", base_url="https://mended.example")
    assert not asyncio.run(claim()).quarantined
    row = table.row("a")
    assert (row["failures"], row["next_attempt_at"]) == (9, None)


@pytest.mark.parametrize("selection", [Selection.due(TICK), Selection.all()], ids=["due", "all"])
def test_t24_the_takeover_that_is_one_too_many_is_not_worked(
    database_url: str, table: Table, selection: Selection
) -> None:
    """Claimed only to be settled as failed; the crash is counted once."""
    _known(table, "killer", **_DEAD, started_at=_hour_ago(), failures=2)
    _known(table, "other", **_DEAD, started_at=_hour_ago(), failures=1)
    worked: list[str] = []

    async def work(account: ClaimedAccount, deadline: Deadline) -> SyncResult:
        worked.append(account.account_id)
        return await fine(account, deadline)

    summary = asyncio.run(run_loop(database_url, work, selection, retry_policy=RetryPolicy(max_failures=3)))
    assert (summary.failed, summary.succeeded, summary.taken_over) == (1, 1, 2)
    assert worked == ["other"]
    row = table.row("killer")
    assert (row["status"], row["failures"], row["next_attempt_at"]) == ("FAILED", 3, INFINITY)
    assert "dead/1" in row["last_error"]


def test_t24_a_takeover_too_many_is_worked_by_hand_and_when_its_configuration_has_changed(
    database_url: str, table: Table
) -> None:
    _known(table, "by hand", **_DEAD, started_at=_hour_ago(), failures=2)
    _known(table, "mended", **_DEAD, started_at=_hour_ago(), failures=2)
    table.set("mended", base_url="https://mended.example")
    policy = RetryPolicy(max_failures=3)
    summary = asyncio.run(run_loop(database_url, fine, Selection.accounts(["by hand"]), retry_policy=policy))
    assert (summary.claimed, summary.succeeded) == (1, 1)
    summary = asyncio.run(run_loop(database_url, fine, Selection.due(TICK), retry_policy=policy))
    assert (summary.claimed, summary.succeeded) == (2, 2)
    assert set(table.column("failures").values()) == {0}


def test_explain_says_since_when_it_is_in_quarantine_and_the_way_out(database_url: str, table: Table) -> None:
    async def explain(account_id: str) -> Explanation:
        async with claims_at(database_url, "asks/1") as claims:
            return await claims.explain(account_id)

    tried = _hour_ago()
    quarantined = {"status": "FAILED", "failures": 7, "next_attempt_at": _INFINITY, "started_at": tried}
    table.add("it's", **quarantined, error_kind="auth", last_error="401")
    told = asyncio.run(explain("it's"))
    assert (told.verdict, told.since) == (Verdict.QUARANTINED, tried)
    for words in ("after 7 failures", f"{tried:%Y-%m-%d %H:%M:%S} UTC", "auth: 401", """release 'it'"'"'s'"""):
        assert words in str(told)
    table.add("told to wait", not_before=_INFINITY)
    assert asyncio.run(explain("told to wait")).verdict is Verdict.FREE


def test_quarantine_set_by_hand_needs_no_setting(database_url: str, table: Table) -> None:
    async def claim() -> set[str]:
        async with claims_at(database_url) as claims:
            return ids(await claims.claim(Selection.due(TICK), 5))

    _known(table, "a", next_attempt_at=_INFINITY)
    assert asyncio.run(claim()) == set()
