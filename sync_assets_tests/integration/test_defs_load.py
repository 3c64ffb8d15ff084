"""The code location as Dagster's own tools load it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_dagster_validates_it_without_a_database(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "sync_assets.definitions"],
        env={
            **os.environ,
            "DAGSTER_HOME": str(tmp_path),
            "SYNC_DATABASE_URL": "postgresql://someone:hunter2@127.0.0.1:9/accounts",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Validation successful" in said
    assert "BetaWarning" not in said  # loading it must not fill the log of every process
    assert "hunter2" not in said
