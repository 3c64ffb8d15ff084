"""The clock for deadlines inside one process. What is stored or compared across processes is the database's."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

if sys.platform == "linux":
    _CLOCK = time.CLOCK_BOOTTIME
else:
    # Unlike `time.monotonic`, which is mach_absolute_time there, this one goes on while a Mac sleeps.
    _CLOCK = time.CLOCK_MONOTONIC


def monotonic() -> float:
    """Seconds on a clock that is never set and goes on while the machine sleeps.

    `time.monotonic` stops in suspend on Linux and macOS: a laptop that slept through its lease would
    believe that it still holds it.
    """
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class Deadline:
    """A moment on this process's monotonic clock by which work must have ended.

    Attributes:
        at: the moment, in seconds of `monotonic`.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline `seconds` from now."""
        return cls(monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; zero or less when it has passed."""
        return self.at - monotonic()

    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.remaining() <= 0
