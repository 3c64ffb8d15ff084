"""Looking at the accounts without a run: one of them explained, and all of them at a glance."""

from __future__ import annotations

from psycopg import sql

from sync_assets.claims import Database, Explanation, plain_faults
from sync_assets.claims.explain import explain
from sync_assets.claims.schema import check_account_table
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
