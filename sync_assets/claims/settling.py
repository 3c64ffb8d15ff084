"""Writing outcomes back: at once when idle, together when busy, and again when it did not work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import psycopg

from sync_assets.claims.database import is_of_a_row, is_refused, one_line
from sync_assets.claims.model import Fate, Outcome

log = logging.getLogger(__name__)

BATCH = 500
"""The most outcomes in one statement: their row locks are short, and one bad value spoils no more than these."""


class Again(Enum):
    """Why an outcome is to be tried again."""

    NOT_NOW = "another transaction holds the row"
    """It was not written."""
    NO_ANSWER = "the database did not answer"
    """It may have been written."""


@dataclass(frozen=True)
class Attempt:
    """One outcome on its way into the row.

    Attributes:
        outcome: what is to be written.
        unanswered: an earlier attempt got no answer, so the row may hold the outcome already.
    """

    outcome: Outcome
    unanswered: bool


Write = Callable[[Sequence[Attempt]], Awaitable[Sequence[Fate | Again]]]


class Settler:
    """Collects what accounts end with and writes it in as few statements as there is time for.

    Nothing waits for a batch to fill: the first outcome is written at once, and whatever comes up while that
    statement is under way goes into the next.

    Args:
        write: writes some outcomes in one statement; raises psycopg's errors.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._queue: list[tuple[Attempt, asyncio.Future[Fate | Again]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def settle(self, outcome: Outcome) -> Fate:
        """Write one outcome, trying again until the lease is over. Never raises for the database's faults."""
        unanswered = False
        wait = 0.02
        while True:
            fate = await self._put(Attempt(outcome, unanswered))
            if isinstance(fate, Fate):
                return fate
            unanswered = unanswered or fate is Again.NO_ANSWER
            if outcome.account.lease_ends.remaining() <= wait:
                log.error(
                    "account %s: its result could not be recorded before the lease ended (%s)",
                    outcome.account.account_id,
                    fate.value,
                )
                return Fate.UNKNOWN if unanswered else Fate.LOST
            await asyncio.sleep(wait)
            wait = min(wait * 2, 1.0)

    async def _put(self, attempt: Attempt) -> Fate | Again:
        done: asyncio.Future[Fate | Again] = asyncio.get_running_loop().create_future()
        self._queue.append((attempt, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work_off())
        return await done

    async def _work_off(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
            try:
                fates = await self._write_contained([attempt for attempt, _ in batch])
                for (_, done), fate in zip(batch, fates, strict=True):
                    if not done.done():  # whoever waited for it may have been cancelled
                        done.set_result(fate)
            except Exception as error:  # noqa: BLE001  # a fault of ours: whoever waits must hear of it
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)

    async def _write_contained(self, attempts: Sequence[Attempt]) -> Sequence[Fate | Again]:
        try:
            return await self._write(attempts)
        except Exception as error:  # noqa: BLE001  # also a value that cannot be sent: one row's trouble stays its own
            if isinstance(error, psycopg.Error) and not is_of_a_row(error) and not is_refused(error):
                log.warning("writing results again: %s", one_line(error))
                return [Again.NO_ANSWER] * len(attempts)  # or an earlier one of its statements was answered
            if len(attempts) > 1:
                log.warning("writing results one by one: %s", _reason(error))
                singly = [replace(attempt, unanswered=True) for attempt in attempts]
                return [fate for attempt in singly for fate in await self._write_contained([attempt])]
            account_id = attempts[0].outcome.account.account_id
            log.error("account %s: its result cannot be recorded: %s", account_id, _reason(error))  # noqa: TRY400
            return [Fate.LOST]


def _reason(error: Exception) -> str:
    """A database error in one line without the values it quotes; of anything else only its name."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    return type(error).__name__
