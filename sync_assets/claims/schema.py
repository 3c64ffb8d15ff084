"""Create the account table, and refuse one that is not as it must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from sync_assets.claims.errors import SettingsError
from sync_assets.claims.names import Names, compose, read_sql
from sync_assets.claims.recorded import Record

_PACKAGE = "sync_assets.claims.sql"

# A zone-less timestamp would double-claim as soon as two sessions disagree about the zone; the others would fail or
# lie in their own ways. So every column of ours has exactly this type.
STATE_COLUMNS = {
    "status": "text",
    "started_at": "timestamp with time zone",
    "lease": "interval",
    "claim_seq": "bigint",
    "claimed_by": "text",
    "last_tick": "timestamp with time zone",
    "last_success": "timestamp with time zone",
    "failures": "integer",
    "error_kind": "text",
    "last_error": "text",
    "next_attempt_at": "timestamp with time zone",
    "not_before": "timestamp with time zone",
    "generation": "bigint",
    "claimed_generation": "bigint",
}


_TRIGGERS = ("sync_assets_claim_guard", "sync_assets_generation", "sync_assets_generation_new")

# What the owner configures in the default table.
_OWNERS_COLUMNS = {"base_url": "text", "secret_ref": "text", "settings": "jsonb"}


async def create_account_table(connection: psycopg.AsyncConnection[Any], names: Names) -> bool:
    """Create the account table where it is not there yet, and the triggers it lacks. Safe to repeat, and twice at once.

    Args:
        connection: in autocommit.
        names: the table and its columns.

    Returns:
        Whether the table was created.

    Raises:
        SettingsError: a table of that name is there and is not as it must be.
    """
    async with connection.transaction():
        await create_schema(connection, names)
        if not await table_exists(connection, names.table_name):
            await connection.execute(compose(_PACKAGE, "schema.sql", names))
            await _make_triggers(connection, names)
            return True
        await _check_account_columns(connection, names)
        # one trigger of ours, and not all: an earlier version made the table, or somebody dropped one
        there = await triggers_of(connection, names.table_name)
        if names.shape is None and there.keys() & set(_TRIGGERS) and not there.keys() >= set(_TRIGGERS):
            await check_columns(connection, names.table_name, _OWNERS_COLUMNS)
            await _make_triggers(connection, names)
        await check_triggers(connection, names.table_name, _TRIGGERS)
    return False


async def _make_triggers(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    await connection.execute(guard_sql(Record(names), [names.enabled, *_OWNERS_COLUMNS]))


def guard_sql(record: Record, watched: Sequence[str]) -> sql.Composed:
    """The triggers of an account table, and the note beside it.

    Args:
        record: the table, and what is to be noted of it.
        watched: the owner's columns that are configuration.
    """
    columns = [sql.Identifier(column) for column in watched]

    def listed(prefix: str) -> sql.Composed:
        return sql.SQL(", ").join([sql.SQL(prefix + "{}").format(column) for column in columns])

    return compose(
        _PACKAGE,
        "guard.sql",
        record.names,
        watched=listed(""),
        watched_old=listed("OLD."),
        watched_new=listed("NEW."),
        record=sql.Literal(record.text()),
    )


async def check_account_table(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    """Refuse a table that is missing, has a column missing or of another type, or draws no generations.

    Raises:
        SettingsError: names the table and each column, with what it is and what it must be.
    """
    await _check_account_columns(connection, names)
    await check_triggers(connection, names.table_name, _TRIGGERS)


async def _check_account_columns(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    shape = names.shape
    key = {} if shape is not None else {names.key: "text"}  # any type will do for an adopted one
    enabled = {} if shape is not None and shape.enabled_sql is not None else {names.enabled: "boolean"}
    ours = {names.column(column): kind for column, kind in STATE_COLUMNS.items()}
    await check_columns(connection, names.table_name, {**key, **enabled, **ours})


async def create_schema(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    """Within a transaction: wait for anybody else who is creating tables, then make the schema if it is missing."""
    # IF NOT EXISTS looks before it locks: two at once would collide in the catalogue
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('sync-assets init', 0))")
    found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (names.schema,))
    if await found.fetchone() is None:
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(names.schema)))


async def table_exists(connection: psycopg.AsyncConnection[Any], table: str) -> bool:
    """Whether there is a table (or view) of this name, written as `Names.table_name` writes it."""
    found = await connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,))
    row = await found.fetchone()
    return row is not None and bool(row[0])


async def check_columns(connection: psycopg.AsyncConnection[Any], table: str, expected: Mapping[str, str]) -> None:
    """Refuse a table that is missing, or whose columns are missing or of other types.

    Raises:
        SettingsError: names the table and each column, with what it is and what it must be.
    """
    if not await table_exists(connection, table):
        raise SettingsError(
            f"there is no table {table} in this database; create it with: sync-assets init (and the same names)"
        )
    actual = await columns_of(connection, table)
    wrong = [f"{name} is missing (expected {kind})" for name, kind in expected.items() if name not in actual]
    wrong += [
        f"{name} is {actual[name]} (expected {kind})"
        for name, kind in expected.items()
        if name in actual and actual[name] != kind
    ]
    if wrong:
        raise SettingsError(f"the table {table} cannot be used: " + "; ".join(wrong))


async def columns_of(connection: psycopg.AsyncConnection[Any], table: str) -> dict[str, str]:
    """The columns of a table, with their types as Postgres writes them."""
    found = await connection.execute(read_sql(_PACKAGE, "columns.sql").encode(), {"table": table})
    return {str(name): str(kind) for name, kind in await found.fetchall()}


async def check_triggers(connection: psycopg.AsyncConnection[Any], table: str, expected: Sequence[str]) -> None:
    """Refuse a table on which a trigger of ours is missing or disabled: no change would ever be noticed.

    Raises:
        SettingsError: names the table and the triggers.
    """
    there = await triggers_of(connection, table)
    missing = [name for name in expected if name not in there]
    if missing:
        raise SettingsError(
            f"the table {table} cannot be used: it has no trigger {' and no trigger '.join(missing)}; "
            "make it again with: sync-assets init"
        )
    disabled = [name for name in expected if not there[name]]
    if disabled:
        raise SettingsError(
            f"the table {table} cannot be used: its trigger {' and its trigger '.join(disabled)} is disabled; "
            + "".join(f"ALTER TABLE {table} ENABLE TRIGGER {name};" for name in disabled)
        )


async def triggers_of(connection: psycopg.AsyncConnection[Any], table: str) -> dict[str, bool]:
    """The triggers of a table, and which are at work."""
    found = await connection.execute(read_sql(_PACKAGE, "triggers.sql").encode(), {"table": table})
    return {str(name): bool(at_work) for name, at_work in await found.fetchall()}
