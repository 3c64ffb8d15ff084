"""Looking at the account table from outside, and claims without a run around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.rows import DictRow, dict_row
from psycopg.types.datetime import TimestamptzLoader

from sync_assets.claims import ClaimedAccount, Claims, Database, Ending, Outcome, RetryPolicy, Selection

TICK = datetime(2026, 1, 31, 8, 0, tzinfo=timezone.utc)
NEXT_TICK = TICK + timedelta(minutes=15)


BY_HAND = "-c sync_assets.writes=on"
"""The options of a session that may write the columns of the state machine by hand."""


INFINITY = datetime.max.replace(tzinfo=timezone.utc)
"""How `Table` tells Postgres' infinity, for which Python has no time."""


class _InfinityLoader(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        return INFINITY if bytes(data) == b"infinity" else super().load(data)


class Table:
    """The account table as its owner sees it."""

    def __init__(self, connection: psycopg.Connection[DictRow]) -> None:
        self.connection = connection
        connection.adapters.register_loader("timestamptz", _InfinityLoader)

    def add(self, *account_ids: str, **columns: object) -> None:
        """Add accounts that are alike but for their names."""
        self.connection.execute(
            "INSERT INTO sync.account_config (account_id) SELECT unnest(%s::text[])", [list(account_ids)]
        )
        if columns:
            self.set(account_ids, **columns)

    def set(self, account_ids: str | Sequence[str], **columns: object) -> None:
        """Set columns of some accounts, as whoever owns the table may."""
        ids = [account_ids] if isinstance(account_ids, str) else list(account_ids)
        pairs = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in columns.items()
        )
        done = self.connection.execute(
            sql.SQL("UPDATE sync.account_config SET {} WHERE account_id = ANY({})").format(pairs, ids)
        )
        assert done.rowcount == len(ids)

    def row(self, account_id: str) -> dict[str, Any]:
        row = self.connection.execute(
            "SELECT * FROM sync.account_config WHERE account_id = %s", [account_id]
        ).fetchone()
        assert row is not None, f"no account {account_id}"
        return row

    def column(self, name: str) -> dict[str, Any]:
        """One column of all accounts, by account."""
        query = sql.SQL("SELECT account_id, {} AS value FROM sync.account_config").format(sql.Identifier(name))
        return {row["account_id"]: row["value"] for row in self.connection.execute(query)}

    def age(self, *account_ids: str, seconds: float) -> None:
        """Let time pass for some claims: they were made this much earlier than they were."""
        self.connection.execute(
            "UPDATE sync.account_config SET started_at = started_at - make_interval(secs => %s) "
            "WHERE account_id = ANY(%s)",
            [seconds, list(account_ids)],
        )


@contextmanager
def table_at(url: str) -> Iterator[Table]:
    """The account table in the database at `url`; this session may also write the columns of the state machine."""
    with psycopg.connect(url, autocommit=True, row_factory=dict_row, options=BY_HAND) as connection:
        yield Table(connection)


@asynccontextmanager
async def claims_at(
    url: str,
    holder: str = "run-a/1",
    *,
    lease: float = 60.0,
    selection: Selection | None = None,
    retry_policy: RetryPolicy | None = None,
) -> AsyncIterator[Claims]:
    """The claims of a run that has begun."""
    async with Database(url) as database:
        claims = Claims(database, holder=holder, lease_seconds=lambda _: lease, retry_policy=retry_policy)
        await claims.begin(selection or Selection.all())
        yield claims


def ids(accounts: Sequence[ClaimedAccount]) -> set[str]:
    """The accounts' names, each once."""
    found = {account.account_id for account in accounts}
    assert len(found) == len(accounts), "an account was claimed twice"
    return found


def succeeded(account: ClaimedAccount) -> Outcome:
    return Outcome(account, Ending.SUCCEEDED)


def failed(account: ClaimedAccount, **more: Any) -> Outcome:
    return Outcome(account, Ending.FAILED, **{"error_kind": "retry", "error": "it did not answer", **more})
