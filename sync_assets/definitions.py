"""What Dagster loads: the environment's settings, and the default sync."""

from __future__ import annotations

from sync_assets.defs import build_sync_definitions

defs = build_sync_definitions()
