"""The essay's five awkward scenarios: each run is a real Dagster run in a process of its own, calling a real server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus

from sync_assets_tests.claims_rig import Table
from sync_assets_tests.dagster_rig import DagsterHome, RunProcess, add_accounts, change_records, wait_for
from sync_assets_tests.postgres import PostgresServer
from sync_assets_tests.recording_upstream import RecordingUpstream, assert_no_overlap

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("dagster_five")]

TICK = "2026-01-31T08:00:00+00:00"
NEXT_TICK = "2026-01-31T08:15:00+00:00"
INTERVAL = 15 * 60
LEASE = INTERVAL + 120


@pytest.fixture(scope="module")
def dagster_url(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def home(tmp_path: Path, dagster_url: str, database_url: str, upstream: RecordingUpstream) -> DagsterHome:
    return DagsterHome(
        tmp_path / "dagster",
        dagster_url,
        {"SYNC_DATABASE_URL": database_url, "SYNC_UPSTREAM_URL": upstream.url, "SYNC_SECRET_TEST": "s3cret"},
    )


@pytest.fixture
def instance(home: DagsterHome) -> Iterator[DagsterInstance]:
    with home.instance() as instance:
        yield instance


def claimed(run: RunProcess) -> int:
    """How many accounts the run says it has claimed."""
    found = re.search(r"claimed (\d+), succeeded", run.output)
    assert found, run.output
    return int(found[1])


def assert_success(instance: DagsterInstance, *runs: RunProcess) -> None:
    for run in runs:
        output = run.wait()
        assert run.status(instance) is DagsterRunStatus.SUCCESS, output


def test_1_two_invocations_at_the_same_instant_claim_each_account_once_and_the_tick_again_nobody(
    home: DagsterHome, instance: DagsterInstance, table: Table, upstream: RecordingUpstream
) -> None:
    """P1, P2."""
    accounts = [f"a{n:02}" for n in range(12)]
    add_accounts(table, *accounts)
    upstream.stall()
    runs = [home.start_run({"scheduled_for": TICK}, SYNC_CONCURRENCY="3") for _ in range(2)]
    # each has three at work and no place for more: neither is before the other
    upstream.wait_for(lambda calls: len(calls) == 6, "both runs are at work", 60)
    upstream.clear()
    assert_success(instance, *runs)
    assert Counter(call.account for call in upstream.calls) == Counter(accounts)
    assert_no_overlap(upstream.calls)
    assert sum(claimed(run) for run in runs) == 12
    assert all(claimed(run) >= 3 for run in runs)
    assert {holder.split("/")[0] for holder in table.column("claimed_by").values()} == {
        run.run_id(instance) for run in runs
    }

    change_records(table)  # so that a run that claimed anybody would call
    before = table.column("claim_seq")
    again = home.start_run({"scheduled_for": TICK})
    assert_success(instance, again)
    assert len(upstream.calls) == 12
    assert table.column("claim_seq") == before
    assert claimed(again) == 0


def test_2_a_run_killed_mid_batch_is_taken_over_at_the_next_tick_after_the_lease_not_before(
    home: DagsterHome, instance: DagsterInstance, table: Table, upstream: RecordingUpstream
) -> None:
    """P3, P8."""
    add_accounts(table, "a", "b", "c")
    upstream.stall(account="b")
    upstream.stall(account="c")
    killed = home.start_run({"scheduled_for": TICK})
    upstream.wait_for(lambda calls: len(calls) == 3, "the run is at work on all three", 60)
    wait_for(lambda: table.row("a")["status"] == "IDLE", "a is settled")
    killed.kill()
    upstream.clear()

    table.age("a", "b", "c", seconds=LEASE - 60)  # the next tick has come, the lease has not ended
    early = home.start_run({"scheduled_for": NEXT_TICK})
    assert_success(instance, early)
    assert claimed(early) == 1  # `a` alone
    assert len(upstream.of("b")) == len(upstream.of("c")) == 1

    table.age("b", "c", seconds=61)
    late = home.start_run({"scheduled_for": "2026-01-31T08:30:00+00:00"})
    assert_success(instance, late)
    assert set(table.column("status").values()) == {"IDLE"}
    for account in ("b", "c"):
        first, second = upstream.of(account)
        assert first.key == second.key
        assert first.body_hash == second.body_hash
        assert second.claim_seq is not None
        assert first.claim_seq is not None
        assert second.claim_seq > first.claim_seq
        assert f"account {account} was taken over from {killed.run_id(instance)}/" in late.output


def test_3_one_account_throws_and_the_rest_of_the_batch_completes(
    home: DagsterHome, instance: DagsterInstance, table: Table, upstream: RecordingUpstream
) -> None:
    """P5."""
    add_accounts(table, "a", "b", "c", "no-secret", "throws")
    table.set("no-secret", secret_ref="env:SYNC_SECRET_MISSING")
    upstream.answer(500, account="throws")
    run = home.start_run({"scheduled_for": TICK})
    assert_success(instance, run)
    assert table.column("status") == {
        "a": "IDLE",
        "b": "IDLE",
        "c": "IDLE",
        "no-secret": "FAILED",
        "throws": "FAILED",
    }
    assert table.row("throws")["error_kind"] == "retry"
    assert table.row("no-secret")["error_kind"] == "auth"
    assert "account throws failed (retry)" in run.output
    event = instance.get_latest_materialization_event(AssetKey("sync_runs"))
    assert event is not None
    assert event.run_id == run.run_id(instance)
    assert event.asset_materialization is not None
    numbers = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert (numbers["claimed"], numbers["succeeded"], numbers["failed"]) == (5, 3, 2)


def test_4_a_manual_run_for_an_account_a_scheduled_run_works_on_is_rejected_not_duplicated(
    home: DagsterHome, instance: DagsterInstance, table: Table, upstream: RecordingUpstream
) -> None:
    """P1, P6."""
    add_accounts(table, "a", "b")
    upstream.stall(account="a")
    scheduled = home.start_run({"scheduled_for": TICK})
    upstream.wait_for(lambda calls: any(call.account == "a" for call in calls), "the scheduled run works on a", 60)
    manual = home.start_run({"account_id": "a"})
    assert_success(instance, manual)
    refusal = next(line for line in manual.output.splitlines() if "nothing was done: " in line)
    assert scheduled.run_id(instance) in refusal
    assert table.row("a")["started_at"].strftime("%H:%M:%S") in refusal
    upstream.release(account="a")
    assert_success(instance, scheduled)
    assert len(upstream.of("a")) == 1
    assert table.row("a")["status"] == "IDLE"


def test_5_work_that_runs_past_the_interval_is_left_alone_until_its_lease_ends_and_then_the_late_run_writes_nothing(
    home: DagsterHome, instance: DagsterInstance, table: Table, upstream: RecordingUpstream
) -> None:
    """P3, P4; and a schedule that was shortened meanwhile does not shorten the promise."""
    add_accounts(table, "a")
    upstream.stall(account="a", times=1)
    slow = home.start_run({"scheduled_for": TICK})
    upstream.wait_for(lambda calls: len(calls) == 1, "the slow run works on a", 60)

    table.age("a", seconds=LEASE - 60)  # older than the interval, and much older than a lease of the new schedule
    other = home.start_run({"scheduled_for": NEXT_TICK}, SYNC_SCHEDULE="* * * * *")
    assert_success(instance, other)
    assert claimed(other) == 0
    assert len(upstream.of("a")) == 1

    table.age("a", seconds=61)
    after = home.start_run({"scheduled_for": NEXT_TICK}, SYNC_SCHEDULE="* * * * *")
    assert_success(instance, after)
    assert claimed(after) == 1
    kept = table.row("a")
    assert kept["status"] == "IDLE"

    upstream.release(account="a")  # the slow run wakes, with an answer in hand
    assert_success(instance, slow)
    assert "account a lost" in slow.output
    assert table.row("a") == kept
