"""Work that is odder than it should be, and sessions that are set up oddly: the run goes on (P5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import Any

import psycopg
import pytest

from sync_assets.account_sync import AccountSync, SyncResult
from sync_assets.claims import ClaimedAccount, Database, Selection, SettingsError, Verdict
from sync_assets.clock import Deadline
from sync_assets.runner import AccountResult, RunOptions
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, blocking, run_blocking
from sync_assets.upstream import RetryLater, SyncError, UpstreamClient
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, claims_at, table_at
from sync_assets_tests.runner_rig import fine, run_loop


class _Unfinished(SyncError):
    def __init__(self) -> None:
        """Without its parent's."""


class _Interrupting(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


_NO_TEXT: Any = None
_NOT_A_TEXT: Any = ValueError("x")


@pytest.mark.parametrize(
    "error",
    [RetryLater(_NO_TEXT), RetryLater(_NOT_A_TEXT), _Unfinished(), _Interrupting()],
    ids=["no text", "not a text", "unfinished", "interrupting"],
)
def test_an_exception_that_is_not_a_whole_one_fails_its_account_only(database_url: str, error: BaseException) -> None:
    async def throws(account: ClaimedAccount, deadline: Deadline) -> None:
        if account.account_id == "bad":
            raise error

    with table_at(database_url) as table:
        table.add("a", "bad", "c")
        summary = asyncio.run(run_loop(database_url, throws, options=RunOptions(concurrency=1)))
        assert (summary.succeeded, summary.failed) == (2, 1)
        assert table.row("bad")["status"] == "FAILED"
        assert table.row("bad")["last_error"]


@pytest.mark.parametrize("counts", [{"sent": "3"}, {"sent": None}, {"rejected": 1.5}])
def test_counts_that_are_no_numbers_fail_their_account_only(database_url: str, counts: dict[str, Any]) -> None:
    async def counts_oddly(account: ClaimedAccount, deadline: Deadline) -> SyncResult:
        return SyncResult(**counts) if account.account_id == "bad" else SyncResult(sent=1)

    with table_at(database_url) as table:
        table.add("a", "bad")
        summary = asyncio.run(run_loop(database_url, counts_oddly))
        assert (summary.succeeded, summary.failed, summary.sent) == (1, 1, 1)
        assert "expected int" in table.row("bad")["last_error"]


def test_a_task_that_nobody_awaits_ends_no_run(database_url: str) -> None:
    async def leaves_one_behind(account: ClaimedAccount, deadline: Deadline) -> None:
        async def exits() -> None:
            raise SystemExit(3)

        task = asyncio.ensure_future(exits())
        task.add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0.05)

    with table_at(database_url) as table:
        table.add("a", "b")
        assert blocking(run_loop(database_url, leaves_one_behind)).succeeded == 2
        assert set(table.column("status").values()) == {"IDLE"}


def test_ctrl_c_without_a_handler_hands_back_first(database_url: str) -> None:
    """P10: `run_blocking` in somebody's own script."""

    class Waits(AccountSync):
        async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> None:
            asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    assert threading.current_thread() is threading.main_thread()
    with table_at(database_url) as table:
        table.add("a")
        with pytest.raises(KeyboardInterrupt):
            run_blocking(
                ClaimSettings(database_url), SyncSettings(), Selection.due(TICK), run_id="script", stop=StopSignal(),
                sync=Waits,
            )  # fmt: skip
        assert (table.row("a")["status"], table.row("a")["failures"]) == ("IDLE", 0)


def test_work_that_swallows_one_cancellation_is_cancelled_again(database_url: str) -> None:
    """P10: and so handed back, where it would have been left to its lease."""
    stop = StopSignal()

    async def swallows_one(account: ClaimedAccount, deadline: Deadline) -> None:
        stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    with table_at(database_url) as table:
        table.add("a")
        assert asyncio.run(run_loop(database_url, swallows_one, stop=stop)).handed_back == 1
        assert table.row("a")["status"] == "IDLE"


def test_an_account_made_again_is_not_worked_beside_itself(database_url: str) -> None:
    """P1: its row is new, its work from before goes on: it counts for the next tick."""
    at_once: list[int] = []
    working = 0

    async def makes_it_again(account: ClaimedAccount, deadline: Deadline) -> None:
        nonlocal working
        if account.account_id == "other":
            await asyncio.sleep(0.3)
            return
        working += 1
        at_once.append(working)
        table.connection.execute("DELETE FROM sync.account_config WHERE account_id = 'a'")
        table.add("a")
        await asyncio.sleep(0.6)
        working -= 1

    with table_at(database_url) as table:
        table.add("a", "other")
        summary = asyncio.run(run_loop(database_url, makes_it_again))
        assert at_once == [1]
        assert (summary.claimed, summary.given_up, summary.lost) == (3, 1, 1)
        assert table.row("a")["status"] == "IDLE"
        assert asyncio.run(run_loop(database_url, fine, Selection.due(NEXT_TICK), holder="next/1")).succeeded == 2


def test_accounts_that_keep_their_connections_hold_up_no_claim_and_no_settle(database_url: str) -> None:
    """P5: more of them than the run has connections for syncs."""
    released = asyncio.Event()

    class Keeps(AccountSync):
        async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> None:
            if not account.account_id.startswith("keeps"):
                return
            async with self.database.connection():
                await released.wait()

    def release(result: AccountResult) -> None:  # it was settled beside them
        if result.account_id == "z":
            released.set()

    with table_at(database_url) as table:
        table.add(*(f"keeps {n}" for n in range(8)), "z")
        summary = run_blocking(
            ClaimSettings(database_url), SyncSettings(concurrency=9), Selection.due(TICK), run_id="run",
            stop=StopSignal(), sync=Keeps, on_result=release,
        ).summary  # fmt: skip
        assert summary.succeeded == 9


@pytest.mark.parametrize(
    "setting",
    ["datestyle = 'SQL, DMY'", "client_encoding = 'LATIN1'", "timezone = 'Asia/Kathmandu'", "search_path = ''"],
)
def test_what_the_database_has_set_for_its_sessions_changes_nothing(database_url: str, setting: str) -> None:
    """P5, P12 (T7)."""
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    with table_at(database_url) as table:
        table.add("a", "b 🙂", base_url="https://🙂.example")
        table.connection.execute(f'ALTER DATABASE "{name}" SET {setting}')
        assert asyncio.run(run_loop(database_url, fine)).succeeded == 2
        assert table.row("a")["last_tick"] == TICK


def test_the_users_own_options_are_kept(database_url: str) -> None:
    """The role one works as, for example; ours are added to them."""

    async def who() -> tuple[str, str]:
        async with Database(f"{database_url}&options=-c%20work_mem%3D12345kB") as database:
            rows = await database.fetch(
                psycopg.sql.SQL("SELECT current_setting('work_mem'), current_setting('timezone')")
            )
            return rows[0][0], rows[0][1]

    assert asyncio.run(who()) == ("12345kB", "UTC")


def test_a_lock_that_is_gone_in_a_moment_refuses_no_run_by_hand(database_url: str) -> None:
    """P6: somebody pressed a button while the owner's transaction was ending."""

    async def run() -> int:
        asyncio.get_running_loop().call_later(0.05, owner.rollback)
        return (await run_loop(database_url, fine, Selection.accounts(["a"]))).succeeded

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a")
        owner.execute("SELECT FROM sync.account_config FOR UPDATE")
        assert asyncio.run(run()) == 1


def test_a_claim_that_commits_after_the_stop_is_found_and_freed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10 (T10): its answer was lost, and its commit came when the run was stopping already."""

    async def run() -> int:
        async with claims_at(database_url) as claims:
            fetch = claims._database.fetch
            late: list[asyncio.Task[Any]] = []

            async def commits_later(*args: Any) -> Any:
                async def commit() -> None:
                    await asyncio.sleep(1.0)
                    await fetch(*args)

                monkeypatch.setattr(claims._database, "fetch", fetch)
                late.append(asyncio.ensure_future(commit()))
                raise asyncio.CancelledError

            monkeypatch.setattr(claims._database, "fetch", commits_later)
            with pytest.raises(asyncio.CancelledError):
                await claims.claim(Selection.due(TICK), 5)
            freed = await claims.give_up_lost(Deadline.after(3.0))
            await late[0]
            assert (await claims.explain("a")).verdict is Verdict.FREE
            return freed

    with table_at(database_url) as table:
        table.add("a", "b")
        assert asyncio.run(run()) == 2
        assert set(table.column("status").values()) == {"IDLE"}


def test_a_disabled_trigger_is_refused(database_url: str) -> None:
    """P7, P12: no change to a configuration would ever be seen."""
    with table_at(database_url) as table:
        table.connection.execute("ALTER TABLE sync.account_config DISABLE TRIGGER sync_assets_generation")
        with pytest.raises(SettingsError, match="its trigger sync_assets_generation is disabled; ALTER TABLE"):
            asyncio.run(run_loop(database_url, fine))
