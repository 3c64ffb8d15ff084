"""One account's work: contained, whatever it raises; on time, really cancelled; and told what it came to."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from sync_assets.account_sync import AccountSync, LeaseLost, SyncResult
from sync_assets.claims import ClaimedAccount, Ending
from sync_assets.clock import Deadline, monotonic
from sync_assets.upstream import OriginDown, SyncError, UpstreamClient, one_line, redact

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""How often the clock is read while waiting: asyncio's own does not count while the machine sleeps."""

_CANCEL_SECONDS = 1.0
"""How long cancelled work has to end, at least; and how often it is cancelled again, should it have swallowed it."""


class Reason(Enum):
    """What one account's work came to."""

    SUCCEEDED = Ending.SUCCEEDED
    FAILED = Ending.FAILED
    HANDED_BACK = Ending.HANDED_BACK
    GIVEN_UP = Ending.GIVEN_UP
    LEASE_LOST = "lease lost"
    NEVER_ENDED = "never ended"

    @property
    def ending(self) -> Ending | None:
        """What is to be written; None: nothing."""
        return self.value if isinstance(self.value, Ending) else None


@dataclass(frozen=True)
class Ended:
    """What one account's work came to, and what there is to tell of it."""

    reason: Reason
    result: SyncResult = field(default_factory=SyncResult)
    error_kind: str | None = None
    error: str | None = None
    retry_after: timedelta | datetime | None = None


class AccountWork:
    """One account being synced in a task of its own.

    Args:
        sync: what to do.
        account: for which account.
        client: with which client.
        deadline: when to cancel it.
        limit: the time limit it was given, in seconds, for its error.
        alone: nothing else may be worked beside it.
    """

    def __init__(
        self,
        sync: AccountSync,
        account: ClaimedAccount,
        client: UpstreamClient,
        deadline: Deadline,
        limit: float,
        *,
        alone: bool = False,
    ) -> None:
        self.account = account
        self.alone = alone
        self._deadline = deadline
        self._limit = limit
        self._cancelled_as: Reason | None = None
        self._task = asyncio.create_task(self._contained(sync, client))

    def cancel(self, reason: Reason) -> None:
        """Cancel the work; what it then comes to counts as `reason` unless it finished all the same."""
        self._cancelled_as = self._cancelled_as or reason
        self._task.cancel()

    async def ended(self) -> Ended:
        """Wait for the end: the work's own, or the deadline's, and at the latest the lease's."""
        if not await self._ends_by(self._deadline):
            self.cancel(Reason.FAILED)
            # a process that was frozen finds its lease over already: its work still has to be let end
            at_the_latest = Deadline(max(self.account.lease_ends.at, monotonic() + _CANCEL_SECONDS))
            if not await self._ends_by(at_the_latest, cancelling=True):
                # it may still be sending: calling it failed would let another run start beside it
                return Ended(Reason.NEVER_ENDED, error="its work did not end when cancelled; left to its lease")
        if self._task.cancelled():  # before its first step
            return self._cancelled()
        return self._task.result()

    async def _ends_by(self, deadline: Deadline, *, cancelling: bool = False) -> bool:
        while not self._task.done() and not deadline.passed():
            cancelling = cancelling or self._cancelled_as is not None
            look = _CANCEL_SECONDS if cancelling else _LOOK_SECONDS
            await asyncio.wait({self._task}, timeout=min(deadline.remaining(), look))
            if cancelling:
                self._task.cancel()
        return self._task.done()

    async def _contained(self, sync: AccountSync, client: UpstreamClient) -> Ended:
        try:
            result = await sync.sync(self.account, client, self._deadline)
        except BaseException as error:  # noqa: BLE001  # this account's, whatever it is: also SystemExit
            if self._cancelled_as is not None and not isinstance(error, SyncError | LeaseLost):
                return self._cancelled()
            try:
                return self._failed(error)
            except BaseException as worse:  # noqa: BLE001  # an exception that is not even a whole one
                return Ended(Reason.FAILED, error_kind="bug", error=f"{type(error).__name__}, {type(worse).__name__}")
        return Ended(Reason.SUCCEEDED, result if isinstance(result, SyncResult) else SyncResult())

    def _cancelled(self) -> Ended:
        if self._cancelled_as is Reason.HANDED_BACK:
            return Ended(Reason.HANDED_BACK)
        return Ended(Reason.FAILED, error_kind="timeout", error=f"not finished within its {self._limit:g} s")

    def _failed(self, error: BaseException) -> Ended:
        if isinstance(error, LeaseLost):
            return Ended(Reason.LEASE_LOST, error="the lease was lost: another run has the account; nothing written")
        if self._cancelled_as is Reason.HANDED_BACK:
            return Ended(Reason.HANDED_BACK)
        if isinstance(error, OriginDown):  # not of this account's making
            return Ended(Reason.GIVEN_UP, SyncResult(error.sent, error.rejected), error=one_line(error.detail))
        if isinstance(error, SyncError):
            return Ended(
                Reason.FAILED,
                SyncResult(error.sent, error.rejected),
                error_kind=error.kind,
                error=one_line(error.detail),
                retry_after=error.retry_after,
            )
        text = redact("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        encodable = text.encode("utf-8", "backslashreplace").decode("utf-8")  # or the log could not be written
        log.error("account %s failed with a bug:\n%s", self.account.account_id, encodable)
        return Ended(Reason.FAILED, error_kind="bug", error=one_line(_told(error)))


def _told(error: BaseException) -> str:
    """The exception's type and, where it has one, its text."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # an exception that cannot say what it is
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
