"""The settings as Dagster resources: shown in the UI and in the Launchpad, so no secret is ever a field's value."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from dagster import ConfigurableResource
from pydantic import Field

from sync_assets.claims import Names
from sync_assets.claims.retry_policy import A_DAY
from sync_assets.sync_run import ClaimSettings, SyncSettings
from sync_assets.upstream import MAX_RESPONSE_BYTES


class FailRunWhen(str, Enum):
    """When failed accounts make the run a failed run, after everything is settled."""

    none = "none"
    any = "any"
    all = "all"


class ClaimsResource(ConfigurableResource):  # type: ignore[type-arg]  # the resource is its own value
    """Where the accounts are, and how long a claim is promised."""

    database_url: str = Field(
        default="",
        description=(
            "URL of the accounts' database. What is written here is shown in the UI: use `env: NAME`, in code "
            'EnvVar("NAME"). Empty: the variable SYNC_DATABASE_URL of the process that runs; without it, the embedded '
            "Postgres."
        ),
    )
    schema_name: str = Field(default="sync", description="Schema of both tables.")
    table: str = Field(default="account_config", description="Table with one configuration row per account.")
    key: str = Field(default="account_id", description="The text column of that table that names the account.")
    enabled: str = Field(default="enabled", description="The boolean column that switches an account on and off.")
    records: str = Field(default="account_record", description="Table with the records of the default sync.")
    schedule: str = Field(
        default="*/15 * * * *",
        description="The schedule's cron: without lease_seconds, a claim is promised its interval and two minutes.",
    )
    timezone: str = Field(default="UTC", description="IANA time zone the cron is read in.")
    lease_seconds: float | None = Field(
        default=None,
        description=(
            "How long a claim is promised, in seconds: a run that died is taken over at the first tick after it. "
            "Not set: the schedule's interval and two minutes."
        ),
    )

    max_failures: int | None = Field(
        default=None,
        description=(
            "After so many failures in a row an account is in quarantine: it waits until it is released, its "
            "configuration changes, or it is run by hand. Not set: never."
        ),
    )
    backoff_seconds: float | None = Field(
        default=None,
        description=(
            "How long an account waits after a failure, in seconds: twice as long after each further one in a row. A "
            "run by hand or a changed configuration does not wait. Not set: until the next tick."
        ),
    )
    max_backoff_seconds: float = Field(default=A_DAY, description="The longest it waits after failures, in seconds.")
    freshness_seconds: float | None = Field(
        default=None,
        description="How long ago an account's last success may be before a check fails. Not set: no limit.",
    )
    freshness_column: str = Field(
        default="",
        description=(
            "Column of the accounts' table with an account's own such limit, an interval or a number of seconds; null "
            "in it: as the others. Empty: no account has one."
        ),
    )

    def settings(self) -> ClaimSettings:
        """The settings of the claim.

        Raises:
            SettingsError: a name, the cron, the zone, the lease or another number cannot be used.
        """
        return ClaimSettings(
            database_url=self.database_url or os.environ.get("SYNC_DATABASE_URL", ""),
            names=Names(self.schema_name, self.table, self.key, self.enabled, self.records),
            schedule=self.schedule,
            timezone=self.timezone,
            lease_seconds=self.lease_seconds,
            max_failures=self.max_failures,
            backoff_seconds=self.backoff_seconds,
            max_backoff_seconds=self.max_backoff_seconds,
            freshness_seconds=self.freshness_seconds,
            freshness_column=self.freshness_column or None,
        )


class SyncerResource(ConfigurableResource):  # type: ignore[type-arg]  # the resource is its own value
    """How accounts are synced."""

    concurrency: int = Field(default=20, description="Accounts worked at a time in one run.")
    account_timeout_seconds: float | None = Field(
        default=None,
        description=(
            "The longest one account may take, in seconds. Must fit in the lease. Not set: 300, or what fits in it."
        ),
    )
    upstream_url: str = Field(default="", description="Base URL for accounts whose row has no base_url. Empty: none.")
    allow_private_upstreams: bool = Field(
        default=False,
        description=(
            "Whether accounts may be sent to private, local and reserved addresses as well. Whoever can edit an "
            "account can then have requests made inside your network."
        ),
    )
    request_timeout_seconds: float = Field(
        default=30.0, description="The longest one HTTP request may take in all, in seconds."
    )
    connections_per_origin: int | None = Field(
        default=None,
        description="Requests under way at one scheme, host and port. Not set: as many as accounts.",
    )
    max_response_bytes: int = Field(
        default=MAX_RESPONSE_BYTES, description="The most of an answer's body that is read, in bytes."
    )
    secret_env_prefix: str = Field(
        default="SYNC_SECRET_",
        description="References to secrets (env:NAME) may only name environment variables that begin with this.",
    )
    secret_directory: str = Field(
        default="", description="Folder under which file:PATH references are read. Empty: no files are read."
    )
    fail_run_when: FailRunWhen = Field(
        default=FailRunWhen.all,
        description=(
            "When failed accounts fail the run, after settling. none: never. any: when one failed. all: when some "
            "failed and none succeeded."
        ),
    )

    def settings(self) -> SyncSettings:
        """The settings of the sync.

        Raises:
            SettingsError: a number cannot be used.
        """
        return SyncSettings(
            concurrency=self.concurrency,
            account_timeout_seconds=self.account_timeout_seconds,
            upstream_url=self.upstream_url or None,
            allow_private_upstreams=self.allow_private_upstreams,
            request_timeout_seconds=self.request_timeout_seconds,
            connections_per_origin=self.connections_per_origin,
            max_response_bytes=self.max_response_bytes,
            secret_env_prefix=self.secret_env_prefix,
            secret_directory=Path(self.secret_directory) if self.secret_directory else None,
        )
