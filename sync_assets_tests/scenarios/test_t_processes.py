"""Runs as processes that are killed, stopped and frozen (T9, T10, T20, T29); the upstream is a real HTTP server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import timedelta

import psycopg
import pytest

from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table
from sync_assets_tests.dagster_rig import add_accounts
from sync_assets_tests.loop_process import LoopProcess, wait_until
from sync_assets_tests.recording_upstream import RecordingUpstream, assert_no_overlap

LEASE = 15 * 60 + 120
"""Of a schedule every quarter of an hour, with which the README promises recovery within 30 min of the claim."""


def _blocked(table: Table) -> bool:
    """Whether a statement of a run waits for a lock."""
    found = table.connection.execute(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sync-assets' AND wait_event_type = 'Lock' "
        "AND datname = current_database()"
    )
    return found.fetchone() is not None


@pytest.mark.parametrize("moment", ["after the claim", "in the call", "after the upstream accepted"])
def test_t9_a_run_killed_at_any_moment_is_recovered_within_the_bound_and_never_early(
    database_url: str, table: Table, upstream: RecordingUpstream, moment: str
) -> None:
    """P3, P8: kill -9; the first tick after the lease sends what is due, with the same key and the same body."""
    add_accounts(table, "a")
    with (
        LoopProcess(database_url, upstream.url, "dies", tick=TICK) as dies,
        psycopg.connect(database_url) as owner,
    ):
        if moment == "after the claim":
            owner.execute("LOCK TABLE sync.account_record")  # the run waits for it before it can send
            dies.go()
            wait_until(lambda: _blocked(table), "the run has claimed and waits to read the records")
        else:
            upstream.stall("a")
            dies.go()
            upstream.wait_for(lambda calls: len(calls) == 1, "the account is at the upstream")
        if moment == "after the upstream accepted":
            owner.execute("SELECT FROM sync.account_config FOR UPDATE")  # the run waits for it to write back
            upstream.clear()
            wait_until(lambda: _blocked(table), "the run has its answer and waits to write back")
        assert table.row("a")["status"] == "IN_PROGRESS"
        dies.kill()
        # its machine is gone: what it had sent to the database and was not done yet is not done any more
        table.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'sync-assets' AND datname = current_database()"
        )
    upstream.clear()
    assert table.row("a")["lease"] == timedelta(seconds=LEASE)

    table.age("a", seconds=LEASE - 30)
    with LoopProcess(database_url, upstream.url, "early", tick=NEXT_TICK) as early:
        assert early.go().wait()["claimed"] == 0
    table.age("a", seconds=31)
    # the second tick after the claim: 30 min at the latest
    with LoopProcess(database_url, upstream.url, "heals", tick=TICK + timedelta(minutes=30)) as heals:
        summary = heals.go().wait()
    assert (summary["taken_over"], summary["succeeded"], summary["sent"]) == (1, 1, 1)
    assert table.row("a")["status"] == "IDLE"
    calls = upstream.of("a")
    assert len(calls) == (1 if moment == "after the claim" else 2)
    assert len({(call.key, call.body_hash) for call in calls}) == 1
    assert len({call.claim_seq for call in calls}) == len(calls)
    assert_no_overlap(calls)


def test_t10_sigterm_at_random_points_leaves_nothing_held_and_counts_nothing(database_url: str) -> None:
    """P10: 200 runs, also hit before, during and after a claim's commit."""
    done = subprocess.run(
        [sys.executable, "-m", "sync_assets_tests.stop_rounds", database_url, "200", "1"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    for where, least in (("before the first claim", 5), ("during a claim", 20), ("accounts at work", 20)):
        hit = sum(number for told, number in report["hits"].items() if where in told)
        assert hit >= least, f"too few signals came {where}: {report['hits']}"
    assert report["handed_back"] >= 20


def test_t20_two_runs_with_one_run_id_are_fenced_from_each_other(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P4: the first is frozen past its lease; the second, of the same name, keeps its claim and its outcome."""
    add_accounts(table, "a")
    upstream.stall("a", times=1)
    with LoopProcess(database_url, upstream.url, "same", tick=TICK) as first:
        first.go()
        upstream.wait_for(lambda calls: len(calls) == 1, "the account is at the upstream")
        first.signal(signal.SIGSTOP)
        holder = table.row("a")["claimed_by"]
        table.age("a", seconds=LEASE + 1)
        with LoopProcess(database_url, upstream.url, "same", tick=NEXT_TICK) as second:
            assert second.go().wait()["succeeded"] == 1
        row = table.row("a")
        assert row["claimed_by"].split("/")[0] == holder.split("/")[0] == "same"
        assert row["claimed_by"] != holder, "a nonce tells the two processes apart"
        upstream.clear()
        first.signal(signal.SIGCONT)
        summary = first.wait()
    assert (summary["succeeded"], summary["lost"]) == (0, 1)
    assert table.row("a") == row


def test_t29_a_run_stopped_while_it_holds_takeovers_leaves_no_row_in_progress(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P10: they go back as FAILED, with the crash counted once and nothing for the stop; the next run takes them."""
    add_accounts(table, "a", "b", "c")
    upstream.stall()
    with LoopProcess(database_url, upstream.url, "dies", tick=TICK) as dies:
        dies.go()
        upstream.wait_for(lambda calls: len(calls) == 3, "all are at the upstream")
        dies.kill()
    table.age("a", "b", "c", seconds=LEASE + 1)
    with LoopProcess(database_url, upstream.url, "stopped", tick=NEXT_TICK) as stopped:
        stopped.go()
        upstream.wait_for(lambda calls: len(calls) == 6, "all are at the upstream again")
        stopped.signal(signal.SIGTERM)
        summary = stopped.wait()
    assert (summary["taken_over"], summary["handed_back"], summary["failed"]) == (3, 3, 0)
    for account in ("a", "b", "c"):
        row = table.row(account)
        assert (row["status"], row["failures"], row["error_kind"]) == ("FAILED", 1, "crashed")
    upstream.clear()
    with LoopProcess(database_url, upstream.url, "again", tick=NEXT_TICK) as again:
        summary = again.go().wait()
    assert (summary["claimed"], summary["taken_over"], summary["succeeded"]) == (3, 0, 3)
