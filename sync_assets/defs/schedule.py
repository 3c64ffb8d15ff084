"""The schedule: launches the job for each tick, and tells it which tick that is."""

from __future__ import annotations

from dagster import (
    DefaultScheduleStatus,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    schedule,
)

from sync_assets.defs.job import JOB_NAME, OP_NAME, TICK_TAG, TRIGGER_TAG

SCHEDULE_NAME = "sync_accounts_schedule"


def build_schedule(*, cron: str, timezone: str, autostart: bool) -> ScheduleDefinition:
    """The schedule.

    Args:
        cron: when it ticks.
        timezone: the zone the cron is read in.
        autostart: whether it runs as soon as it is loaded.
    """

    @schedule(
        name=SCHEDULE_NAME,
        job_name=JOB_NAME,
        cron_schedule=cron,
        execution_timezone=timezone,
        default_status=DefaultScheduleStatus.RUNNING if autostart else DefaultScheduleStatus.STOPPED,
        description=(
            "Launches one run a tick for the accounts that are due. A tick that is fired twice syncs each account once."
        ),
    )
    def sync_accounts_schedule(context: ScheduleEvaluationContext) -> RunRequest:
        tick = context.scheduled_execution_time.isoformat()
        return RunRequest(
            run_config={"ops": {OP_NAME: {"config": {"scheduled_for": tick}}}},
            tags={TRIGGER_TAG: "schedule", TICK_TAG: tick},
        )

    return sync_accounts_schedule
