"""The loop runs in a thread of its own; the main thread waits, and is the one an interrupt reaches.

Dagster ends a run by a signal, which Python raises in the main thread. If the event loop ran there, the interrupt would
land inside one account's task and be taken for that account's failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from dagster import DagsterExecutionInterruptedError

from sync_assets.clock import Deadline
from sync_assets.stop import StopSignal

T = TypeVar("T")
R = TypeVar("R")

_INTERRUPTS = (DagsterExecutionInterruptedError, KeyboardInterrupt)


class InterruptibleWork(Generic[T, R]):
    """Work done in a thread, whose news is heard in the main thread.

    Args:
        work: runs in the thread; gets the function it tells its news by.
        on_news: called in the waiting thread with each piece of news, in order.
        on_pulse: called in the waiting thread after each, and at least twice a second.
    """

    def __init__(
        self,
        work: Callable[[Callable[[T], None]], R],
        on_news: Callable[[T], None],
        on_pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._on_news = on_news
        self._on_pulse = on_pulse
        # a SimpleQueue holds no Python lock that an interrupt could leave taken
        self._news: SimpleQueue[T | None] = SimpleQueue()
        self._result: R | None = None
        self._error: BaseException | None = None
        self._ended = False
        # a daemon: work that will not end is left to its lease, and must not keep the process
        self._thread = threading.Thread(target=self._run, name="sync-accounts", daemon=True)

    def _run(self) -> None:
        try:
            self._result = self._work(self._news.put)
        except BaseException as error:  # noqa: BLE001  # raised again by the waiting thread
            self._error = error
        self._ended = True
        self._news.put(None)  # only wakes the listener

    def wait(self) -> R:
        """Start the work and wait for its end.

        Raises:
            BaseException: what the work raised, or the interrupt; after an interrupt the work goes on: see `drain`.
        """
        self._thread.start()
        self._listen(None)
        return self._outcome()

    def drain(self, stop: StopSignal, seconds: float) -> R | None:
        """After an interrupt, have the work stop and wait for its end; further interrupts change nothing.

        Args:
            stop: what tells the work to stop.
            seconds: the longest wait.

        Returns:
            The work's result; None when it did not end in time or failed.
        """
        limit = Deadline.after(seconds)
        while self._running() and not limit.passed():
            with suppress(*_INTERRUPTS):
                stop.set()
                self._listen(limit)
        return self._result

    def _running(self) -> bool:
        return self._thread.is_alive() and not self._ended

    def _listen(self, limit: Deadline | None) -> None:
        while self._running() or not self._news.empty():
            if limit is not None and limit.passed():
                return
            # bounded, since not every platform interrupts a wait; and news may have been lost to an interrupt
            with suppress(Empty):
                news = self._news.get(timeout=0.5)
                if news is not None:
                    self._on_news(news)
            self._on_pulse()

    def _outcome(self) -> R:
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  # the thread has ended, and not by an error
        return self._result
