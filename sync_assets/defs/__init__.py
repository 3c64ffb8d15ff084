"""Dagster: resources, job, schedule, sensor and assets, made by `build_sync_definitions`."""

from sync_assets.defs.build import build_sync_definitions
from sync_assets.defs.config import SyncAccountsConfig
from sync_assets.defs.resources import ClaimsResource, FailRunWhen, SyncerResource

__all__ = [
    "ClaimsResource",
    "FailRunWhen",
    "SyncAccountsConfig",
    "SyncerResource",
    "build_sync_definitions",
]
