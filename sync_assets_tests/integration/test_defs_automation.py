"""Schedule and sensor, evaluated tick by tick on a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RunRequest,
    SensorEvaluationContext,
    build_schedule_context,
)
from dagster._core.execution.build_resources import wrap_resources_for_execution
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from sync_assets.account_sync import AccountSync
from sync_assets.claims import ClaimedAccount
from sync_assets.clock import Deadline
from sync_assets.defs import build_sync_definitions
from sync_assets.upstream import UpstreamClient
from sync_assets_tests.claims_rig import Table, table_at
from sync_assets_tests.dagster_rig import wait_for

JOB = "sync_accounts_job"


class Nothing(AccountSync):
    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> None:
        pass


@pytest.fixture
def table(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setenv("SYNC_DATABASE_URL", database_url)
    with table_at(database_url) as table:
        yield table


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def sensor_tick(definitions: Definitions, instance: DagsterInstance, location: str = "ours") -> RunRequest | str:
    """The run the sensor of a code location asks for, or why it asks for none."""
    sensor = definitions.resolve_sensor_def("account_config_sensor")
    context = SensorEvaluationContext(
        None,
        instance=instance,
        resources=wrap_resources_for_execution(definitions.resources),
        sensor_name=sensor.name,
        code_location_origin=RegisteredCodeLocationOrigin(location),
    )
    data = sensor.evaluate_tick(context)
    if not data.run_requests:
        assert data.skip_message is not None
        return data.skip_message
    (request,) = data.run_requests
    return request


def unfinished_run(instance: DagsterInstance, tags: Mapping[str, str], location: str = "ours") -> DagsterRun:
    """A run as the daemon makes it, which then dies together with its code server."""
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__"), JOB)
    return instance.add_run(
        DagsterRun(job_name=JOB, status=DagsterRunStatus.STARTED, tags=dict(tags), remote_job_origin=origin)
    )


def sync_all(definitions: Definitions, instance: DagsterInstance) -> None:
    assert definitions.resolve_job_def("sync_accounts_job").execute_in_process(instance=instance).success


def test_p7_the_sensor_asks_for_a_run_only_when_a_configuration_changed(
    table: Table, instance: DagsterInstance
) -> None:
    definitions = build_sync_definitions(sync=Nothing)
    table.add("a", "b", "c")
    sync_all(definitions, instance)
    assert sensor_tick(definitions, instance) == "accounts with a changed configuration: 0"
    table.set("b", base_url="https://elsewhere.example")
    request = sensor_tick(definitions, instance)
    assert isinstance(request, RunRequest)
    assert request.run_key is None  # a key is spent for ever, also by a run that was stopped
    assert request.run_config == {"ops": {"sync_accounts": {"config": {"only_changed": True}}}}
    assert request.tags["sync/trigger"] == "sensor"
    before = table.column("claim_seq")
    assert (
        definitions.resolve_job_def("sync_accounts_job")
        .execute_in_process(instance=instance, run_config=request.run_config)
        .success
    )
    after = table.column("claim_seq")
    assert {account for account in after if after[account] != before[account]} == {"b"}
    assert sensor_tick(definitions, instance) == "accounts with a changed configuration: 0"


def test_the_sensor_leaves_a_disabled_account_alone(table: Table, instance: DagsterInstance) -> None:
    table.add("a", enabled=False)
    assert sensor_tick(build_sync_definitions(sync=Nothing), instance) == "accounts with a changed configuration: 0"


def test_the_sensor_waits_for_its_unfinished_run_but_not_longer_than_the_lease(
    table: Table, instance: DagsterInstance
) -> None:
    table.add("a", "b")
    definitions = build_sync_definitions(sync=Nothing, lease_seconds=600)
    asked = sensor_tick(definitions, instance)
    assert isinstance(asked, RunRequest)
    run = unfinished_run(instance, asked.tags)
    told = sensor_tick(definitions, instance)
    assert isinstance(told, str)
    assert told.startswith("accounts with a changed configuration: 2; run ")
    assert run.run_id[:8] in told
    short = build_sync_definitions(sync=Nothing, lease_seconds=1)
    wait_for(
        lambda: isinstance(sensor_tick(short, instance), RunRequest), "the dead run is older than the lease of 1 s"
    )


def test_a_run_by_hand_does_not_hold_the_sensor_up(table: Table, instance: DagsterInstance) -> None:
    definitions = build_sync_definitions(sync=Nothing)
    table.add("a")
    unfinished_run(instance, {"sync/trigger": "manual"})
    assert isinstance(sensor_tick(definitions, instance), RunRequest)


def test_the_run_of_another_code_location_s_sensor_does_not_hold_the_sensor_up(
    table: Table, instance: DagsterInstance
) -> None:
    definitions = build_sync_definitions(sync=Nothing)
    table.add("a")
    asked = sensor_tick(definitions, instance)
    assert isinstance(asked, RunRequest)
    unfinished_run(instance, asked.tags, "theirs")
    assert isinstance(sensor_tick(definitions, instance, "ours"), RunRequest)
    assert isinstance(sensor_tick(definitions, instance, "theirs"), str)


@pytest.mark.parametrize(
    ("fold", "told"), [(0, "2026-10-25T02:30:00+02:00"), (1, "2026-10-25T02:30:00+01:00")], ids=["first", "second"]
)
def test_p2_the_schedule_tells_the_run_its_tick_with_its_zone(fold: int, told: str) -> None:
    definitions = build_sync_definitions(sync=Nothing, schedule="30 * * * *", timezone="Europe/Berlin")
    schedule = definitions.resolve_schedule_def("sync_accounts_schedule")
    tick = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    data = schedule.evaluate_tick(build_schedule_context(scheduled_execution_time=tick))
    assert data.run_requests is not None
    (request,) = data.run_requests
    assert request.run_config == {"ops": {"sync_accounts": {"config": {"scheduled_for": told}}}}
    assert request.tags["sync/trigger"] == "schedule"
    assert request.tags["sync/tick"] == told
