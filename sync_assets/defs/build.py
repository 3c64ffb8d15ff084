"""Everything Dagster loads, made by one function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster import Definitions, EnvVar, in_process_executor

from sync_assets.account_sync import SyncFactory
from sync_assets.claims import Names, SettingsError
from sync_assets.defs.assets import build_account_sync, build_reported
from sync_assets.defs.checks import build_checks
from sync_assets.defs.job import build_job, build_op
from sync_assets.defs.resources import ClaimsResource, FailRunWhen, SyncerResource
from sync_assets.defs.schedule import build_schedule
from sync_assets.defs.sensor import build_sensor
from sync_assets.settings import Settings
from sync_assets.sync_run import check_limits
from sync_assets.upstream import MAX_RESPONSE_BYTES


def build_sync_definitions(
    *,
    sync: SyncFactory | None = None,
    database_url: EnvVar | None = None,
    names: Names | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    sensor_seconds: int | None = None,
    autostart: bool | None = None,
    lease_seconds: float | None = None,
    max_failures: int | None = None,
    backoff_seconds: float | None = None,
    max_backoff_seconds: float | None = None,
    freshness_seconds: float | None = None,
    freshness_column: str | None = None,
    account_timeout_seconds: float | None = None,
    concurrency: int | None = None,
    upstream_url: str | None = None,
    allow_private_upstreams: bool | None = None,
    request_timeout_seconds: float = 30.0,
    connections_per_origin: int | None = None,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    secret_env_prefix: str = "SYNC_SECRET_",  # noqa: S107  # how names of variables begin, no secret
    secret_directory: Path | None = None,
    fail_run_when: FailRunWhen = FailRunWhen.all,
) -> Definitions:
    """All that Dagster loads for one table of accounts. Needs no database to be reachable.

    What is not given is read from the environment variable named beside it.

    Args:
        sync: makes the run's `AccountSync`; None: `RecordPush`, which pushes the account's changed records.
        database_url: which variable holds the URL of the accounts' database, as `EnvVar("NAME")`, because values are
            shown in the UI (`SYNC_DATABASE_URL`; without it, the embedded Postgres).
        names: the tables and columns.
        schedule: cron (`SYNC_SCHEDULE`).
        timezone: IANA zone the cron is read in (`SYNC_TIMEZONE`).
        sensor_seconds: the least time between two looks for changed configuration (`SYNC_SENSOR_SECONDS`).
        autostart: whether schedule and sensor run as soon as they are loaded (`SYNC_AUTOSTART`).
        lease_seconds: how long a claim is promised (`SYNC_LEASE_SECONDS`; without it, the schedule's interval and two
            minutes).
        max_failures: in a row, before an account is in quarantine (`SYNC_MAX_FAILURES`; without it, never).
        backoff_seconds: how long an account waits after a failure, doubled by each further one
            (`SYNC_BACKOFF_SECONDS`; without it, until the next tick).
        max_backoff_seconds: the longest of those (`SYNC_MAX_BACKOFF_SECONDS`; without it, a day).
        freshness_seconds: how long ago an account's last success may be before a check fails
            (`SYNC_FRESHNESS_SECONDS`; without it, no limit).
        freshness_column: the column of the accounts' table with an account's own such limit, an interval or a number of
            seconds; null in it: as the others. None: no account has one.
        account_timeout_seconds: the longest one account may take (`SYNC_ACCOUNT_TIMEOUT_SECONDS`).
        concurrency: accounts worked at a time in one run (`SYNC_CONCURRENCY`).
        upstream_url: for accounts without a base URL of their own (`SYNC_UPSTREAM_URL`).
        allow_private_upstreams: whether private, local and reserved addresses may be sent to as well
            (`SYNC_ALLOW_PRIVATE_UPSTREAMS`).
        request_timeout_seconds: the longest one HTTP request may take.
        connections_per_origin: requests under way at one scheme, host and port; None: as many as accounts.
        max_response_bytes: the most of an answer's body that is read.
        secret_env_prefix: what the variables that references to secrets may name must begin with.
        secret_directory: folder under which `file:` references are read; None: no files.
        fail_run_when: when failed accounts fail the run.

    Raises:
        SettingsError: a setting, or a variable, cannot be used; the message names it.
    """
    if database_url is not None and not isinstance(database_url, EnvVar):
        raise SettingsError(
            'database_url would be shown in the UI; name the variable that holds it: dagster.EnvVar("NAME")'
        )
    given: dict[str, Any] = {
        "schedule": schedule,
        "timezone": timezone,
        "sensor_seconds": sensor_seconds,
        "autostart": autostart,
        "lease_seconds": lease_seconds,
        "max_failures": max_failures,
        "backoff_seconds": backoff_seconds,
        "max_backoff_seconds": max_backoff_seconds,
        "freshness_seconds": freshness_seconds,
        "account_timeout_seconds": account_timeout_seconds,
        "concurrency": concurrency,
        "upstream_url": upstream_url,
        "allow_private_upstreams": allow_private_upstreams,
    }
    settings = replace(
        Settings.from_environment(), **{name: value for name, value in given.items() if value is not None}
    )
    names = names or Names()
    claims = ClaimsResource(
        database_url=database_url or "",
        schema_name=names.schema,
        table=names.table,
        key=names.key,
        enabled=names.enabled,
        records=names.records,
        schedule=settings.schedule,
        timezone=settings.timezone,
        lease_seconds=settings.lease_seconds,
        max_failures=settings.max_failures,
        backoff_seconds=settings.backoff_seconds,
        max_backoff_seconds=settings.max_backoff_seconds,
        freshness_seconds=settings.freshness_seconds,
        freshness_column=freshness_column or "",
    )
    syncer = SyncerResource(
        concurrency=settings.concurrency,
        account_timeout_seconds=settings.account_timeout_seconds,
        upstream_url=settings.upstream_url,
        allow_private_upstreams=settings.allow_private_upstreams,
        request_timeout_seconds=request_timeout_seconds,
        connections_per_origin=connections_per_origin,
        max_response_bytes=max_response_bytes,
        secret_env_prefix=secret_env_prefix,
        secret_directory=str(secret_directory or ""),
        fail_run_when=fail_run_when,
    )
    check_limits(claims.settings(), syncer.settings())
    op = build_op(sync)
    return Definitions(
        jobs=[build_job(op)],
        schedules=[build_schedule(cron=settings.schedule, timezone=settings.timezone, autostart=settings.autostart)],
        sensors=[build_sensor(seconds=settings.sensor_seconds, autostart=settings.autostart)],
        assets=[*build_reported(names), build_account_sync(op)],
        asset_checks=[build_checks()],
        executor=in_process_executor,  # of what Materialize starts; for the same reasons as the job's
        resources={"claims": claims, "syncer": syncer},
    )
