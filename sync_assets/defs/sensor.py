"""The sensor: launches a run soon after somebody changed an account's configuration."""

from datetime import datetime, timedelta, timezone

from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from sync_assets.accounts_database import accounts_database
from sync_assets.defs.job import JOB_NAME, OP_NAME, TRIGGER_TAG
from sync_assets.defs.resources import ClaimsResource
from sync_assets.sync_run import ClaimSettings, blocking, changed_accounts

SENSOR_NAME = "account_config_sensor"
COUNT_LIMIT = 1000
"""Changed accounts are counted up to this; that there are some is all that matters."""

_UNFINISHED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def build_sensor(*, seconds: int, autostart: bool) -> SensorDefinition:
    """The sensor.

    Args:
        seconds: the least time between two looks.
        autostart: whether it runs as soon as it is loaded.
    """

    @sensor(
        name=SENSOR_NAME,
        job_name=JOB_NAME,  # by name: binding the resources again to a given job makes Dagster warn of its own beta
        minimum_interval_seconds=seconds,
        default_status=DefaultSensorStatus.RUNNING if autostart else DefaultSensorStatus.STOPPED,
        description=(
            "Looks for accounts whose configuration changed since they were claimed last, and launches one run for "
            "all of them."
        ),
    )
    def account_config_sensor(context: SensorEvaluationContext, claims: ClaimsResource) -> RunRequest | SkipReason:
        settings = claims.settings()
        with accounts_database(settings) as found_at:
            changed = blocking(changed_accounts(found_at, COUNT_LIMIT))
        if not changed:
            return SkipReason("0 accounts have a changed configuration")
        found = f"{changed}{' or more' if changed == COUNT_LIMIT else ''} accounts have a changed configuration"
        unfinished = _unfinished_run(context.instance, settings)
        if unfinished is not None:
            run = unfinished.dagster_run
            return SkipReason(
                f"{found}; run {run.run_id[:8]} of this sensor is {run.status.value} and may still claim them"
            )
        # No run key: it would be spent for ever, also by a run that was stopped. The claim is what excludes.
        return RunRequest(
            run_config={"ops": {OP_NAME: {"config": {"only_changed": True}}}}, tags={TRIGGER_TAG: "sensor"}
        )

    return account_config_sensor


def _unfinished_run(instance: DagsterInstance, settings: ClaimSettings) -> RunRecord | None:
    """This sensor's latest unfinished run, unless it is older than the lease: that one may stay STARTED for ever."""
    now = datetime.now(timezone.utc)
    records = instance.get_run_records(
        filters=RunsFilter(
            statuses=_UNFINISHED,
            tags={"dagster/sensor_name": SENSOR_NAME},
            created_after=now - timedelta(seconds=settings.lease_at(now)),
        ),
        limit=1,
    )
    return records[0] if records else None
