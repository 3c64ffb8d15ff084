"""The lease read from the cron: exact around clock changes, and never shorter than what Dagster does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from dagster._utils.schedules import is_valid_cron_schedule, schedule_execution_time_iterator

from sync_assets.cron import LEASE_BUFFER_SECONDS, check_schedule, lease_seconds, next_tick

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
HOUR, DAY = 3600, 24 * 3600


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("schedule", "zone", "now", "gap"),
    [
        ("*/15 * * * *", "UTC", "2026-01-31T08:07:30", 900),
        ("0 * * * *", BERLIN, "2026-03-29T00:30:00", HOUR),  # 01:30, the hour from 02:00 is skipped
        ("0 * * * *", BERLIN, "2026-10-25T00:30:00", HOUR),  # the first 02:30 of two
        ("0 * * * *", NEW_YORK, "2026-11-01T06:30:00", HOUR),
        ("*/15 * * * *", NEW_YORK, "2026-03-08T06:50:00", 900),
        # the tick of a skipped 02:30 is at 03:00
        ("30 2 * * *", BERLIN, "2026-03-28T12:00:00", 23.5 * HOUR),
        ("30 2 * * *", BERLIN, "2026-03-29T12:00:00", 23.5 * HOUR),
        ("30 2 * * *", NEW_YORK, "2026-03-07T12:00:00", 23.5 * HOUR),
        # the one that comes twice ticks the second time
        ("30 2 * * *", BERLIN, "2026-10-24T12:00:00", 25 * HOUR),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00:00", 25 * HOUR),
        ("30 2 * * *", BERLIN, "2026-10-25T12:00:00", DAY),
        # over a weekend, and over the one on which the clocks change
        ("0 8 * * 1-5", "UTC", "2026-01-30T09:00:00", 3 * DAY),
        ("0 8 * * 1-5", BERLIN, "2026-03-28T12:00:00", 3 * DAY - HOUR),
        ("0 8 * * 1-5", BERLIN, "2026-10-24T12:00:00", 3 * DAY + HOUR),
        ("0 8 * * 1-5", "UTC", "2026-01-29T09:00:00", DAY),
        ("0 0 1 * *", "UTC", "2026-02-10T00:00:00", 28 * DAY),
        ("0 0 1 * *", BERLIN, "2026-03-10T00:00:00", 31 * DAY - HOUR),
        ("0 0 L * *", "UTC", "2026-02-10T00:00:00", 28 * DAY),
        ("0 0 29 2 *", "UTC", "2026-02-10T00:00:00", 1461 * DAY),
        ("@hourly", "UTC", "2026-01-31T08:07:30", HOUR),
        ("@monthly", "UTC", "2026-02-10T00:00:00", 28 * DAY),
    ],
)
def test_the_lease_is_the_gap_between_the_ticks_around_now_and_the_buffer(
    schedule: str, zone: str, now: str, gap: float
) -> None:
    assert lease_seconds(schedule, zone, utc(now)) == gap + LEASE_BUFFER_SECONDS


def test_a_claim_made_on_the_tick_belongs_to_the_interval_that_begins() -> None:
    friday = utc("2026-01-30T08:00:00")
    assert lease_seconds("0 8 * * 1-5", "UTC", friday) == 3 * DAY + 120
    assert lease_seconds("0 8 * * 1-5", "UTC", friday - timedelta(microseconds=1)) == DAY + 120
    assert lease_seconds("0 8 * * 1-5", "UTC", friday.astimezone(ZoneInfo("Asia/Tokyo"))) == 3 * DAY + 120


def test_next_tick_is_the_first_after_now_in_the_schedules_zone() -> None:
    tick = next_tick("30 2 * * *", BERLIN, utc("2026-03-28T12:00:00"))
    assert tick.isoformat() == "2026-03-29T03:00:00+02:00"
    assert next_tick("*/15 * * * *", "UTC", utc("2026-01-31T08:15:00")) == utc("2026-01-31T08:30:00")


CHANGES = [
    (BERLIN, "2026-03-29"),
    (BERLIN, "2026-10-25"),
    (NEW_YORK, "2026-03-08"),
    (NEW_YORK, "2026-11-01"),
    ("America/St_Johns", "2026-03-08"),  # not on the hour of UTC
    ("America/St_Johns", "2026-11-01"),
    ("Asia/Kolkata", "2026-03-29"),  # never
    ("UTC", "2026-03-29"),
]

SCHEDULES = [
    *("*/15 * * * *", "0 * * * *", "30 * * * *", "5,35 * * * *", "*/20 2 * * *", "15,45 1-3 * * *", "0 */2 * * *"),
    *("30 2 * * *", "0 2 * * *", "30 1 * * *", "0 3 * * *", "0 0 * * *", "0 8 * * 1-5", "30 2 * * 0", "0 0 1 * *"),
    *("0 0 L * *", "30 2 29 * *", "0 12 * * MON#1", "0 0 * JAN,OCT sun-tue", "30 2 ? * ?"),
    # a day of the month and a weekday: either one, unless one of them is a bare star
    *("0 0 13 * 5", "0 0 */2 * 1", "0 0 */1 * 1", "0 0 1-31 * 1", "0 0 13 * 0-6", "0 0 13 * 1-7", "0 0 13 * */2"),
    *("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@Daily"),
]


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ticks_are_those_of_dagster_so_no_lease_is_shorter_than_the_schedules_gap(
    schedule: str, zone: str, change: str
) -> None:
    around = datetime.fromisoformat(change).replace(tzinfo=ZoneInfo(zone)).astimezone(timezone.utc)
    start, end = around - timedelta(hours=4), around + timedelta(hours=30)
    theirs = [
        tick.astimezone(timezone.utc)
        for tick in takewhile(
            lambda tick: tick.timestamp() < end.timestamp(),
            schedule_execution_time_iterator(start.timestamp(), schedule, zone),
        )
    ]
    ours, now = [], start - timedelta(minutes=1)
    while (now := next_tick(schedule, zone, now).astimezone(timezone.utc)) < end:
        ours.append(now)
    assert ours == theirs
    for before, after in pairwise(theirs):
        assert lease_seconds(schedule, zone, before) == (after - before).total_seconds() + LEASE_BUFFER_SECONDS


@pytest.mark.parametrize(
    ("schedule", "zone", "now", "dagsters_gap"),
    [
        ("0 0 * * *", "America/Havana", "2026-11-01T16:30:00", 25 * HOUR),  # at midnight
        ("30 0 * * *", "Africa/Cairo", "2026-04-22T22:30:00", DAY),
        ("30 2 * * *", "Africa/Casablanca", "2026-03-22T13:15:00", 24.5 * HOUR),  # the other way round
        ("15 1 * * *", "Antarctica/Troll", "2026-03-29T11:00:00", 24.25 * HOUR),  # by two hours
        ("30 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30:00", HOUR),  # by half an hour
    ],
)
def test_where_clocks_change_in_a_way_dagster_does_not_expect_the_lease_is_not_shorter_either(
    schedule: str, zone: str, now: str, dagsters_gap: float
) -> None:
    longest_change = 2 * HOUR
    lease = lease_seconds(schedule, zone, utc(now)) - LEASE_BUFFER_SECONDS
    assert dagsters_gap <= lease <= dagsters_gap + longest_change


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_we_accept_dagster_accepts(schedule: str) -> None:
    check_schedule(schedule, "UTC")
    assert is_valid_cron_schedule(schedule)


@pytest.mark.parametrize(
    "schedule",
    [
        *(
            "",
            "x",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "*/0 * * * *",
            "@reboot",
            "0 0 30 2 *",
            "1,,2 * * * *",
        ),
        # Dagster and we would not tick together, or Dagster does not take it
        *("0 0 LW * *", "0 0 * * 5L", "0 0 * * FRI-MON", "0 22-2 * * *", "R * * * *", "1-1 * * * *", "² * * * *"),
    ],
)
def test_p12_a_cron_that_cannot_be_read_is_named_with_what_was_expected(schedule: str) -> None:
    with pytest.raises(ValueError, match="five fields") as caught:
        check_schedule(schedule, "UTC")
    assert repr(schedule) in str(caught.value)
    assert "*/15 * * * *" in str(caught.value)
    with pytest.raises(ValueError, match="five fields"):
        lease_seconds(schedule, "UTC", utc("2026-01-31T08:07:30"))


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "Europe", "../etc/passwd", "/etc/passwd", "CEST+1", "a\0b"])
def test_p12_a_zone_that_is_not_known_is_named_with_what_was_expected(zone: str) -> None:
    with pytest.raises(ValueError, match="Europe/Berlin") as caught:
        check_schedule("* * * * *", zone)
    assert repr(zone) in str(caught.value)


def test_p12_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="2026-01-31T08:07:30 has no time zone"):
        lease_seconds("* * * * *", "UTC", datetime.fromisoformat("2026-01-31T08:07:30"))
