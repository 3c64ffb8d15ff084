"""P12: ids and names may be anything Postgres can keep; what it cannot is refused in words, with nothing half done."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from sync_assets.claims import Names, Selection, SettingsError
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, changed_accounts, create_tables, run_blocking
from sync_assets_tests.claims_rig import TICK, Table
from sync_assets_tests.recording_upstream import PATIENCE, RecordingUpstream

ODD = [
    *(
        ".",
        "..",
        "../..",
        "/",
        "//",
        "/etc/passwd",
        "a/b",
        "\\",
        "%2F",
        "%2e%2e",
        "?",
        "#",
        "a?b#c",
        ";",
        "&",
        "=",
        "+",
    ),
    *(
        "\n",
        "\r\nX-Admin: yes",
        "a\tb",
        " ",
        " a ",
        "\x7f",
        "\x1b[31m",
        "\u202e",
        "\u2028",
        "é",
        "e\u0301",
        "😀",
        "👩‍👩‍👧",
    ),
    *("'", '"', "' OR 1=1 --", "'; DROP TABLE sync.account_config; --", "$$", "{}", "{table}", "%s", "%(id)s", "\\x00"),
    *("[red]x[/]", "<b>", "None", "null", "0", "-1", "--help", "x" * 512, "😀" * 256),
]


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as server:
        yield server


def sync(url: str, upstream: RecordingUpstream, selection: Selection, names: Names | None = None) -> str:
    report = run_blocking(
        ClaimSettings(url, names or Names()),
        SyncSettings(upstream_url=upstream.url, allow_private_upstreams=True),
        selection,
        run_id="run-a",
        stop=StopSignal(),
    )
    return " ".join([str(report.summary), *map(str, report.not_claimed)])


def test_odd_ids_of_accounts_and_records_arrive_as_they_are(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    table.add(*ODD)
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT id, id, '{}' FROM unnest(%s::text[]) AS id",
        [ODD],
    )
    n = len(ODD)
    assert sync(database_url, upstream, Selection.due(TICK)).startswith(f"claimed {n}, succeeded {n}, failed 0")
    assert {(call.account, call.record) for call in upstream.calls} == {(name, name) for name in ODD}
    assert {json.loads(call.body)["id"] for call in upstream.calls} == set(ODD)
    assert all("x-admin" not in call.headers for call in upstream.calls)
    assert len({call.key for call in upstream.calls}) == n
    by_hand = sync(database_url, upstream, Selection.accounts(ODD))
    assert by_hand.startswith(f"claimed {n}, succeeded {n}, failed 0, records sent 0")


def command(database_url: str, account: str | bytes, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sync_assets.cli", "run", *more, b"--account=" + os.fsencode(account)],
        env={**os.environ, "SYNC_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    ("account", "told"),
    [
        ("x" * 513, "account_id has 513 characters; expected 1 to 512"),
        ("😀" * 2560, "account_id has 2560 characters"),  # 10 kB
        ("", "account_id has 0 characters"),
        (b"caf\xe9", "has characters Postgres cannot keep"),
    ],
)
def test_an_id_no_table_could_hold_is_refused_on_the_command_line(
    database_url: str, account: str | bytes, told: str
) -> None:
    done = command(database_url, account)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 400


def test_an_odd_id_is_shown_on_one_line_and_as_json(database_url: str) -> None:
    """A terminal must not be steered by an id."""
    name = "no\x1b[31m\nsuch 😀"
    shown = command(database_url, name)
    assert shown.returncode == 2
    assert "\x1b[31m" not in shown.stdout
    assert "'no\\x1b[31m\\nsuch 😀' is unknown" in shown.stdout
    as_json = command(database_url, name, "--json")
    assert json.loads(as_json.stdout)["not_claimed"][0]["account_id"] == name


@pytest.mark.parametrize("text", ["", "x" * 513, "a\0b", "a\ud800b", "\udfff"])
def test_an_id_typed_by_hand_is_refused_anywhere(text: str) -> None:
    with pytest.raises(SettingsError, match="account_id"):
        Selection.accounts([text])


def test_the_table_refuses_nul_and_what_is_too_long(table: Table) -> None:
    for text in ("x" * 513, "😀" * 2560):
        with pytest.raises(psycopg.errors.CheckViolation):
            table.add(text)
    with pytest.raises(psycopg.DataError):
        table.add("a\0b")
    assert table.column("status") == {}


@pytest.mark.parametrize("name", ["%", "%(key)s", "%s", "a\0b", "", "x" * 49, "é" * 25])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    """Psycopg would put a value in the place of a percent sign."""
    for field in ("schema", "table", "key", "enabled", "records"):
        with pytest.raises(SettingsError, match=f"{field} .* cannot be used as a name"):
            Names(**{field: name})  # type: ignore[arg-type]  # none of these fields is the shape


@pytest.mark.parametrize(
    "names",
    [
        Names(schema='s"; DROP SCHEMA public CASCADE; --', table="t'; DELETE FROM x; --", key='k"', enabled="e)"),
        Names(schema="{schema}", table="{table}", key="{key}", enabled="{0}", records="{{records}}"),
        Names(schema="Ünïcödé", table="select", key="user", enabled="order", records="$1"),
    ],
)
def test_names_that_try_to_be_sql_are_names(empty_database_url: str, upstream: RecordingUpstream, names: Names) -> None:
    """From init to the record's acknowledgement, with every name by which it could break out."""
    settings = ClaimSettings(empty_database_url, names)
    assert len(asyncio.run(create_tables(settings))) == 2
    assert asyncio.run(create_tables(settings)) == []
    places = {name: value for name, value in names.identifiers().items() if name in {"table", "key", "records"}}
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.x (n int); INSERT INTO public.x VALUES (1)")
        connection.execute(sql.SQL("INSERT INTO {table} ({key}) VALUES ('a')").format(**places))
        connection.execute(
            sql.SQL("INSERT INTO {records} (account_id, record_id, data) VALUES ('a', 'r', '{{}}')").format(**places)
        )
        assert asyncio.run(changed_accounts(settings)) == 1
        assert sync(empty_database_url, upstream, Selection.due(TICK), names).startswith("claimed 1, succeeded 1")
        assert sync(empty_database_url, upstream, Selection.accounts(["a"]), names).startswith("claimed 1, succeeded 1")
        assert "unknown" in sync(empty_database_url, upstream, Selection.accounts(["b"]), names)
        assert connection.execute("SELECT count(*) FROM public.x").fetchone() == (1,)
    assert [call.record for call in upstream.calls] == ["r"]
