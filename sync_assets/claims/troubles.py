"""What somebody should look at: accounts that are stalled, failed, not fresh, or claimed in the future."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from psycopg import sql

from sync_assets.claims.database import Database
from sync_assets.claims.errors import SettingsError
from sync_assets.claims.names import Names, check_name, compose, read_sql
from sync_assets.claims.schema import columns_of

MOST_COUNTED = 10_000
"""Where counting stops: when so many are in trouble, nobody needs to know how many more."""

MOST_SHOWN = 100
"""Accounts listed, the worst first."""

_PACKAGE = "sync_assets.claims.sql"
_LONGEST = 100 * 365.25 * 86_400.0  # a century; an interval of seconds ends somewhere
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


class TroubleKind(str, Enum):
    """What may be wrong. Only enabled accounts are looked at, but for a claim that is in the future and still held.

    Attributes:
        stalled: in progress, and past the lease on the row.
        failed: the last attempt failed, quarantined or not.
        stale: the last success is longer ago than the limit; or there was an attempt, and never a success.
        future: claimed more than five minutes ahead of the database's clock, which has been set back since.
    """

    stalled = "stalled"
    failed = "failed"
    stale = "stale"
    future = "future"


@dataclass(frozen=True)
class Freshness:
    """How long ago an account's last success may be.

    Attributes:
        seconds: for every account without a limit of its own; None: no limit.
        column: the owner's column with an account's own limit, an interval or a number of seconds; null in it: as the
            others. None: there is no such column.

    Raises:
        SettingsError: the number or the name cannot be used.
    """

    seconds: float | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 1 <= self.seconds <= _LONGEST:
            raise SettingsError(
                f"freshness_seconds is {self.seconds:g}; expected seconds, 1 to a century (SYNC_FRESHNESS_SECONDS)"
            )
        if self.column is not None:
            check_name("freshness_column", self.column)

    @property
    def is_set(self) -> bool:
        """Whether any account may have a limit."""
        return self.seconds is not None or self.column is not None


@dataclass(frozen=True)
class TroubledAccount:
    """One account in trouble, as `troubled.sql` reads it.

    Attributes:
        account_id: the account.
        status: IDLE, IN_PROGRESS or FAILED.
        since: when it was claimed last; None: never.
        until: when that claim's lease ends or ended.
        claimed_by: who holds it, or held it last.
        failures: in a row.
        error_kind, error: of its last failure.
        last_success: None: never.
        waits_until: no tick claims it before; None: it waits for nothing, or is in quarantine.
        is_quarantined: no tick claims it until it is released.
        fresh_for_seconds: its limit, where freshness was asked for.
    """

    account_id: str
    status: str
    since: datetime | None
    until: datetime | None
    claimed_by: str | None
    failures: int
    error_kind: str | None
    error: str | None
    last_success: datetime | None
    waits_until: datetime | None
    is_quarantined: bool
    fresh_for_seconds: float | None = None


@dataclass(frozen=True)
class Trouble:
    """The accounts in one kind of trouble.

    Attributes:
        kind: which.
        count: how many, counted up to `MOST_COUNTED`.
        accounts: the first `MOST_SHOWN` of them, the worst first.
        not_judged: why nobody looked, in words: a setting that cannot be used. Empty: somebody did.
    """

    kind: TroubleKind
    count: int = 0
    accounts: tuple[TroubledAccount, ...] = ()
    not_judged: str = ""


async def find_trouble(
    database: Database, kind: TroubleKind, lease_seconds: Callable[[datetime], float], freshness: Freshness
) -> Trouble:
    """Look for one kind of trouble, in one statement.

    Args:
        database: the accounts' database, open; its table has been checked.
        kind: what to look for.
        lease_seconds: the lease, at a moment, of a row that carries none.
        freshness: the limits; asked for only when accounts that are not fresh are looked for.

    Raises:
        SettingsError: the column with the accounts' own limits is missing, or is no interval or number.
    """
    if kind is TroubleKind.stale and not freshness.is_set:
        return Trouble(kind)
    own_limit = await _own_limit(database, freshness.column) if kind is TroubleKind.stale else None
    now = (await database.fetch(sql.SQL("SELECT now()")))[0][0]
    rows = await database.fetch(
        trouble_sql(database.names, kind, own_limit),
        {"lease": lease_seconds(now), "freshness": freshness.seconds, "most": MOST_COUNTED, "shown": MOST_SHOWN},
    )
    return Trouble(kind, rows[0][0] if rows else 0, tuple(TroubledAccount(*row[1:]) for row in rows))


def trouble_sql(names: Names, kind: TroubleKind, own_limit: sql.Composable | None = None) -> sql.Composed:
    """The statement that finds one kind of trouble.

    Args:
        names: the table and its columns.
        kind: what to look for.
        own_limit: an account's own limit of freshness as an interval; None: no account has one.
    """
    return compose(
        _PACKAGE,
        f"trouble_{kind.value}.sql",
        names,
        troubled=compose(_PACKAGE, "troubled.sql", names),
        own_limit=own_limit or sql.SQL("NULL::interval"),
    )


async def _own_limit(database: Database, column: str | None) -> sql.Composable | None:
    if column is None:
        return None
    async with database.connection() as connection:
        kind = (await columns_of(connection, database.names.table_name)).get(column)
    if kind == "interval" or kind in _NUMBERS:
        file = "own_limit_interval.sql" if kind == "interval" else "own_limit_number.sql"
        return sql.SQL(read_sql(_PACKAGE, file)).format(column=sql.Identifier(column))
    raise SettingsError(
        f"freshness_column is {column!r}, and in {database.names.table_name} that column is {kind or 'missing'}; "
        "expected an interval, or a number of seconds"
    )
