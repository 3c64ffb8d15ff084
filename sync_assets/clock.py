"""The clock for deadlines inside one process. What is stored or compared across processes is the database's."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

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


async def within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The work's result, if it comes in so many seconds; when this returns or raises, the work has ended.

    `asyncio.wait_for` can, before Python 3.12, swallow a cancellation that comes together with the result.

    Raises:
        asyncio.TimeoutError: it did not.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also when we are cancelled
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
