"""When an account that failed is tried again, and when it no longer is by itself."""

from __future__ import annotations

from dataclasses import dataclass

from sync_assets.claims.errors import SettingsError

A_DAY = 86_400.0
_A_YEAR = 366 * A_DAY


@dataclass(frozen=True)
class RetryPolicy:
    """What a failure writes into the row, by the database's clock. Without any of it: due again at the next tick.

    A run by hand for the account and a changed configuration pass over both.

    Attributes:
        max_failures: after so many failures in a row the account is in quarantine, until it is released, its
            configuration changes, or it is run by hand; None: never. A run that died counts.
        backoff_seconds: how long it waits after its first failure, and twice as long after each further one; None: not.
        max_backoff_seconds: the longest it waits.

    Raises:
        SettingsError: a number cannot be used.
    """

    max_failures: int | None = None
    backoff_seconds: float | None = None
    max_backoff_seconds: float = A_DAY

    def __post_init__(self) -> None:
        if self.max_failures is not None and not 1 <= self.max_failures <= 2**31 - 1:
            raise SettingsError(
                f"max_failures is {self.max_failures}; expected a whole number from 1, or none (SYNC_MAX_FAILURES)"
            )
        for name in ("backoff_seconds", "max_backoff_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not 1 <= seconds <= _A_YEAR:
                raise SettingsError(f"{name} is {seconds:g}; expected seconds, 1 to a year (SYNC_{name.upper()})")
        if self.backoff_seconds is not None and self.backoff_seconds > self.max_backoff_seconds:
            raise SettingsError(
                f"backoff_seconds is {self.backoff_seconds:g}, which is more than max_backoff_seconds "
                f"({self.max_backoff_seconds:g}); set a shorter SYNC_BACKOFF_SECONDS or a longer "
                "SYNC_MAX_BACKOFF_SECONDS"
            )

    def parameters(self) -> dict[str, object]:
        """What settle.sql needs of it."""
        return {
            "max_failures": self.max_failures,
            "backoff": self.backoff_seconds,
            "max_backoff": self.max_backoff_seconds,
        }
