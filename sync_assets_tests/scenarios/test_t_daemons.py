"""Two daemons on one Dagster instance, and the death of everything at once (P2, P3, P8)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from sync_assets_tests.claims_rig import Table
from sync_assets_tests.dagster_rig import LOCATION, PATIENCE, DagsterHome, add_accounts, wait_for
from sync_assets_tests.postgres import PostgresServer
from sync_assets_tests.recording_upstream import Call, RecordingUpstream, assert_no_overlap

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("daemons")]

ACCOUNTS = ["a", "b", "c", "d"]
LEASE = 60 + 120
_TICKS = 150.0
"""Seconds in which a schedule of every minute surely ticks, on a busy machine."""


class Daemon:
    """A `dagster-daemon run` in a process group of its own, together with its code server and its runs.

    Args:
        home: the instance.
        name: what its sessions in the database are called.
    """

    def __init__(self, home: DagsterHome, name: str) -> None:
        self.name = name
        self._home = home
        self._log = home.folder / f"{name}.log"

    def __enter__(self) -> Daemon:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dagster._daemon", "run", "-m", LOCATION],
                env=self._home.environment(PGAPPNAME=self.name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._home.folder,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill -9 of the daemon, its code server and its runs at once, as the loss of the machine is."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)

    def assert_alive(self) -> None:
        assert self._process.poll() is None, f"the daemon has ended:\n{self._log.read_text(errors='replace')}"


class Gate:
    """Lets nobody make a run in Dagster's storage while it is closed; who wants to waits in front of it.

    A daemon makes its tick's run after it has looked whether there is one: two that wait here both saw none.
    """

    def __init__(self, dagster_url: str) -> None:
        self._url = dagster_url

    def __enter__(self) -> Gate:
        self._bar = psycopg.connect(self._url)
        self._bar.execute("LOCK TABLE runs IN SHARE MODE")  # reading goes on
        # another session: inside one transaction, the list of sessions stays as it was first seen
        self._watch = psycopg.connect(self._url, autocommit=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.close()
        self._watch.close()

    def waiting(self) -> set[str]:
        """The names of the sessions that wait."""
        query = (
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE relation = 'runs'::regclass AND NOT granted AND query LIKE 'INSERT INTO runs %'"
        )
        return {name for (name,) in self._watch.execute(query)}


@pytest.fixture
def dagster_url(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def home(tmp_path: Path, dagster_url: str, database_url: str, upstream: RecordingUpstream) -> DagsterHome:
    return DagsterHome(
        tmp_path / "dagster",
        dagster_url,
        {
            "SYNC_DATABASE_URL": database_url,
            "SYNC_UPSTREAM_URL": upstream.url,
            "SYNC_SECRET_TEST": "s3cret",
            "SYNC_SCHEDULE": "* * * * *",
            "SYNC_SENSOR_SECONDS": "3600",
            "SYNC_AUTOSTART": "1",
        },
    )


def _workers(instance: DagsterInstance) -> list[int]:
    """The processes that execute runs, as their logs tell."""
    lines = [entry.message for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    return [int(found[1]) for line in lines if (found := re.search(r"Executing steps in process \(pid: (\d+)\)", line))]


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _ticks(instance: DagsterInstance) -> dict[str, list[DagsterRun]]:
    """The runs of each tick, by what they were told in `scheduled_for`."""
    found: dict[str, list[DagsterRun]] = {}
    for run in instance.get_runs():
        config: Any = run.run_config
        found.setdefault(config["ops"]["sync_accounts"]["config"]["scheduled_for"], []).append(run)
    return found


def _claims(calls: list[Call]) -> Counter[str | None]:
    """How many claims of each account have called. On a slow machine one may call again: a call may take 30 s."""
    return Counter(account for account, _ in {(call.account, call.claim_seq) for call in calls})


def _has_claimed(run: DagsterRun, instance: DagsterInstance, table: Table) -> bool:
    """Whether the run has accounts or found none left for it."""
    holders = {str(name).split("/")[0] for name in table.column("claimed_by").values()}
    current = instance.get_run_by_id(run.run_id)
    assert current is not None
    assert current.status not in {DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}
    return run.run_id in holders or current.status == DagsterRunStatus.SUCCESS


def test_p2_p3_two_daemons_launch_one_tick_then_everything_is_killed_and_the_next_tick_after_the_lease_recovers(
    home: DagsterHome, dagster_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P2, P3, P8 (T5, T9): two runs of one tick call each account once; after the lease once more, the same."""
    with home.instance() as instance, ExitStack() as stack:
        assert not instance.get_runs()  # and now there is the table
        upstream.stall()
        add_accounts(table, *ACCOUNTS)
        # nothing for the sensor: it is the schedule that is looked at
        table.connection.execute("UPDATE sync.account_config SET claimed_generation = generation")
        with Gate(dagster_url) as gate:
            daemons = [stack.enter_context(Daemon(home, f"daemon-{n}")) for n in range(2)]

            def both_wait() -> bool:
                for daemon in daemons:
                    daemon.assert_alive()
                return gate.waiting() == {daemon.name for daemon in daemons}

            wait_for(both_wait, "both daemons are about to make a run of a tick", _TICKS)
        tick = min(wait_for(lambda: _ticks(instance), "there is a run"))
        runs = wait_for(lambda: found if len(found := _ticks(instance)[tick]) == 2 else None, "two runs of one tick")
        for run in runs:
            wait_for(partial(_has_claimed, run, instance, table), f"run {run.run_id} has claimed what it can")
        upstream.wait_for(
            lambda calls: _claims(calls) == Counter(ACCOUNTS), "the tick has its accounts at the upstream"
        )
        assert set(table.column("last_tick").values()) == {datetime.fromisoformat(tick)}
        workers = wait_for(lambda: _workers(instance), "the run names its process")
        for daemon in daemons:
            daemon.kill()
        wait_for(lambda: all(map(_is_gone, workers)), "the runs' processes are gone")
    assert set(table.column("status").values()) == {"IN_PROGRESS"}
    assert {row["lease"].total_seconds() for row in map(table.row, ACCOUNTS)} == {LEASE}
    upstream.clear()
    table.age(*ACCOUNTS, seconds=LEASE)
    with Daemon(home, "daemon-again"):
        upstream.wait_for(
            lambda calls: _claims(calls) >= Counter(2 * ACCOUNTS), "the next tick has recovered all", _TICKS
        )
        wait_for(lambda: set(table.column("status").values()) == {"IDLE"}, "all are settled")
    assert _claims(upstream.calls) == Counter(2 * ACCOUNTS)
    assert_no_overlap(upstream.calls)
    for account in ACCOUNTS:
        assert len({(call.key, call.body_hash) for call in upstream.of(account)}) == 1
        numbers = [call.claim_seq or 0 for call in upstream.of(account)]
        assert numbers == sorted(numbers)
        assert table.row(account)["failures"] == 0
