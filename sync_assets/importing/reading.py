"""Rows out of a CSV or NDJSON file, one at a time, and what is wrong with those that cannot be."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import BinaryIO

from sync_assets.claims import SettingsError

MAX_LINE_BYTES = 16 * 2**20
"""A line longer than this is refused: it is the memory that one needs."""

MAX_ID_LENGTH = 512
"""In characters; the tables refuse longer ones."""

LISTED_FAULTS = 20
"""Faults that are told; the others are counted."""


class FileFormat(str, Enum):
    """How a file is written."""

    CSV = "csv"
    NDJSON = "ndjson"


@dataclass(frozen=True)
class Fault:
    """Why one line cannot be imported.

    Attributes:
        line: its number in the file, from 1; of a row of several lines the last.
        why: the reason, for a person.
    """

    line: int
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}"


class ImportRefused(SettingsError):
    """The file cannot be imported, and nothing of it was.

    Args:
        faults: the first of them.
        more: how many there are beside those.
    """

    def __init__(self, faults: Sequence[Fault], more: int = 0) -> None:
        self.faults = tuple(faults)
        self.more = more
        rest = [f"and {more:,} more"] if more else []
        super().__init__("nothing was imported:\n" + "\n".join(f"  {each}" for each in [*map(str, faults), *rest]))


@dataclass(frozen=True)
class Row:
    """One row that can be read.

    Attributes:
        line: where it ends in the file.
        ids: the texts of the columns that name it, in their order.
        given: a JSON object of all columns that it says something about. Numbers are as they were written.
    """

    line: int
    ids: tuple[str, ...]
    given: str


@dataclass(frozen=True)
class Columns:
    """What a file may say.

    Attributes:
        types: the columns and their types, as Postgres writes them.
        ids: those of them that every row must have.
        check: says what is wrong with a row's values, beyond each by itself; None: nothing.
    """

    types: Mapping[str, str]
    ids: tuple[str, ...]
    check: Callable[[Mapping[str, object]], str | None] = lambda _: None

    def is_json(self, column: str) -> bool:
        """Whether the column holds JSON."""
        return self.types[column] in {"json", "jsonb"}

    def unknown(self, names: Sequence[str]) -> str | None:
        """What is wrong with these names of columns; None: nothing."""
        strange = [name for name in names if name not in self.types]
        if strange:
            return f"{_quoted(strange)} is no column that can be imported; expected {', '.join(self.types)}"
        missing = [name for name in self.ids if name not in names]
        return f"{_quoted(missing)} is missing" if missing else None


def format_of(name: str) -> FileFormat:
    """The format that the file's name says it has.

    Raises:
        SettingsError: it says none that is known.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix == ".csv":
        return FileFormat.CSV
    if suffix in {".ndjson", ".jsonl"}:
        return FileFormat.NDJSON
    raise SettingsError(f"{name} ends neither in .csv nor in .ndjson or .jsonl; say which it is: --format csv|ndjson")


def read_rows(file: BinaryIO, form: FileFormat, columns: Columns) -> Iterator[Row | Fault]:
    """The rows of a file in their order, each as soon as it is read.

    Args:
        file: UTF-8, with or without a byte order mark.
        form: how it is written. CSV has the columns' names in its first line; an empty field says nothing.
        columns: what it may say.

    Raises:
        ImportRefused: what follows a fault cannot be told from it, as after a wrong first line.
    """
    return _csv_rows(file, columns) if form is FileFormat.CSV else _ndjson_rows(file, columns)


def _lines(file: BinaryIO) -> Iterator[tuple[int, str | Fault]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise ImportRefused([Fault(number, f"longer than {MAX_LINE_BYTES:,} bytes")])
        if b"\0" in line:
            yield number, Fault(number, "has a NUL in it; expected text in UTF-8")
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield number, Fault(number, f"is not UTF-8: byte {error.object[error.start]:#04x} at {error.start + 1}")
        else:
            yield number, text


def _csv_rows(file: BinaryIO, columns: Columns) -> Iterator[Row | Fault]:
    def texts() -> Iterator[str]:
        for _, text in _lines(file):
            if isinstance(text, Fault):  # where the row ends is not known
                raise ImportRefused([text])
            yield text

    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(texts(), strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise ImportRefused([Fault(1, f"is empty; expected the columns' names, such as {','.join(columns.ids)}")])
        wrong = columns.unknown(header)
        if wrong is None and len(set(header)) < len(header):
            wrong = "names a column twice"
        if wrong is not None:
            raise ImportRefused([Fault(1, wrong)])
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                yield Fault(reader.line_num, f"has {len(cells)} fields; expected {len(header)}, as in the first line")
                continue
            yield _csv_row(reader.line_num, dict(zip(header, cells, strict=True)), columns)
    except csv.Error as error:
        raise ImportRefused([Fault(reader.line_num, f"cannot be read as CSV: {error}")]) from None


def _csv_row(line: int, cells: Mapping[str, str], columns: Columns) -> Row | Fault:
    given = {name: text for name, text in cells.items() if text}
    values: dict[str, object] = {}
    for name, text in given.items():
        values[name] = text
        if columns.is_json(name):
            try:
                values[name] = _parsed(text)
            except ValueError as error:
                return Fault(line, f"{name} is not JSON: {error}")
    written = (
        f"{json.dumps(name)}:{text if columns.is_json(name) else json.dumps(text, ensure_ascii=False)}"
        for name, text in given.items()
    )
    return _row(line, values, "{" + ",".join(written) + "}", columns)


def _ndjson_rows(file: BinaryIO, columns: Columns) -> Iterator[Row | Fault]:
    for line, text in _lines(file):
        if isinstance(text, Fault):
            yield text
            continue
        written = text.strip()
        if not written:
            continue
        try:
            values = _parsed(written)
        except ValueError as error:
            yield Fault(line, f"is not JSON: {error}")
            continue
        if not isinstance(values, dict):
            yield Fault(line, "is no JSON object; expected one a line")
            continue
        wrong = columns.unknown([*values])
        yield Fault(line, wrong) if wrong is not None else _row(line, values, written, columns)


def _row(line: int, values: Mapping[str, object], given: str, columns: Columns) -> Row | Fault:
    ids = []
    for name in columns.ids:
        value = values.get(name)
        if not isinstance(value, str):
            return Fault(line, f"{name} is {_shown(value)}; expected a text")
        if not 1 <= len(value) <= MAX_ID_LENGTH or "\0" in value:
            return Fault(line, f"{name} has {len(value):,} characters; expected 1 to {MAX_ID_LENGTH}, none of them NUL")
        ids.append(value)
    wrong = columns.check(values)
    return Fault(line, wrong) if wrong is not None else Row(line, tuple(ids), given)


def _parsed(text: str) -> object:
    """The value, with its numbers as texts: what is stored is the file's own text, and ids may be numbers."""
    try:
        return json.loads(text, parse_constant=_refused, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON number")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names)


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:80]
