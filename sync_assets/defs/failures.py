"""A mistake in a setting or a database that is away: told in its own words, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Failure

from sync_assets.claims import DatabaseUnavailable, SettingsError
from sync_assets.local.embedded import EmbeddedPostgresError


def failure(description: str) -> Failure:
    """What fails a step, in words, and is not tried again."""
    return Failure(description, allow_retries=False)


@contextmanager
def plain_failures() -> Iterator[None]:
    """Fail the step in the words of whatever was mistaken or is away.

    Raises:
        Failure: instead of `SettingsError`, `DatabaseUnavailable` and `EmbeddedPostgresError`.
    """
    try:
        yield
    except (SettingsError, DatabaseUnavailable, EmbeddedPostgresError) as error:
        raise failure(str(error)) from None
