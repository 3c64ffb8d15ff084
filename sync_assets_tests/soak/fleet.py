"""The run processes of a soak: started, hit, and looked after until they have ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from sync_assets.clock import monotonic
from sync_assets_tests.soak.run_process import Order, work

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@dataclass
class LiveRun:
    """A run that was started. A frozen one has `thaw_at`."""

    order: Order
    process: BaseProcess | subprocess.Popen[bytes]
    started_at: float
    frozen_at: float | None = None
    thaw_at: float = 0.0
    stop_asked: bool = False

    def alive(self) -> bool:
        if isinstance(self.process, subprocess.Popen):
            return self.process.poll() is None
        return self.process.is_alive()

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; whether it was there to get it."""
        pid = self.process.pid
        if pid is None or not self.alive():
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False


class Fleet:
    """All runs that are alive, forked from a process that has imported everything, so that starting is cheap."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        preloaded = ("forked_from", "run_process", "editor")
        self.context.set_forkserver_preload([f"{__package__}.{name}" for name in preloaded])
        self.live: dict[str, LiveRun] = {}

    def start(self, order: Order) -> None:
        process: BaseProcess | subprocess.Popen[bytes]
        if order.clock_jump and FAKETIME:
            clock = {"FAKETIME": f"{order.clock_jump:+.0f}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            command = [sys.executable, "-m", "sync_assets_tests.soak.run_process", order.to_json()]
            process = subprocess.Popen(command, env={**os.environ, **clock, "LD_PRELOAD": str(FAKETIME)})
        else:
            process = self.context.Process(target=work, args=(order,), daemon=True)
            process.start()
        self.live[order.run] = LiveRun(order, process, monotonic())

    def working(self) -> list[LiveRun]:
        """Alive and not frozen."""
        return [run for run in self.live.values() if run.frozen_at is None]

    def frozen(self) -> list[LiveRun]:
        return [run for run in self.live.values() if run.frozen_at is not None]

    def reap(self) -> Iterator[LiveRun]:
        """Those that have ended since."""
        for name, run in list(self.live.items()):
            if not run.alive():
                del self.live[name]
                yield run

    def freeze(self, run: LiveRun, seconds: float) -> bool:
        at = monotonic()  # before: the interval told must not be shorter than the real one
        if not run.send(signal.SIGSTOP):
            return False
        run.frozen_at, run.thaw_at = at, at + seconds
        return True

    def end_all(self) -> list[LiveRun]:
        """Kill what is left; those it met."""
        met = [run for run in self.live.values() if run.send(signal.SIGKILL)]
        for run in met:
            process = run.process
            process.wait() if isinstance(process, subprocess.Popen) else process.join()
        return met
