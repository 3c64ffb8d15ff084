"""P12: what a run is asked to do is taken as it was meant, or refused in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from sync_assets.claims import Selection, SettingsError
from sync_assets.defs import SyncAccountsConfig

TICK = datetime(2026, 1, 31, 8, 0, tzinfo=timezone.utc)


def test_nothing_given_is_every_account() -> None:
    assert SyncAccountsConfig().selection() == Selection.all()


def test_one_account() -> None:
    assert SyncAccountsConfig(account_id="42").selection() == Selection.accounts(["42"])


def test_changed_accounts() -> None:
    assert SyncAccountsConfig(only_changed=True).selection() == Selection.changed()


@pytest.mark.parametrize("text", ["2026-01-31T08:00:00+00:00", "2026-01-31T08:00:00Z", " 2026-01-31T09:00:00+01:00 "])
def test_a_tick(text: str) -> None:
    assert SyncAccountsConfig(scheduled_for=text).selection() == Selection.due(TICK)


def test_a_tick_keeps_the_moment_of_the_hour_that_comes_twice() -> None:
    first = SyncAccountsConfig(scheduled_for="2026-10-25T02:30:00+02:00").selection().tick
    second = SyncAccountsConfig(scheduled_for="2026-10-25T02:30:00+01:00").selection().tick
    assert first is not None
    assert second is not None
    assert second - first == timedelta(hours=1)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (SyncAccountsConfig(account_id="a", only_changed=True), "account_id and only_changed"),
        (SyncAccountsConfig(account_id="a", scheduled_for="2026-01-31T08:00:00Z"), "account_id and scheduled_for"),
        (SyncAccountsConfig(only_changed=True, scheduled_for="2026-01-31T08:00:00Z"), "only_changed and scheduled_for"),
    ],
)
def test_more_than_one_way_is_refused_by_name(config: SyncAccountsConfig, names: str) -> None:
    with pytest.raises(SettingsError, match=f"{names} were given together; a run takes one"):
        config.selection()


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01T00:00:00Z", "1769846400", " "])
def test_a_tick_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"scheduled_for .* is not a time; expected ISO 8601 .* like 2026-"):
        SyncAccountsConfig(scheduled_for=text).selection()


@pytest.mark.parametrize("text", ["2026-01-31T08:00:00", "2026-01-31"])
def test_a_tick_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"scheduled_for .* has no time zone; expected .*\+00:00"):
        SyncAccountsConfig(scheduled_for=text).selection()


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_an_account_id_postgres_cannot_keep_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"account_id .* has characters Postgres cannot keep"):
        SyncAccountsConfig(account_id=text).selection()
