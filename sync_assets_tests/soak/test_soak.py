"""A short soak, as its command runs it: P1 to P11 under everything at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SECONDS = 60
"""Of faults; with its beginning, its end and the checks it takes half a minute more."""


@pytest.mark.xdist_group("soak")
@pytest.mark.timeout(240)
def test_a_short_soak_breaks_no_promise_and_proves_something(tmp_path: Path) -> None:
    report = tmp_path / "soak.txt"
    command = [sys.executable, "-m", "sync_assets_tests.soak", "--seconds", str(_SECONDS), "--report", str(report)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "no violations; the state converged" in report.read_text(encoding="utf-8")
