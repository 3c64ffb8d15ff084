"""A soak from beginning to end: a world of its own, runs by the hundred, faults, calm, and what was written down."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.pq import PGconn, Ping

from sync_assets.claims.database import one_line
from sync_assets.clock import Deadline, monotonic
from sync_assets.local.embedded import EmbeddedPostgres
from sync_assets.sync_run import ClaimSettings, blocking, create_tables
from sync_assets_tests.faulty_proxy import FaultyProxy
from sync_assets_tests.loop_process import wait_until
from sync_assets_tests.soak.editor import Editor, add_account, edit_until_told, secret_name
from sync_assets_tests.soak.events import EventLog
from sync_assets_tests.soak.faults import Faults
from sync_assets_tests.soak.fleet import Fleet
from sync_assets_tests.soak.history import Fault, RunInfo
from sync_assets_tests.soak.run_process import Order
from sync_assets_tests.soak.server_clock import ServerClock
from sync_assets_tests.soak.upstream import PORT_FILE, hash_of

ACCOUNTS = tuple(f"a{n:02}" for n in range(40))
HOPELESS = {"bad-secret": "auth", "bad-address": "retry"}
_UNREACHABLE = "http://127.0.0.1:1"
_MOST_WORKING = 5
_HANGS_AFTER = 12.0
_PATIENCE = 90.0

_CONVERGED = """
    SELECT NOT EXISTS (SELECT FROM sync.account_config WHERE status = 'IN_PROGRESS')
        AND NOT EXISTS (SELECT FROM sync.account_config
            WHERE enabled AND account_id = ANY(%(good)s) AND (status <> 'IDLE' OR generation <> claimed_generation))
        AND NOT EXISTS (SELECT FROM unnest(%(hopeless)s::text[], %(kinds)s::text[]) AS expected (account_id, kind)
            JOIN sync.account_config USING (account_id) WHERE status <> 'FAILED' OR error_kind IS DISTINCT FROM kind)
        AND NOT EXISTS (SELECT FROM sync.account_record JOIN sync.account_config USING (account_id)
            WHERE enabled AND account_id = ANY(%(good)s)
                AND synced_version IS DISTINCT FROM version AND rejected_version IS DISTINCT FROM version)
"""


class Soak:
    """One soak.

    Args:
        folder: everything of it; the server's user must be able to enter it.
        seed: of all that is drawn.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._seed = seed
        self._fleet = Fleet()
        self._server_clock = ServerClock(folder)
        self._log = EventLog(folder / "driver.jsonl")
        self._canary = f"canary-{secrets.token_hex(8)}"
        self._numbers = iter(range(1, 1 << 30))
        self._first_tick = datetime.now(timezone.utc).replace(microsecond=0)
        self._ticks = 0

    def run(self, seconds: float) -> None:
        """Break things for so long, then let all come to rest. What happened is in the folder."""
        for account in ACCOUNTS:
            secret = f"{self._canary}-{account}"
            os.environ[secret_name(account)] = secret
            self._log.write(event="account", account=account, authorization_hash=hash_of(f"Bearer {secret}"))
        for account, error_kind in HOPELESS.items():
            self._log.write(event="hopeless", account=account, error_kind=error_kind)
        os.environ[secret_name("bad-address")] = f"{self._canary}-bad"
        with ExitStack() as stack:
            with self._server_clock.starts_servers():
                postgres = stack.enter_context(EmbeddedPostgres.start(self._folder / "postgres"))
            self._url = postgres.url("soak")
            self._socket = str(psycopg.conninfo.conninfo_to_dict(self._url)["host"])
            postgres.create_database("soak")
            self._fill()
            self._upstream_url = stack.enter_context(self._upstream())
            proxy = stack.enter_context(
                FaultyProxy(self._url, seed=self._seed, note=lambda kind: self._note(Fault(monotonic(), kind)))
            )
            self._proxy_port = proxy.port
            stack.callback(self._fleet.end_all)
            [data] = [path for path in postgres.home.iterdir() if (path / "PG_VERSION").exists()]
            faults = Faults(
                self._fleet, proxy, data, self._random.randrange(1 << 30), self._note, self._set_server_clock
            )
            with self._editor():
                self._storm(faults, Deadline.after(seconds))
            self._calm(faults)
            self._converge()
            with self._connection() as connection:
                for table in ("account_history", "record_history"):
                    self._keep(connection, table)
                self._look_for_secrets(connection)

    def _fill(self) -> None:
        blocking(create_tables(ClaimSettings(self._url)))
        editor = Editor(ACCOUNTS, self._seed)
        with self._connection() as connection:
            [(version, fsync)] = connection.execute(
                "SELECT current_setting('server_version'), current_setting('fsync')"
            ).fetchall()
            self._log.write(event="server", what=f"{version}, fsync {fsync}")
            connection.execute(files(__package__).joinpath("sql/history.sql").read_text().encode())
            for account in (*ACCOUNTS, *HOPELESS):
                add_account(connection, account)
                editor.put(connection, account)
            connection.execute(
                "UPDATE sync.account_config SET base_url = %s WHERE account_id = 'bad-address'", [_UNREACHABLE]
            )

    @contextmanager
    def _upstream(self) -> Iterator[str]:
        command = [sys.executable, "-m", "sync_assets_tests.soak.upstream", str(self._folder), str(self._seed)]
        # told to end by the end of its input, which also the end of this process is
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            port, deadline = self._folder / PORT_FILE, Deadline.after(_PATIENCE)
            while not port.exists():
                assert process.poll() is None, "the upstream ended before it listened"
                assert not deadline.passed(), f"the upstream did not listen within {_PATIENCE:g} s"
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port.read_text()}"
            assert process.poll() is None, "the upstream ended during the soak"

    @contextmanager
    def _editor(self) -> Iterator[None]:
        arguments = (self._url, self._folder, ACCOUNTS, self._random.randrange(1 << 30))
        editor = self._fleet.context.Process(target=edit_until_told, args=arguments, daemon=True)
        editor.start()
        yield
        assert editor.is_alive(), f"the editor ended during the soak with {editor.exitcode}"
        editor.terminate()
        editor.join(_PATIENCE)
        assert editor.exitcode == 0, f"the editor did not end well: {editor.exitcode}"

    def _storm(self, faults: Faults, deadline: Deadline) -> None:
        connection: psycopg.Connection[Any] | None = None
        next_tick = next_sample = monotonic()
        while not deadline.passed():
            self._reap()
            now = monotonic()
            if now >= next_sample:
                next_sample = now + 1.0
                self._sample_clock()
            try:
                connection = connection or self._connection()
                if now >= next_tick:
                    next_tick = now + self._random.uniform(0.6, 1.2)
                    self._launch(connection)
                faults.step(connection)
            except psycopg.Error as error:  # the server is being restarted, by us
                self._log.write(event="driver", error=one_line(error))
                connection = None
            time.sleep(0.05)
        if connection is not None:
            connection.close()

    def _launch(self, connection: psycopg.Connection[Any]) -> None:
        """A tick, mostly; fired twice or again, now and then; and runs by hand and for changes beside it."""
        # not counting those that hang on a connection of which nothing comes any more
        if sum(monotonic() - run.started_at < _HANGS_AFTER for run in self._fleet.working()) >= _MOST_WORKING:
            return
        draw = self._random.random()
        if draw < 0.10:
            accounts = tuple(self._random.sample(ACCOUNTS, 4))
            self._start(connection, "accounts", accounts=accounts)
        elif draw < 0.16:
            self._start(connection, "all")
        elif draw < 0.26:
            self._start(connection, "changed")
        elif draw < 0.36 and self._ticks:  # one that was fired before
            self._start(connection, "due", tick=self._random.randrange(max(0, self._ticks - 20), self._ticks))
        else:
            for _ in range(2 if self._random.random() < 0.25 else 1):
                self._start(connection, "due", tick=self._ticks)
            self._ticks += 1

    def _start(
        self,
        connection: psycopg.Connection[Any],
        kind: str,
        *,
        tick: int | None = None,
        accounts: tuple[str, ...] = (),
        quietly: bool = False,
    ) -> str:
        run = f"r{next(self._numbers)}"
        connection.execute(f"CREATE ROLE {run} LOGIN IN ROLE soak_runs")
        proxied = not quietly and self._random.random() < 0.4
        where = f"127.0.0.1:{self._proxy_port}" if proxied else ""
        parameters = "sslmode=disable&gssencmode=disable" if proxied else f"host={self._socket}&port=5432"
        when = None if tick is None else self._first_tick + timedelta(seconds=tick)
        order = Order(
            run,
            self._folder,
            f"postgresql://{run}@{where}/soak?{parameters}",
            self._upstream_url,
            kind,
            lease=4.0 if quietly else self._random.choice([2.0, 2.5, 3.0, 4.0]),
            concurrency=20 if quietly else self._random.randint(3, 8),
            tick=when,
            accounts=accounts,
            clock_jump=self._random.choice([-2700.0, 2700.0]) if not quietly and self._random.random() < 0.06 else 0.0,
        )
        info = RunInfo(run, kind, order.lease, when.timestamp() if when else None, proxied)
        self._log.write(event="run", **asdict(info))
        if order.clock_jump:
            self._note(Fault(monotonic(), "wall clock 45 minutes off", run))
        self._fleet.start(order)
        return run

    def _reap(self) -> None:
        for run in self._fleet.reap():
            if run.stop_asked:
                self._note(Fault(monotonic(), "stopped", run.order.run))

    def _calm(self, faults: Faults) -> None:
        """Nothing is broken any more; what is alive comes to its end, or is killed where it waits for too long."""
        faults.thaw(all_of_them=True)
        if self._server_clock.offset:
            self._set_server_clock(0.0)
        httpx.post(f"{self._upstream_url}/_calm", timeout=_PATIENCE, trust_env=False).raise_for_status()
        self._log.write(event="calm")
        # the server may have been killed just now
        wait_until(lambda: PGconn.ping(self._url.encode()) == Ping.OK, "Postgres answers again")
        deadline = Deadline.after(10.0)
        while self._fleet.live and not deadline.passed():
            self._reap()
            time.sleep(0.05)
        at = monotonic()
        for run in self._fleet.end_all():
            self._note(Fault(at, "kill", run.order.run))

    def _converge(self) -> None:
        """Ticks, each to its end, until the state is what it must come to; the checker says what is wrong with it."""
        deadline = Deadline.after(_PATIENCE)
        wanted = {"good": list(ACCOUNTS), "hopeless": list(HOPELESS), "kinds": list(HOPELESS.values())}
        connection = self._connection()
        with connection:
            # two stay as they are, to be seen left alone
            connection.execute(
                "UPDATE sync.account_config SET enabled = true WHERE account_id <> ALL(%s)", [list(ACCOUNTS[:2])]
            )
            while not deadline.passed():
                [(converged,)] = connection.execute(_CONVERGED, wanted).fetchall()
                if converged:
                    break
                self._ticks += 1
                run = self._start(connection, "due", tick=self._ticks, quietly=True)
                while run in self._fleet.live:
                    self._reap()
                    time.sleep(0.05)
                self._sample_clock()

    def _connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True, options="-c statement_timeout=10s")

    def _sample_clock(self) -> None:
        samples = [(monotonic(), time.time(), monotonic()) for _ in range(5)]
        before, wall, after = min(samples, key=lambda sample: sample[2] - sample[0])  # the least disturbed one
        self._log.write(event="clock", ahead=wall - (before + after) / 2)

    def _set_server_clock(self, offset: float) -> None:
        if not self._server_clock.movable:
            return
        told = asdict(self._server_clock.move(offset))
        forward = told["offset"] > told["before"]
        self._note(Fault(told["at"], f"database's clock set {'forward' if forward else 'back'}"))
        self._log.write(event="jump", since=told.pop("at"), **told)

    def _note(self, fault: Fault) -> None:
        told = asdict(fault)
        self._log.write(event="fault", since=told.pop("at"), **told)

    def _keep(self, connection: psycopg.Connection[Any], table: str) -> None:
        """Write a table of the history into the folder, a line a row."""
        with (self._folder / f"{table}.jsonl").open("w") as file:
            rows = connection.execute(f"SELECT to_jsonb(row)::text FROM soak.{table} AS row ORDER BY number")  # noqa: S608
            file.writelines(f"{text}\n" for (text,) in rows)

    def _look_for_secrets(self, connection: psycopg.Connection[Any]) -> None:
        """P11: the canary in a file of the soak's, Postgres' own log among them, or in a row."""
        canary = self._canary.encode()
        logs = [path for path in self._folder.rglob("*") if path.is_file() and path.suffix in {".log", ".jsonl", ".1"}]
        leaked = [path.name for path in logs if canary in path.read_bytes()]
        for table in ("account_config", "account_record"):
            query = f"SELECT count(*) FROM sync.{table} AS row WHERE row::text LIKE %s"  # noqa: S608
            [(found,)] = connection.execute(query, [f"%{self._canary}%"]).fetchall()
            if found:
                leaked.append(table)
        for where in leaked:
            self._log.write(event="leak", where=where)
