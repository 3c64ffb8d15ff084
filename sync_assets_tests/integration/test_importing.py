"""P12: a file is imported whole or not at all, and every line that cannot be is named with the reason."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sync_assets.claims import Database
from sync_assets.importing import FileFormat, Imported, ImportRefused, import_accounts, import_records
from sync_assets_tests.claims_rig import Table, table_at

CSV, NDJSON = FileFormat.CSV, FileFormat.NDJSON


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    with table_at(database_url) as table:
        yield table


def load(url: str, kind: str, text: str | bytes, form: FileFormat = CSV, *, dry_run: bool = False) -> Imported:
    file = io.BytesIO(text.encode() if isinstance(text, str) else text)

    async def run() -> Imported:
        async with Database(url, max_connections=1) as database:
            work = import_accounts if kind == "accounts" else import_records
            return await work(database, file, form, dry_run=dry_run)

    return asyncio.run(run())


def faults(url: str, kind: str, text: str | bytes, form: FileFormat = CSV) -> list[str]:
    with pytest.raises(ImportRefused) as refused:
        load(url, kind, text, form)
    return [*map(str, refused.value.faults)]


def records(table: Table) -> dict[tuple[str, str], dict[str, Any]]:
    found = table.connection.execute("SELECT * FROM sync.account_record")
    return {(row["account_id"], row["record_id"]): row for row in found.fetchall()}


def test_accounts_are_made_and_changed_and_the_others_left_alone(table: Table, database_url: str) -> None:
    table.add("a", "other", base_url="https://old")
    assert load(database_url, "accounts", "account_id,base_url\na,https://new\nb,https://b\n") == Imported(2, 1, 1)
    assert table.column("base_url") == {"a": "https://new", "b": "https://b", "other": "https://old"}
    assert table.row("b")["enabled"] is True, "the column's default"
    before = table.row("a")
    assert load(database_url, "accounts", '\ufeffaccount_id,settings,enabled\na,"{""x"":1}",false\n') == Imported(
        1, 0, 1
    )
    after = table.row("a")
    assert (after["settings"], after["enabled"], after["base_url"]) == ({"x": 1}, False, "https://new")
    assert after["generation"] > before["generation"], "P7: a run sees it"


def test_a_row_that_is_so_already_is_not_written(table: Table, database_url: str) -> None:
    text = '{"account_id": "a", "settings": {"n": 1.0}}\n'
    assert load(database_url, "accounts", text, NDJSON) == Imported(1, 1, 0)
    before = table.row("a")
    assert load(database_url, "accounts", text, NDJSON) == Imported(1, 0, 0)
    assert table.row("a") == before
    load(database_url, "records", "account_id,record_id,data\na,r,1\n")
    version = records(table)["a", "r"]["version"]
    assert load(database_url, "records", "account_id,record_id,data\na,r,1\n") == Imported(1, 0, 0)
    assert records(table)["a", "r"]["version"] == version, "it would be sent again"


def test_null_clears_a_value_and_silence_keeps_it(table: Table, database_url: str) -> None:
    table.add("a", base_url="https://a", secret_ref="env:A")
    load(database_url, "accounts", '{"account_id": "a", "base_url": null}', NDJSON)
    assert (table.row("a")["base_url"], table.row("a")["secret_ref"]) == (None, "env:A")
    load(database_url, "accounts", "account_id,base_url,secret_ref\na,https://b,\n")
    assert (table.row("a")["base_url"], table.row("a")["secret_ref"]) == ("https://b", "env:A")


def test_records_are_made_changed_deleted_and_brought_back(table: Table, database_url: str) -> None:
    table.add("a")
    number = "0.10000000000000000555"  # not a float's
    load(database_url, "records", f'{{"account_id": "a", "record_id": "r", "data": {{"n": {number}}}}}\n', NDJSON)
    stored = table.connection.execute("SELECT data ->> 'n' AS n FROM sync.account_record").fetchone()
    assert stored == {"n": number}
    deletion = "account_id,record_id,data,deleted\na,r,,true\na,never,,true\n"
    assert load(database_url, "records", deletion) == Imported(2, 1, 1)
    assert all(row["deleted_at"] is not None for row in records(table).values())
    assert load(database_url, "records", deletion) == Imported(2, 0, 0), "the time of the deletion stays"
    assert load(database_url, "records", 'account_id,record_id,data\na,r,"[1]"\n') == Imported(1, 0, 1)
    assert (records(table)["a", "r"]["data"], records(table)["a", "r"]["deleted_at"]) == ([1], None)


@pytest.mark.parametrize(
    ("kind", "form", "text", "told"),
    [
        ("accounts", CSV, "", ["line 1: is empty; expected the columns' names, such as account_id"]),
        ("accounts", CSV, "base_url\nx\n", ["line 1: 'account_id' is missing"]),
        ("accounts", CSV, "account_id,account_id\na,a\n", ["line 1: names a column twice"]),
        (
            "accounts",
            CSV,
            "account_id,enabled\na,true\nb\n,true\n",
            [
                "line 3: has 1 fields; expected 2, as in the first line",
                "line 4: account_id is missing; expected a text",
            ],
        ),
        (
            "accounts",
            CSV,
            'account_id,settings\na,{\nb,"{}"\nc,NaN\n',
            [
                "line 2: settings is not JSON: Expecting property name enclosed in double quotes at character 2",
                "line 4: settings is not JSON: NaN is no JSON number",
            ],
        ),
        ("accounts", CSV, b"account_id\na\nb\xff\n", ["line 3: is not UTF-8: byte 0xff at 2"]),
        ("accounts", CSV, "account_id\na\0\n", ["line 2: has a NUL in it; expected text in UTF-8"]),
        ("accounts", CSV, 'account_id\n"a\nb\n', ["line 3: cannot be read as CSV: unexpected end of data"]),
        ("accounts", CSV, "account_id\na\nb\na\n", ["line 4: 'a' is in line 2 already"]),
        (
            "accounts",
            CSV,
            f"account_id\n{'x' * 513}\n",
            [("line 2: account_id has 513 characters; expected 1 to 512, none of them NUL")],
        ),
        (
            "accounts",
            CSV,
            "account_id,enabled\na,true\nb,perhaps\nc,true\n",
            [('line 3: the table refuses it: invalid input syntax for type boolean: "perhaps"')],
        ),
        (
            "accounts",
            NDJSON,
            '{"account_id": "a"}\n[]\n{"account_id"\n{"account_id": {}}\n',
            [
                "line 2: is no JSON object; expected one a line",
                "line 3: is not JSON: Expecting ':' delimiter at character 14",
                "line 4: account_id is {}; expected a text",
            ],
        ),
        (
            "accounts",
            NDJSON,
            '{"account_id": "a", "settings": {"x": "\\u0000"}}\n',
            [("line 1: the table refuses it: unsupported Unicode escape sequence")],
        ),
        (
            "records",
            CSV,
            "account_id,record_id,data,deleted\na,r,,\na,s,1,maybe\n",
            [
                "line 2: data is missing; expected JSON, or deleted true",
                "line 3: deleted is 'maybe'; expected true or false",
            ],
        ),
        (
            "records",
            CSV,
            "account_id,record_id,data\na,r,1\nz,r,1\n",
            [("line 3: there is no account 'z' in sync.account_config; import accounts first")],
        ),
        (
            "records",
            NDJSON,
            '{"account_id": "a", "record_id": "r", "data": 1}\n' * 2,
            [("line 2: 'a' 'r' is in line 1 already")],
        ),
    ],
)
def test_what_cannot_be_is_named_by_its_line_and_nothing_is_changed(
    table: Table, database_url: str, kind: str, form: FileFormat, text: str | bytes, told: list[str]
) -> None:
    if kind == "records":
        table.add("a")
    before = table.column("generation")
    assert faults(database_url, kind, text, form) == told
    assert table.column("generation") == before
    assert records(table) == {}


def test_a_column_of_the_state_machine_cannot_be_imported(table: Table, database_url: str) -> None:
    [told] = faults(database_url, "accounts", "account_id,status\na,FAILED\n")
    expected = "account_id, enabled, base_url, secret_ref, settings"
    assert told == f"line 1: 'status' is no column that can be imported; expected {expected}"


def test_many_faults_are_counted_and_the_first_told(table: Table, database_url: str) -> None:
    with pytest.raises(ImportRefused) as refused:
        load(database_url, "accounts", "account_id\n" + 'x,"y"\n' * 1000)
    assert [fault.line for fault in refused.value.faults] == [*range(2, 22)]
    assert refused.value.more == 980
    assert str(refused.value).endswith("and 980 more")


def test_the_line_that_the_table_refuses_is_found_among_many(table: Table, database_url: str) -> None:
    table.connection.execute("ALTER TABLE sync.account_config ADD CHECK (base_url <> 'no')")
    lines = [f"a{number},yes" for number in range(1000)]
    lines[637] = "a637,no"
    [told] = faults(database_url, "accounts", "account_id,base_url\n" + "\n".join(lines))
    assert told.startswith('line 639: the table refuses it: new row for relation "account_config" violates check')
    assert table.column("status") == {}


def test_an_import_disturbs_no_claim(table: Table, database_url: str) -> None:
    """P7: what is claimed stays claimed, and the change is seen by the next run."""
    table.add("a")
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'IN_PROGRESS', started_at = now(), lease = '1 h', claim_seq = 7"
    )
    load(database_url, "accounts", "account_id,base_url\na,https://new\n")
    row = table.row("a")
    assert (row["status"], row["claim_seq"], row["base_url"]) == ("IN_PROGRESS", 7, "https://new")


def command(url: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sync_assets.cli", "import", *arguments],
        env={**os.environ, "SYNC_DATABASE_URL": url},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_tells_what_came_of_it(table: Table, database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "accounts.csv"
    file.write_text("account_id\na\nb\n")
    dry = command(database_url, "accounts", str(file), "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "2 accounts would be imported: 2 new, 0 changed, 0 as they were\n")
    assert table.column("status") == {}
    done = command(database_url, "accounts", str(file))
    assert (done.returncode, done.stdout) == (0, "2 accounts imported: 2 new, 0 changed, 0 as they were\n")
    piped = command(database_url, "records", "-", "--format", "ndjson", "--json", text="{}\n")
    assert piped.returncode == 2
    assert json.loads(piped.stdout) == {
        "refused": 1,
        "faults": [{"line": 1, "why": "'account_id', 'record_id' is missing"}],
    }


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("nowhere.csv", "nowhere.csv cannot be read: No such file or directory"),
        ("-", "- ends neither in .csv nor in .ndjson or .jsonl; say which it is: --format csv|ndjson"),
        (".csv", ".csv"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(database_url: str, file: str, told: str) -> None:
    done = command(database_url, "accounts", file)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
