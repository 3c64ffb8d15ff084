"""The embedded Postgres and kill -9: of its users, its keeper, itself, and all of them; and being stopped by others."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from sync_assets.clock import Deadline
from sync_assets.local.embedded import EmbeddedPostgres, EmbeddedPostgresError
from sync_assets.local.embedded_user import ServerUser
from sync_assets_tests.embedded_process import using
from sync_assets_tests.postgres import make_server_folder, remove_server_folder, wait_until_stopped


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = make_server_folder()
    yield folder
    remove_server_folder(folder)


@pytest.fixture(scope="module")
def used_folder() -> Iterator[Path]:
    """A folder with the data of an earlier test's server, which each leaves stopped: to make new data is slow."""
    folder = make_server_folder()
    yield folder
    remove_server_folder(folder)


def test_after_kill_9_of_the_keeper_the_next_start_works_and_nothing_stays(used_folder: Path) -> None:
    """P3: nothing is stuck, and no server runs that nobody would stop."""
    with EmbeddedPostgres.start(used_folder, durable=False) as server:
        _write(server)
        os.kill(_keeper(_postmaster(used_folder)), signal.SIGKILL)
        _wait(lambda: not _written(server), "the server to follow its keeper")
        with EmbeddedPostgres.start(used_folder, durable=False) as second:
            assert _written(second)
    wait_until_stopped(used_folder)


def test_a_server_killed_by_kill_9_is_started_again_for_its_users(used_folder: Path) -> None:
    """P3: a user that holds on needs to do nothing."""
    with EmbeddedPostgres.start(used_folder, durable=False) as server:
        _write(server)
        killed = _postmaster(used_folder)
        os.kill(killed, signal.SIGKILL)
        _wait(lambda: _postmaster(used_folder) not in {0, killed}, "a new server process")
        _wait(lambda: _written(server), "what was written before the kill")
        with EmbeddedPostgres.start(used_folder, durable=False) as second:
            assert _written(second)
    wait_until_stopped(used_folder)


@pytest.mark.parametrize("mode", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_server_that_somebody_stops_is_started_again_for_its_users(used_folder: Path, mode: signal.Signals) -> None:
    """P3: by the signals that `pg_ctl stop` sends; twice, as the server that was started again is kept up as well."""
    with EmbeddedPostgres.start(used_folder, durable=False) as server:
        _write(server)
        for _ in range(2):
            gone = {0, _postmaster(used_folder)}
            os.kill(max(gone), mode)
            _wait(lambda gone=gone: _postmaster(used_folder) not in gone, "a new server process")  # type: ignore[misc]
            _wait(lambda: _written(server), "what was written before the stop")
    wait_until_stopped(used_folder)


def test_after_kill_9_of_all_the_next_start_recovers(used_folder: Path) -> None:
    """P3: also where the numbers the dead have left in files belong to others by now, who come to no harm."""
    with using(used_folder) as (user, _):
        with EmbeddedPostgres.start(used_folder, durable=False) as server:
            _write(server)
        postmaster = _kill_server_and_keeper(used_folder)
        user.kill()
    wait_until_stopped(used_folder)
    with _innocent() as innocent:
        for left in [*used_folder.glob("*/postmaster.pid"), *used_folder.glob("socket/*.lock")]:
            first, rest = left.read_text().split("\n", 1)
            assert int(first) == postmaster
            _overwrite(left, f"{innocent.pid}\n{rest}")
        with EmbeddedPostgres.start(used_folder, durable=False) as server:
            assert _written(server)
        wait_until_stopped(used_folder)
        assert innocent.poll() is None


def test_a_start_that_fails_after_a_crash_says_so(folder: Path) -> None:
    """P12: what the crash has left is not taken for a server that was ready."""
    server = EmbeddedPostgres.start(folder, durable=False)
    _kill_server_and_keeper(folder)
    server.close()
    wait_until_stopped(folder)
    with (_data(folder) / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        EmbeddedPostgres.start(folder)


def test_kill_9_during_initdb_leaves_nothing_that_is_taken_for_whole(folder: Path) -> None:
    """P12: nothing is half done."""
    with EmbeddedPostgres.start(folder, durable=False):
        data = _data(folder)
    wait_until_stopped(folder)
    (data / "global" / "pg_control").unlink()
    data.rename(data.with_suffix(".new"))
    with EmbeddedPostgres.start(folder, durable=False) as server:
        _write(server)
    assert not data.with_suffix(".new").exists()


def test_who_comes_while_the_server_stops_gets_a_server_that_works(used_folder: Path) -> None:
    """P3: the keeper lets newcomers in when it has ended, and then one of them starts anew."""
    server = EmbeddedPostgres.start(used_folder, durable=False)
    _write(server)
    postmaster = _postmaster(used_folder)
    os.kill(postmaster, signal.SIGSTOP)  # so that stopping takes as long as we want
    try:
        server.close()
        with (used_folder / "users.lock").open() as lock:
            _wait(lambda: not _shared(lock.fileno()), "the keeper to see that the last user is gone")
        with ThreadPoolExecutor(1) as pool:
            newcomer = pool.submit(EmbeddedPostgres.start, used_folder, durable=False)
            _wait(lambda: _opened(used_folder / "users.lock"), "the newcomer to ask for its lock")
            assert not newcomer.done()
            os.kill(postmaster, signal.SIGCONT)
            with newcomer.result(30) as second:
                assert _written(second)
                assert _postmaster(used_folder) != postmaster
    finally:
        if _postmaster(used_folder) == postmaster:
            os.kill(postmaster, signal.SIGCONT)
    wait_until_stopped(used_folder)


def _write(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")  # what a killed process had committed is to be found again
        connection.execute("DROP TABLE IF EXISTS written")
        connection.execute("CREATE TABLE written AS SELECT 1 AS value")


def _written(server: EmbeddedPostgres) -> bool:
    try:
        with psycopg.connect(server.url("postgres")) as connection:
            return connection.execute("SELECT value FROM written").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def _data(folder: Path) -> Path:
    (data,) = (path.parent for path in folder.glob("*/PG_VERSION"))
    return data


def _postmaster(folder: Path) -> int:
    """The server's process as its own file has it; 0 when there is none."""
    try:
        return int((_data(folder) / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, IndexError):
        return 0


def _keeper(postmaster: int) -> int:
    told_by_linux = Path(f"/proc/{postmaster}/stat")
    if told_by_linux.exists():
        return int(told_by_linux.read_text().rpartition(")")[2].split()[1])
    return int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(postmaster)]))


def _kill_server_and_keeper(folder: Path) -> int:
    postmaster = _postmaster(folder)
    keeper = _keeper(postmaster)
    os.kill(keeper, signal.SIGSTOP)  # or it would start the server again
    os.kill(postmaster, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    return postmaster


class _innocent:  # noqa: N801  # used like a function
    """A process of the server's own user that has nothing to do with it."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        sleep = shutil.which("sleep")
        assert sleep is not None
        self._process = subprocess.Popen([sleep, "600"], **ServerUser.for_this_process().popen())
        return self._process

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait(10)


def _overwrite(path: Path, text: str) -> None:
    with path.open("r+") as file:  # owner and mode stay
        file.write(text)
        file.truncate()


def _shared(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _opened(path: Path) -> bool:
    """Whether this process has the file open."""
    wanted = path.stat()
    for descriptor in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the one that listed them is closed by now
            if os.path.samestat(os.fstat(int(descriptor.name)), wanted):
                return True
    return False


def _wait(until: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = Deadline.after(seconds)
    while not until():
        assert not deadline.passed(), f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)
