"""Asking a run to stop, from any thread or signal handler."""

from __future__ import annotations

from collections.abc import Callable


class StopSignal:
    """Set once, from any thread or signal handler; tells those who asked to be told.

    A run that is told stops claiming, cancels what it is doing and hands its accounts back.
    """

    # No lock: a signal handler runs in the middle of anything, also of what would hold it. Appending to a list and
    # popping from one are each a single step.
    def __init__(self) -> None:
        self._set = False
        self._listeners: list[Callable[[], None]] = []

    def set(self) -> None:
        """Ask for the stop; asking again changes nothing."""
        self._set = True
        self._tell()

    def is_set(self) -> bool:
        """Whether the stop was asked for."""
        return self._set

    def when_set(self, listener: Callable[[], None]) -> None:
        """Have `listener` called once the stop is asked for, in the thread that asks; at once if it was already."""
        self._listeners.append(listener)
        if self._set:
            self._tell()

    def _tell(self) -> None:
        while True:
            try:
                listener = self._listeners.pop()
            except IndexError:
                return
            listener()
