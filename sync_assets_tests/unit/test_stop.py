"""Asking a run to stop."""

from __future__ import annotations

import threading

from sync_assets.stop import StopSignal


def test_each_listener_is_told_once_whenever_it_asked() -> None:
    stop = StopSignal()
    told: list[str] = []
    stop.when_set(lambda: told.append("before"))
    assert (told, stop.is_set()) == ([], False)
    stop.set()
    stop.set()
    stop.when_set(lambda: told.append("after"))
    assert (told, stop.is_set()) == (["before", "after"], True)


def test_a_signal_in_the_middle_of_asking_is_not_lost() -> None:
    """P10: a handler runs between any two steps, in the very thread that is asking."""
    stop = StopSignal()
    told = threading.Event()

    class Interrupted(list[object]):
        def append(self, listener: object) -> None:
            stop.set()
            super().append(listener)

    stop._listeners = Interrupted()  # type: ignore[assignment]
    stop.when_set(told.set)
    assert told.is_set()
