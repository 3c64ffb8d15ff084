"""Create the records table, and refuse one that is not as it must be."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from sync_assets.claims import Names
from sync_assets.claims.names import compose
from sync_assets.claims.schema import check_columns, check_triggers, create_schema, table_exists, triggers_of

PACKAGE = "sync_assets.push.sql"

_COLUMNS = {
    "account_id": "text",
    "record_id": "text",
    "data": "jsonb",
    "deleted_at": "timestamp with time zone",
    "version": "bigint",
    "synced_version": "bigint",
    "synced_at": "timestamp with time zone",
    "rejected_version": "bigint",
    "rejected_generation": "bigint",
    "external_id": "text",
    "error": "text",
}
_TRIGGERS = ("sync_assets_version", "sync_assets_version_new")


async def create_record_table(connection: psycopg.AsyncConnection[Any], names: Names) -> bool:
    """Create the records table where it is not there yet, or the trigger it lacks. Safe to repeat, and twice at once.

    Args:
        connection: in autocommit.
        names: the table's name and schema.

    Returns:
        Whether the table was created.

    Raises:
        SettingsError: a table of that name is there and is not as it must be.
    """
    sequence = sql.Identifier(names.schema, f"{names.records}_version_seq")
    more = {
        "changed_records_index": sql.Identifier(f"{names.records}_changed"),
        "version_function": sql.Identifier(names.schema, f"{names.records}_version"),
        "version_seq_name": sql.Literal(sequence.as_string(connection)),
    }
    async with connection.transaction():
        await create_schema(connection, names)
        if not await table_exists(connection, names.records_name):
            await connection.execute(compose(PACKAGE, "schema.sql", names, **more))
            await connection.execute(compose(PACKAGE, "triggers.sql", names, **more))
            return True
        await check_columns(connection, names.records_name, _COLUMNS)
        there = (await triggers_of(connection, names.records_name)).keys()
        if there & set(_TRIGGERS) and not there >= set(_TRIGGERS):  # ours, and somebody dropped one
            await connection.execute(compose(PACKAGE, "triggers.sql", names, **more))
        await check_triggers(connection, names.records_name, _TRIGGERS)
    return False


async def check_record_table(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    """Refuse a table that is missing, has a column missing or of another type, or draws no versions.

    Raises:
        SettingsError: names the table and each column, with what it is and what it must be.
    """
    await check_columns(connection, names.records_name, _COLUMNS)
    await check_triggers(connection, names.records_name, _TRIGGERS)
