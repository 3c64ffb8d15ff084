"""Looking at the accounts without a run: one of them explained, all of them at a glance, and those in trouble."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql

from sync_assets.claims import Database, Explanation, SettingsError, plain_faults
from sync_assets.claims.explain import explain
from sync_assets.claims.overview import Overview, overview
from sync_assets.claims.schema import check_account_table
from sync_assets.claims.troubles import Trouble, TroubleKind, find_trouble
from sync_assets.cron import last_tick, next_tick
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings


async def explain_account(claim_settings: ClaimSettings, account_id: str) -> Explanation:
    """Say whether a claim by hand would get an account now, and why not.

    Raises:
        SettingsError: the table is missing or wrong, or the id is none that its key could be.
        DatabaseUnavailable: the database cannot be reached.
    """
    with plain_faults():
        async with Database(claim_settings.database_url, claim_settings.names, max_connections=1) as database:
            async with database.connection() as connection:
                await check_account_table(connection, database.names)
            now = (await database.fetch(sql.SQL("SELECT now()")))[0][0]
            return await explain(database, account_id, claim_settings.lease_at(now))


@dataclass(frozen=True)
class State:
    """The accounts at a glance, and what their schedule promises.

    Attributes:
        accounts: the counts, and the accounts to look at first.
        next_tick: when the schedule fires next, if it is switched on; in its zone.
        lease_seconds: how long a claim made now is promised.
        recovered_at: the tick at which an account whose run dies now is taken over at the latest; in the same zone.
    """

    accounts: Overview
    next_tick: datetime
    lease_seconds: float
    recovered_at: datetime


async def state_of(claim_settings: ClaimSettings) -> State:
    """Look at all accounts, by the database's clock.

    Raises:
        SettingsError: the table is missing or wrong.
        DatabaseUnavailable: the database cannot be reached.
    """
    schedule, zone = claim_settings.schedule, claim_settings.timezone
    with plain_faults():
        async with Database(claim_settings.database_url, claim_settings.names, max_connections=1) as database:
            accounts = await overview(database, claim_settings.lease_at, lambda now: last_tick(schedule, zone, now))
    lease = claim_settings.lease_at(accounts.at)
    return State(
        accounts,
        next_tick(schedule, zone, accounts.at),
        lease,
        next_tick(schedule, zone, accounts.at + timedelta(seconds=lease)),
    )


async def troubles_of(
    claim_settings: ClaimSettings, kinds: Iterable[TroubleKind] = TroubleKind, stop: StopSignal | None = None
) -> list[Trouble]:
    """Look for accounts in trouble, by the database's clock; each kind in a statement of its own.

    Args:
        claim_settings: where the accounts are, and what is asked of them.
        kinds: which; a setting that is of no use to one of them is told in its `Trouble`, and spoils no other.
        stop: once it is set, no further kind is looked for.

    Raises:
        SettingsError: the table is missing or wrong.
        DatabaseUnavailable: the database cannot be reached.
    """
    found = []
    with plain_faults():
        async with Database(claim_settings.database_url, claim_settings.names, max_connections=1) as database:
            async with database.connection() as connection:
                await check_account_table(connection, database.names)
            for kind in kinds:
                if stop is not None and stop.is_set():
                    break
                try:
                    trouble = await find_trouble(database, kind, claim_settings.lease_at, claim_settings.freshness())
                except SettingsError as error:
                    trouble = Trouble(kind, not_judged=str(error))
                found.append(trouble)
    return found
