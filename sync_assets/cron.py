"""When a cron schedule ticks, and how long a claim made under it is promised.

The cron is read the way Dagster reads it, also where clocks change. A schedule that names its hours and falls into the
hour that is skipped ticks at the end of that hour; in the hour that comes twice it ticks the second time. One that runs
in every hour (`*`) leaves out what does not exist and ticks both times. So the library walks plain wall-clock time, and
what that means in a zone is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

LEASE_BUFFER_SECONDS = 120
"""How much longer than the schedule's interval a claim is promised, so that a run a little late is not taken over."""

_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

# What Dagster and the library read alike. Both know more (`LW`, `5L`, `FRI-MON`, `R`), and not the same; and a range
# from a number to itself is that number to the one and everything to the other.
_ONE = r"(?:\d+|[A-Z]{3})"
_PART = re.compile(rf"(\*|{_ONE}|(?P<low>{_ONE})-(?!(?P=low)(/|$)){_ONE})(/\d+)?|{_ONE}#\d|L", re.ASCII)

_HOUR = timedelta(hours=1)

# No zone moves its clock by more: wall-clock times further apart than this are in the order of their moments.
_LARGEST_CHANGE = timedelta(hours=3)


def lease_seconds(schedule: str, zone: str, now: datetime) -> float:
    """How long a claim made at `now` is promised: the schedule's interval around it plus `LEASE_BUFFER_SECONDS`.

    Args:
        schedule: five cron fields or an alias such as `@hourly`.
        zone: IANA time zone in which the cron is read.
        now: any moment, with a time zone. On a tick, that tick is the one before.

    Returns:
        Elapsed seconds, also over a change of the clocks.

    Raises:
        ValueError: the cron or the zone cannot be read.
    """
    before, after = _around(schedule, zone, _minute(now))
    interval = after - before + _doubt(before, zone) + _doubt(after, zone)
    return interval.total_seconds() + LEASE_BUFFER_SECONDS


def next_tick(schedule: str, zone: str, now: datetime) -> datetime:
    """The first tick after `now`, in `zone`.

    Raises:
        ValueError: the cron or the zone cannot be read.
    """
    _, after = _around(schedule, zone, _minute(now))
    return after.astimezone(_zone(zone))


def last_tick(schedule: str, zone: str, now: datetime) -> datetime:
    """The latest tick up to `now`, in `zone`.

    Raises:
        ValueError: the cron or the zone cannot be read.
    """
    before, _ = _around(schedule, zone, _minute(now))
    return before.astimezone(_zone(zone))


def check_schedule(schedule: str, zone: str) -> None:
    """Refuse a cron or a zone that cannot be read.

    Raises:
        ValueError: says which, what was expected, and gives an example.
    """
    _zone(zone)
    _cron(schedule, datetime(2000, 1, 1), reverse=False)  # noqa: DTZ001  # wall-clock time, any


def _minute(now: datetime) -> datetime:
    if now.tzinfo is None:
        raise ValueError(f"the time {now.isoformat()} has no time zone; expected for example {now.isoformat()}+00:00")
    return now.astimezone(timezone.utc).replace(second=0, microsecond=0)


@lru_cache(maxsize=64)  # a run asks before every claim, and ticks lie on whole minutes
def _around(schedule: str, zone: str, minute: datetime) -> tuple[datetime, datetime]:
    """The last tick up to `minute` and the first one after it, both in UTC."""
    place = _zone(zone)
    wall = minute.astimezone(place).replace(tzinfo=None)
    every_hour = _fields(schedule)[1] == "*"

    def close(cron: CronSim, right_side: Callable[[datetime], bool]) -> list[datetime]:
        """The moments on the right side that belong to the first tick found there and to those close to it."""
        found: list[datetime] = []
        first: datetime | None = None
        for tick in cron:
            if first is not None and abs(tick - first) > _LARGEST_CHANGE:
                break
            found += filter(right_side, _moments(tick, place, every_hour))
            first = first or (tick if found else None)
        return found

    before = max(close(_cron(schedule, wall + _LARGEST_CHANGE, reverse=True), lambda moment: moment <= minute))
    after = min(close(_cron(schedule, wall - _LARGEST_CHANGE, reverse=False), lambda moment: moment > minute))
    return before, after


def _moments(wall: datetime, place: tzinfo, every_hour: bool) -> list[datetime]:
    """The moments, in UTC, at which a tick of this wall-clock time happens in `place`."""
    first, second = (wall.replace(tzinfo=place, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    if first == second:
        return [first]
    if first < second:  # comes twice
        return [first, second] if every_hour else [second]
    # is skipped: the end of the hour it lies in, read with the clock of before the change
    return [] if every_hour else [first - timedelta(minutes=wall.minute)]


def _doubt(tick: datetime, zone: str) -> timedelta:
    """How far from ours Dagster's tick may lie, so that no lease is shorter than its interval.

    Dagster expects summer time: clocks that change by one hour, between one and three o'clock. Where they change
    otherwise (at midnight in Cuba, by two hours on Troll, back for Ramadan in Morocco), it can be off by the change.
    """
    local = tick.astimezone(_zone(zone))
    sides = [(tick + side).astimezone(local.tzinfo) for side in (-_HOUR, _HOUR)]
    before, after = (side.utcoffset() or timedelta() for side in sides)
    summer = max(side.dst() or timedelta() for side in sides)
    expected = abs(after - before) == summer == _HOUR and 1 <= local.hour <= 3 and sides[0].hour <= 3
    return timedelta() if expected else abs(after - before)


def _cron(schedule: str, start: datetime, *, reverse: bool) -> CronSim:
    fields = _fields(schedule)
    try:
        cron = CronSim(" ".join(fields), start, reverse=reverse)
    except CronSimError as error:
        raise _unreadable(schedule, str(error)) from None
    # Of a day of the month and a weekday either is enough, unless one is a bare star. The library takes `*/2` for one.
    cron.day_and = "*" in (fields[2], fields[4])
    return cron


def _fields(schedule: str) -> list[str]:
    fields = _ALIASES.get(schedule.lower(), schedule).upper().split()
    fields[2:] = ["*" if field == "?" else field for field in fields[2:]]
    if len(fields) != 5:
        raise _unreadable(schedule, f"{len(fields)} fields")
    for field in fields:
        for part in field.split(","):
            if not _PART.fullmatch(part):
                raise _unreadable(schedule, f"{part!r} is not understood")
    return fields


def _unreadable(schedule: str, why: str) -> ValueError:
    return ValueError(
        f"the cron schedule {schedule!r} cannot be read ({why}); expected five fields (minute, hour, day of the "
        "month, month, weekday), for example '*/15 * * * *' or '30 2 * * 1-5', or an alias such as '@hourly'"
    )


def _zone(zone: str) -> tzinfo:
    if zone.upper() == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):  # unknown, not a name at all, a folder of the zone database
        raise ValueError(
            f"the time zone {zone!r} is not known; expected a name of the IANA database, "
            "for example 'Europe/Berlin' or 'UTC'"
        ) from None
