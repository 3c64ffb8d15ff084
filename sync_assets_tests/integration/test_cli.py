"""The command line: what it prints, how it ends, and what it says of a mistake. Always as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from sync_assets_tests.claims_rig import Table
from sync_assets_tests.recording_upstream import RecordingUpstream

PATIENCE = 60


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sync_assets.cli", *arguments]


def _cli(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments),
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def environment(database_url: str, upstream: RecordingUpstream) -> dict[str, str]:
    return {"SYNC_DATABASE_URL": database_url, "SYNC_UPSTREAM_URL": upstream.url}


def _add(table: Table, *accounts: str) -> None:
    table.add(*accounts)
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT account_id, 'r1', '{}' FROM unnest(%s::text[]) AS account_id",
        [list(accounts)],
    )


def test_init_says_what_it_made_and_may_be_repeated(empty_database_url: str) -> None:
    environment = {"SYNC_DATABASE_URL": empty_database_url}
    first = _cli(environment, "init")
    assert (first.returncode, first.stdout) == (0, "created sync.account_config and sync.account_record\n")
    again = _cli(environment, "init")
    assert (again.returncode, again.stderr) == (0, "")
    assert "are there already" in again.stdout
    other = _cli(environment, "init", "--schema", "my schema", "--table", "Customers", "--key", "Customer Id")
    assert (other.returncode, other.stdout) == (0, 'created "my schema"."Customers" and "my schema".account_record\n')


def test_run_shows_the_failures_first_and_the_numbers_last(
    environment: dict[str, str], table: Table, upstream: RecordingUpstream
) -> None:
    _add(table, *(f"a{n:02}" for n in range(30)), "zz bad", "zz [bold]odd")
    upstream.answer(500, account="zz bad")
    upstream.answer(422, account="zz [bold]odd", body='{"why": "it is odd"}')
    done = _cli(environment, "run")
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["account", "outcome", "records", "error"]
    assert lines[1].startswith("zz bad")
    assert "retry: PUT" in lines[1]
    rejected = next(line for line in lines if line.startswith("zz [bold]odd"))
    assert "rejected: 1 of its records" in rejected
    assert any("more" in line and line.startswith("…") for line in lines)
    assert lines[-1].startswith("claimed 32, succeeded 31, failed 1, records sent 30, rejected 1 in ")
    assert table.row("zz bad")["claimed_by"].startswith("cli-")


def test_run_again_sends_nothing_that_has_not_changed(
    environment: dict[str, str], table: Table, upstream: RecordingUpstream
) -> None:
    _add(table, "a", "b")
    assert _cli(environment, "run").returncode == 0
    assert len(upstream.calls) == 2
    table.connection.execute("""UPDATE sync.account_record SET data = '{"n": 2}' WHERE account_id = 'b'""")
    again = _cli(environment, "run", "--json")
    assert (again.returncode, again.stderr) == (0, "")
    told = json.loads(again.stdout)
    assert (told["claimed"], told["succeeded"], told["sent"], told["failures"]) == (2, 2, 1, [])
    assert [call.account for call in upstream.calls[2:]] == ["b"]


def test_run_for_one_account(environment: dict[str, str], table: Table, upstream: RecordingUpstream) -> None:
    """P6: busy is told and is no mistake; unknown and disabled are mistakes."""
    _add(table, "a", "b", "off", "busy")
    table.set("off", enabled=False)
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'IN_PROGRESS', started_at = now(), lease = '10 min', "
        "claimed_by = 'another/1' WHERE account_id = 'busy'"
    )
    one = _cli(environment, "run", "--account", "a")
    assert (one.returncode, [call.account for call in upstream.calls]) == (0, ["a"])
    busy = _cli(environment, "run", "--account", "busy")
    assert busy.returncode == 0
    assert "'busy' is busy: another/1 has held it since" in busy.stdout
    off = _cli(environment, "run", "--account", "off")
    assert (off.returncode, "'off' is disabled" in off.stdout) == (2, True)
    unknown = _cli(environment, "run", "--account", "nobody", "--json")
    assert unknown.returncode == 2
    assert json.loads(unknown.stdout)["not_claimed"][0]["verdict"] == "unknown"
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_hands_back_and_says_so(
    environment: dict[str, str], table: Table, upstream: RecordingUpstream, number: signal.Signals, code: int
) -> None:
    """P10."""
    _add(table, "a", "b")
    upstream.stall()
    with subprocess.Popen(
        _command("run"), env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            upstream.wait_for(lambda calls: len(calls) == 2, "both accounts at the upstream")
            process.send_signal(number)
            out, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == code
    assert "claimed 2, succeeded 0, failed 0, handed back 2" in out
    assert set(table.column("status").values()) == {"IDLE"}
    assert set(table.column("failures").values()) == {0}


@pytest.mark.parametrize(
    ("variables", "code", "told"),
    [
        ({"SYNC_DATABASE_URL": "postgresql://me:hunter2@127.0.0.1:1/x"}, 3, "cannot connect to the accounts' database"),
        ({"SYNC_DATABASE_URL": "postgres//me:hunter2@x"}, 2, "the database URL (SYNC_DATABASE_URL) cannot be read"),
        ({"SYNC_DATABASE_URL": "postgresql://me:x@hunter2/w#rd@localhost/a"}, 2, "percent-encode @ / : ? and #"),
        ({"SYNC_DATABASE_URL": "postgresql://me:x@hunter2:w0rd@localhost"}, 2, "percent-encode @ / : ? and #"),
        ({"SYNC_DATABASE_URL": "postgresql://me:hunter2/ss@localhost/db"}, 2, "percent-encode @ / : ? and #"),
        ({"SYNC_DATABASE_URL": "postgresql+psycopg2://me:hunter2@localhost/db"}, 2, "names a driver"),
        ({"SYNC_CONCURRENCY": "many"}, 2, "SYNC_CONCURRENCY is 'many'"),
        ({"SYNC_CONCURRENCY": "0"}, 2, "SYNC_CONCURRENCY"),
        ({"SYNC_SCHEDULE": "every day"}, 2, "'every day'"),
        ({"SYNC_TIMEZONE": "Mars/Olympus"}, 2, "'Mars/Olympus'"),
        ({"SYNC_LEASE_SECONDS": "-1"}, 2, "SYNC_LEASE_SECONDS"),
        ({"SYNC_ACCOUNT_TIMEOUT_SECONDS": "9000"}, 2, "the account timeout of 9000 s does not fit"),
    ],
)
@pytest.mark.parametrize("command", ["run", "init"])
def test_a_wrong_setting_is_named_with_the_way_out_and_nothing_is_done(
    environment: dict[str, str], table: Table, command: str, variables: dict[str, str], code: int, told: str
) -> None:
    """P11, P12."""
    table.add("a")
    done = _cli({**environment, **variables}, command)
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert table.row("a")["started_at"] is None


def test_a_variable_that_is_no_setting_is_told(environment: dict[str, str]) -> None:
    """P12: somebody has mistyped one, and wonders why it changes nothing."""
    done = _cli({**environment, "SYNC_SCHEDUL": "* * * * *", "SYNC_SECRET_OF_MINE": "x"}, "run")
    assert done.returncode == 0
    assert "SYNC_SCHEDUL is not a setting" in done.stderr
    assert "SYNC_SECRET_OF_MINE" not in done.stderr


def test_a_run_without_a_database_says_which_one_it_uses(tmp_path: Path) -> None:
    """P12: a forgotten variable must not look like success on an empty table."""
    done = _cli({"SYNC_LOCAL_DIR": str(tmp_path / "here")}, "run")
    assert done.returncode == 0
    assert f"SYNC_DATABASE_URL is not set: using the Postgres of its own in {tmp_path / 'here'}" in done.stderr
    assert "or there is none at all" in done.stdout


def test_the_ui_refuses_what_it_cannot_start_with(tmp_path: Path) -> None:
    """P12: before anything is started, not in the middle of Dagster's log."""
    here = {"SYNC_LOCAL_DIR": str(tmp_path / "here")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _cli(here, "dev", "--port", str(port))
    assert (done.returncode, f"--port {port + 1}" in done.stderr) == (2, True), done.stderr
    for variables, code, told in (
        ({"SYNC_SCHEDULE": "* * *"}, 2, "'* * *'"),
        ({"SYNC_TIMEZONE": "Mars"}, 2, "'Mars'"),
        ({"SYNC_DATABASE_URL": "postgresql://me@127.0.0.1:1/x"}, 3, "SYNC_DATABASE_URL"),
    ):
        done = _cli({**here, **variables}, "dev", "--port", "0")
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    done = _cli({**here, "SYNC_SCHEDULE": "*/7 0 30 2 *"}, "demo", "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "here").exists()


def test_a_missing_or_wrong_table_is_named(empty_database_url: str) -> None:
    """P12."""
    environment = {"SYNC_DATABASE_URL": empty_database_url}
    missing = _cli(environment, "run")
    assert missing.returncode == 2
    assert "there is no table sync.account_config" in missing.stderr
    assert "sync-assets init" in missing.stderr
    assert _cli(environment, "init").returncode == 0
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE sync.account_record ALTER COLUMN synced_at TYPE timestamp")
    wrong = _cli(environment, "run")
    assert wrong.returncode == 2
    assert "synced_at is timestamp without time zone" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_name_that_tries_to_be_sql_is_a_name(environment: dict[str, str], table: Table) -> None:
    table.add("a")
    done = _cli(environment, "run", "--table", 'x"; DROP SCHEMA sync CASCADE; --')
    assert done.returncode == 2
    assert "there is no table" in done.stderr
    assert table.row("a")["status"] == "IDLE"


def test_the_demo_never_touches_a_given_database(environment: dict[str, str], table: Table) -> None:
    for arguments in (["demo", "run"], ["demo", "edit", "a"]):
        done = _cli(environment, *arguments)
        assert done.returncode == 2
        assert "SYNC_DATABASE_URL is set" in done.stderr
    assert table.column("status") == {}


def test_a_role_without_the_rights_is_told_so(database_url: str, table: Table) -> None:
    """P12: no traceback, and nothing half done."""
    table.add("a")
    role = "reader_of_the_accounts"
    table.connection.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA sync TO {role}; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA sync TO {role}"
    )
    try:
        done = _cli({"SYNC_DATABASE_URL": database_url.replace("postgres@", f"{role}@")}, "run")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "permission denied" in done.stderr
        assert "expected a role that may" in done.stderr
        assert table.row("a")["started_at"] is None
    finally:
        table.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
