"""The sensor: launches a run soon after somebody changed an account's configuration."""

from datetime import datetime, timedelta, timezone

from dagster import (
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from sync_assets.accounts_database import accounts_database
from sync_assets.defs.job import JOB_NAME, OP_NAME, TICK_TAG, TRIGGER_TAG
from sync_assets.defs.resources import ClaimsResource
from sync_assets.sync_run import blocking, changed_accounts

SENSOR_NAME = "account_config_sensor"
COUNT_LIMIT = 1000
"""Changed accounts are counted up to this; that there are some is all that matters."""

_RUNS_LOOKED_AT = 20

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
            return SkipReason("accounts with a changed configuration: 0")
        found = f"accounts with a changed configuration: {changed}{' or more' if changed == COUNT_LIMIT else ''}"
        now = datetime.now(timezone.utc)
        run = _unfinished_run(context, now - timedelta(seconds=settings.lease_at(now)))
        if run is not None:
            return SkipReason(
                f"{found}; run {run.run_id[:8]} of this sensor is {run.status.value} and may still claim them"
            )
        # No run key: it would be spent for ever, also by a run that was stopped. The claim is what excludes.
        return RunRequest(
            run_config={"ops": {OP_NAME: {"config": {"only_changed": True}}}},
            tags={TRIGGER_TAG: "sensor", TICK_TAG: now.isoformat()},
        )

    return account_config_sensor


def _unfinished_run(context: SensorEvaluationContext, young: datetime) -> DagsterRun | None:
    """An unfinished run of this sensor that was asked for after `young`: an older one may stay STARTED for ever."""
    runs = context.instance.get_runs(
        RunsFilter(statuses=_UNFINISHED, tags={"dagster/sensor_name": SENSOR_NAME}), limit=_RUNS_LOOKED_AT
    )
    return next((run for run in runs if _asked_at(run) > young and _is_ours(run, context)), None)


def _asked_at(run: DagsterRun) -> datetime:
    """By our own tag: Dagster stores when a run was made without a zone, in whichever zone its database is set to."""
    tick = run.tags.get(TICK_TAG)
    return datetime.fromisoformat(tick) if tick else datetime.min.replace(tzinfo=timezone.utc)


def _is_ours(run: DagsterRun, context: SensorEvaluationContext) -> bool:
    """Another code location of the same Dagster may have a sensor of this name, over another table."""
    theirs, ours = run.remote_job_origin, context.code_location_origin
    return theirs is None or ours is None or theirs.location_name == ours.location_name
