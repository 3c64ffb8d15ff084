"""Which table, by which names; and the SQL files with those names put in."""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, fields
from functools import cache
from importlib.resources import files

from psycopg import sql

from sync_assets.claims.errors import SettingsError

INDEXES = ("free", "waiting", "held", "oldest", "changed", "failed")
_LIMIT = 48  # Postgres cuts identifiers at 63 bytes; ours add suffixes such as `_claim_seq`

# What is no name in a SQL file: comments, texts, the places of values and of identifiers.
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|%\(\w+\)s|\{[^{}]*\}|(?P<name>\w+)")


@dataclass(frozen=True)
class Shape:
    """How an adopted table differs from the one that init makes. It is read from the database, never typed.

    Outside the table an account is always a text: its key's text, and of a composite key the JSON array of its parts,
    as Postgres writes it (`["eu", 42]`). The statements turn that text into the key's own types where they meet the
    table, so that its index is used.

    Attributes:
        key: the key's columns in order, with their types as Postgres writes them.
        enabled_sql: the expression that says whether an account is enabled; None: a column does.
        columns: what our columns are called in this table, of those that are not called as in the SQL files.
    """

    key: tuple[tuple[str, str], ...]
    enabled_sql: str | None = None
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Names:
    """Schema, tables and the owner's columns by name. Every one is quoted as an identifier, never pasted.

    Attributes:
        schema: the schema of both tables.
        table: one configuration row per account.
        key: the text column that names the account.
        enabled: the owner's boolean switch.
        records: the records table of the default sync.
        shape: of a table that was adopted; filled in when the database is opened.

    Raises:
        SettingsError: a name is empty, too long or has a character that cannot be taken.
    """

    schema: str = "sync"
    table: str = "account_config"
    key: str = "account_id"
    enabled: str = "enabled"
    records: str = "account_record"
    shape: Shape | None = None

    def __post_init__(self) -> None:
        for field in typed_names():
            check_name(field.name, getattr(self, field.name))

    def identifiers(self) -> dict[str, sql.Composable]:
        """What the SQL files' `{placeholders}` stand for."""
        return {
            "schema": sql.Identifier(self.schema),
            "table": sql.Identifier(self.schema, self.table),
            "key": sql.Identifier(self.key),
            **self._enabled(),
            **self._key(),
            "records": sql.Identifier(self.schema, self.records),
            "claim_seq": sql.Identifier(self.schema, f"{self.table}_claim_seq"),
            "generation_seq": sql.Identifier(self.schema, f"{self.table}_gen_seq"),
            "claim_seq_name": sql.Literal(_dotted(self.schema, f"{self.table}_claim_seq")),
            "generation_seq_name": sql.Literal(_dotted(self.schema, f"{self.table}_gen_seq")),
            "generation_function": sql.Identifier(self.schema, f"{self.table}_generation"),
            "guard_function": sql.Identifier(self.schema, f"{self.table}_guard"),
            "version_seq": sql.Identifier(self.schema, f"{self.records}_version_seq"),
            **{f"{part}_index": sql.Identifier(f"{self.table}_{part}") for part in INDEXES},
        }

    def _enabled(self) -> dict[str, sql.Composable]:
        """`{enabled}` where the table is alone, `{still_enabled}` where `account` is joined with what found it."""
        if self.shape is None or self.shape.enabled_sql is None:
            column = sql.Identifier(self.enabled)
            return {"enabled": column, "still_enabled": sql.SQL("account.{}").format(column)}
        expression = sql.SQL(f"({self.shape.enabled_sql})")  # its columns are the account's, whatever else is joined
        still = sql.SQL("(SELECT {} FROM (SELECT account.*) AS account)").format(expression)
        return {"enabled": expression, "still_enabled": still}

    def _key(self) -> dict[str, sql.Composable]:
        """`{account_id}`, the key of `account` as text, and the conditions that compare it with such a text."""
        columns = self.shape.key if self.shape is not None else ((self.key, "text"),)
        mine = [sql.SQL("account.{}").format(sql.Identifier(column)) for column, _ in columns]
        kinds = [sql.SQL(kind) for _, kind in columns]
        comma = sql.SQL(", ")

        def typed(text: sql.Composable) -> list[sql.Composable]:
            if len(columns) > 1:
                parts = [sql.SQL("({}::jsonb ->> {})::{}").format(text, n, kind) for n, kind in enumerate(kinds)]
                return list(parts)
            return [text if columns[0][1] == "text" else sql.SQL("{}::{}").format(text, kinds[0])]

        def equals(text: sql.Composable) -> sql.Composable:
            pairs = zip(mine, typed(text), strict=True)
            return sql.SQL(" AND ").join(sql.SQL("{} = {}").format(column, value) for column, value in pairs)

        named = sql.SQL("%(account_ids)s::text[]")
        one = typed(sql.SQL("%(account_id)s"))
        named_as_text: sql.Composable = sql.SQL("{}::text").format(one[0])
        if len(columns) > 1:
            account_id: sql.Composable = sql.SQL("jsonb_build_array({})::text").format(comma.join(mine))
            named_as_text = sql.SQL("jsonb_build_array({})::text").format(comma.join(one))
            among: sql.Composable = sql.SQL("({}) IN (SELECT {} FROM unnest({}) AS named (id))").format(
                comma.join(mine), comma.join(typed(sql.SQL("named.id"))), named
            )
        elif columns[0][1] == "text":
            account_id, among = mine[0], sql.SQL("{} = ANY({})").format(mine[0], named)
        else:
            account_id = sql.SQL("{}::text").format(mine[0])
            among = sql.SQL("{} = ANY({}::{}[])").format(mine[0], named, kinds[0])
        return {
            "account_id": account_id,
            "is_chosen": equals(sql.SQL("chosen.account_id")),
            "is_outcome": equals(sql.SQL("outcome.account_id")),
            "is_named": equals(sql.SQL("%(account_id)s")),
            "named_as_text": named_as_text,
            "is_among": among,
        }

    def column(self, ours: str) -> str:
        """What the column of ours that the SQL files call `ours` is called in this table."""
        return dict(self.shape.columns).get(ours, ours) if self.shape is not None else ours

    @property
    def table_name(self) -> str:
        """The account table as a person writes it, quoted where it must be."""
        return _dotted(self.schema, self.table)

    @property
    def records_name(self) -> str:
        """The records table as a person writes it, quoted where it must be."""
        return _dotted(self.schema, self.records)


def check_name(field: str, name: str) -> None:
    """Refuse what cannot be the name of a table or column.

    Raises:
        SettingsError: it is empty, too long or has a character that cannot be taken; names the field.
    """
    # a percent sign would be read as the beginning of a value's place
    if not name or "\0" in name or "%" in name or len(name.encode("utf-8", "replace")) > _LIMIT:
        raise SettingsError(
            f"{field} {name[:80]!r} cannot be used as a name: expected 1 to {_LIMIT} bytes without NUL "
            "and percent signs"
        )


def typed_names() -> list[Field[str]]:
    """The fields of `Names` that a person may set."""
    return [field for field in fields(Names) if isinstance(field.default, str)]


def _dotted(*names: str) -> str:
    plain = re.compile(r"[a-z_][a-z0-9_]*")
    return ".".join(name if plain.fullmatch(name) else '"' + name.replace('"', '""') + '"' for name in names)


@cache
def read_sql(package: str, name: str) -> str:
    """The text of the SQL file `name` that lies in `package`."""
    return (files(package) / name).read_text(encoding="utf-8")


def compose(package: str, name: str, names: Names, **more: sql.Composable) -> sql.Composed:
    """The SQL file with its `{placeholders}` replaced by quoted identifiers."""
    return formatted(read_sql(package, name), names, **more)


def formatted(text: str, names: Names, **more: sql.Composable) -> sql.Composed:
    """SQL with its `{placeholders}` replaced, and our columns called as they are in this table."""
    return sql.SQL(_mapped(text, names)).format(**names.identifiers(), **more)


def _mapped(text: str, names: Names) -> str:
    """Every column of ours by its name in this table, also where a statement only passes it on: it stays consistent."""
    if names.shape is None or not names.shape.columns:
        return text
    other = dict(names.shape.columns)

    def renamed(token: re.Match[str]) -> str:
        name = other.get(token["name"] or "")
        return token[0] if name is None else sql.Identifier(name).as_string(None).replace("{", "{{").replace("}", "}}")

    return _TOKEN.sub(renamed, text)
