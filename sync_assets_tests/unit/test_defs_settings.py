"""P12: a variable that cannot be read is named, with what was expected; what is not set has its default."""

from __future__ import annotations

import pytest

from sync_assets.claims import SettingsError
from sync_assets.settings import Settings


def test_nothing_set_is_the_defaults() -> None:
    assert Settings.from_environment({}) == Settings()
    assert Settings().schedule == "*/15 * * * *"
    assert not Settings().autostart


def test_empty_is_not_set() -> None:
    assert Settings.from_environment({"SYNC_SCHEDULE": " ", "SYNC_CONCURRENCY": "", "SYNC_AUTOSTART": ""}) == Settings()


def test_every_variable_is_read() -> None:
    environ = {
        "SYNC_DATABASE_URL": "postgresql://somewhere/accounts",
        "SYNC_SCHEDULE": "0 * * * *",
        "SYNC_TIMEZONE": "Europe/Berlin",
        "SYNC_SENSOR_SECONDS": "10",
        "SYNC_AUTOSTART": "1",
        "SYNC_LEASE_SECONDS": "600",
        "SYNC_MAX_FAILURES": "5",
        "SYNC_BACKOFF_SECONDS": "60",
        "SYNC_MAX_BACKOFF_SECONDS": "3600",
        "SYNC_FRESHNESS_SECONDS": "7200",
        "SYNC_ACCOUNT_TIMEOUT_SECONDS": "30.5",
        "SYNC_CONCURRENCY": "50",
        "SYNC_UPSTREAM_URL": "https://api.example.com",
        "SYNC_ALLOW_PRIVATE_UPSTREAMS": "yes",
    }
    assert Settings.from_environment(environ) == Settings(
        database_url="postgresql://somewhere/accounts",
        schedule="0 * * * *",
        timezone="Europe/Berlin",
        sensor_seconds=10,
        autostart=True,
        lease_seconds=600.0,
        max_failures=5,
        backoff_seconds=60.0,
        max_backoff_seconds=3600.0,
        freshness_seconds=7200.0,
        account_timeout_seconds=30.5,
        concurrency=50,
        upstream_url="https://api.example.com",
        allow_private_upstreams=True,
    )


def test_this_process_s_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNC_CONCURRENCY", "7")
    assert Settings.from_environment().concurrency == 7


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_switched_on(text: str) -> None:
    assert Settings.from_environment({"SYNC_AUTOSTART": text}).autostart


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_switched_off(text: str) -> None:
    assert not Settings.from_environment({"SYNC_AUTOSTART": text}).autostart


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SYNC_CONCURRENCY", "abc"),
        ("SYNC_CONCURRENCY", "0"),
        ("SYNC_CONCURRENCY", "2.5"),
        ("SYNC_SENSOR_SECONDS", "-1"),
        ("SYNC_LEASE_SECONDS", "ten minutes"),
        ("SYNC_LEASE_SECONDS", "0"),
        ("SYNC_LEASE_SECONDS", "inf"),
        ("SYNC_ACCOUNT_TIMEOUT_SECONDS", "nan"),
        ("SYNC_MAX_FAILURES", "0"),
        ("SYNC_BACKOFF_SECONDS", "a while"),
        ("SYNC_MAX_BACKOFF_SECONDS", "inf"),
        ("SYNC_FRESHNESS_SECONDS", "-1"),
        ("SYNC_AUTOSTART", "maybe"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is '{text}'; expected "):
        Settings.from_environment({name: text})


def test_p11_the_database_url_is_not_shown() -> None:
    assert "hunter2" not in repr(Settings(database_url="postgresql://user:hunter2@host/db"))
