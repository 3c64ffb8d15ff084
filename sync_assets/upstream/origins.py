"""What a run learns of each origin (scheme, host, port): how many requests it bears, and that it is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from sync_assets.clock import Deadline

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 5
"""Accounts that must fail one after the other, each after its quick retries, before an origin is left alone."""

_PORTS = {"http": 80, "https": 443}


class Origin:
    """One origin during one run.

    Attributes:
        name: `https://host:443`.
        turns: one is held by each request that is under way.
        users: requests that know of it.
        failures: in a row, the last of them included.
    """

    def __init__(self, name: str, at_once: int) -> None:
        self.name = name
        self.turns = asyncio.Semaphore(at_once)
        self.users = 0
        self.failures = 0
        self._last: Deadline | None = None

    @property
    def down(self) -> bool:
        """Whether it is left alone: nothing more is sent to it, unless what is still under way is answered."""
        return self.failures >= FAILURES_IN_A_ROW

    def answered(self) -> None:
        """It is there, whatever it said of the request."""
        self.failures = 0
        self._last = None

    def failed(self, account: Deadline) -> None:
        """A request came to nothing, and not by its own fault.

        Args:
            account: whose request it was, told by its deadline. One that fails again and again counts once: it is the
                origin that is asked about, and one account must not speak for it.
        """
        if account == self._last:
            return
        self._last = account
        self.failures += 1
        if self.failures == FAILURES_IN_A_ROW:
            log.warning(
                "%s failed %d times in a row: it is left alone for the rest of this run", self.name, self.failures
            )


class Origins:
    """The origins of a run.

    Args:
        at_once: requests under way at one origin.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._known: dict[str, Origin] = {}

    @contextmanager
    def at(self, url: httpx.URL) -> Iterator[Origin]:
        """The origin of an address, for one request. One that is well is forgotten: there may be a million."""
        host = url.raw_host.decode("ascii").rstrip(".").lower()
        name = f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{url.port or _PORTS[url.scheme]}"
        origin = self._known.setdefault(name, Origin(name, self._at_once))
        origin.users += 1
        try:
            yield origin
        finally:
            origin.users -= 1
            if not origin.users and not origin.failures:
                del self._known[name]
