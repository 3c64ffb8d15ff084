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
from pathlib import Path
from types import TracebackType

import pytest
from dagster import DagsterInstance

from sync_assets_tests.claims_rig import Table
from sync_assets_tests.dagster_rig import LOCATION, PATIENCE, DagsterHome, add_accounts, wait_for
from sync_assets_tests.postgres import PostgresServer
from sync_assets_tests.recording_upstream import RecordingUpstream, assert_no_overlap

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("daemons")]

ACCOUNTS = ["a", "b", "c", "d"]
LEASE = 60 + 120
_TICKS = 150.0
"""Seconds in which a schedule of every minute surely ticks, on a busy machine."""


class Daemon:
    """A `dagster-daemon run` in a process group of its own, together with its code server and its runs."""

    def __init__(self, home: DagsterHome, name: str) -> None:
        self._home = home
        self._log = home.folder / f"{name}.log"

    def __enter__(self) -> Daemon:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dagster._daemon", "run", "-m", LOCATION],
                env=self._home.environment(),
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

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def is_one_of_two(self) -> bool:
        """Whether it says itself that another daemon works on the instance, which Dagster does not support."""
        assert self._process.poll() is None, f"the daemon has ended:\n{self.log}"
        return "daemon is still sending heartbeats" in self.log


@pytest.fixture
def home(
    tmp_path: Path, postgres_server: PostgresServer, database_url: str, upstream: RecordingUpstream
) -> Iterator[DagsterHome]:
    with postgres_server.database() as dagster_url:
        yield DagsterHome(
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


def test_p2_p3_two_daemons_tick_together_then_everything_is_killed_and_the_next_tick_after_the_lease_recovers(
    home: DagsterHome, table: Table, upstream: RecordingUpstream
) -> None:
    """P2, P3, P8 (T5, T9): each account is called once for a tick, whoever launched it; then once more, the same."""
    with home.instance() as instance, ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(home, f"daemon-{n}")) for n in range(2)]
        upstream.stall()
        add_accounts(table, *ACCOUNTS)
        # nothing for the sensor: it is the schedule that is looked at
        table.connection.execute("UPDATE sync.account_config SET claimed_generation = generation")
        upstream.wait_for(lambda calls: len(calls) >= len(ACCOUNTS), "a tick has its accounts at the upstream", _TICKS)
        held = table.column("last_tick")
        # another tick goes by: both daemons look at it, and the accounts are busy
        wait_for(lambda: len(instance.get_runs()) >= 2, "the next tick has launched a run", _TICKS)
        for daemon in daemons:
            wait_for(daemon.is_one_of_two, "the daemon works and sees the other")
        assert Counter(call.account for call in upstream.calls) == Counter(ACCOUNTS)
        assert table.column("last_tick") == held
        workers = wait_for(lambda: _workers(instance), "the run names its process")
        for daemon in daemons:
            daemon.kill()
        wait_for(lambda: all(map(_is_gone, workers)), "the runs' processes are gone")
    assert set(table.column("status").values()) == {"IN_PROGRESS"}
    assert {row["lease"].total_seconds() for row in map(table.row, ACCOUNTS)} == {LEASE}
    upstream.clear()
    table.age(*ACCOUNTS, seconds=LEASE)
    with Daemon(home, "daemon-again"):
        upstream.wait_for(lambda calls: len(calls) >= 2 * len(ACCOUNTS), "the next tick has recovered all", _TICKS)
        wait_for(lambda: set(table.column("status").values()) == {"IDLE"}, "all are settled")
    assert Counter(call.account for call in upstream.calls) == Counter(2 * ACCOUNTS)
    assert_no_overlap(upstream.calls)
    for account in ACCOUNTS:
        first, second = upstream.of(account)
        assert (first.key, first.body_hash) == (second.key, second.body_hash)
        assert (first.claim_seq or 0) < (second.claim_seq or 0)
        assert table.row(account)["failures"] == 0
