"""What the processes of a soak wrote down is read as it was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sync_assets_tests.soak.history import History, Jump, read_history


def test_the_databases_time_is_read_by_the_sample_before_it() -> None:
    history = History(wall=[(10.0, 1000.0), (20.0, 1000.5)])
    assert history.boot_of(1012.0) == pytest.approx(12.0)
    assert history.boot_of(1021.0) == pytest.approx(20.5)
    assert history.boot_of(1009.0) == pytest.approx(9.0)


def _set_forward_then_back() -> History:
    """By 5 s at 20, right again at 30, and 8 s slow from 40 on."""
    jumps = [Jump(20.0, 20.0, 0.0, 5.0), Jump(30.0, 30.0, 5.0, 0.0), Jump(40.0, 40.0, 0.0, -8.0)]
    return History(wall=[(0.0, 1000.0)], jumps=jumps)


def test_a_time_that_the_database_showed_twice_is_told_apart_by_the_uptime() -> None:
    history = _set_forward_then_back()
    assert history.boot_of(1032.0, near=27.01) == pytest.approx(27.0)
    assert history.boot_of(1032.0, near=32.01) == pytest.approx(32.0)
    assert history.boot_of(1032.0, near=40.01) == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("shown", "before", "at"),
    [
        (1010.0, 15.0, 10.0),  # as if nothing had been
        (1023.0, 28.0, 20.0),  # by the jump forward
        (1027.0, 28.0, 22.0),
        (1033.0, 39.0, 33.0),  # at 28 for the first time, and again after the clock was right
        (1029.0, 39.0, 24.0),  # from 24 on, and ever since
        (1034.0, 60.0, 42.0),  # last, on the slow clock
        (1031.0, 60.0, 31.0),
        (1060.0, 60.0, 60.0),  # not at all
    ],
)
def test_since_when_a_lease_had_ended_is_told_by_the_clock_that_was_set(shown: float, before: float, at: float) -> None:
    assert _set_forward_then_back().reached(shown, before) == pytest.approx(at)


def test_every_process_is_read_and_half_a_line_is_not(tmp_path: Path) -> None:
    def write(name: str, *lines: dict[str, Any], rest: str = "") -> None:
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + rest)

    run = {"at": 1.0, "event": "run", "run": "r1", "kind": "due", "lease": 3.0, "tick": 5.0, "proxied": True}
    pause = {"at": 4.0, "event": "fault", "since": 2.0, "kind": "pause", "run": "r1", "until": 4.0}
    write("driver.jsonl", {"at": 0.0, "event": "clock", "ahead": 100.0}, run, pause, {"at": 9.0, "event": "calm"})
    request = {
        "at": 3.0,
        "event": "request",
        "number": 0,
        "method": "PUT",
        "account": "a",
        "record": "r",
        "key": "k",
        "claim_seq": 1,
        "version": 2,
        "body_hash": "h",
        "authorization_hash": None,
        "verdict": "accepted",
    }
    write("upstream.jsonl", request, {"at": 3.5, "event": "ended", "number": 0, "how": "dropped"})
    told = {"at": 3.6, "run": "r1", "what": "settle", "phase": "invoke"}
    write("run-r1.jsonl", told, rest='{"at": 3.7, "ru')
    change = {"number": 1, "at": 103.0, "began": 103.0, "uptime": 3.0, "who": "r1", "account": "a", "before": None}
    write("account_history.jsonl", {**change, "after": {"status": "IDLE", "claim_seq": 0}})
    write("record_history.jsonl")

    history = read_history(tmp_path)
    assert history.runs["r1"].proxied
    assert (history.faults[0].at, history.faults[0].until, history.calm) == (2.0, 4.0, 9.0)
    assert (history.requests[0].how, history.requests[0].ended) == ("dropped", 3.5)
    assert [each.what for each in history.told] == ["settle"]
    assert (history.rows[0].at, history.rows[0].began) == (3.0, 103.0)
