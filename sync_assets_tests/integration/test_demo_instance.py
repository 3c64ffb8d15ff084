"""The project's `dagster.yaml` against a real Postgres, by the URL of a Unix socket as the demo gives it."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster_postgres import PostgresEventLogStorage, PostgresRunStorage, PostgresScheduleStorage

PROJECT = Path(__file__).parents[2]


def test_the_instance_lies_in_postgres_resumes_no_run_and_tells_nobody(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dagster.yaml").symlink_to(PROJECT / "dagster.yaml")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", empty_database_url.replace("postgresql:", "postgresql+psycopg2:", 1))
    with DagsterInstance.get() as instance:
        assert isinstance(instance.run_storage, PostgresRunStorage)
        assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
        assert isinstance(instance.schedule_storage, PostgresScheduleStorage)
        assert list(instance.get_runs()) == []
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_resume_run_attempts == 0
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
