"""What a run of the job is asked to do: the form in the Launchpad, and the selection it stands for."""

from __future__ import annotations

from datetime import datetime

from dagster import Config
from pydantic import Field

from sync_assets.claims import Selection, SettingsError


class SyncAccountsConfig(Config):
    """One run. All fields left as they are: every account that may be synced, once."""

    account_id: str = Field(
        default="",
        description=(
            "Sync this one account now, whatever it waits for. Put an id made of digits in quotes: '42'. "
            "Empty: not one account by hand."
        ),
    )
    only_changed: bool = Field(
        default=False,
        description="Sync only accounts whose configuration changed since they were claimed last. Set by the sensor.",
    )
    scheduled_for: str = Field(
        default="",
        description=(
            "The schedule tick this run is for, in ISO 8601 with a zone, like 2026-01-31T08:00:00+00:00. Set by the "
            "schedule. One tick syncs an account at most once. Empty: a run by hand."
        ),
    )

    def selection(self) -> Selection:
        """Which accounts the run is after.

        Raises:
            SettingsError: more than one way is asked for, or the account's id or the tick cannot be.
        """
        given = [
            name
            for name, value in (
                ("account_id", self.account_id),
                ("only_changed", self.only_changed),
                ("scheduled_for", self.scheduled_for),
            )
            if value
        ]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} were given together; a run takes one of them, or none")
        if self.account_id:
            return Selection.accounts([self.account_id])
        if self.only_changed:
            return Selection.changed()
        if self.scheduled_for:
            return Selection.due(_tick(self.scheduled_for))
        return Selection.all()


def _tick(text: str) -> datetime:
    expected = "expected ISO 8601 with a time zone, like 2026-01-31T08:00:00+00:00"
    written = text.strip()
    if written[-1:] in {"Z", "z"}:  # Python 3.10 does not read it
        written = f"{written[:-1]}+00:00"
    try:
        tick = datetime.fromisoformat(written)
    except ValueError:
        raise SettingsError(f"scheduled_for {text[:80]!r} is not a time; {expected}") from None
    if tick.tzinfo is None:
        raise SettingsError(f"scheduled_for {text[:80]!r} has no time zone; {expected}")
    return tick
