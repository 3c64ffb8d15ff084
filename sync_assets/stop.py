"""Asking a run to stop, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopSignal:
    """Set once, from any thread; tells those who asked to be told.

    A run that is told stops claiming, cancels what it is doing and hands its accounts back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._listeners: list[Callable[[], None]] = []

    def set(self) -> None:
        """Ask for the stop; asking again changes nothing."""
        with self._lock:
            listeners, self._listeners, self._set = self._listeners, [], True
        for listener in listeners:
            listener()

    def is_set(self) -> bool:
        """Whether the stop was asked for."""
        return self._set

    def when_set(self, listener: Callable[[], None]) -> None:
        """Have `listener` called once the stop is asked for, in the thread that asks; at once if it was already."""
        with self._lock:
            if not self._set:
                self._listeners.append(listener)
                return
        listener()
