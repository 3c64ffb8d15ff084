"""The names people import."""

from __future__ import annotations

import subprocess
import sys

import sync_assets


def test_every_public_name_is_there() -> None:
    assert sorted(sync_assets.__all__) == sorted(sync_assets._HOME)
    for name in sync_assets.__all__:
        assert getattr(sync_assets, name) is not None


def test_the_core_is_used_without_dagster() -> None:
    code = "import sys, sync_assets; sync_assets.run_sync; sync_assets.AccountSync; sys.exit('dagster' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
