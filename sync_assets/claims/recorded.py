"""What a table is like, noted beside it: nobody types it for every command, and upgrades know where they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from sync_assets.claims.errors import SettingsError
from sync_assets.claims.names import Names, Shape, read_sql

SCHEMA_VERSION = 1
"""Of our columns, indexes and triggers. Each code also works on the next one."""


@dataclass(frozen=True)
class Record:
    """What is noted: the comment of our trigger, which goes wherever the table goes.

    Attributes:
        names: the table and its shape.
        ignored: the owner's columns that are no configuration.
    """

    names: Names
    ignored: tuple[str, ...] = ()

    def text(self) -> str:
        """The comment."""
        names, shape = self.names, self.names.shape
        return json.dumps(
            {
                "version": SCHEMA_VERSION,
                "key": [column for column, _ in shape.key] if shape else [names.key],
                "enabled": names.enabled,
                **({"enabled_sql": shape.enabled_sql} if shape and shape.enabled_sql is not None else {}),
                "columns": dict(shape.columns) if shape else {},
                "ignored": self.ignored,
            },
            ensure_ascii=False,
        )


async def read_record(connection: psycopg.AsyncConnection[Any], names: Names) -> Record | None:
    """What is noted of the table of these names; None: nothing, or there is no such table.

    Raises:
        SettingsError: the note cannot be read, is of a later version, or is of other columns than were named.
    """
    cursor = await connection.execute(
        read_sql("sync_assets.claims.sql", "recorded.sql").encode(), {"table": names.table_name}
    )
    row = await cursor.fetchone()
    if row is None or row[0] is None:
        return None
    text, kinds = row
    try:
        noted = json.loads(text)
        version, key, enabled = int(noted["version"]), [str(column) for column in noted["key"]], str(noted["enabled"])
        columns = tuple((str(ours), str(theirs)) for ours, theirs in noted["columns"].items())
        enabled_sql, ignored = noted.get("enabled_sql"), tuple(map(str, noted["ignored"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SettingsError(
            f"what sync-assets noted of the table {names.table_name}, in the comment of its trigger "
            f"sync_assets_claim_guard, cannot be read; put back the comment that "
            "was there (pg_dump keeps it)"
        ) from None
    if version > SCHEMA_VERSION + 1:
        raise SettingsError(
            f"the table {names.table_name} was made by a newer sync-assets (schema version {version}; this one knows "
            f"{SCHEMA_VERSION}, and works on {SCHEMA_VERSION + 1}); upgrade sync-assets here"
        )
    _refuse_others(names, "key", names.key, key)
    _refuse_others(names, "enabled", names.enabled, [enabled])
    missing = [column for column in key if column not in kinds]
    if missing:
        raise SettingsError(
            f"the table {names.table_name} has no column {missing[0]} any more, which was its key when it was adopted"
        )
    shape = Shape(tuple((column, str(kinds[column])) for column in key), enabled_sql, columns)
    if shape == Shape(((key[0], "text"),)):  # nothing that the names do not say
        return Record(replace(names, key=key[0], enabled=enabled, shape=None), ignored)
    return Record(replace(names, key=key[0], enabled=enabled, shape=shape), ignored)


async def recorded_names(connection: psycopg.AsyncConnection[Any], names: Names) -> Names:
    """The names with all that is noted of their table.

    Raises:
        SettingsError: as `read_record`.
    """
    record = await read_record(connection, names)
    return names if record is None else record.names


def _refuse_others(names: Names, field: str, given: str, noted: Sequence[str]) -> None:
    if given not in (getattr(Names, field), noted[0]):
        raise SettingsError(
            f"the {field} of {names.table_name} is {', '.join(noted)}, as was noted when it was made or adopted, and "
            f"not {given}; leave {field} out"
        )
