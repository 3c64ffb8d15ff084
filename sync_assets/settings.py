"""The environment variables people set, read in one place for the command line and for Dagster."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from sync_assets.claims import SettingsError
from sync_assets.claims.retry_policy import A_DAY

_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Settings:
    """What the environment says. A variable that is missing or empty leaves the default.

    Attributes:
        database_url: `SYNC_DATABASE_URL`, the accounts' database; empty: the embedded Postgres. Never shown.
        schedule: `SYNC_SCHEDULE`, cron.
        timezone: `SYNC_TIMEZONE`, the zone the cron is read in.
        sensor_seconds: `SYNC_SENSOR_SECONDS`, the least time between two looks for changed configuration.
        autostart: `SYNC_AUTOSTART`, whether schedule and sensor run as soon as they are loaded.
        lease_seconds: `SYNC_LEASE_SECONDS`; None: the schedule's interval and two minutes.
        max_failures: `SYNC_MAX_FAILURES`, in a row, before an account is in quarantine; None: never.
        backoff_seconds: `SYNC_BACKOFF_SECONDS`, after a first failure, doubled by each further one; None: none.
        max_backoff_seconds: `SYNC_MAX_BACKOFF_SECONDS`, the longest of those.
        freshness_seconds: `SYNC_FRESHNESS_SECONDS`, how long ago an account's last success may be; None: no limit.
        account_timeout_seconds: `SYNC_ACCOUNT_TIMEOUT_SECONDS`; None: 300, or what fits in the lease.
        concurrency: `SYNC_CONCURRENCY`, accounts worked at a time in one run.
        upstream_url: `SYNC_UPSTREAM_URL`, for accounts without a base URL of their own; empty: none.
        allow_private_upstreams: `SYNC_ALLOW_PRIVATE_UPSTREAMS`, whether private, local and reserved addresses may be
            sent to as well.
    """

    database_url: str = field(default="", repr=False)
    schedule: str = "*/15 * * * *"
    timezone: str = "UTC"
    sensor_seconds: int = 30
    autostart: bool = False
    lease_seconds: float | None = None
    max_failures: int | None = None
    backoff_seconds: float | None = None
    max_backoff_seconds: float = A_DAY
    freshness_seconds: float | None = None
    account_timeout_seconds: float | None = None
    concurrency: int = 20
    upstream_url: str = ""
    allow_private_upstreams: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables.

        Args:
            environ: where to look; this process's environment when not given.

        Raises:
            SettingsError: a variable cannot be read; the message names it and what was expected.
        """
        variables = os.environ if environ is None else environ
        unset = cls()
        return cls(
            database_url=_text(variables, "SYNC_DATABASE_URL", unset.database_url),
            schedule=_text(variables, "SYNC_SCHEDULE", unset.schedule),
            timezone=_text(variables, "SYNC_TIMEZONE", unset.timezone),
            sensor_seconds=_count(variables, "SYNC_SENSOR_SECONDS", unset.sensor_seconds),
            autostart=_switch(variables, "SYNC_AUTOSTART", unset.autostart),
            lease_seconds=_seconds(variables, "SYNC_LEASE_SECONDS"),
            max_failures=_count(variables, "SYNC_MAX_FAILURES", 0) or None,
            backoff_seconds=_seconds(variables, "SYNC_BACKOFF_SECONDS"),
            max_backoff_seconds=_seconds(variables, "SYNC_MAX_BACKOFF_SECONDS") or unset.max_backoff_seconds,
            freshness_seconds=_seconds(variables, "SYNC_FRESHNESS_SECONDS"),
            account_timeout_seconds=_seconds(variables, "SYNC_ACCOUNT_TIMEOUT_SECONDS"),
            concurrency=_count(variables, "SYNC_CONCURRENCY", unset.concurrency),
            upstream_url=_text(variables, "SYNC_UPSTREAM_URL", unset.upstream_url),
            allow_private_upstreams=_switch(variables, "SYNC_ALLOW_PRIVATE_UPSTREAMS", unset.allow_private_upstreams),
        )


def unknown_settings(environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables that look like settings and are none: somebody has mistyped one.

    Args:
        environ: where to look; this process's environment when not given.
    """
    known = {f"SYNC_{field.name.upper()}" for field in fields(Settings)} | {"SYNC_LOCAL_DIR"}
    others = ("SYNC_SECRET_", "SYNC_TEST_")
    variables = os.environ if environ is None else environ
    return sorted(
        name for name in variables if name.startswith("SYNC_") and name not in known and not name.startswith(others)
    )


def _text(variables: Mapping[str, str], name: str, unset: str) -> str:
    return variables.get(name, "").strip() or unset


def _count(variables: Mapping[str, str], name: str, unset: int) -> int:
    text = _text(variables, name, "")
    if not text:
        return unset
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise SettingsError(f"{name} is {text[:40]!r}; expected a whole number of 1 or more, like {unset or 5}")
    return count


def _seconds(variables: Mapping[str, str], name: str) -> float | None:
    text = _text(variables, name, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise SettingsError(f"{name} is {text[:40]!r}; expected a number of seconds above 0, like 300")
    return seconds


def _switch(variables: Mapping[str, str], name: str, unset: bool) -> bool:
    text = _text(variables, name, "").lower()
    if not text:
        return unset
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise SettingsError(f"{name} is {text[:40]!r}; expected 1 or 0 (also true, false, yes, no, on, off)")
