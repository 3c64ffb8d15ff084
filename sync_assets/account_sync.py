"""The class a user replaces: what happens to one account. Claim, deadline, fence and settling stay ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from sync_assets.claims import ClaimedAccount, Database
from sync_assets.clock import Deadline
from sync_assets.upstream import UpstreamClient


class LeaseLost(Exception):
    """A fenced write found the row in other hands: this run has lost the account and must write nothing."""


@dataclass(frozen=True)
class SyncResult:
    """What one account's sync did.

    Attributes:
        sent: records the upstream accepted.
        rejected: records the upstream will never accept as they are; remembered, not sent again until changed.

    Raises:
        TypeError: a count is no whole number.
    """

    sent: int = 0
    rejected: int = 0

    def __post_init__(self) -> None:
        for name in ("sent", "rejected"):
            if not isinstance(getattr(self, name), int):
                raise TypeError(f"SyncResult.{name} is {type(getattr(self, name)).__name__}; expected int")


class AccountSync(ABC):
    """What is done for one claimed account. One instance serves one run, many accounts at a time.

    Args:
        database: the accounts' database, open for the length of the run; for reading what is to be sent.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult | None:
        """Sync one account.

        Returning is success. Hold no transaction open while calling out.

        Args:
            account: the claim: id, `claim_seq`, and the whole row in `account.row`.
            client: the run's HTTP client; it refuses to send past the deadline.
            deadline: when this account's work is cancelled.

        Returns:
            What was done, or None when there is nothing to count.

        Raises:
            SyncError: fails the account in a known way (see `sync_assets.upstream`).
            LeaseLost: a fenced write was refused.
            Exception: anything else is a bug; the account fails and the traceback is logged.
        """


SyncFactory = Callable[[Database], AccountSync]
"""Makes the run's `AccountSync`: usually the class itself."""
