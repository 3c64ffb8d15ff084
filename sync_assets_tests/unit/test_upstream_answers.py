"""What an answer means, and when the upstream may be asked again (P9)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from sync_assets.upstream import AuthFailed, RateLimited, Rejected, RetryLater, SyncError
from sync_assets.upstream.answers import fault_of, retry_after

WHAT = "PUT https://api.example/accounts/a/records/r"


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_success_is_no_fault(status: int) -> None:
    assert fault_of(WHAT, status, {}, b"", keyed=True) is None


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (408, {}, RetryLater),
        (425, {}, RetryLater),
        (500, {}, RetryLater),
        (502, {}, RetryLater),
        (503, {}, RetryLater),
        (503, {"retry-after": "soon"}, RetryLater),
        (599, {}, RetryLater),
        (409, {}, RetryLater),
        (429, {}, RateLimited),
        (429, {"retry-after": "soon"}, RateLimited),
        (503, {"retry-after": "5"}, RateLimited),
        (401, {}, AuthFailed),
        (403, {}, AuthFailed),
        (400, {}, Rejected),
        (404, {}, Rejected),
        (410, {}, Rejected),
        (422, {}, Rejected),
        (301, {}, Rejected),
        (308, {}, Rejected),
    ],
)
def test_faults_by_what_to_do(status: int, headers: dict[str, str], kind: type[SyncError]) -> None:
    fault = fault_of(WHAT, status, headers, b"", keyed=True)
    assert type(fault) is kind
    assert fault.detail.startswith(f"{WHAT} answered {status}")


def test_a_409_without_an_idempotency_key_is_a_rejection() -> None:
    assert isinstance(fault_of(WHAT, 409, {}, b"", keyed=False), Rejected)


def test_a_redirect_is_refused_in_words_that_say_so() -> None:
    fault = fault_of(WHAT, 302, {"location": "https://elsewhere/?token=1"}, b"moved", keyed=True)
    assert isinstance(fault, Rejected)
    assert "a redirect, and those are not followed" in fault.detail
    assert "elsewhere" not in fault.detail


def test_only_a_rejection_quotes_the_answer_and_only_a_little_of_it() -> None:
    body = b'{"error":\x00 "Bearer abc says no"} ' + b"x" * 10_000
    rejected = fault_of(WHAT, 422, {}, body, keyed=True)
    assert rejected is not None
    assert rejected.detail.startswith(f'{WHAT} answered 422: {{"error": "Bearer *** says no"')
    assert len(rejected.detail) <= len(f"{WHAT} answered 422: ") + 200
    for status in (401, 429, 500):
        fault = fault_of(WHAT, status, {}, body, keyed=True)
        assert fault is not None
        assert "says no" not in fault.detail


@pytest.mark.parametrize(
    ("value", "span"),
    [
        ("0", timedelta(0)),
        ("7", timedelta(seconds=7)),
        (" 7 ", timedelta(seconds=7)),
        ("1.5", timedelta(seconds=1.5)),
        ("99999999999", timedelta(days=3650)),
        ("9" * 6000, timedelta(days=3650)),
    ],
)
def test_p9_retry_after_in_seconds(value: str, span: timedelta) -> None:
    assert retry_after({"retry-after": value}) == span


@pytest.mark.parametrize(
    "value", ["", "-1", "soon", "nan", "inf", "1e9", "٣", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun", "," * 50]
)
def test_what_cannot_be_read_is_as_if_not_said(value: str) -> None:
    assert retry_after({"retry-after": value}) is None


def test_p9_a_date_counts_from_the_answers_own_date() -> None:
    headers = {"retry-after": "Sun, 06 Nov 1994 08:50:37 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}
    assert retry_after(headers) == timedelta(minutes=1)
    assert retry_after({**headers, "retry-after": "Sun, 06 Nov 1994 08:48:37 GMT"}) == timedelta(0)
    assert retry_after({**headers, "retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}) == timedelta(days=3650)


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_p9_a_date_without_a_date_to_count_from_stays_a_moment(date: str) -> None:
    headers = {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": date}
    assert retry_after(headers) == datetime(1994, 11, 6, 8, 49, 37, tzinfo=timezone.utc)
    headers["retry-after"] = "Sun, 06 Nov 1994 08:49:37 -0000"
    assert retry_after(headers) == datetime(1994, 11, 6, 8, 49, 37, tzinfo=timezone.utc)


def test_another_passing_fault_keeps_the_time_the_upstream_named() -> None:
    fault = fault_of(WHAT, 500, {"retry-after": "30"}, b"", keyed=True)
    assert isinstance(fault, RetryLater)
    assert fault.retry_after == timedelta(seconds=30)
