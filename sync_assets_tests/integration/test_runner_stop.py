"""Stopping the loop: everything whose work has ended is handed back, and nothing is counted (P10)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

from sync_assets.claims import ClaimedAccount, Database, Selection
from sync_assets.clock import Deadline
from sync_assets.runner import RunOptions, Summary, run
from sync_assets.stop import StopSignal
from sync_assets.sync_run import blocking
from sync_assets.upstream import UpstreamClient
from sync_assets_tests.claims_rig import TICK, claims_at, table_at
from sync_assets_tests.runner_rig import WorkSync, fine, run_loop


def test_stopping_hands_back_at_once_and_counts_nothing(database_url: str) -> None:
    """P10: what ended in time is recorded, what did not is as the claim found it."""
    stop = StopSignal()

    async def waits(account: ClaimedAccount, deadline: Deadline) -> None:
        if account.account_id == "quick":
            return
        if account.account_id == "b":
            asyncio.get_running_loop().call_later(0.2, stop.set)
        await asyncio.Event().wait()

    with table_at(database_url) as table:
        table.add("quick", "b", "c")
        table.add("failed before", status="FAILED", failures=3, last_tick=TICK - timedelta(days=1))
        summary = asyncio.run(run_loop(database_url, waits, stop=stop))
        assert (summary.claimed, summary.succeeded, summary.handed_back, summary.failed) == (4, 1, 3, 0)
        assert summary.stopped
        assert table.column("status") == {"quick": "IDLE", "b": "IDLE", "c": "IDLE", "failed before": "FAILED"}
        assert table.column("failures") == {"quick": 0, "b": 0, "c": 0, "failed before": 3}
        assert table.row("b")["started_at"] is None
        assert table.row("failed before")["last_tick"] == TICK - timedelta(days=1)
        again = asyncio.run(run_loop(database_url, fine))
        assert again.succeeded == 3, "the same tick takes what was handed back"


def test_stopping_while_the_claim_is_being_committed_leaves_nothing_held(database_url: str) -> None:
    """P10 (T10): the stop comes when the rows are claimed and the run does not know it yet."""
    stop = StopSignal()

    async def never(account: ClaimedAccount, deadline: Deadline) -> None:
        raise AssertionError("nothing may be started after the stop")

    async def stops() -> Summary:
        async with claims_at(database_url) as claims, Database(database_url) as database, UpstreamClient() as client:
            fetch = claims._database.fetch

            async def stop_after_commit(*args: object) -> object:
                rows = await fetch(*args)  # type: ignore[arg-type]
                stop.set()
                return rows

            claims._database.fetch = stop_after_commit  # type: ignore[method-assign,assignment]
            return await run(
                claims, WorkSync(database, never), client, Selection.due(TICK), options=RunOptions(), stop=stop
            )

    with table_at(database_url) as table:
        table.add("a", "b", "c")
        summary = asyncio.run(stops())
        assert (summary.claimed, summary.handed_back) == (3, 3)
        assert set(table.column("status").values()) == {"IDLE"}
        assert set(table.column("last_tick").values()) == {None}


def test_stopping_leaves_work_that_will_not_end_to_its_lease(database_url: str) -> None:
    """P1: only accounts whose work has really ended are handed back."""
    stop = StopSignal()

    async def will_not(account: ClaimedAccount, deadline: Deadline) -> None:
        stop.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with table_at(database_url) as table:
        table.add("stubborn")
        summary = blocking(run_loop(database_url, will_not, stop=stop, options=RunOptions(stop_seconds=0.3)))
        assert summary.handed_back == 0
        assert table.row("stubborn")["status"] == "IN_PROGRESS"
