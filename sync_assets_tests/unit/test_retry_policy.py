"""P12: numbers of the retry policy that cannot be are named, with the variable that sets them."""

from __future__ import annotations

from typing import Any

import pytest

from sync_assets.claims import RetryPolicy, SettingsError
from sync_assets.sync_run import ClaimSettings


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("max_failures", 0),
        ("max_failures", -1),
        ("max_failures", 2**31),
        ("backoff_seconds", 0.0),
        ("backoff_seconds", -5.0),
        ("backoff_seconds", float("nan")),
        ("backoff_seconds", float("inf")),
        ("max_backoff_seconds", 1e12),
        ("backoff_seconds", 100_000.0),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, number: float) -> None:
    numbers: dict[str, Any] = {name: number}
    for refuses in (lambda: RetryPolicy(**numbers), lambda: ClaimSettings("postgresql://", **numbers)):
        with pytest.raises(SettingsError, match=f"{name} is .*SYNC_{name.upper()}"):
            refuses()


def test_a_longest_wait_that_is_shorter_than_the_first_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"more than max_backoff_seconds \(60\)"):
        RetryPolicy(backoff_seconds=120.0, max_backoff_seconds=60.0)
