"""T8: the client's and the scheduler's clock half an hour off, either way, changes nothing."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sync_assets_tests.claims_rig import Table
from sync_assets_tests.dagster_rig import add_accounts
from sync_assets_tests.loop_process import LoopProcess, wait_until
from sync_assets_tests.recording_upstream import RecordingUpstream

LEASE = 15 * 60 + 120

_IN_PYTHON = """
import datetime, os, time

_OFF = float(os.environ["WRONG_BY_SECONDS"])
_time, _time_ns, _real = time.time, time.time_ns, datetime.datetime
time.time = lambda: _time() + _OFF
time.time_ns = lambda: _time_ns() + int(_OFF * 1e9)


class _Kind(type):
    def __instancecheck__(cls, instance):  # what C made is one as well
        return isinstance(instance, _real)


class _Wrong(_real, metaclass=_Kind):
    @classmethod
    def now(cls, tz=None):
        return _real.now(tz) + datetime.timedelta(seconds=_OFF)

    @classmethod
    def utcnow(cls):
        return _real.utcnow() + datetime.timedelta(seconds=_OFF)


datetime.datetime = _Wrong
"""

_CLOCKS = "import datetime, time; print(time.time(), datetime.datetime.now(datetime.timezone.utc).timestamp())"


def _set_clock(how: str, off: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Every process that is started from now on has a wall clock that is off."""
    if how == "python":
        (folder / "sitecustomize.py").write_text(_IN_PYTHON)
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("WRONG_BY_SECONDS", str(off))
        return
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is not installed; Debian and Ubuntu have it in the package faketime"
    patch.setenv("LD_PRELOAD", str(found[0]))
    patch.setenv("FAKETIME", f"{off:+d}s")
    patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")


@pytest.mark.parametrize("off", [-1800, 1800])
@pytest.mark.parametrize("how", ["python", pytest.param("faketime", marks=pytest.mark.system)])
def test_t8_a_clock_half_an_hour_off_changes_nothing(
    database_url: str,
    table: Table,
    upstream: RecordingUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    off: int,
) -> None:
    """P1, P3, P9: lease, takeover and the upstream's time are the database's, and ticks are compared with ticks."""
    skew = timedelta(seconds=off)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    tick, next_tick = now + skew, now + skew + timedelta(minutes=15)
    add_accounts(table, "works", "dies", "limited")
    upstream.stall("dies", times=1)
    upstream.answer(429, "limited", headers={"Retry-After": "600"})
    with pytest.MonkeyPatch.context() as patch:
        _set_clock(how, off, tmp_path, patch)
        for told in subprocess.check_output([sys.executable, "-c", _CLOCKS], text=True).split():
            assert abs(float(told) - now.timestamp() - off) < 60, "the clock of a new process is not off"
        with LoopProcess(database_url, upstream.url, "dies", tick=tick) as dies:
            dies.go()
            upstream.wait_for(lambda calls: len(calls) == 3, "all are at the upstream")
            wait_until(
                lambda: (table.row("works")["status"], table.row("limited")["status"]) == ("IDLE", "FAILED"),
                "two were settled",
            )
            dies.kill()
        held = table.row("dies")
        assert abs((held["started_at"] - now).total_seconds()) < 60
        assert held["lease"] == timedelta(seconds=LEASE)
        named = table.row("limited")["not_before"]
        assert abs((named - now).total_seconds() - 600) < 60

        table.age("dies", seconds=LEASE - 60)
        with LoopProcess(database_url, upstream.url, "early", tick=next_tick) as early:
            assert early.go().wait()["claimed"] == 1, "the dead run's is not taken, the limited one waits"
    # the lease ends for a process whose clock is right as for one whose clock is off
    table.age("dies", seconds=61)
    with LoopProcess(database_url, upstream.url, "right", tick=next_tick) as right:
        summary = right.go().wait()
    assert (summary["claimed"], summary["taken_over"], summary["succeeded"]) == (1, 1, 1)
