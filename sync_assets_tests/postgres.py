"""The Postgres the tests run on: one server for the whole session, a database for each test."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from sync_assets.claims import Names
from sync_assets.clock import Deadline


@dataclass(frozen=True)
class PostgresServer:
    """A server on which tests make databases.

    Attributes:
        admin_url: a database of a superuser's.
        session: marks what belongs to this test session; the same in all of its workers.
    """

    admin_url: str
    session: str

    def url(self, database: str) -> str:
        return urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{database}"))

    @contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a database that is dropped in the end, whoever is still connected to it."""
        name = f"{self.session}_{uuid.uuid4().hex[:12]}"
        copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
        self._execute(sql.SQL("CREATE DATABASE {}{}").format(sql.Identifier(name), copied))
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def drop(self, name: str) -> None:
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @property
    def template_name(self) -> str:
        return f"{self.session}_template"

    def template(self) -> str:
        """The name of a database with our tables in it, made by the first worker that asks."""
        name = self.template_name
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [name])
            if connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s AND NOT datallowconn", [name]
            ).fetchone():
                return name
            # one that still allows connections is what a worker that failed has left
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            asyncio.run(_create_tables(self.url(name)))
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        return name

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(statement)


async def _create_tables(url: str) -> None:
    # here, so that tests of other parts run while these cannot be imported
    from sync_assets.claims.schema import create_account_table  # noqa: PLC0415
    from sync_assets.push.schema import create_record_table  # noqa: PLC0415

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await create_account_table(connection, Names())
        await create_record_table(connection, Names())


def make_server_folder() -> Path:
    """An empty folder for an embedded server that root's server user can enter as well; `remove_server_folder` it."""
    folder = Path(tempfile.mkdtemp(prefix="sync-assets-tests-"))
    if os.geteuid() == 0:
        folder.chmod(0o711)
    return folder / "postgres"


def remove_server_folder(folder: Path) -> None:
    """Remove a folder of `make_server_folder` when its server has stopped."""
    if folder.exists():
        wait_until_stopped(folder)
        if (folder / "server").is_symlink():
            shutil.rmtree((folder / "server").resolve())
    shutil.rmtree(folder.parent)


def wait_until_stopped(folder: Path, seconds: float = 20) -> None:
    """Wait until no process of the server in `folder`, nor its keeper, lives: the kernel has their lock.

    Raises:
        AssertionError: one still lives after `seconds`.
    """
    home = (folder / "server").resolve() if (folder / "server").is_symlink() else folder
    deadline = Deadline.after(seconds)
    with (home / "server.lock").open("a") as lock:
        while not _free(lock):
            assert not deadline.passed(), f"the server in {home} still runs after {seconds} s"
            time.sleep(0.02)


def _free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
