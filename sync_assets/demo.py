"""The demo: a Postgres of its own, an API to sync to, and real Dagster runs over some accounts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import IO

import psycopg
from psycopg.rows import TupleRow
from rich.console import Console

from sync_assets.accounts_database import EMBEDDED_DATABASE, local_folder
from sync_assets.claims import Database, Names, SettingsError
from sync_assets.claims.names import compose
from sync_assets.local import demo_data
from sync_assets.local.demo_upstream import DemoUpstream
from sync_assets.local.embedded import EmbeddedPostgres
from sync_assets.results import Line, print_plain, shortened, show_lines
from sync_assets.runner import Summary
from sync_assets.settings import Settings
from sync_assets.sync_run import ClaimSettings, SyncSettings, blocking, check_limits, create_tables

_DAGSTER_DATABASE = "dagster"
_MODULE = "sync_assets.definitions"
_JOB = "sync_accounts_job"
_LOOK_SECONDS = 0.3
DEMO_SCHEDULE = "* * * * *"

_OUTCOMES = {"IDLE": "succeeded", "FAILED": "failed", "IN_PROGRESS": "in progress"}


@dataclass(frozen=True)
class _Place:
    """Where the demo's parts are.

    Attributes:
        accounts_url: the accounts' database.
        environment: for the processes of Dagster.
        log: where a run's own output goes.
    """

    accounts_url: str
    environment: Mapping[str, str]
    log: Path


class Demo:
    """The demo in the local folder. Without `SYNC_DATABASE_URL`: it never touches a database of somebody's."""

    def __init__(self) -> None:
        self._names = Names()

    def run(self) -> int:
        """Sync the demo accounts once, as a real Dagster run, and show what came of it.

        Returns:
            The exit code: 0 when the run succeeded, also when some accounts failed.
        """
        _refuse_given_database("demo run")
        _check_settings()
        with self._place(autostart=False) as place:
            with psycopg.connect(place.accounts_url, autocommit=True) as accounts:
                began = _now(accounts)
                code = self._execute(place, accounts, began)
                lines = [
                    replace(line, error=line.error.replace(place.environment["SYNC_UPSTREAM_URL"], ""))
                    for line in self._outcomes(accounts, began)  # every line has it, and it is not theirs
                ]
                seconds = (_now(accounts) - began).total_seconds()
            shown, more = shortened(lines)
            show_lines(shown, more)
            print_plain(_summary(lines, seconds))
            if code:
                print_plain(f"the Dagster run failed; its output is in {place.log}")
                return 1
        print_plain("\nRun it again: only what changed is sent.  See it in Dagster: make dev (or: sync-assets dev)")
        return 0

    def dev(self, host: str, port: int) -> int:
        """Dagster's UI with the demo; over the accounts of `SYNC_DATABASE_URL` when that is set, and then without.

        Returns:
            The exit code of `dagster dev`.
        """
        _check_settings()
        _check_port(host, port)
        with self._dev_environment() as environment:
            command = [sys.executable, "-m", "dagster", "dev", "-m", _MODULE, "--host", host, "--port", str(port)]
            print_plain(f"Dagster starts at http://{host}:{port} (Ctrl-C ends it)")
            with _process(command, environment) as process:
                return process.wait()

    def edit(self, account_id: str, *, configuration: bool) -> int:
        """Change a record or the configuration of a demo account, and say what to watch for."""
        _refuse_given_database("demo edit")
        with EmbeddedPostgres.start(local_folder()) as server:
            server.create_database(EMBEDDED_DATABASE)
            told = blocking(self._edit(server.url(EMBEDDED_DATABASE), account_id, configuration=configuration))
        print_plain(told)
        return 0

    @contextmanager
    def _place(self, *, autostart: bool) -> Iterator[_Place]:
        folder = local_folder()
        with EmbeddedPostgres.start(folder) as server:
            for database in (EMBEDDED_DATABASE, _DAGSTER_DATABASE):
                server.create_database(database)
            url = server.url(EMBEDDED_DATABASE)
            blocking(create_tables(ClaimSettings(url, self._names)))
            blocking(self._create_accounts(url))
            with DemoUpstream() as upstream:
                environment = {
                    **upstream.environment,
                    **_dagster_environment(server, folder),
                    "SYNC_LOCAL_DIR": str(folder),
                    "SYNC_SCHEDULE": os.environ.get("SYNC_SCHEDULE") or DEMO_SCHEDULE,
                    "SYNC_AUTOSTART": os.environ.get("SYNC_AUTOSTART") or str(int(autostart)),
                }
                yield _Place(url, environment, folder / "demo-run.log")

    @contextmanager
    def _dev_environment(self) -> Iterator[Mapping[str, str]]:
        if not os.environ.get("SYNC_DATABASE_URL"):
            with self._place(autostart=True) as place:
                yield place.environment
        elif os.environ.get("DAGSTER_POSTGRES_URL"):
            yield {"DAGSTER_HOME": _dagster_home(local_folder())}
        else:
            with EmbeddedPostgres.start(local_folder()) as server:
                server.create_database(_DAGSTER_DATABASE)
                yield _dagster_environment(server, local_folder())

    def _execute(self, place: _Place, accounts: psycopg.Connection[TupleRow], began: datetime) -> int:
        """The job as a process of its own, as a scheduler would start it; shows how far it is."""
        command = [sys.executable, "-m", "dagster", "job", "execute", "-m", _MODULE, "-j", _JOB]
        with (
            place.log.open("w", encoding="utf-8") as log,
            _process(command, place.environment, log) as process,
            Console(highlight=False).status("starting Dagster …") as status,
        ):
            while process.poll() is None:
                claimed = self._outcomes(accounts, began)
                working = sum(line.outcome == "in progress" for line in claimed)
                if claimed:
                    status.update(f"syncing: {len(claimed) - working} accounts done, {working} being worked")
                time.sleep(_LOOK_SECONDS)
            return process.wait()

    async def _create_accounts(self, url: str) -> None:
        async with Database(url, self._names) as database, database.connection() as connection:
            await demo_data.create(connection, self._names)

    async def _edit(self, url: str, account_id: str, *, configuration: bool) -> str:
        async with Database(url, self._names) as database, database.connection() as connection:
            return await demo_data.edit(
                connection, self._names, account_id, "configuration" if configuration else "record"
            )

    def _outcomes(self, accounts: psycopg.Connection[TupleRow], began: datetime) -> list[Line]:
        """What became of the accounts claimed since `began`."""
        query = compose("sync_assets.local.sql", "demo_outcomes.sql", self._names)
        return [
            Line(account_id, _OUTCOMES[status], records, error or rejected or "")
            for account_id, status, error, records, rejected in accounts.execute(query, {"since": began})
        ]


def _now(accounts: psycopg.Connection[TupleRow]) -> datetime:
    row = accounts.execute("SELECT clock_timestamp()").fetchone()
    if row is None:
        raise RuntimeError("the database did not say what time it is")
    moment: datetime = row[0]
    return moment


def _summary(lines: list[Line], seconds: float) -> str:
    summary = Summary(claimed=len(lines), sent=sum(line.records for line in lines), seconds=seconds)
    summary.succeeded = sum(line.outcome == "succeeded" for line in lines)
    summary.failed = sum(line.outcome == "failed" for line in lines)
    return str(summary)


def _check_settings() -> None:
    """Refuse what Dagster's processes would each refuse for themselves, in the middle of a log.

    Raises:
        SettingsError: a setting cannot be used.
        DatabaseUnavailable: the database that was given cannot be reached.
    """
    settings = Settings.from_environment()
    schedule = os.environ.get("SYNC_SCHEDULE") or DEMO_SCHEDULE
    claims = ClaimSettings(settings.database_url, Names(), schedule, settings.timezone, settings.lease_seconds)
    check_limits(
        claims,
        SyncSettings(concurrency=settings.concurrency, account_timeout_seconds=settings.account_timeout_seconds),
    )
    if settings.database_url:
        blocking(_reach(settings.database_url))


async def _reach(url: str) -> None:
    async with Database(url, max_connections=1):
        pass


def _check_port(host: str, port: int) -> None:
    """Dagster would go on without its UI.

    Raises:
        SettingsError: somebody else listens there, or it is no address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "no port"
        raise SettingsError(
            f"Dagster's UI cannot listen at {host}:{port} ({why}); choose another: "
            f"sync-assets dev --port {port % 65535 + 1}"
        ) from None


def _refuse_given_database(command: str) -> None:
    if os.environ.get("SYNC_DATABASE_URL"):
        raise SettingsError(
            f"SYNC_DATABASE_URL is set, and sync-assets {command} never touches a database that is not its own; "
            "unset it for the demo, or use sync-assets run for your accounts"
        )


def _dagster_environment(server: EmbeddedPostgres, folder: Path) -> dict[str, str]:
    return {
        "DAGSTER_HOME": _dagster_home(folder),
        "DAGSTER_POSTGRES_URL": os.environ.get("DAGSTER_POSTGRES_URL")
        or server.url(_DAGSTER_DATABASE, scheme="postgresql+psycopg2"),
    }


def _dagster_home(folder: Path) -> str:
    """The user's `DAGSTER_HOME`, else one in the local folder, with our `dagster.yaml` where there is none."""
    home = Path(os.environ.get("DAGSTER_HOME") or folder / "dagster").absolute()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        with (
            (files("sync_assets.local") / "dagster.yaml").open("rb") as ours,
            (home / "dagster.yaml").open("wb") as new,
        ):
            shutil.copyfileobj(ours, new)
    return str(home)


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], output: IO[str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that gets the terminal's Ctrl-C itself, and a SIGTERM through us; it ends before we do."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            if number == signal.SIGTERM:
                child.send_signal(signal.SIGINT)

    # set before it starts: a background job of a script has SIGINT ignored, and Dagster then ignores SIGTERM as well
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT if output else None
        )
        children.append(child)
        try:
            yield child
        finally:
            child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
