"""P10: whoever stops a run interrupts the waiting, never the work; and the waiting ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from dagster import DagsterExecutionInterruptedError

from sync_assets.defs.waiting import InterruptibleWork
from sync_assets.stop import StopSignal

PATIENCE = 20.0


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """SIGUSR1 raises what Dagster raises on Terminate; yields those that were raised."""
    raised: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        raised.append(number)
        raise DagsterExecutionInterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        yield raised
    finally:
        signal.signal(signal.SIGUSR1, before)


def wait_until(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE} s: {what}"
        time.sleep(0.01)


def test_news_is_heard_in_order_and_in_the_waiting_thread() -> None:
    heard: list[tuple[int, str]] = []

    def work(tell: Callable[[int], None]) -> str:
        assert threading.current_thread() is not threading.main_thread()
        for number in range(100):
            tell(number)
        return "done"

    result = InterruptibleWork(work, lambda n: heard.append((n, threading.current_thread().name))).wait()
    assert result == "done"
    assert heard == [(n, threading.current_thread().name) for n in range(100)]


def test_the_end_is_noticed_at_once() -> None:
    began = time.monotonic()
    for _ in range(20):
        InterruptibleWork[int, bool](lambda _tell: True, lambda _n: None).wait()
    assert time.monotonic() - began < 2.0  # a poll of half a second each would take ten


def test_what_the_work_raises_is_raised() -> None:
    def work(tell: Callable[[int], None]) -> str:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        InterruptibleWork(work, lambda _n: None).wait()


def test_an_interrupt_stops_the_work_and_waits_for_its_end_and_more_of_them_change_nothing() -> None:
    stop = StopSignal()
    heard: list[str] = []

    def work(tell: Callable[[str], None]) -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(stop.is_set, "the work is told to stop")
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: len(raised) == 2, "the second interrupt is raised in the main thread")
        tell("handed back")
        return "stopped"

    waiting = InterruptibleWork(work, heard.append)
    with interrupts() as raised:
        with pytest.raises(DagsterExecutionInterruptedError):
            waiting.wait()
        assert waiting.drain(stop, PATIENCE) == "stopped"
    assert heard == ["handed back"]


def test_work_that_does_not_end_is_left_after_the_limit() -> None:
    release = threading.Event()

    def work(tell: Callable[[str], None]) -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        release.wait(PATIENCE)
        return "late"

    waiting = InterruptibleWork(work, lambda _n: None)
    stop = StopSignal()
    with interrupts(), pytest.raises(DagsterExecutionInterruptedError):
        waiting.wait()
    began = time.monotonic()
    assert waiting.drain(stop, 0.2) is None
    assert stop.is_set()
    assert time.monotonic() - began < PATIENCE / 2
    release.set()
    assert waiting.drain(stop, PATIENCE) == "late"
