"""Which table, by which names; and the SQL files with those names put in."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from psycopg import sql

from sync_assets.claims.errors import SettingsError

_INDEXES = ("free", "waiting", "held", "oldest", "changed")
_LIMIT = 48  # Postgres cuts identifiers at 63 bytes; ours add suffixes such as `_claim_seq`


@dataclass(frozen=True)
class Names:
    """Schema, tables and the owner's columns by name. Every one is quoted as an identifier, never pasted.

    Attributes:
        schema: the schema of both tables.
        table: one configuration row per account.
        key: the text column that names the account.
        enabled: the owner's boolean switch.
        records: the records table of the default sync.

    Raises:
        SettingsError: a name is empty, too long or has a character that cannot be taken.
    """

    schema: str = "sync"
    table: str = "account_config"
    key: str = "account_id"
    enabled: str = "enabled"
    records: str = "account_record"

    def __post_init__(self) -> None:
        for field in fields(self):
            name = getattr(self, field.name)
            # a percent sign would be read as the beginning of a value's place
            if not name or "\0" in name or "%" in name or len(name.encode("utf-8", "replace")) > _LIMIT:
                raise SettingsError(
                    f"{field.name} {name[:80]!r} cannot be used as a name: expected 1 to {_LIMIT} bytes without NUL "
                    "and percent signs"
                )

    def identifiers(self) -> dict[str, sql.Composable]:
        """What the SQL files' `{placeholders}` stand for."""
        return {
            "schema": sql.Identifier(self.schema),
            "table": sql.Identifier(self.schema, self.table),
            "key": sql.Identifier(self.key),
            "enabled": sql.Identifier(self.enabled),
            "records": sql.Identifier(self.schema, self.records),
            "claim_seq": sql.Identifier(self.schema, f"{self.table}_claim_seq"),
            "generation_seq": sql.Identifier(self.schema, f"{self.table}_gen_seq"),
            "claim_seq_name": sql.Literal(_dotted(self.schema, f"{self.table}_claim_seq")),
            "generation_seq_name": sql.Literal(_dotted(self.schema, f"{self.table}_gen_seq")),
            "generation_function": sql.Identifier(self.schema, f"{self.table}_generation"),
            "version_seq": sql.Identifier(self.schema, f"{self.records}_version_seq"),
            **{f"{part}_index": sql.Identifier(f"{self.table}_{part}") for part in _INDEXES},
        }

    @property
    def table_name(self) -> str:
        """The account table as a person writes it, quoted where it must be."""
        return _dotted(self.schema, self.table)

    @property
    def records_name(self) -> str:
        """The records table as a person writes it, quoted where it must be."""
        return _dotted(self.schema, self.records)


def _dotted(*names: str) -> str:
    plain = re.compile(r"[a-z_][a-z0-9_]*")
    return ".".join(name if plain.fullmatch(name) else '"' + name.replace('"', '""') + '"' for name in names)


@cache
def read_sql(package: str, name: str) -> str:
    """The text of the SQL file `name` that lies in `package`."""
    return (files(package) / name).read_text(encoding="utf-8")


def compose(package: str, name: str, names: Names, **more: sql.Composable) -> sql.Composed:
    """The SQL file with its `{placeholders}` replaced by quoted identifiers."""
    text = read_sql(package, name)
    return sql.SQL(text).format(**names.identifiers(), **more)
