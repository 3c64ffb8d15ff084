"""The records in Postgres: what is to be sent, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from sync_assets.account_sync import LeaseLost
from sync_assets.claims import ClaimedAccount, Database
from sync_assets.claims.database import is_passing
from sync_assets.claims.database import one_line as one_line_of
from sync_assets.claims.names import compose
from sync_assets.clock import Deadline
from sync_assets.push.request import Change
from sync_assets.push.schema import PACKAGE
from sync_assets.upstream import RetryLater

_LOCK_TIMEOUT = "1s"


@dataclass(frozen=True)
class Outcome:
    """What became of one record that was sent.

    Attributes:
        version: the version that was sent.
        accepted: whether the upstream took it; otherwise it refused it for good.
        external_id: the upstream's own name for it, if it told one.
        error: why it was refused.
    """

    version: int
    accepted: bool
    external_id: str | None = None
    error: str | None = None


class Records:
    """One account's records, under its claim.

    Args:
        database: the accounts' database.
        account: the claim.
        deadline: no statement starts after it.
    """

    def __init__(self, database: Database, account: ClaimedAccount, deadline: Deadline) -> None:
        self._database = database
        self._account = account
        self._deadline = deadline

    async def changed(self, after: str, page_size: int) -> list[Change]:
        """The next records to be sent, by id, after the one named.

        Raises:
            RetryLater: the database could not be read in time.
        """
        rows = await self._fetch("changed.sql", {"after": after, "page_size": page_size})
        return [Change(record_id, version, data) for record_id, version, data in rows]

    async def acknowledge(self, outcomes: Mapping[str, Outcome]) -> set[str]:
        """Write back what became of records.

        Returns:
            The records that somebody is editing just now: not written, to be tried again.

        Raises:
            LeaseLost: the account is in other hands, or gone; nothing was written.
            RetryLater: the database could not be written in time.
        """
        values = {
            "claim_seq": self._account.claim_seq,
            "claimed_by": self._account.claimed_by,
            "lock_timeout": _LOCK_TIMEOUT,
            "record_ids": list(outcomes),
            "versions": [outcome.version for outcome in outcomes.values()],
            "accepted": [outcome.accepted for outcome in outcomes.values()],
            "external_ids": [outcome.external_id for outcome in outcomes.values()],
            "errors": [outcome.error for outcome in outcomes.values()],
        }
        [(fence_held, not_written)] = await self._fetch("acknowledge.sql", values)
        if not fence_held:
            raise LeaseLost(f"account {self._account.account_id}: its row is not this run's any more")
        return set(not_written)

    async def _fetch(self, file: str, values: Mapping[str, object]) -> Sequence[TupleRow]:
        query: sql.Composed = compose(PACKAGE, file, self._database.names)
        parameters = {"account_id": self._account.account_id, "generation": self._account.generation, **values}
        try:
            return await self._database.retrying(lambda: self._database.fetch(query, parameters), self._deadline)
        except psycopg.Error as error:
            if not is_passing(error):
                raise
            raise RetryLater(f"the accounts' database could not be used in time: {one_line_of(error)}") from error
