"""Real Dagster for tests: an instance on Postgres and runs as processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from sync_assets_tests.claims_rig import Table

PROJECT = Path(__file__).parent.parent
DAGSTER_YAML = PROJECT / "dagster.yaml"
JOB = "sync_accounts_job"
LOCATION = "sync_assets.definitions"
DAGSTER = (sys.executable, "-m", "dagster")
PATIENCE = 60.0
"""Seconds a test waits for a run or a server before it says what did not happen."""

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, seconds: float = PATIENCE, every: float = 0.1) -> T:
    """Look until there is something to see."""
    until = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(every)


class DagsterHome:
    """A `DAGSTER_HOME` with the project's `dagster.yaml`, and the environment of the processes that use it.

    Args:
        folder: becomes `DAGSTER_HOME`.
        dagster_url: an empty database for Dagster's own tables.
        settings: the `SYNC_…` variables.
    """

    def __init__(self, folder: Path, dagster_url: str, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(DAGSTER_YAML, folder / "dagster.yaml")
        self.folder = folder
        self._own = {
            "DAGSTER_HOME": str(folder),
            "DAGSTER_POSTGRES_URL": re.sub(r"^postgres(ql)?://", "postgresql+psycopg2://", dagster_url),
            "DAGSTER_DISABLE_TELEMETRY": "1",
        }
        self._settings = {"SYNC_ALLOW_PRIVATE_UPSTREAMS": "1", **settings}  # the tests' upstreams are on loopback

    def environment(self, **settings: str) -> dict[str, str]:
        """This process's environment with its own settings taken out and the test's put in."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SYNC_", "DAGSTER_"))}
        return {**inherited, **self._own, **self._settings, **settings}

    @contextmanager
    def instance(self) -> Iterator[DagsterInstance]:
        """The instance, opened in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._own.items():
                patch.setenv(name, value)
            with DagsterInstance.get() as instance:
                yield instance

    def start_run(self, config: Mapping[str, Any] | None = None, **settings: str) -> RunProcess:
        """Start one run of the job as an OS process.

        Args:
            config: the op's config.
            settings: more `SYNC_…` variables for it.
        """
        return RunProcess(self, config or {}, settings)


class RunProcess:
    """One Dagster run, executed by a process of its own with `dagster job execute`."""

    def __init__(self, home: DagsterHome, config: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        self._home = home
        self._launch = uuid.uuid4().hex
        run_config = home.folder / f"{self._launch}.json"
        run_config.write_text(json.dumps({"ops": {"sync_accounts": {"config": dict(config)}}}))
        self._output = home.folder / f"{self._launch}.log"
        with self._output.open("wb") as output:
            # from Python, since a shell's `&` would start it with SIGINT ignored
            self.process = subprocess.Popen(
                [
                    *DAGSTER,
                    *("job", "execute", "-m", LOCATION, "-j", JOB, "-c", str(run_config)),
                    *("--tags", json.dumps({"test/launch": self._launch})),
                ],
                env=home.environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home.folder,
            )

    @property
    def output(self) -> str:
        """What the process has written: Dagster's log of the run."""
        return self._output.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> str:
        """Wait until the process has ended. Returns its output."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)
            raise AssertionError(f"the run did not end within {seconds:g} s:\n{self.output}") from None
        return self.output

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def status(self, instance: DagsterInstance) -> DagsterRunStatus:
        """What Dagster says of the run."""
        (run,) = instance.get_runs(RunsFilter(tags={"test/launch": self._launch}))
        return run.status

    def run_id(self, instance: DagsterInstance) -> str:
        """Its id; waits until the run is known."""
        runs = wait_for(
            lambda: instance.get_runs(RunsFilter(tags={"test/launch": self._launch})), "the run is known to Dagster"
        )
        return runs[0].run_id


def add_accounts(table: Table, *account_ids: str, **columns: object) -> None:
    """Accounts with a record to send, and the secret in SYNC_SECRET_TEST."""
    table.add(*account_ids, secret_ref="env:SYNC_SECRET_TEST", **columns)
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT account, 'r1', '{\"name\": \"first\"}' FROM unnest(%s::text[]) account",
        [list(account_ids)],
    )


def change_records(table: Table) -> None:
    """Give every account something to send again."""
    table.connection.execute("UPDATE sync.account_record SET data = jsonb_build_object('name', version)")
