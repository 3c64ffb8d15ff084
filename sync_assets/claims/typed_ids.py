"""Ids of accounts as people type them, brought to the one text by which the statements know them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import psycopg

from sync_assets.claims.database import Database
from sync_assets.claims.errors import SettingsError
from sync_assets.claims.model import Selection
from sync_assets.claims.names import formatted


async def selection_of(database: Database, selection: Selection) -> Selection:
    """The selection with its ids as `account_id` writes them.

    Raises:
        SettingsError: an id is none that the key of this table could be.
    """
    if database.names.shape is None or not selection.account_ids:
        return selection
    ids = [await id_of(database, typed) for typed in selection.account_ids]
    return replace(selection, account_ids=tuple(dict.fromkeys(ids)))


async def id_of(database: Database, typed: str) -> str:
    """The id that was typed as `account_id` writes it: a uuid in small letters, a composite key as Postgres' JSON.

    Raises:
        SettingsError: the key of this table could not be that.
    """
    shape = database.names.shape
    if shape is None:
        return typed
    if len(shape.key) > 1 and not _has_parts(typed, len(shape.key)):
        raise SettingsError(
            f"account_id {typed!r} cannot be an account of {database.names.table_name}; expected a JSON array of "
            f"{_described(shape.key)}, such as {_example(shape.key)}"
        )
    query = formatted("SELECT {named_as_text}", database.names)
    try:
        rows = await database.fetch(query, {"account_id": typed})
    except psycopg.DataError as error:
        raise SettingsError(
            f"account_id {typed!r} cannot be an account of {database.names.table_name}, whose key is "
            f"{_described(shape.key)}: {error.diag.message_primary}"
        ) from None
    return str(rows[0][0])


def _has_parts(typed: str, count: int) -> bool:
    try:
        parts = json.loads(typed)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(parts, list)
        and len(parts) == count
        and not any(part is None or isinstance(part, list | dict) for part in parts)
    )


def _described(key: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{column} ({kind})" for column, kind in key)


def _example(key: Sequence[tuple[str, str]]) -> str:
    numbers = ("smallint", "integer", "bigint", "numeric")
    return json.dumps([42 if kind in numbers else "eu" for _, kind in key])
