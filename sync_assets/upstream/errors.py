"""What can go wrong with one account, by what to do about it.

    SyncError
     ├── RetryLater      connection, timeout, 408, 425, 5xx, 409 in flight: the next run tries again
     ├── RateLimited     429, 503 with Retry-After: not before the time the upstream named
     ├── AuthFailed      401, 403, missing secret, TLS, refused address: until the configuration changes
     ├── Rejected        any other 4xx: this request will never be accepted as it is
     └── OriginDown      nothing was sent, because the upstream is down: nothing is counted, the next tick tries again

Anything else that an account's sync raises is a bug: the account fails, the traceback is in the log.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar


class SyncError(Exception):
    """One account's sync failed in a known way. Raise a subclass to fail the account without a traceback.

    Args:
        detail: one line for a person; kept in the row as `last_error`. Never a secret or a URL with a query.
        retry_after: what the upstream named as the earliest next attempt: a span from now, or a moment with
            a time zone. Kept in the row as `not_before`.

    Attributes:
        sent: records that were accepted before it; whoever raises it may say so, for the run's numbers.
        rejected: records that were refused for good before it.
    """

    kind: ClassVar[str] = "retry"

    def __init__(self, detail: str, *, retry_after: timedelta | datetime | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after
        self.sent = 0
        self.rejected = 0


class RetryLater(SyncError):
    """A passing fault: the next run tries again."""

    kind = "retry"


class RateLimited(SyncError):
    """The upstream asked to be left alone until a time."""

    kind = "rate_limited"


class AuthFailed(SyncError):
    """The account's credential or address is not right; trying again changes nothing."""

    kind = "auth"


class Rejected(SyncError):
    """The upstream refused this very request; it would refuse it again."""

    kind = "rejected"


class OriginDown(SyncError):
    """The upstream kept failing and is left alone for the rest of the run.

    An account that ends with it is given up and not failed: nothing is counted, and the next tick claims it.
    """
