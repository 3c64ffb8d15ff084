"""Looking without claiming: why an account was not claimed, in words; and how many have changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime, timezone

import psycopg
from psycopg import sql

from sync_assets.claims.database import Database, one_line
from sync_assets.claims.errors import DatabaseUnavailable
from sync_assets.claims.model import Explanation, Verdict
from sync_assets.claims.names import Names, compose
from sync_assets.claims.schema import check_account_table
from sync_assets.claims.typed_ids import id_of


async def explain(database: Database, account_id: str, lease_seconds: float) -> Explanation:
    """Look at one account's row and say whether a claim by hand would get it, and why not.

    Args:
        database: the accounts' database.
        account_id: the account.
        lease_seconds: the lease of a row that carries none.

    Raises:
        SettingsError: the id is none that the table's key could be.
    """
    account_id = await id_of(database, account_id)
    rows = await database.fetch(
        compose("sync_assets.claims.sql", "explain.sql", database.names),
        {"account_id": account_id, "lease": lease_seconds},
    )
    if not rows:
        return Explanation(
            account_id,
            Verdict.UNKNOWN,
            f"account {account_id!r} is unknown: there is no such row in {database.names.table_name}; check the id",
        )
    (
        enabled,
        status,
        since,
        holder,
        kind,
        detail,
        failures,
        quarantined,
        next_attempt,
        not_before,
        now,
        until,
        unlocked,
    ) = rows[0]
    if not enabled:
        return Explanation(
            account_id,
            Verdict.DISABLED,
            f"account {account_id!r} is disabled: {_how_to_enable(database.names)} to have it synced",
        )
    if status == "IN_PROGRESS" and until >= now:
        return Explanation(
            account_id,
            Verdict.IN_PROGRESS,
            f"account {account_id!r} is busy: {holder or 'somebody'} has held it since {_utc(since)} "
            f"({_ago((now - since).total_seconds())}); its claim ends at {_utc(until)} at the latest",
            claimed_by=holder,
            since=since,
            until=until,
        )
    if not unlocked:
        return Explanation(
            account_id,
            Verdict.LOCKED,
            f"account {account_id!r} is locked just now by another transaction; try again in a moment",
            claimed_by=holder,
        )
    last = f" (last failure: {kind}: {detail})" if kind else ""
    if quarantined:
        return _quarantined(account_id, failures, since, last, holder)
    wait = max((moment for moment in (next_attempt, not_before) if moment is not None), default=now)
    verdict, sentence = Verdict.FREE, "is free: the next claim gets it"
    if wait > now:
        because = "the upstream asked for it" if wait == not_before else f"of our backoff after {_times(failures)}"
        verdict = Verdict.WAITING
        sentence = f"waits until {_utc(wait)} because {because}{last}; a run by hand does not wait"
    return Explanation(
        account_id,
        verdict,
        f"account {account_id!r} {sentence}",
        claimed_by=holder,
        until=wait if wait > now else None,
    )


def _quarantined(account_id: str, failures: int, since: datetime | None, last: str, holder: str | None) -> Explanation:
    tried = f", last tried at {_utc(since)}" if since else ""
    typed = shlex.quote(account_id) if account_id.isprintable() else "ACCOUNT"
    return Explanation(
        account_id,
        Verdict.QUARANTINED,
        f"account {account_id!r} is in quarantine after {_times(failures)} in a row{tried}{last}; no tick claims it "
        f"any more. Change its configuration, run it by hand, or let it go with: sync-assets release {typed}",
        claimed_by=holder,
        since=since,
    )


def _how_to_enable(names: Names) -> str:
    if names.shape is not None and names.shape.enabled_sql is not None:
        return f"in {names.table_name} this must hold for it: {names.shape.enabled_sql}"
    return f"set {names.enabled} to true in {names.table_name}"


def _times(failures: int) -> str:
    return "1 failure" if failures == 1 else f"{failures} failures"


def _utc(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


async def count_changed(database: Database, lease_seconds: Callable[[datetime], float], limit: int) -> int:
    """How many accounts a claim of the changed ones would get now, counted up to `limit`.

    Args:
        database: the accounts' database, open.
        lease_seconds: the lease, at a moment, of a row that carries none.
        limit: where to stop counting.

    Raises:
        SettingsError: the table is missing or wrong.
        DatabaseUnavailable: the database does not answer.
    """
    try:
        async with database.connection() as connection:
            await check_account_table(connection, database.names)
        now = (await database.fetch(sql.SQL("SELECT now()")))[0][0]
        rows = await database.fetch(
            compose("sync_assets.claims.sql", "changed.sql", database.names),
            {"limit": limit, "lease": lease_seconds(now)},
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"the accounts' database does not answer: {one_line(error)}") from None
    return int(rows[0][0])
