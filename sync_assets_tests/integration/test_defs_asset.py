"""The op as the asset `account_sync`: accounts are picked as partitions, and synced through the same claim."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from dagster import AssetKey, DagsterEventType, DagsterInstance, ExecuteInProcessResult
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from sync_assets.claims import DatabaseUnavailable
from sync_assets.defs import build_sync_definitions, job, partitions
from sync_assets_tests.claims_rig import Table
from sync_assets_tests.integration.test_defs_job import (
    ByItsSettings,
    add_failing,
    execute,
    failure,
    instance,
    lines,
    numbers,
    table,
)

__all__ = ["instance", "table"]  # the fixtures

ODD = "line\nbreak...%0A"


def materialize(instance: DagsterInstance, *keys: str, **config: Any) -> ExecuteInProcessResult:
    """What the UI launches when the partitions from the first to the last key are picked."""
    tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
    return (
        build_sync_definitions(sync=ByItsSettings)
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            instance=instance,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags=tags if len(keys) > 1 else None,
            run_config={"ops": {"sync_accounts": {"config": config}}},
            raise_on_error=False,
        )
    )


def claimed(table: Table) -> set[str]:
    return {account_id for account_id, claim in table.column("claim_seq").items() if claim}


def test_each_run_keeps_the_partitions_in_step_with_the_table(table: Table, instance: DagsterInstance) -> None:
    table.add("a", "b", ODD)
    table.set("b", enabled=False)
    assert "partitions of accounts: 3 added" in lines(instance, execute(instance))
    assert set(instance.get_dynamic_partitions("accounts")) == {"a", "b", "line%0Abreak..%2E%250A"}
    table.connection.execute("DELETE FROM sync.account_config WHERE account_id = 'b'")
    # also when nothing is claimed
    assert "partitions of accounts: 1 removed" in lines(instance, execute(instance, only_changed=True))
    assert set(instance.get_dynamic_partitions("accounts")) == {"a", "line%0Abreak..%2E%250A"}


def test_p6_only_the_accounts_that_were_picked_are_synced(table: Table, instance: DagsterInstance) -> None:
    table.add("a", "b", ODD, "d")
    keys = ["b", "line%0Abreak..%2E%250A", "a", "d"]
    instance.add_dynamic_partitions("accounts", keys)
    assert materialize(instance, *keys[:2]).success
    assert claimed(table) == {"b", ODD}
    result = materialize(instance, "a")
    assert result.success
    assert claimed(table) == {"a", "b", ODD}
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["sync/trigger"] == "manual"
    assert run.tags["sync/account"] == "a"
    assert numbers(instance)["claimed"] == 1


def test_p6_a_picked_account_that_is_busy_is_left_alone_and_one_that_is_gone_is_told(
    table: Table, instance: DagsterInstance
) -> None:
    table.add("a")
    instance.add_dynamic_partitions("accounts", ["a"])
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'IN_PROGRESS', claimed_by = 'run-of-another/1', started_at = now(), "
        "lease = '10 min'"
    )
    result = materialize(instance, "a")
    assert result.success
    assert any("nothing was done: " in line and "run-of-another/1" in line for line in lines(instance, result))
    instance.add_dynamic_partitions("accounts", ["gone"])
    assert "gone" in failure(materialize(instance, "gone"))


def test_a_failed_account_is_not_materialized(table: Table, instance: DagsterInstance) -> None:
    add_failing(table, "bad")
    instance.add_dynamic_partitions("accounts", ["bad"])
    result = materialize(instance, "bad")
    assert "bad is down" in failure(result)
    assert not instance.get_materialized_partitions(AssetKey("account_sync"))
    events = instance.all_logs(result.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    assert [event.asset_materialization.asset_key for event in events if event.asset_materialization] == [
        AssetKey("sync_runs")
    ]


def test_p12_picked_accounts_and_a_config_are_refused(table: Table, instance: DagsterInstance) -> None:
    table.add("a", "b")
    instance.add_dynamic_partitions("accounts", ["a", "b"])
    assert "leave the config" in failure(materialize(instance, "a", account_id="b"))
    assert claimed(table) == set()


def test_more_accounts_than_dagster_has_partitions_for(
    table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MOST_PARTITIONS", 2)
    monkeypatch.setattr(job, "MOST_PARTITIONS", 2)
    monkeypatch.setattr("sync_assets.defs.reporting.MOST_PARTITIONS", 2)
    table.add("a", "b", "c")
    result = execute(instance)
    assert result.success
    assert any("more than the 2 accounts" in line for line in lines(instance, result))
    assert not instance.get_dynamic_partitions("accounts")
    assert numbers(instance)["succeeded"] == 3


def test_partitions_that_cannot_be_kept_fail_no_sync(
    table: Table, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_args: object) -> None:
        raise ConnectionError("the event store went away")

    table.add("a", "b")
    for name in ("get_dynamic_partitions", "add_dynamic_partitions", "delete_dynamic_partition"):
        with monkeypatch.context() as patch:
            patch.setattr(DagsterInstance, name, away)
            assert execute(instance).success
    assert claimed(table) == {"a", "b"}

    def gone(*_args: object) -> None:
        raise DatabaseUnavailable("the accounts' database does not answer")

    monkeypatch.setattr(job, "all_account_ids", gone)
    with caplog.at_level(logging.WARNING):
        assert execute(instance).success
    assert "the partitions of accounts stay as they are" in caplog.text
