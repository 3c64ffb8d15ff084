"""What the processes of a soak wrote down is read as it was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sync_assets_tests.soak.history import History, read_history


def test_the_databases_time_is_read_by_the_sample_before_it() -> None:
    history = History(wall=[(10.0, 1000.0), (20.0, 1000.5)])
    assert history.boot_of(1012.0) == pytest.approx(12.0)
    assert history.boot_of(1021.0) == pytest.approx(20.5)
    assert history.boot_of(1009.0) == pytest.approx(9.0)


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
    change = {"number": 1, "at": 103.0, "began": 103.0, "who": "r1", "account": "a", "before": None}
    write("account_history.jsonl", {**change, "after": {"status": "IDLE", "claim_seq": 0}})
    write("record_history.jsonl")

    history = read_history(tmp_path)
    assert history.runs["r1"].proxied
    assert (history.faults[0].at, history.faults[0].until, history.calm) == (2.0, 4.0, 9.0)
    assert (history.requests[0].how, history.requests[0].ended) == ("dropped", 3.5)
    assert [each.what for each in history.told] == ["settle"]
    assert (history.rows[0].at, history.rows[0].began) == (3.0, 103.0)
