"""What happened in a soak, as each side wrote it down: the database, the upstream, the runs, and whoever broke things.

All times are seconds of CLOCK_BOOTTIME, which every process of one machine reads alike; the database's are converted
when the history is read. Some are kept as the database's, because they are compared with each other there:
`RowChange.began` and the times inside `AccountState`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class AccountState:
    """The part of an account's row that the protocol is about; times are the database's, in seconds."""

    enabled: bool = True
    status: str = "IDLE"
    started_at: float | None = None
    lease: float | None = None
    claim_seq: int = 0
    claimed_by: str | None = None
    last_tick: float | None = None
    last_success: float | None = None
    failures: int = 0
    error_kind: str | None = None
    next_attempt_at: float | None = None
    not_before: float | None = None
    generation: int = 0
    claimed_generation: int = 0

    @property
    def lease_end(self) -> float:
        return (self.started_at or 0.0) + (self.lease or 0.0)


@dataclass(frozen=True)
class RowChange:
    """One committed change of an account's row; `before` is None for an insert, `after` for a delete."""

    number: int
    at: float
    began: float
    who: str
    account: str
    before: AccountState | None
    after: AccountState | None
    ahead: float = 0.0
    """How many seconds the clock of the database was ahead of everybody's when the transaction began."""


@dataclass(frozen=True)
class RecordState:
    version: int
    synced_version: int | None = None
    rejected_version: int | None = None
    deleted: bool = False


@dataclass(frozen=True)
class RecordChange:
    """One committed change of a record, and whose its account was at that moment."""

    number: int
    at: float
    who: str
    account: str
    record: str
    before: RecordState | None
    after: RecordState | None
    holder_seq: int | None = None
    holder_status: str | None = None


@dataclass
class Request:
    """One request as the upstream saw it. `version` is the body's; a DELETE has none.

    `verdict`: accepted, rejected (this version, for good), stale (a claim number older than one seen), limited, failed.
    `how` it ended: answered, dropped (by the upstream), gone (the client went away), or None: never.
    """

    number: int
    at: float
    method: str
    account: str
    record: str
    key: str | None
    claim_seq: int | None
    version: int | None
    body_hash: str
    authorization_hash: str | None
    verdict: str
    retry_after: float | None = None
    ended: float | None = None
    how: str | None = None


@dataclass(frozen=True)
class Told:
    """What a run believes: `what` it did (claim, settle, acknowledge, …) and how that went.

    `phase`: invoke, ok, fail, or info, when the outcome is not known to it.
    """

    at: float
    run: str
    what: str
    phase: str
    account: str | None = None
    claim_seq: int | None = None
    ending: str | None = None
    fate: str | None = None
    since: float | None = None


@dataclass(frozen=True)
class RunInfo:
    """What a run was started as; `kind` is due, all, accounts or changed. `proxied`: the proxy's faults meet it."""

    run: str
    kind: str
    lease: float
    tick: float | None = None
    proxied: bool = False


@dataclass(frozen=True)
class Fault:
    """Something that was broken on purpose, from `at` until `until`; `run` is None where it met everybody."""

    at: float
    kind: str
    run: str | None = None
    until: float | None = None


@dataclass(frozen=True)
class Jump:
    """The database's clock was set, between `at` and `until`, from so many seconds ahead of the real one to so many."""

    at: float
    until: float
    before: float
    offset: float


JUMP_NEVER = Jump(float("-inf"), float("-inf"), 0.0, 0.0)
"""What the clock was before anybody set it."""


@dataclass
class History:
    """A whole soak.

    Attributes:
        authorizations: the hash of the only authorization each account may send.
        hopeless: accounts that cannot succeed, by what the row must then say.
        calm: from when on nothing was broken any more.
        server: which Postgres it was, and how careful it is with what was committed.
        wall: (boot time, wall clock minus boot time), sampled over the whole soak.
        jumps: of the database's clock, away from the wall clock and back.
        leaked: files in which a secret was found.
    """

    rows: list[RowChange] = field(default_factory=list)
    records: list[RecordChange] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    runs: dict[str, RunInfo] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    authorizations: dict[str, str] = field(default_factory=dict)
    hopeless: dict[str, str] = field(default_factory=dict)
    calm: float = 0.0
    server: str = ""
    wall: list[tuple[float, float]] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    def boot_of(self, database_time: float, near: float | None = None) -> float:
        """A moment of the database's clock on everybody's clock.

        Args:
            database_time: what the database's clock showed.
            near: about when that was; a clock that is set back shows a time twice.
        """
        offsets = {0.0, *(jump.offset for jump in self.jumps)} if near is not None else {0.0}
        moments = [self._unmoved(database_time - offset) for offset in offsets]
        return min(moments, key=lambda moment: abs(moment - (near or 0.0)))

    def reached(self, database_time: float, before: float) -> float:
        """When, the last time before a moment, the database's clock came to show a time or a later one."""
        until = before
        for jump in reversed([JUMP_NEVER, *(each for each in self.jumps if each.at < before)]):
            shown = self._unmoved(database_time - jump.offset)
            if shown >= until:  # it did not show it yet, so it was the jump after this one, or has not been
                return until
            if shown > jump.at:
                return shown
            until = jump.at
        return until

    def jumped_forward(self, since: float, until: float) -> bool:
        """Whether the database's clock did, between two moments."""
        return any(since <= jump.until and jump.at <= until and jump.offset > jump.before for jump in self.jumps)

    def _unmoved(self, wall_time: float) -> float:
        """A moment of the machine's wall clock on everybody's clock."""
        if not self.wall:
            return wall_time
        # both clocks run at one rate but for a little slewing, so the nearest sample is near enough
        at = bisect_right(self.wall, (wall_time - self.wall[0][1], float("inf"))) - 1
        return wall_time - self.wall[max(at, 0)][1]


def read_history(folder: Path) -> History:
    """What everybody wrote down in a soak's folder."""
    history = History()
    for line in _lines(folder / "driver.jsonl"):
        _told_by_driver(history, line)
    history.wall.sort()
    history.jumps.sort(key=lambda jump: jump.at)
    requests: dict[int, Request] = {}
    for line in _lines(folder / "upstream.jsonl"):
        match line.pop("event"):
            case "request":
                requests[line["number"]] = Request(**line)
            case "ended":
                requests[line["number"]].ended, requests[line["number"]].how = line["at"], line["how"]
            case _:
                history.told.append(Told(line["at"], "upstream", "stall", "info", since=line["since"]))
    history.requests.extend(requests.values())
    for path in sorted(folder.glob("run-*.jsonl")):
        history.told.extend(Told(**line) for line in _lines(path))
    for line in _lines(folder / "account_history.jsonl"):
        states = {side: AccountState(**line[side]) if line[side] else None for side in ("before", "after")}
        at = history.boot_of(line["at"], near=line.pop("uptime"))
        ahead = line["began"] - history.boot_of(line["began"], near=at)
        history.rows.append(RowChange(**{**line, **states, "at": at, "ahead": ahead}))
    for line in _lines(folder / "record_history.jsonl"):
        records = {side: RecordState(**line[side]) if line[side] else None for side in ("before", "after")}
        at = history.boot_of(line["at"], near=line.pop("uptime"))
        history.records.append(RecordChange(**{**line, **records, "at": at}))
    return history


def _told_by_driver(history: History, line: dict[str, Any]) -> None:
    at = line.pop("at")
    match line.pop("event"):
        case "run":
            history.runs[line["run"]] = RunInfo(**line)
        case "fault":
            history.faults.append(Fault(line.pop("since"), **line))
        case "clock":
            history.wall.append((at, line["ahead"]))
        case "jump":
            history.jumps.append(Jump(line.pop("since"), **line))
        case "account":
            history.authorizations[line["account"]] = line["authorization_hash"]
        case "hopeless":
            history.hopeless[line["account"]] = line["error_kind"]
        case "calm":
            history.calm = at
        case "server":
            history.server = line["what"]
        case "leak":
            history.leaked.append(line["where"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # a process that was killed may have left half a line
                yield json.loads(line)
