"""The job in this process, on a real Postgres, with a sync that does as each account's settings say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    EventLogEntry,
    ExecuteInProcessResult,
    OpExecutionContext,
    TableMetadataValue,
)

from sync_assets.account_sync import AccountSync, SyncResult
from sync_assets.claims import ClaimedAccount
from sync_assets.clock import Deadline
from sync_assets.defs import FailRunWhen, build_sync_definitions
from sync_assets.defs.progress import Progress
from sync_assets.upstream import RetryLater, UpstreamClient
from sync_assets_tests.claims_rig import Table, table_at
from sync_assets_tests.postgres import make_server_folder, remove_server_folder


class ByItsSettings(AccountSync):
    """Fails the accounts whose settings say so; the others send two records."""

    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult:
        if account.row["settings"].get("fails"):
            raise RetryLater(f"{account.account_id} is down")
        return SyncResult(sent=2)


@pytest.fixture
def table(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setenv("SYNC_DATABASE_URL", database_url)
    with table_at(database_url) as table:
        yield table


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def add_failing(table: Table, *account_ids: str) -> None:
    table.add(*account_ids, settings=json.dumps({"fails": True}))


def execute(
    instance: DagsterInstance, fail_run_when: FailRunWhen = FailRunWhen.all, **config: Any
) -> ExecuteInProcessResult:
    definitions = build_sync_definitions(sync=ByItsSettings, fail_run_when=fail_run_when)
    return definitions.resolve_job_def("sync_accounts_job").execute_in_process(
        instance=instance, run_config={"ops": {"sync_accounts": {"config": config}}}, raise_on_error=False
    )


def log_of(instance: DagsterInstance, result: ExecuteInProcessResult) -> list[EventLogEntry]:
    return list(instance.all_logs(result.run_id))


def lines(instance: DagsterInstance, result: ExecuteInProcessResult) -> list[str]:
    """What the op itself has logged."""
    return [entry.user_message for entry in log_of(instance, result) if not entry.is_dagster_event]


def failure(result: ExecuteInProcessResult) -> str:
    """The description a person reads on the failed step."""
    assert not result.success
    data = result.failure_data_for_node("sync_accounts")
    assert data is not None
    assert data.user_failure_data is not None, data.error
    assert data.user_failure_data.description is not None
    return data.user_failure_data.description


def numbers(instance: DagsterInstance, asset: str = "sync_runs") -> dict[str, Any]:
    event = instance.get_latest_materialization_event(AssetKey(asset))
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def refusal(instance: DagsterInstance, result: ExecuteInProcessResult) -> dict[str, Any]:
    """What the run page shows of the account that was not claimed."""
    [told] = [
        entry.dagster_event.event_specific_data.asset_observation  # type: ignore[union-attr]
        for entry in log_of(instance, result)
        if entry.dagster_event_type == DagsterEventType.ASSET_OBSERVATION and "busy" in str(entry.dagster_event)
    ]
    return {name: value.value for name, value in told.metadata.items()}


def test_a_run_tells_its_numbers_and_its_failures(table: Table, instance: DagsterInstance) -> None:
    table.add("a", "b", "c")
    add_failing(table, "d")
    result = execute(instance)
    assert result.success
    told = numbers(instance)
    counts = {name: told[name] for name in ("claimed", "succeeded", "failed", "lost", "handed_back", "taken_over")}
    assert counts == {"claimed": 4, "succeeded": 3, "failed": 1, "lost": 0, "handed_back": 0, "taken_over": 0}
    assert told["records_sent"] == 6
    assert told["seconds"] > 0
    assert told["accounts_per_second"] > 0
    assert told["trigger"] == "manual"
    event = instance.get_latest_materialization_event(AssetKey("sync_runs"))
    assert event is not None
    assert event.asset_materialization is not None
    failures = event.asset_materialization.metadata["failures"]
    assert isinstance(failures, TableMetadataValue)
    assert [record.data for record in failures.records] == [
        {"account_id": "d", "outcome": "failed", "error_kind": "retry", "error": "d is down"}
    ]
    observed = [e for e in log_of(instance, result) if e.dagster_event_type == DagsterEventType.ASSET_OBSERVATION]
    assert len(observed) == 1
    assert "account d failed (retry): d is down" in lines(instance, result)


def test_a_run_says_how_far_it_is(table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sync_assets.defs.job.Progress", partial(Progress, seconds=0.0))
    table.add("a", "b")
    assert any("2 accounts settled (2 succeeded)" in line for line in lines(instance, execute(instance)))


def test_many_failures_are_counted_in_full_and_listed_in_part(table: Table, instance: DagsterInstance) -> None:
    add_failing(table, *(f"f{n:03}" for n in range(130)))
    result = execute(instance, FailRunWhen.none)
    assert result.success
    assert numbers(instance)["failed"] == 130
    event = instance.get_latest_materialization_event(AssetKey("sync_runs"))
    assert event is not None
    assert event.asset_materialization is not None
    failures = event.asset_materialization.metadata["failures"]
    assert isinstance(failures, TableMetadataValue)
    assert len(failures.records) == 100
    assert len([line for line in lines(instance, result) if "is down" in line]) == 20
    assert len(lines(instance, result)) < 30


@pytest.mark.parametrize(
    ("fail_run_when", "failing", "fine", "succeeds"),
    [
        (FailRunWhen.none, 2, 0, True),
        (FailRunWhen.any, 1, 1, False),
        (FailRunWhen.any, 0, 1, True),
        (FailRunWhen.all, 1, 1, True),
        (FailRunWhen.all, 2, 0, False),
        (FailRunWhen.all, 0, 0, True),
    ],
)
def test_when_failed_accounts_fail_the_run(
    table: Table, instance: DagsterInstance, *, fail_run_when: FailRunWhen, failing: int, fine: int, succeeds: bool
) -> None:
    if failing:
        add_failing(table, *(f"bad{n}" for n in range(failing)))
    if fine:
        table.add(*(f"good{n}" for n in range(fine)))
    result = execute(instance, fail_run_when)
    assert result.success is succeeds
    # settled and reported either way
    assert set(table.column("status").values()) <= {"IDLE", "FAILED"}
    assert numbers(instance)["failed"] == failing
    if not succeeds:
        assert f"failed {failing}" in failure(result)
        assert "bad" in failure(result)


def test_nothing_to_claim_is_success_said_plainly(table: Table, instance: DagsterInstance) -> None:
    result = execute(instance, scheduled_for="2026-01-31T08:00:00Z")
    assert result.success
    assert any(line.startswith("nothing to do: ") for line in lines(instance, result))
    assert numbers(instance)["claimed"] == 0


def test_p6_by_hand_only_that_account(table: Table, instance: DagsterInstance) -> None:
    table.add("a", "b")
    assert execute(instance, account_id="b").success
    assert table.row("a")["claim_seq"] == 0
    assert table.row("b")["last_success"] is not None


def test_p6_by_hand_an_unknown_account_fails_in_words(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    told = failure(execute(instance, account_id="nobody"))
    assert "nobody" in told
    assert "\n" not in told


def test_p6_by_hand_a_disabled_account_fails_in_words(table: Table, instance: DagsterInstance) -> None:
    table.add("a", enabled=False)
    assert "disabled" in failure(execute(instance, account_id="a"))
    assert table.row("a")["claim_seq"] == 0


def test_p6_by_hand_a_busy_account_is_left_alone_and_its_holder_named(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'IN_PROGRESS', started_at = now(), lease = '10 min', claim_seq = 7, "
        "claimed_by = 'run-of-another/1'"
    )
    before = table.row("a")
    result = execute(instance, account_id="a")
    assert result.success
    (told,) = [line for line in lines(instance, result) if line.startswith("nothing was done: ")]
    assert "run-of-another/1" in told
    assert before["started_at"].strftime("%H:%M:%S") in told
    assert table.row("a") == before
    assert refusal(instance, result)["held_by"] == "run-of-another/1"


def test_p6_by_hand_the_run_that_holds_a_busy_account_is_a_link_away(table: Table, instance: DagsterInstance) -> None:
    holder = execute(instance)
    table.add("a")
    table.set("a", status="IN_PROGRESS", started_at=datetime.now(timezone.utc), lease="10 min", claim_seq=7)
    table.set("a", claimed_by=f"{holder.run_id}/1f2e3d4c")
    told = refusal(instance, execute(instance, account_id="a"))
    assert told == {
        "account_id": "a",
        "held_by_run": holder.run_id,
        "held_since": table.row("a")["started_at"].timestamp(),
        "until_at_the_latest": (table.row("a")["started_at"] + timedelta(minutes=10)).timestamp(),
    }


def test_p6_by_hand_an_account_locked_by_its_owner_is_left_alone(
    table: Table, instance: DagsterInstance, database_url: str
) -> None:
    table.add("a")
    with table_at(database_url) as owner, owner.connection.transaction():
        owner.connection.execute("SELECT FROM sync.account_config WHERE account_id = 'a' FOR UPDATE")
        result = execute(instance, account_id="a")
    assert result.success
    assert any("nothing was done: " in line and "lock" in line for line in lines(instance, result))
    assert table.row("a")["claim_seq"] == 0


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"account_id": "a", "only_changed": True}, "account_id and only_changed were given together"),
        ({"scheduled_for": "2026-01-31T08:00:00"}, "has no time zone"),
        ({"scheduled_for": "soon"}, "is not a time"),
        ({"scheduled_for": "2126-01-31T08:00:00Z"}, "more than an hour ahead of the database's clock"),
    ],
)
def test_p12_config_that_cannot_be_meant_is_refused_before_anything_is_claimed(
    table: Table, instance: DagsterInstance, config: dict[str, Any], told: str
) -> None:
    table.add("a")
    assert told in failure(execute(instance, **config))
    assert table.row("a")["claim_seq"] == 0


def test_p11_p12_a_database_that_is_not_there_is_told_without_the_password(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC_DATABASE_URL", "postgresql://someone:hunter2@127.0.0.1:9/accounts")
    result = execute(instance)
    assert "cannot connect to the accounts' database" in failure(result)
    everything = "\n".join(f"{entry.message} {entry.dagster_event}" for entry in log_of(instance, result))
    assert "hunter2" not in everything


def test_p12_a_database_without_the_tables_is_told(
    empty_database_url: str, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC_DATABASE_URL", empty_database_url)
    assert "sync-assets init" in failure(execute(instance))


def test_reporting_that_fails_does_not_fail_the_sync(
    table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: object, _event: object) -> None:
        raise ConnectionError("Dagster's database went away")

    table.add("a")
    monkeypatch.setattr(OpExecutionContext, "log_event", refuse)
    monkeypatch.setattr(DagsterInstance, "add_run_tags", refuse)
    result = execute(instance)
    assert result.success
    assert table.row("a")["last_success"] is not None
    assert "could not report to Dagster: ConnectionError" in lines(instance, result)


def test_a_run_by_hand_is_tagged(table: Table, instance: DagsterInstance) -> None:
    table.add("42")
    result = execute(instance, account_id="42")
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["sync/trigger"] == "manual"
    assert run.tags["sync/account"] == "42"


def test_without_a_database_url_the_embedded_postgres_is_used(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = make_server_folder()
    try:
        monkeypatch.setenv("SYNC_LOCAL_DIR", str(folder))
        result = execute(instance)
        assert result.success
        assert numbers(instance)["claimed"] == 0
    finally:
        remove_server_folder(folder)
