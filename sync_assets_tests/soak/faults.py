"""What is broken on purpose, drawn from a seed: mostly runs, and mostly while they hold rows."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from sync_assets.clock import monotonic
from sync_assets_tests.faulty_proxy import FaultyProxy
from sync_assets_tests.soak.fleet import Fleet, LiveRun
from sync_assets_tests.soak.history import Fault

# Runs that hold rows with some of the lease left, and how many.
_HOLDERS = (
    "SELECT split_part(claimed_by, '/', 1), count(*) FROM sync.account_config "
    "WHERE status = 'IN_PROGRESS' AND started_at + lease > now() + interval '0.2 s' GROUP BY 1 ORDER BY 1"
)
_TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s"
_MOST_FROZEN = 6
_RESTART_EVERY = (20.0, 40.0)
_FAULT_EVERY = (0.3, 1.2)
_JUMP_EVERY = (6.0, 16.0)
_JUMPS = (5.0, 12.0)
"""Seconds by which the database's clock is set: more than any lease, and less than the patience of the checker."""
_MET = 0.5
"""The share of the proxy's connections that a fault of it meets."""


class Faults:
    """Injects a fault now and then, and writes each down.

    Args:
        fleet: the runs.
        proxy: what some of them reach the database through.
        data: the server's data directory, where it says who it is.
        seed: of what is broken when.
        note: told of each fault.
        set_clock: sets the database's clock so many seconds ahead of the real one.
    """

    def __init__(
        self,
        fleet: Fleet,
        proxy: FaultyProxy,
        data: Path,
        seed: int,
        note: Callable[[Fault], object],
        set_clock: Callable[[float], object],
    ) -> None:
        self._fleet = fleet
        self._proxy = proxy
        self._data = data
        self._random = random.Random(seed)
        self._note = note
        self._set_clock = set_clock
        self._clock_is_right = True
        self._next_jump = monotonic() + self._random.uniform(*_JUMP_EVERY)
        self._next = monotonic()
        self._next_restart = monotonic() + self._random.uniform(*_RESTART_EVERY) / 2

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """Thaw whose time has come, and break what is to be broken now.

        Raises:
            psycopg.Error: the server was away.
        """
        self.thaw()
        now = monotonic()
        if now >= self._next_restart:
            self._next_restart = now + self._random.uniform(*_RESTART_EVERY)
            self._restart(connection)
        elif now >= self._next_jump:
            self._next_jump = now + self._random.uniform(*_JUMP_EVERY)
            self._jump()
        elif now >= self._next:
            self._next = now + self._random.uniform(*_FAULT_EVERY)
            self._break_something(connection)

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Let frozen runs go on."""
        for run in self._fleet.frozen():
            if all_of_them or monotonic() >= run.thaw_at:
                run.send(signal.SIGCONT)
                assert run.frozen_at is not None
                self._note(Fault(run.frozen_at, "pause", run.order.run, monotonic()))
                run.frozen_at = None

    def _break_something(self, connection: psycopg.Connection[Any]) -> None:
        breaks: dict[Callable[[LiveRun], None], int] = {
            self._kill: 30,
            self._freeze_beyond_the_lease: 34,
            self._freeze_a_little: 4,
            self._stop: 10,
            lambda run: self._terminate(connection, run): 8,
            lambda _: self._proxy.cut(_MET): 4,
            lambda _: self._proxy.black_hole(_MET): 2,
            lambda _: self._proxy.lose_reply_to_next_write(): 12,
            lambda _: self._proxy.deliver_late(_MET): 10,
        }
        chosen = self._random.choices(list(breaks), list(breaks.values()))[0]
        holders = dict(connection.execute(_HOLDERS).fetchall())
        runs = [run for run in self._fleet.working() if run.order.run in holders]
        if runs:
            chosen(self._random.choices(runs, [holders[run.order.run] for run in runs])[0])

    def _kill(self, run: LiveRun) -> None:
        at = monotonic()
        if run.send(signal.SIGKILL):
            self._note(Fault(at, "kill", run.order.run))

    def _freeze_beyond_the_lease(self, run: LiveRun) -> None:
        if len(self._fleet.frozen()) < _MOST_FROZEN:
            self._fleet.freeze(run, run.order.lease + self._random.uniform(1.0, 4.0))

    def _freeze_a_little(self, run: LiveRun) -> None:
        self._fleet.freeze(run, self._random.uniform(0.1, 1.0))

    def _stop(self, run: LiveRun) -> None:
        at = monotonic()
        if run.send(signal.SIGTERM):
            run.stop_asked = True
            self._note(Fault(at, "stop", run.order.run))

    def _terminate(self, connection: psycopg.Connection[Any], run: LiveRun) -> None:
        at = monotonic()
        [(met,)] = connection.execute(_TERMINATE, [run.order.run]).fetchall()
        if met:
            self._note(Fault(at, "terminate", run.order.run))

    def _jump(self) -> None:
        """Set the database's clock, forward or back, or right again: the other of the two."""
        wrong = self._random.choice([-1, 1]) * self._random.uniform(*_JUMPS)
        self._set_clock(wrong if self._clock_is_right else 0.0)
        self._clock_is_right = not self._clock_is_right

    def _restart(self, connection: psycopg.Connection[Any]) -> None:
        """End the server, which its keeper starts again, or a process of it, after which it starts itself again.

        In each way nothing is written before the end, and what was committed must be in the log on the disk.
        """
        server = int((self._data / "postmaster.pid").read_text().split()[0])
        process, number, how = self._random.choice(
            [
                (server, signal.SIGQUIT, "an immediate stop"),  # what `pg_ctl stop -m immediate` sends
                (server, signal.SIGKILL, "kill -9 of the server"),
                (connection.info.backend_pid, signal.SIGKILL, "kill -9 of a process of it"),
            ]
        )
        os.kill(process, number)
        self._note(Fault(monotonic(), f"restart of Postgres by {how}"))
