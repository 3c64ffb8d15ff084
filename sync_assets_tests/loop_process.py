"""One run of the loop as a process of its own, without Dagster; a script for the scenarios, and the handle on it.

It says `begun` when it is about to claim, so that several can be let go at one instant by `go`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import Any

from sync_assets.claims import Selection
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking

PATIENCE = 60.0


class LoopProcess:
    """A run of the loop in a process of its own; killed when the context is left.

    Args:
        database_url: the accounts.
        upstream_url: what they are pushed to.
        run_id: the run.
        tick: the schedule's tick; None: by hand.
        accounts: these accounts only.
        settings: of `ClaimSettings` (`lease_seconds`, `schedule`) and `SyncSettings` (`concurrency`, …).
    """

    def __init__(
        self,
        database_url: str,
        upstream_url: str,
        run_id: str,
        *,
        tick: datetime | None = None,
        accounts: tuple[str, ...] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id = run_id
        told = {
            "database_url": database_url,
            "upstream_url": upstream_url,
            "run_id": run_id,
            "tick": tick.isoformat() if tick else None,
            "accounts": accounts,
            "settings": dict(settings or {}),
        }
        self._told = json.dumps(told)

    def __enter__(self) -> LoopProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sync_assets_tests.loop_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SYNC_SECRET_TEST": "s3cret"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._told + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ready\n", f"{self.run_id} did not get ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def go(self) -> LoopProcess:
        """Let it claim."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """As kill -9, out of memory or a lost machine do."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def wait(self) -> dict[str, Any]:
        """Its summary, with `not_claimed` sentences, when it has ended by itself."""
        out, _ = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, f"{self.run_id} ended with {self._process.returncode}: {out}"
        report: dict[str, Any] = json.loads(out)
        return report


def _main() -> None:
    told = json.loads(sys.stdin.readline())
    settings = told["settings"]
    claims = {name: settings[name] for name in ("lease_seconds", "schedule") if name in settings}
    syncs = {name: value for name, value in settings.items() if name not in claims}
    stop = StopSignal()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    selection = Selection.all()
    if told["tick"]:
        selection = Selection.due(datetime.fromisoformat(told["tick"]))
    elif told["accounts"]:
        selection = Selection.accounts(told["accounts"])
    print("ready", flush=True)  # noqa: T201
    if not sys.stdin.readline():
        return
    report = run_blocking(
        ClaimSettings(told["database_url"], **claims),
        SyncSettings(**{"upstream_url": told["upstream_url"], "allow_private_upstreams": True, **syncs}),
        selection,
        run_id=told["run_id"],
        stop=stop,
    )
    explained = [str(explanation) for explanation in report.not_claimed]
    print(json.dumps({**asdict(report.summary), "not_claimed": explained}), flush=True)  # noqa: T201


def wait_until(condition: Any, what: str, seconds: float = PATIENCE) -> None:
    """Wait until the condition holds, looking often."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


if __name__ == "__main__":
    _main()
