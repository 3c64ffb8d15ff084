"""Claim scheduled work from your own Postgres table with one UPDATE … RETURNING, under Dagster.

These names are the public API; everything else may change. They are imported when first used, so that a process which
needs one of them does not load Dagster for another.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sync_assets.account_sync import AccountSync, LeaseLost, SyncResult
    from sync_assets.claims import ClaimedAccount, Database, DatabaseUnavailable, Names, Selection, SettingsError
    from sync_assets.clock import Deadline
    from sync_assets.defs import build_sync_definitions
    from sync_assets.push import RecordPush
    from sync_assets.stop import StopSignal
    from sync_assets.sync_run import ClaimSettings, RunReport, SyncSettings, create_tables, run_blocking, run_sync
    from sync_assets.upstream import (
        AuthFailed,
        RateLimited,
        Rejected,
        RetryLater,
        SyncError,
        UpstreamClient,
        UpstreamResponse,
    )

_HOMES = {
    "account_sync": ("AccountSync", "LeaseLost", "SyncResult"),
    "claims": ("ClaimedAccount", "Database", "DatabaseUnavailable", "Names", "Selection", "SettingsError"),
    "clock": ("Deadline",),
    "defs": ("build_sync_definitions",),
    "push": ("RecordPush",),
    "stop": ("StopSignal",),
    "sync_run": ("ClaimSettings", "RunReport", "SyncSettings", "create_tables", "run_blocking", "run_sync"),
    "upstream": (
        "AuthFailed",
        "RateLimited",
        "Rejected",
        "RetryLater",
        "SyncError",
        "UpstreamClient",
        "UpstreamResponse",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AccountSync",
    "AuthFailed",
    "ClaimSettings",
    "ClaimedAccount",
    "Database",
    "DatabaseUnavailable",
    "Deadline",
    "LeaseLost",
    "Names",
    "RateLimited",
    "RecordPush",
    "Rejected",
    "RetryLater",
    "RunReport",
    "Selection",
    "SettingsError",
    "StopSignal",
    "SyncError",
    "SyncResult",
    "SyncSettings",
    "UpstreamClient",
    "UpstreamResponse",
    "build_sync_definitions",
    "create_tables",
    "run_blocking",
    "run_sync",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
