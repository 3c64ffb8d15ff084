"""All accounts at a glance: how many are in which state, and the one to look at first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from sync_assets.claims.database import Database
from sync_assets.claims.names import compose
from sync_assets.claims.schema import check_account_table


@dataclass(frozen=True)
class ByStatus:
    """How many accounts have which status."""

    idle: int
    failed: int
    in_progress: int


@dataclass(frozen=True)
class HeldClaim:
    """A claim that has not been settled.

    Attributes:
        account_id: the account.
        claimed_by: who holds it.
        since: when it was claimed.
        until: when its lease ends.
    """

    account_id: str
    claimed_by: str | None
    since: datetime
    until: datetime


@dataclass(frozen=True)
class StalestAccount:
    """The enabled account whose last success is longest ago; None: it never had one."""

    account_id: str
    last_success: datetime | None


@dataclass(frozen=True)
class Overview:
    """The accounts at one moment. Counted are the enabled, but in `disabled` and `leases_in_the_future`.

    Attributes:
        at: the moment, by the database's clock.
        enabled: by status.
        disabled: by status; one that was switched off while it was worked is still in progress.
        due: free, waiting for nothing, and not claimed for the last tick.
        waiting: for a time that will come: our backoff, or the upstream's.
        quarantined: waiting until somebody releases them.
        stalled: in progress, and past the lease: the next run by tick takes them over.
        leases_in_the_future: claimed at a time that has not come: the database's clock was set back.
        oldest_claim: of those in progress; None: there is none.
        stalest: None: no account is enabled.
        failures_by_kind: how many of the failed have failed with what.
    """

    at: datetime
    enabled: ByStatus
    disabled: ByStatus
    due: int
    waiting: int
    quarantined: int
    stalled: int
    leases_in_the_future: int
    oldest_claim: HeldClaim | None
    stalest: StalestAccount | None
    failures_by_kind: Mapping[str, int]


async def overview(
    database: Database, lease_seconds: Callable[[datetime], float], last_tick: Callable[[datetime], datetime]
) -> Overview:
    """Count the accounts, in one statement.

    Args:
        database: the accounts' database, open.
        lease_seconds: the lease, at a moment, of a row that carries none.
        last_tick: the latest tick of the schedule at a moment.

    Raises:
        SettingsError: the table is missing or wrong.
    """
    async with database.connection() as connection:
        await check_account_table(connection, database.names)
    now = (await database.fetch(sql.SQL("SELECT now()")))[0][0]
    rows = await database.fetch(
        compose("sync_assets.claims.sql", "overview.sql", database.names),
        {"lease": lease_seconds(now), "tick": last_tick(now)},
    )
    at, *statuses, due, waiting, quarantined, stalled, future = rows[0][:12]
    held, stalest, kinds = rows[0][12:16], rows[0][16:18], rows[0][18]
    return Overview(
        at=at,
        enabled=ByStatus(*statuses[:3]),
        disabled=ByStatus(*statuses[3:]),
        due=due,
        waiting=waiting,
        quarantined=quarantined,
        stalled=stalled,
        leases_in_the_future=future,
        oldest_claim=HeldClaim(*held) if held[0] is not None else None,
        stalest=StalestAccount(*stalest) if stalest[0] is not None else None,
        failures_by_kind=dict(sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))),
    )
