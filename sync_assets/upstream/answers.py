"""What an answer means: the table of HTTP statuses, and Retry-After."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

from sync_assets.upstream.errors import AuthFailed, RateLimited, Rejected, RetryLater, SyncError
from sync_assets.upstream.redaction import one_line

_PLAIN = {"", "identity"}
_LONGEST = timedelta(days=3650)  # no upstream means more, and calendars end
_EXCERPT = 200


def fault_of(what: str, status: int, headers: Mapping[str, str], body: bytes, *, keyed: bool) -> SyncError | None:
    """What to do about an answer; None: it was accepted.

    Args:
        what: the request, for people: `PUT https://host/path`.
        status: the HTTP status.
        headers: by lower-case name.
        body: an excerpt is quoted for a rejection, and only then.
        keyed: the request carried an `Idempotency-Key`. A 409 then says that the first sending of it is still at
            work (draft-ietf-httpapi-idempotency-key-header, section 2.6).
    """
    told = f"{what} answered {status}"
    wait = retry_after(headers)
    if 200 <= status < 300:
        return None
    if status == 429 or (status == 503 and wait is not None):
        return RateLimited(told, retry_after=wait)
    if status in {401, 403}:
        return AuthFailed(f"{told}: the secret is missing, wrong, or not allowed to do this", retry_after=wait)
    in_flight = status == 409 and keyed
    if status in {408, 425} or status >= 500 or in_flight:
        why = ": an earlier sending of the same request is still in flight there" if in_flight else ""
        return RetryLater(told + why, retry_after=wait)
    if status < 400:
        return Rejected(f"{told}: a redirect, and those are not followed; set base_url to where the API itself answers")
    excerpt = one_line(body[: 20 * _EXCERPT].decode("utf-8", "replace"), _EXCERPT)
    return Rejected(f"{told}: {excerpt}" if excerpt else told)


def unreadable(what: str, status: int, headers: Mapping[str, str], body: bytes, most: int) -> SyncError | None:
    """What to do about an answer that says that all is well, in a body that is not read; None: it can be.

    Args:
        what: the request, for people.
        status: the HTTP status.
        headers: by lower-case name.
        body: the bytes as they came, not more than one beyond `most`.
        most: bytes a body may have.
    """
    if len(body) > most:
        # of this request's doing, as far as anyone knows: the account's others go on
        return Rejected(
            f"{what} answered {status} with more than {most} bytes, and no more is read; if it has to say that much, "
            "raise max_response_bytes"
        )
    if compressed(headers) and body:
        # it would be for every request, and small bytes can stand for very many
        return AuthFailed(
            f"{what} answered {status} compressed ({one_line(headers['content-encoding'], 40)}), though it was asked "
            "not to; set base_url to where answers come uncompressed"
        )
    return None


def compressed(headers: Mapping[str, str]) -> bool:
    """Whether the body's bytes stand for others."""
    return any(each.strip().lower() not in _PLAIN for each in headers.get("content-encoding", "").split(","))


def retry_after(headers: Mapping[str, str]) -> timedelta | datetime | None:
    """The earliest next attempt the upstream names (RFC 9110, section 10.2.3); None: none, or not readable.

    A date is taken against the answer's own `Date`, so that nobody's clock but the upstream's counts; without one
    it stays a moment, for the database to compare. Never earlier than told, and at most ten years for a span.
    """
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        # a number too long for the calendar, or for Python's own limit on digits
        return min(timedelta(seconds=float(value)), _LONGEST) if len(value) <= 12 else _LONGEST
    moment = _date(value)
    now = _date(headers.get("date", ""))
    if moment is None or now is None:
        return moment
    return min(max(moment - now, timedelta()), _LONGEST)


def _date(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
        # HTTP dates are GMT also where they do not say so
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
