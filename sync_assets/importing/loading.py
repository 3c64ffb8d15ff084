"""A file's rows into their table: staged by COPY, checked together, merged in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO

import psycopg
from psycopg import sql

from sync_assets.claims import Database, Names, SettingsError
from sync_assets.claims.database import is_of_a_row
from sync_assets.claims.names import compose, read_sql
from sync_assets.claims.schema import STATE_COLUMNS, check_account_table
from sync_assets.importing.reading import LISTED_FAULTS, Columns, Fault, FileFormat, ImportRefused, Row, read_rows
from sync_assets.push.schema import check_record_table

_PACKAGE = "sync_assets.importing.sql"
_SAID = 300

_Connection = psycopg.AsyncConnection[Any]
_Merge = Callable[[_Connection, int, int], Awaitable[tuple[int, int]]]


@dataclass(frozen=True)
class Imported:
    """What became of a file.

    Attributes:
        rows: rows in it.
        made: of which are new.
        changed: of which are different from what was there.
    """

    rows: int
    made: int
    changed: int

    @property
    def unchanged(self) -> int:
        """Rows that say what is there already."""
        return self.rows - self.made - self.changed


async def import_accounts(database: Database, file: BinaryIO, form: FileFormat, *, dry_run: bool = False) -> Imported:
    """Make and change accounts as a file says. Accounts that are not in it are left alone.

    Args:
        database: the accounts' database.
        file: read once, from where it is.
        form: how it is written. Its columns are the key and the owner's; those that are not given are left alone.
        dry_run: check all of it and change nothing.

    Raises:
        ImportRefused: the file has a fault; nothing was changed.
        SettingsError: the table is missing or wrong.
    """
    names = database.names
    if names.shape is not None and len(names.shape.key) > 1:
        raise SettingsError(f"{names.table_name} has a key of several columns; import its rows with SQL")
    async with database.connection() as connection:
        await check_account_table(connection, names)
        cursor = await connection.execute(read_sql(_PACKAGE, "columns.sql").encode(), {"table": names.table_name})
        found = await cursor.fetchall()
        ours = {names.column(column) for column in STATE_COLUMNS}
        types = {str(name): str(kind) for name, kind, _ in found if name not in ours}
        statement = _accounts_statement(names, types, {str(name): default for name, _, default in found})
        columns = Columns(types, (names.key,))

        async def merge(connection: _Connection, after: int, until: int) -> tuple[int, int]:
            return await _counts(connection, statement, after, until)

        return await _import(connection, read_rows(file, form, columns), merge, names, strangers=False, dry_run=dry_run)


async def import_records(database: Database, file: BinaryIO, form: FileFormat, *, dry_run: bool = False) -> Imported:
    """Make and change records as a file says. Records that are not in it are left alone.

    Args:
        database: the accounts' database.
        file: read once, from where it is.
        form: how it is written. Its columns: `account_id`, `record_id`, `data` (JSON) and `deleted` (true: to be
            deleted upstream, and then without data).
        dry_run: check all of it and change nothing.

    Raises:
        ImportRefused: the file has a fault; nothing was changed.
        SettingsError: a table is missing or wrong.
    """
    names = database.names
    types = {"account_id": "text", "record_id": "text", "data": "jsonb", "deleted": "boolean"}
    columns = Columns(types, ("account_id", "record_id"), _record_fault)
    statement = compose(_PACKAGE, "records.sql", names)

    async def merge(connection: _Connection, after: int, until: int) -> tuple[int, int]:
        return await _counts(connection, statement, after, until)

    async with database.connection() as connection:
        await check_account_table(connection, names)
        await check_record_table(connection, names)
        return await _import(connection, read_rows(file, form, columns), merge, names, strangers=True, dry_run=dry_run)


def _record_fault(values: Mapping[str, object]) -> str | None:
    deleted = values.get("deleted")
    if deleted not in (None, True, False, "true", "false"):
        return f"deleted is {deleted!r:.80}; expected true or false"
    if values.get("data") is None and deleted not in (True, "true"):
        return "data is missing; expected JSON, or deleted true"
    return None


def _accounts_statement(names: Names, types: Mapping[str, str], defaults: Mapping[str, str | None]) -> sql.Composed:
    columns = [name for name in types if name != names.key]

    def given(name: str, otherwise: sql.Composable) -> sql.Composed:
        # as JSON where the column is JSON, else as the text it is cast from
        arrow = sql.SQL("nullif(given -> {}, 'null')" if types[name] in {"json", "jsonb"} else "(given ->> {})")
        return sql.SQL("CASE WHEN given ? {name} THEN {value}::{kind} ELSE {otherwise} END").format(
            name=sql.Literal(name),
            value=arrow.format(sql.Literal(name)),
            kind=sql.SQL(types[name]),  # as Postgres itself writes it
            otherwise=otherwise,
        )

    old = [sql.SQL("account.{}").format(sql.Identifier(name)) for name in columns]
    new = [given(name, column) for name, column in zip(columns, old, strict=True)]
    fresh = [given(name, sql.SQL((defaults[name] or "NULL").replace("%", "%%"))) for name in columns]
    return compose(
        _PACKAGE,
        "accounts.sql",
        names,
        key_type=sql.SQL(types[names.key]),
        assignments=_listed(
            [sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in zip(columns, new, strict=True)]
        ),
        old=_listed(old),
        new=_listed(new),
        columns=_listed([sql.Identifier(name) for name in (names.key, *columns)]),
        fresh=_listed([sql.SQL("id"), *fresh]),
    )


def _listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


async def _import(
    connection: _Connection,
    rows: Iterator[Row | Fault],
    merge: _Merge,
    names: Names,
    *,
    strangers: bool,
    dry_run: bool,
) -> Imported:
    async with connection.transaction(force_rollback=dry_run):
        # a file may take longer than any statement of a run may
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(read_sql(_PACKAGE, "staging.sql").encode())
        count, last = await _stage(connection, rows)
        await connection.execute("ANALYZE sync_assets_import")
        await _refuse_duplicates(connection)
        if strangers:
            await _refuse_strangers(connection, names)
        made, changed = await _merged(connection, merge, last)
    return Imported(count, made, changed)


async def _stage(connection: _Connection, rows: Iterator[Row | Fault]) -> tuple[int, int]:
    """Copy all rows; with the first that cannot be, only look for more of its kind.

    Returns:
        How many rows there are, and the line of the last.
    """
    count = last = 0
    statement = "COPY sync_assets_import (line, account_id, record_id, given) FROM STDIN"
    async with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            if isinstance(row, Fault):
                raise _all_faults(row, rows)
            await copy.write_row((row.line, row.ids[0], row.ids[1] if len(row.ids) > 1 else None, row.given))
            count, last = count + 1, row.line
    return count, last


def _all_faults(first: Fault, rest: Iterator[Row | Fault]) -> ImportRefused:
    faults = (row for row in chain([first], rest) if isinstance(row, Fault))
    listed = list(islice(faults, LISTED_FAULTS))
    try:
        return ImportRefused(listed, sum(1 for _ in faults))
    except ImportRefused as worse:  # what follows cannot be read
        return ImportRefused([*listed, *worse.faults])


async def _refuse_duplicates(connection: _Connection) -> None:
    cursor = await connection.execute(read_sql(_PACKAGE, "duplicates.sql").encode(), {"limit": LISTED_FAULTS})
    found = await cursor.fetchall()
    if found:
        faults = [
            Fault(line, f"{' '.join(repr(each) for each in ids if each is not None)} is in line {before} already")
            for line, before, *ids, _ in found
        ]
        raise ImportRefused(faults, found[0][-1] - len(faults))


async def _refuse_strangers(connection: _Connection, names: Names) -> None:
    cursor = await connection.execute(compose(_PACKAGE, "strangers.sql", names), {"limit": LISTED_FAULTS})
    found = await cursor.fetchall()
    if found:
        faults = [
            Fault(line, f"there is no account {account!r} in {names.table_name}; import accounts first")
            for line, account, _ in found
        ]
        raise ImportRefused(faults, found[0][-1] - len(faults))


async def _counts(connection: _Connection, statement: sql.Composed, after: int, until: int) -> tuple[int, int]:
    cursor = await connection.execute(statement, {"after": after, "until": until})
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101  # an aggregate without groups has one row
    return int(row[0]), int(row[1])


async def _merged(connection: _Connection, merge: _Merge, last: int) -> tuple[int, int]:
    """Merge all lines at once; when a row cannot be, find out which.

    Raises:
        ImportRefused: names the first line that the table refuses, and what it says.
    """
    try:
        async with connection.transaction():
            return await merge(connection, 0, last)
    except psycopg.Error as error:
        if not is_of_a_row(error):
            raise
        refusal = error
    merged, refused = 0, last  # the first line that cannot be lies between: halve it, as all before it can be merged
    while refused - merged > 1:
        half = (merged + refused) // 2
        try:
            async with connection.transaction():
                await merge(connection, merged, half)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            refused, refusal = half, error
        else:
            merged = half
    said = refusal.diag.message_primary or "no reason given"
    raise ImportRefused([Fault(refused, f"the table refuses it: {said[:_SAID]}")])
