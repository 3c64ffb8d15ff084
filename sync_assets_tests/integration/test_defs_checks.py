"""The checks of `account_config` in a real Dagster instance: judged by every run, and by hand, with the same words."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    ExecuteInProcessResult,
    OpExecutionContext,
    TableMetadataValue,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from sync_assets.account_sync import AccountSync, SyncResult
from sync_assets.claims import ClaimedAccount
from sync_assets.clock import Deadline
from sync_assets.defs import build_sync_definitions
from sync_assets.upstream import UpstreamClient
from sync_assets_tests.claims_rig import Table
from sync_assets_tests.integration.test_defs_job import (
    ByItsSettings,
    add_failing,
    execute,
    instance,
    lines,
    numbers,
    table,
)
from sync_assets_tests.integration.test_troubles import ago, ahead

__all__ = ["instance", "table"]  # the fixtures

NAMES = {"no_stalled_accounts", "no_failed_accounts", "every_account_fresh", "no_lease_in_the_future"}


def evaluations(instance: DagsterInstance, run_id: str) -> dict[str, AssetCheckEvaluation]:
    """What a run has said of each check; no check twice."""
    found: dict[str, AssetCheckEvaluation] = {}
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION):
        assert entry.dagster_event is not None
        evaluation = entry.dagster_event.asset_check_evaluation_data
        assert evaluation.asset_key == AssetKey("account_config")
        assert evaluation.check_name not in found, "evaluated twice"
        found[evaluation.check_name] = evaluation
    return found


def shown(instance: DagsterInstance, name: str) -> tuple[AssetCheckExecutionRecordStatus, str]:
    """What the asset's page shows of a check: its state, and the run it comes from."""
    key = AssetCheckKey(AssetKey("account_config"), name)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    return record.status, record.run_id


def listed(evaluation: AssetCheckEvaluation) -> list[dict[str, Any]]:
    accounts = evaluation.metadata["accounts"]
    assert isinstance(accounts, TableMetadataValue)
    for record in accounts.records:
        assert set(record.data) == {column.name for column in accounts.schema.columns}
    return [dict(record.data) for record in accounts.records]


def by_hand(instance: DagsterInstance, names: Collection[str] = NAMES) -> ExecuteInProcessResult:
    """What the Execute button of the Checks tab launches."""
    keys = {AssetCheckKey(AssetKey("account_config"), name) for name in names}
    job = build_sync_definitions().resolve_implicit_global_asset_job_def()
    return job.get_subset(asset_selection=set(), asset_check_selection=keys).execute_in_process(
        instance=instance, raise_on_error=False
    )


def one_of_each(table: Table) -> None:
    """Accounts in trouble, none of which a run for changed configuration claims."""
    table.add("stalled", "failed", "stale", "future", "fine", last_success=ago("1 s"))
    table.set("stalled", status="IN_PROGRESS", started_at=ago("1 h"), lease="10 min", claimed_by="dead/1")
    table.set("failed", status="FAILED", failures=2, error_kind="auth", last_error="PUT answered 401")
    table.set("failed", next_attempt_at="infinity", started_at=ago("1 h"))
    table.set("stale", last_success=ago("2 h"), started_at=ago("2 h"))
    table.set("future", status="IN_PROGRESS", started_at=ahead("1 d"), lease="10 min", claimed_by="run/1")
    table.connection.execute("UPDATE sync.account_config SET claimed_generation = generation")


def test_every_run_judges_the_accounts_also_when_it_claims_none(
    table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC_FRESHNESS_SECONDS", "3600")
    one_of_each(table)
    result = execute(instance, only_changed=True)
    assert result.success, "a check that fails must not fail the run"
    assert numbers(instance)["claimed"] == 0
    told = evaluations(instance, result.run_id)
    assert set(told) == NAMES
    for name, evaluation in told.items():
        assert not evaluation.passed
        assert evaluation.metadata["count"].value == 1
        assert shown(instance, name) == (AssetCheckExecutionRecordStatus.FAILED, result.run_id)
    severities = {name for name, evaluation in told.items() if evaluation.severity is AssetCheckSeverity.WARN}
    assert severities == {"no_failed_accounts"}

    def utc(account_id: str, column: str) -> str:
        return str(table.row(account_id)[column].strftime("%Y-%m-%d %H:%M:%S UTC"))

    [stalled] = listed(told["no_stalled_accounts"])
    assert (stalled["account_id"], stalled["held_by"]) == ("stalled", "dead/1")
    assert stalled["claimed_at"] == utc("stalled", "started_at")
    [failed] = listed(told["no_failed_accounts"])
    assert (failed["account_id"], failed["failures"], failed["error_kind"]) == ("failed", 2, "auth")
    assert (failed["error"], failed["next_attempt"]) == ("PUT answered 401", "when released")
    [stale] = listed(told["every_account_fresh"])
    assert (stale["account_id"], stale["limit_seconds"], stale["status"]) == ("stale", 3600.0, "IDLE")
    assert stale["last_success"] == utc("stale", "last_success")
    [future] = listed(told["no_lease_in_the_future"])
    assert (future["account_id"], future["claimed_at"]) == ("future", utc("future", "started_at"))
    assert told["no_stalled_accounts"].description == (
        "1 account past the lease, left by a run that died: the next run by schedule takes over; the worst: 'stalled'"
    )


def test_t6_a_start_in_the_future_is_shown_and_fails_no_run(table: Table, instance: DagsterInstance) -> None:
    table.add("ahead", "fine")
    table.set("ahead", status="IN_PROGRESS", started_at=ahead("1 h"), lease="10 min", claimed_by="run/1")
    result = execute(instance)
    assert result.success
    assert numbers(instance)["succeeded"] == 1
    future = evaluations(instance, result.run_id)["no_lease_in_the_future"]
    assert [row["account_id"] for row in listed(future)] == ["ahead"]
    assert (future.passed, future.severity) == (False, AssetCheckSeverity.ERROR)
    assert shown(instance, "no_lease_in_the_future")[0] is AssetCheckExecutionRecordStatus.FAILED
    table.set("ahead", status="IDLE", started_at=None)
    result = execute(instance)
    assert shown(instance, "no_lease_in_the_future") == (AssetCheckExecutionRecordStatus.SUCCEEDED, result.run_id)


def test_accounts_without_trouble_pass_and_the_limit_that_is_not_set_is_told(
    table: Table, instance: DagsterInstance
) -> None:
    table.add("a", "b")
    told = evaluations(instance, execute(instance).run_id)
    assert {evaluation.passed for evaluation in told.values()} == {True}
    assert all(evaluation.description and not listed(evaluation) for evaluation in told.values())
    assert "SYNC_FRESHNESS_SECONDS" in (told["every_account_fresh"].description or "")


def test_an_account_that_fails_in_this_run_fails_the_check_and_not_the_run(
    table: Table, instance: DagsterInstance
) -> None:
    table.add("good")
    add_failing(table, "bad")
    result = execute(instance)
    assert result.success
    [row] = listed(evaluations(instance, result.run_id)["no_failed_accounts"])
    assert (row["account_id"], row["error"], row["last_success"]) == ("bad", "bad is down", "never")
    assert row["claimed_by"].startswith(result.run_id)


def test_a_failed_run_has_judged_them_too(table: Table, instance: DagsterInstance) -> None:
    add_failing(table, "bad")
    result = execute(instance)
    assert not result.success
    assert not evaluations(instance, result.run_id)["no_failed_accounts"].passed


def test_the_asset_form_judges_each_check_once(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    instance.add_dynamic_partitions("accounts", ["a"])
    result = (
        build_sync_definitions(sync=ByItsSettings)
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(instance=instance, partition_key="a", asset_selection=[AssetKey("account_sync")])
    )
    assert table.row("a")["last_success"] is not None
    assert set(evaluations(instance, result.run_id)) == NAMES
    assert shown(instance, "no_failed_accounts") == (AssetCheckExecutionRecordStatus.SUCCEEDED, result.run_id)


def test_by_hand_the_same_is_said_and_nothing_is_changed(
    table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC_FRESHNESS_SECONDS", "3600")
    one_of_each(table)
    by_run = evaluations(instance, execute(instance, only_changed=True).run_id)
    before = table.column("claim_seq")
    result = by_hand(instance)
    assert result.success
    told = evaluations(instance, result.run_id)
    assert set(told) == NAMES
    for name, evaluation in told.items():
        assert listed(evaluation) == listed(by_run[name])
        assert (evaluation.description, evaluation.severity) == (by_run[name].description, by_run[name].severity)
        assert shown(instance, name) == (AssetCheckExecutionRecordStatus.FAILED, result.run_id)
    assert table.column("claim_seq") == before


def test_by_hand_one_check_alone(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    assert set(evaluations(instance, by_hand(instance, ["no_failed_accounts"]).run_id)) == {"no_failed_accounts"}


def test_p12_by_hand_a_database_that_is_not_ready_is_told_in_words(
    empty_database_url: str, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC_DATABASE_URL", empty_database_url)
    result = by_hand(instance)
    assert not result.success
    data = result.failure_data_for_node("account_checks")
    assert data is not None
    assert data.user_failure_data is not None
    assert "sync-assets init" in (data.user_failure_data.description or "")


def test_p12_a_limit_s_column_that_is_missing_fails_its_check_by_name(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    job = build_sync_definitions(sync=ByItsSettings, freshness_column="max_age").resolve_job_def("sync_accounts_job")
    result = job.execute_in_process(instance=instance)
    told = evaluations(instance, result.run_id)
    assert {name for name, evaluation in told.items() if not evaluation.passed} == {"every_account_fresh"}
    assert "'max_age'" in (told["every_account_fresh"].description or "")


def test_checks_that_cannot_be_stored_fail_no_run(
    table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_event = OpExecutionContext.log_event

    def refuse(self: OpExecutionContext, event: Any) -> None:
        if isinstance(event, AssetCheckEvaluation):
            raise ConnectionError("the event store went away")
        log_event(self, event)

    monkeypatch.setattr(OpExecutionContext, "log_event", refuse)
    table.add("a")
    result = execute(instance)
    assert result.success
    assert "the checks of account_config were not evaluated: ConnectionError" in lines(instance, result)
    assert numbers(instance)["succeeded"] == 1


class SpoilsTheTable(AccountSync):
    """Takes a trigger from the table, so that nobody can look at it any more."""

    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult:
        async with self.database.connection() as connection:
            await connection.execute("ALTER TABLE sync.account_config DISABLE TRIGGER sync_assets_generation")
        return SyncResult(sent=1)


def test_accounts_that_cannot_be_looked_at_fail_no_run(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    job = build_sync_definitions(sync=SpoilsTheTable).resolve_job_def("sync_accounts_job")
    result = job.execute_in_process(instance=instance)
    assert table.row("a")["last_success"] is not None
    assert not evaluations(instance, result.run_id)
    assert any("were not evaluated: the table sync.account_config" in line for line in lines(instance, result))


class IsStopped(AccountSync):
    """Has its run stopped while it works."""

    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError


def test_p10_a_run_that_is_stopped_judges_nothing(table: Table, instance: DagsterInstance) -> None:
    table.add("a")
    job = build_sync_definitions(sync=IsStopped).resolve_job_def("sync_accounts_job")
    with pytest.raises(DagsterExecutionInterruptedError):
        job.execute_in_process(instance=instance)
    [run] = instance.get_runs()
    assert not evaluations(instance, run.run_id)
    assert table.row("a")["status"] == "IDLE"


def test_they_are_declared_and_described() -> None:
    [checks] = build_sync_definitions().asset_checks or []
    assert {spec.name for spec in checks.check_specs} == NAMES
    for spec in checks.check_specs:
        assert spec.asset_key == AssetKey("account_config")
        assert spec.description
