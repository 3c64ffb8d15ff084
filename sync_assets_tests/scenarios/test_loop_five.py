"""The essay's five awkward scenarios on the loop alone: runs are OS processes that push to a real HTTP server."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta

from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table
from sync_assets_tests.loop_process import LoopProcess, wait_until
from sync_assets_tests.recording_upstream import RecordingUpstream, assert_no_overlap


def _add(table: Table, *accounts: str) -> None:
    table.add(*accounts, secret_ref="env:SYNC_SECRET_TEST")
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT account_id, 'r1', '{\"n\": 1}' FROM unnest(%s::text[]) AS account_id",
        [list(accounts)],
    )


def test_1_invocations_at_the_same_instant_claim_each_account_once(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P1, P2: and the tick fired again after it finished calls nobody."""
    accounts = [f"a{n:03}" for n in range(200)]
    _add(table, *accounts)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                LoopProcess(database_url, upstream.url, f"run-{n}", tick=TICK, settings={"concurrency": 5})
            )
            for n in range(3)
        ]
        for run in runs:
            run.go()
        summaries = [run.wait() for run in runs]
    assert sum(summary["claimed"] for summary in summaries) == 200
    assert sum(summary["succeeded"] for summary in summaries) == 200
    assert sum(summary["claimed"] > 0 for summary in summaries) >= 2, "one run did it all: nothing was raced"
    assert Counter(call.account for call in upstream.calls) == dict.fromkeys(accounts, 1)
    assert_no_overlap(upstream.calls)
    with LoopProcess(database_url, upstream.url, "again", tick=TICK) as again:
        assert again.go().wait()["claimed"] == 0
    assert len(upstream.calls) == 200


def test_2_a_killed_run_is_taken_over_at_the_next_tick_after_the_lease_not_before(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P3, P8: the same key again for what was sent, and only the dead run's rows."""
    _add(table, "a", "b", "c", "done")
    upstream.stall("a")
    upstream.stall("b")
    with LoopProcess(database_url, upstream.url, "dies", tick=TICK, settings={"concurrency": 4}) as dies:
        dies.go()
        upstream.wait_for(lambda calls: len(calls) == 4, "all accounts at the upstream")
        wait_until(lambda: table.row("done")["status"] == table.row("c")["status"] == "IDLE", "two were settled")
        dies.kill()
    assert table.row("a")["status"] == table.row("b")["status"] == "IN_PROGRESS"
    lease = table.row("a")["lease"].total_seconds()
    assert lease == 15 * 60 + 120, "the schedule's interval and two minutes"
    upstream.clear()
    with LoopProcess(database_url, upstream.url, "early", tick=NEXT_TICK) as early:
        assert early.go().wait()["claimed"] == 2, "those that were done are due, the dead run's are not"
    table.age("a", "b", seconds=lease - 30)
    with LoopProcess(database_url, upstream.url, "still early", tick=NEXT_TICK) as early:
        assert early.go().wait()["claimed"] == 0
    table.age("a", "b", seconds=31)
    with LoopProcess(database_url, upstream.url, "heals", tick=NEXT_TICK) as heals:
        summary = heals.go().wait()
    assert (summary["claimed"], summary["taken_over"], summary["succeeded"]) == (2, 2, 2)
    for account in ("a", "b"):
        first, second = upstream.of(account)
        assert first.key == second.key
        assert (first.claim_seq or 0) < (second.claim_seq or 0)
        assert table.row(account)["failures"] == 0


def test_3_one_account_throws_and_the_rest_completes(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P5."""
    _add(table, *(f"a{n}" for n in range(10)), "bad", "no secret")
    table.set("no secret", secret_ref="env:SYNC_SECRET_NOT_THERE")
    upstream.answer(500, account="bad")
    with LoopProcess(database_url, upstream.url, "run", tick=TICK, settings={"concurrency": 3}) as run:
        summary = run.go().wait()
    assert (summary["claimed"], summary["succeeded"], summary["failed"]) == (12, 10, 2)
    failed = {name for name, status in table.column("status").items() if status == "FAILED"}
    assert failed == {"bad", "no secret"}
    assert table.row("bad")["error_kind"] == "retry"
    assert "500" in table.row("bad")["last_error"]
    assert table.row("no secret")["error_kind"] == "auth"
    assert "SYNC_SECRET_NOT_THERE" in table.row("no secret")["last_error"]


def test_4_a_run_by_hand_for_a_busy_account_is_rejected_not_duplicated(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P6: it is told who holds it; and the account beside it is worked."""
    _add(table, "busy", "free")
    table.set("free", last_tick=TICK)  # not for the scheduled run
    upstream.stall("busy")
    with LoopProcess(database_url, upstream.url, "scheduled", tick=TICK) as scheduled:
        scheduled.go()
        upstream.wait_for(lambda calls: len(calls) == 1, "the account at the upstream")
        with LoopProcess(database_url, upstream.url, "by hand", accounts=("busy", "free", "nobody")) as by_hand:
            report = by_hand.go().wait()
        assert (report["claimed"], report["succeeded"]) == (1, 1)
        busy, unknown = report["not_claimed"]
        assert "'busy' is busy: scheduled/" in busy
        assert "'nobody' is unknown" in unknown
        upstream.release("busy")
        assert scheduled.wait()["succeeded"] == 1
    assert len(upstream.of("busy")) == 1


def test_5_over_an_interval_boundary_work_that_goes_on_is_not_taken_over(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P1, P3 (T17): at the next tick, and though the schedule has been shortened to a minute meanwhile."""
    _add(table, "long")
    upstream.stall("long")
    with LoopProcess(database_url, upstream.url, "works", tick=TICK, settings={"schedule": "0 * * * *"}) as works:
        works.go()
        upstream.wait_for(lambda calls: len(calls) == 1, "the account at the upstream")
        assert table.row("long")["lease"] == timedelta(seconds=3600 + 120)
        for seconds in (3600, 60):  # the boundary; and the last minute of the lease
            table.age("long", seconds=seconds)
            with LoopProcess(
                database_url, upstream.url, "next", tick=NEXT_TICK, settings={"schedule": "* * * * *"}
            ) as other:
                assert other.go().wait()["claimed"] == 0
        upstream.release("long")
        assert works.wait()["succeeded"] == 1
    assert len(upstream.of("long")) == 1
    assert table.row("long")["status"] == "IDLE"


def test_stopping_a_run_hands_its_accounts_back(database_url: str, table: Table, upstream: RecordingUpstream) -> None:
    """P10: SIGTERM; the calls are really aborted, nothing is counted, and the same tick takes them again."""
    _add(table, "a", "b", "c")
    upstream.stall()
    with LoopProcess(database_url, upstream.url, "stopped", tick=TICK) as stopped:
        stopped.go()
        upstream.wait_for(lambda calls: len(calls) == 3, "all accounts at the upstream")
        stopped.signal(signal.SIGTERM)
        summary = stopped.wait()
    assert (summary["claimed"], summary["handed_back"], summary["failed"]) == (3, 3, 0)
    upstream.wait_for(lambda calls: all(call.aborted for call in calls), "the calls were aborted")
    assert set(table.column("status").values()) == {"IDLE"}
    assert set(table.column("failures").values()) == {0}
    upstream.clear()
    with LoopProcess(database_url, upstream.url, "again", tick=TICK) as again:
        assert again.go().wait()["succeeded"] == 3


def test_a_run_that_was_frozen_past_its_lease_writes_nothing(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P4 (T4): SIGSTOP in the middle of a call; the row and the records keep the second run's outcome."""
    _add(table, "a")
    upstream.stall("a")
    with LoopProcess(database_url, upstream.url, "frozen", tick=TICK) as frozen:
        frozen.go()
        upstream.wait_for(lambda calls: len(calls) == 1, "the account at the upstream")
        frozen.signal(signal.SIGSTOP)
        table.age("a", seconds=15 * 60 + 121)
        upstream.answer(200, account="a")  # lets the stalled call go on as well
        with LoopProcess(database_url, upstream.url, "second", tick=NEXT_TICK) as second:
            assert second.go().wait()["succeeded"] == 1
        row = table.row("a")
        records = table.connection.execute("SELECT * FROM sync.account_record").fetchall()
        frozen.signal(signal.SIGCONT)
        summary = frozen.wait()
    assert (summary["claimed"], summary["succeeded"], summary["lost"]) == (1, 0, 1)
    assert table.row("a") == row
    assert table.connection.execute("SELECT * FROM sync.account_record").fetchall() == records
    first, again = upstream.of("a")
    assert first.key == again.key
