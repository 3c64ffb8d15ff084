"""Which accounts there are."""

from __future__ import annotations

import psycopg

from sync_assets.claims.database import Database, one_line
from sync_assets.claims.errors import DatabaseUnavailable
from sync_assets.claims.names import compose
from sync_assets.claims.schema import check_account_table


async def account_ids(database: Database, limit: int) -> list[str]:
    """The ids of all accounts, enabled or not, in no order; at most `limit` of them.

    Args:
        database: the accounts' database, open.
        limit: how many at most.

    Raises:
        SettingsError: the table is missing or wrong.
        DatabaseUnavailable: the database does not answer.
    """
    try:
        async with database.connection() as connection:
            await check_account_table(connection, database.names)
        rows = await database.fetch(
            compose("sync_assets.claims.sql", "account_ids.sql", database.names), {"limit": limit}
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"the accounts' database does not answer: {one_line(error)}") from None
    return [str(row[0]) for row in rows]
