"""The embedded Postgres in use: shared by its users, gone with the last, wherever its folder lies."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from sync_assets.local.embedded import EmbeddedPostgres
from sync_assets_tests.embedded_process import first_line, start_user, using
from sync_assets_tests.postgres import make_server_folder, remove_server_folder, wait_until_stopped


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = make_server_folder()
    yield folder
    remove_server_folder(folder)


@pytest.fixture(scope="module")
def used_folder() -> Iterator[Path]:
    """A folder in which the server of an earlier test may have left its data: those who do not mind are faster."""
    folder = make_server_folder()
    yield folder
    remove_server_folder(folder)


def test_eight_processes_at_once_share_one_server(folder: Path) -> None:
    """P12: however many begin at the same moment, one server starts and all can use it."""
    with ExitStack() as stack:
        users = [stack.enter_context(start_user(folder)) for _ in range(8)]
        for user in users:
            stack.callback(user.kill)
        started = {_started_at(first_line(user)) for user in users}
        assert len(started) == 1


def test_the_server_goes_with_its_last_user(folder: Path) -> None:
    """P12: neither earlier, nor never; whether the user ends or is killed."""
    with using(folder) as (killed, _), using(folder) as (ends, url):
        killed.kill()
        killed.wait(10)
        before = _started_at(url)
        with EmbeddedPostgres.start(folder) as third:
            assert _started_at(third.url("postgres")) == before
        assert _started_at(url) == before
        ends.communicate(timeout=10)
    wait_until_stopped(folder)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url).close()


def test_a_database_is_created_once_by_all_who_ask(used_folder: Path) -> None:
    name = 'an "odd" näme'
    with EmbeddedPostgres.start(used_folder, durable=False) as server:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(server.create_database, [name] * 8))
        with psycopg.connect(server.url(name)) as connection:
            assert connection.execute("SELECT current_database()").fetchone() == (name,)
        server.create_database(name)


@pytest.mark.parametrize("name", ['it\'s a "folder", 100% ünï & more?#=@:', "n" * 120], ids=["special", "long"])
def test_any_path_will_do(folder: Path, name: str) -> None:
    """P12: for libpq and for SQLAlchemy with psycopg2, which Dagster uses."""
    home = folder / name
    with EmbeddedPostgres.start(home, durable=False) as server:
        server.create_database("accounts")
        with psycopg.connect(server.url("accounts")) as connection:
            assert connection.execute("SELECT current_database()").fetchone() == ("accounts",)
        engine = sqlalchemy.create_engine(server.url("accounts", scheme="postgresql+psycopg2"))
        with engine.connect() as through_sqlalchemy:
            assert through_sqlalchemy.scalar(sqlalchemy.text("SELECT current_database()")) == "accounts"
        engine.dispose()
        socket = Path(str(psycopg.conninfo.conninfo_to_dict(server.url("accounts"))["host"]))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    wait_until_stopped(home)
    assert not socket.exists()


def test_settings_for_other_servers_do_not_count(used_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGHOST": "nowhere.invalid", "PGPORT": "1", "PGDATA": "/nowhere", "PGDATABASE": "none"}.items():
        monkeypatch.setenv(name, value)
    with (
        EmbeddedPostgres.start(used_folder, durable=False) as server,
        psycopg.connect(server.url("postgres")) as connection,
    ):
        shown = connection.execute("SELECT current_setting('listen_addresses'), current_setting('max_connections')")
        assert shown.fetchone() == ("", "200")


def test_the_server_knows_no_secret(used_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P11: whoever may run SQL as its superuser can read the server's environment."""
    monkeypatch.setenv("SYNC_SECRET_TEST", "hunter2")
    with (
        EmbeddedPostgres.start(used_folder, durable=False) as server,
        psycopg.connect(server.url("postgres")) as connection,
    ):
        connection.execute("CREATE TEMPORARY TABLE environment (line text)")
        connection.execute("COPY environment FROM PROGRAM 'env'")
        names = {row[0].split("=")[0] for row in connection.execute("SELECT line FROM environment")}
    assert "PATH" in names
    assert "SYNC_SECRET_TEST" not in names


def test_a_child_that_inherits_everything_does_not_keep_the_server(used_folder: Path) -> None:
    server = EmbeddedPostgres.start(used_folder, durable=False)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        server.close()
        server.close()
        wait_until_stopped(used_folder)
    finally:
        child.communicate(b"\n", timeout=10)


def test_a_private_folder_stays_as_it_is(tmp_path: Path) -> None:
    """P12: as root too, whose server runs as a user that cannot enter it."""
    tmp_path.chmod(0o700)
    folder = tmp_path / "private" / "postgres"
    with EmbeddedPostgres.start(folder, durable=False) as server:
        server.create_database("accounts")
        home = server.home
    with EmbeddedPostgres.start(folder, durable=False) as server:
        assert server.home == home
        psycopg.connect(server.url("accounts")).close()
    remove_server_folder(folder)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert tmp_path.stat().st_uid == os.geteuid()


def _started_at(url: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_postmaster_start_time()").fetchone()
        assert row is not None
        return row[0]
