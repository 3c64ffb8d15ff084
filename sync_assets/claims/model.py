"""What a claim returns, what it selects, and what is written back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property
from typing import Any

from sync_assets.claims.errors import SettingsError
from sync_assets.clock import Deadline

_LONGEST_ID = 512
"""Characters; the table holds it, too."""


@dataclass(frozen=True)
class Before:
    """The row as the claim found it: what a hand-back restores and what a takeover is told from.

    Attributes:
        status: `IDLE`, `FAILED`, or `IN_PROGRESS` when the claim took the row over.
        started_at: when the claim before this one was made.
        last_tick: the latest schedule tick the row had been claimed for.
        claimed_generation: the generation the claim before saw.
        claimed_by: who held the row last.
        error_kind: the kind of the last failure, if the last attempt failed.
    """

    status: str
    started_at: datetime | None
    last_tick: datetime | None
    claimed_generation: int
    claimed_by: str | None
    error_kind: str | None


@dataclass(frozen=True)
class ClaimedAccount:
    """One account this run has won.

    Attributes:
        account_id: the account's key.
        claim_seq: the claim's number: the fencing token. It never repeats and only grows.
        generation: the generation of the configuration that the claim saw.
        claimed_by: this run and process, as written in the row.
        started_at: when the claim was made, by the database's clock.
        lease: how long the claim was promised.
        lease_ends: the end of the lease on this process's monotonic clock, counted from before the claim was sent.
        before: the row as the claim found it.
        row_json: the whole row as JSON text; `row` parses it.
        quarantined: the row is in quarantine, after this claim.
        answer_lost: the claim's answer was lost and the row was read back, so that `before` is a guess.
    """

    account_id: str
    claim_seq: int
    generation: int
    claimed_by: str
    started_at: datetime
    lease: timedelta
    lease_ends: Deadline
    before: Before
    row_json: str
    quarantined: bool = False
    answer_lost: bool = False

    def __repr__(self) -> str:  # the owner's columns may hold anything: never in a log by accident
        return f"ClaimedAccount({self.account_id!r}, claim_seq={self.claim_seq})"

    @property
    def taken_over(self) -> bool:
        """Whether the run that held the row before never settled it."""
        return self.before.status == "IN_PROGRESS"

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The whole row as Postgres' `to_jsonb` gives it; parsed when first read, so that a bad row fails alone."""
        row: dict[str, Any] = json.loads(self.row_json)
        return row


class SelectionKind(str, Enum):
    """The four ways of narrowing the eligible rows; each entry point uses exactly one."""

    DUE = "due"
    ALL = "all"
    ACCOUNTS = "accounts"
    CHANGED = "changed"


@dataclass(frozen=True)
class Selection:
    """Which of the eligible rows a run is after.

    Attributes:
        kind: the way.
        tick: the schedule tick, with a zone (`due` only).
        account_ids: the accounts (`accounts` only).
    """

    kind: SelectionKind
    tick: datetime | None = None
    account_ids: Sequence[str] = ()

    @classmethod
    def due(cls, tick: datetime) -> Selection:
        """What this schedule tick has not been claimed for yet.

        Raises:
            ValueError: the tick has no time zone.
        """
        if tick.tzinfo is None:
            raise ValueError(f"the tick {tick.isoformat()} has no time zone; write it like 2026-01-31T08:00:00+00:00")
        return cls(SelectionKind.DUE, tick=tick)

    @classmethod
    def all(cls) -> Selection:
        """Every eligible account, once in this run: a run by hand."""
        return cls(SelectionKind.ALL)

    @classmethod
    def accounts(cls, account_ids: Sequence[str]) -> Selection:
        """These accounts, now, whatever they wait for: a run by hand.

        Raises:
            SettingsError: an id is none that the table could hold; somebody has typed it.
        """
        for account_id in account_ids:
            _check_account_id(account_id)
        return cls(SelectionKind.ACCOUNTS, account_ids=tuple(dict.fromkeys(account_ids)))

    @classmethod
    def changed(cls) -> Selection:
        """Accounts whose configuration changed since they were claimed last: the sensor."""
        return cls(SelectionKind.CHANGED)


def _check_account_id(text: str) -> None:
    if not 1 <= len(text) <= _LONGEST_ID:
        raise SettingsError(f"account_id has {len(text)} characters; expected 1 to {_LONGEST_ID}, as in the table")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise SettingsError(f"account_id {text[:80]!r} has characters Postgres cannot keep; copy it from the table")


class Ending(Enum):
    """How a claimed account leaves this run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    HANDED_BACK = "handed_back"
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class Outcome:
    """What is to be written back for one claimed account.

    Attributes:
        account: the claim.
        ending: which of the four writes.
        error_kind: the kind of failure (`FAILED` only).
        error: one redacted line for a person (`FAILED` only).
        counted: the claim, a takeover, has counted this failure already.
        retry_after: the time the upstream named; None: none.
    """

    account: ClaimedAccount
    ending: Ending
    error_kind: str | None = None
    error: str | None = None
    counted: bool = False
    retry_after: timedelta | datetime | None = None


class Fate(Enum):
    """What became of an outcome that was to be written.

    Attributes:
        RECORDED: it is in the row.
        LOST: the row was in other hands, or gone; nothing was written.
        UNKNOWN: an answer was lost and the row has since been claimed again: it may have been written.
    """

    RECORDED = "recorded"
    LOST = "lost"
    UNKNOWN = "unknown"


class Verdict(str, Enum):
    """Why an account was not claimed."""

    UNKNOWN = "unknown"
    DISABLED = "disabled"
    IN_PROGRESS = "in_progress"
    LOCKED = "locked"
    WAITING = "waiting"
    QUARANTINED = "quarantined"
    FREE = "free"


@dataclass(frozen=True)
class Explanation:
    """Why an account was not claimed; `str()` says it in a sentence.

    Attributes:
        account_id: the account.
        verdict: the reason.
        claimed_by: who holds it (`in_progress`), or held it last.
        since: since when it is held.
        until: when the claim or the wait ends.
        sentence: the reason for a person, with times in UTC and the way out.
    """

    account_id: str
    verdict: Verdict
    sentence: str
    claimed_by: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __str__(self) -> str:
        return self.sentence
