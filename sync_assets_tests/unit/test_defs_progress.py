"""A long run says how far it is, in few lines, whatever the number of accounts."""

from __future__ import annotations

import pytest

from sync_assets.defs import progress
from sync_assets.defs.progress import Progress
from sync_assets.runner import AccountResult


class Clock:
    """Monotonic seconds, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress, "monotonic", lambda: self.now)


def settled(outcome: str) -> AccountResult:
    return AccountResult("a", outcome, None, None, 1, 0, 0.1, None)


def test_a_line_every_few_seconds_with_what_became_of_the_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    said: list[str] = []
    told = Progress(said.append, 5.0)
    for number in range(1, 10_001):
        clock.now += 2**-10  # exact in binary
        told.heard(settled("failed" if number % 10 == 0 else "succeeded"))
        told.pulse()
    assert said == ["after 5 s: 5,120 accounts settled (4,608 succeeded, 512 failed); now 1024.0 accounts a second"]
    clock.now += 30
    told.pulse()
    assert said[-1].startswith("after 40 s: 10,000 accounts settled (9,000 succeeded, 1,000 failed); now ")
    clock.now += 7
    told.pulse()
    assert said[-1] == "after 47 s: 10,000 accounts settled, none in the last 7 s"


def test_a_short_run_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    said: list[str] = []
    told = Progress(said.append, 5.0)
    told.heard(settled("succeeded"))
    clock.now += 4.9
    told.pulse()
    assert said == []
