"""A whole `dagster dev` for tests, talked to by GraphQL as the UI does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from sync_assets_tests.dagster_rig import DAGSTER, JOB, LOCATION, PATIENCE, PROJECT, DagsterHome, wait_for


class DagsterDev:
    """`dagster dev`, webserver and daemon, as the README starts it, talked to by GraphQL.

    Args:
        home: the instance.
    """

    def __init__(self, home: DagsterHome) -> None:
        self._home = home
        self._port = free_port()
        self._log = home.folder / "dagster-dev.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DagsterDev:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*DAGSTER, "dev", "-h", "127.0.0.1", "-p", str(self._port)],
                env=self._home.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,  # its pyproject.toml says what to load
                start_new_session=True,
            )
        try:
            wait_for(self._is_loaded, "dagster dev has loaded the code location", 90)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # a code server waits for its runs; nothing may outlive the test
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)

    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def _is_loaded(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"dagster dev has ended:\n{self.log()}"
        try:
            answer = self.graphql("{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        entries = answer["workspaceOrError"].get("locationEntries", [])
        return {"name": LOCATION, "loadStatus": "LOADED"} in entries

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Ask, and return the data of the answer."""
        request = urllib.request.Request(  # our own server
            f"http://127.0.0.1:{self._port}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=PATIENCE) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{error}: {error.read().decode(errors='replace')}") from None
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def launchpad(self) -> str:
        """The YAML the Launchpad opens with."""
        answer = self.graphql(_LAUNCHPAD, selector={**_SELECTOR, "pipelineName": JOB})["runConfigSchemaOrError"]
        yaml: str = answer["rootDefaultYaml"]
        return yaml

    def launch(self, **config: Any) -> str:
        """Launch the job with this config of its op. Returns the run's id."""
        return self.launch_as_typed({"ops": {"sync_accounts": {"config": config}}})

    def launch_as_typed(self, run_config: str | dict[str, Any]) -> str:
        """Launch the job with a whole run config, as YAML or as data."""
        selector = {**_SELECTOR, "jobName": JOB}
        return self._launch({"selector": selector, "runConfigData": run_config, "mode": "default"})

    def _launch(self, params: dict[str, Any]) -> str:
        answer = self.graphql(_LAUNCH, params=params)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run_id: str = answer["run"]["runId"]
        return run_id

    def checks(self, asset: str) -> list[dict[str, Any]]:
        """The checks of an asset, as its page shows them: name, whether it can be executed, last execution."""
        answer = self.graphql(_CHECKS, asset={"path": [asset]})["assetNodeOrError"]
        checks: list[dict[str, Any]] = answer["assetChecksOrError"]["checks"]
        return checks

    def execute_check(self, asset: str, name: str) -> str:
        """Press Execute beside a check. Returns the run's id."""
        selector = {
            **_SELECTOR,
            "jobName": "__ASSET_JOB",
            "assetSelection": [],
            "assetCheckSelection": [{"assetKey": {"path": [asset]}, "name": name}],
        }
        return self._launch({"selector": selector, "runConfigData": {}, "mode": "default"})

    def terminate(self, run_id: str) -> None:
        """Press Terminate."""
        answer = self.graphql(_TERMINATE, run=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def runs(self, **tags: str) -> list[dict[str, Any]]:
        """The runs with these tags, latest first: `runId`, `status`, `tags`. Underscores in names stand for slashes."""
        wanted = [{"key": name.replace("_", "/"), "value": value} for name, value in tags.items()]
        answer = self.graphql(_RUNS, filter={"tags": wanted})["runsOrError"]
        return [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in answer["results"]]

    def wait_until(self, run_id: str, *statuses: str, seconds: float = PATIENCE) -> str:
        """Wait until the run has one of these statuses. Returns which."""

        def look() -> str | None:
            status: str = self.graphql(_STATUS, run=run_id)["runOrError"]["status"]
            assert status in statuses or status not in {"SUCCESS", "FAILURE", "CANCELED"}, self._ended(run_id, status)
            return status if status in statuses else None

        return wait_for(look, f"run {run_id} is {' or '.join(statuses)}", seconds)

    def _ended(self, run_id: str, status: str) -> str:
        return f"run {run_id} is {status}:\n" + "\n".join(self.messages(run_id))

    def messages(self, run_id: str) -> list[str]:
        """The lines of the run's event log."""
        return [event["message"] for event in self._events(run_id)]

    def failure(self, run_id: str) -> str:
        """What the UI shows as the error of the failed step."""
        errors = [event["error"]["message"] for event in self._events(run_id) if event.get("error")]
        return "\n".join(errors)

    def _events(self, run_id: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.graphql(_EVENTS, run=run_id)["logsForRun"]["events"]
        return events

    def pid(self, run_id: str) -> int:
        """The process that executes the run."""
        found = re.search(r"Executing steps in process \(pid: (\d+)\)", "\n".join(self.messages(run_id)))
        assert found, f"run {run_id} names no process:\n" + "\n".join(self.messages(run_id))
        return int(found[1])

    @contextmanager
    def schedule_running(self, name: str) -> Iterator[None]:
        """Switch the schedule on, and off again."""
        selector = {**_SELECTOR, "scheduleName": name}
        answer = self.graphql(_START_SCHEDULE, selector=selector)["startSchedule"]
        assert answer["__typename"] == "ScheduleStateResult", answer
        try:
            yield
        finally:
            self.graphql(_STOP_SCHEDULE, id=answer["scheduleState"]["id"])

    @contextmanager
    def sensor_running(self, name: str) -> Iterator[None]:
        """Switch the sensor on, and off again."""
        answer = self.graphql(_START_SENSOR, selector={**_SELECTOR, "sensorName": name})["startSensor"]
        assert answer["__typename"] == "Sensor", answer
        try:
            yield
        finally:
            self.graphql(_STOP_SENSOR, id=answer["sensorState"]["id"])

    def sensor_said(self, name: str) -> list[str]:
        """Why the sensor's last ticks launched nothing, latest first."""
        answer = self.graphql(_TICKS, selector={**_SELECTOR, "sensorName": name})["sensorOrError"]
        return [tick["skipReason"] for tick in answer["sensorState"]["ticks"] if tick["skipReason"]]


_SELECTOR = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}

_LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PythonError { message stack }
  }
}"""
_CHECKS = """
query ($asset: AssetKeyInput!) {
  assetNodeOrError(assetKey: $asset) {
    ... on AssetNode {
      assetChecksOrError {
        ... on AssetChecks {
          checks {
            name
            canExecuteIndividually
            executionForLatestMaterialization { runId evaluation { success severity description } }
          }
        }
      }
    }
  }
}"""
_LAUNCHPAD = """
query ($selector: PipelineSelector!) {
  runConfigSchemaOrError(selector: $selector) { ... on RunConfigSchema { rootDefaultYaml } }
}"""
_TERMINATE = """
mutation ($run: String!) {
  terminateRun(runId: $run) {
    __typename
    ... on TerminateRunFailure { message }
    ... on PythonError { message stack }
  }
}"""
_RUNS = """
query ($filter: RunsFilter!) {
  runsOrError(filter: $filter) {
    ... on Runs { results { runId status tags { key value } } }
  }
}"""
_STATUS = "query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
_EVENTS = """
query ($run: ID!) {
  logsForRun(runId: $run) {
    ... on EventConnection {
      events {
        ... on MessageEvent { message }
        ... on ExecutionStepFailureEvent { error { message } }
        ... on RunFailureEvent { error { message } }
      }
    }
  }
}"""
_START_SCHEDULE = """
mutation ($selector: ScheduleSelector!) {
  startSchedule(scheduleSelector: $selector) {
    __typename
    ... on ScheduleStateResult { scheduleState { id } }
    ... on PythonError { message stack }
  }
}"""
_STOP_SCHEDULE = "mutation ($id: String!) { stopRunningSchedule(id: $id) { __typename } }"
_START_SENSOR = """
mutation ($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) {
    __typename
    ... on Sensor { sensorState { id } }
    ... on PythonError { message stack }
  }
}"""
_TICKS = """
query ($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) { ... on Sensor { sensorState { ticks(limit: 5) { skipReason } } } }
}"""
_STOP_SENSOR = "mutation ($id: String!) { stopSensor(id: $id) { __typename } }"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
