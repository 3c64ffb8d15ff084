"""What the account table must hold: a dictionary, and the rules of the row said once more, in plain Python.

It is written from the rules, not from the SQL: where claim.sql looks in three places with an index each, here is one
sentence for each way of being selected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime

from sync_assets.claims import ClaimedAccount, Claims, Ending, Fate, RetryPolicy, Selection, Verdict
from sync_assets.claims.model import SelectionKind

FUTURE = 300.0
"""A claim stamped more than these seconds ahead of the clock tells that the clock was set back."""


@dataclass
class Row:
    """One account. Times are seconds on the model's clock."""

    generation: int
    enabled: bool = True
    base_url: str | None = None
    status: str = "IDLE"
    started: float | None = None
    lease: float | None = None
    claim_seq: int = 0
    claimed_by: str | None = None
    last_tick: datetime | None = None
    last_success: float | None = None
    failures: int = 0
    error_kind: str | None = None
    next_attempt: float | None = None
    not_before: float | None = None
    claimed_generation: int = 0


@dataclass
class Run:
    """One run's claims, and when it began on the model's clock."""

    claims: Claims
    since: float
    lease: float
    policy: RetryPolicy


@dataclass
class Claim:
    """A claim as its run knows it: what it was told, and how it found the row.

    Attributes:
        ends: the end of the lease on the run's own clock, which no clock of the database moves.
    """

    run: Run
    account: ClaimedAccount
    before: Row
    ends: float


@dataclass
class Ended:
    """How a claim is to end, as the rules draw it. Times are seconds from now."""

    ending: Ending
    retry_after: float | None = None
    names_a_moment: bool = False


@dataclass
class Model:
    """The dictionary, the database's clock, the processes' clock, and the one row another transaction has locked."""

    now: float = 0.0
    monotonic: float = 0.0
    rows: dict[str, Row] = field(default_factory=dict)
    locked: str | None = None
    newest_claim: int = 0
    newest_generation: int = 0

    def stalled(self, row: Row) -> bool:
        """Whether the run that holds the row has broken its promise."""
        if row.status != "IN_PROGRESS" or row.started is None or row.lease is None:
            return False
        return row.started + row.lease < self.now

    def eligible(self, row: Row) -> bool:
        """The safety clause: nothing else is ever claimed."""
        return row.enabled and (row.status != "IN_PROGRESS" or self.stalled(row))

    def selected(self, account_id: str, row: Row, selection: Selection, since: float) -> bool:
        """The policy of each way of claiming."""
        told_to_wait = row.not_before is not None and row.not_before > self.now
        backing_off = row.next_attempt is not None and row.next_attempt > self.now
        if selection.kind is SelectionKind.ACCOUNTS:
            return account_id in selection.account_ids
        if told_to_wait:
            return False
        if selection.kind is SelectionKind.DUE:
            assert selection.tick is not None
            fresh = row.last_tick is None or row.last_tick < selection.tick
            return self.stalled(row) or (fresh and not backing_off)
        stamped_ahead = row.started is not None and row.started > self.now + FUTURE and row.status != "IN_PROGRESS"
        once = row.started is None or row.started < since or stamped_ahead
        if selection.kind is SelectionKind.ALL:
            return once and not backing_off
        return once and row.generation > row.claimed_generation

    def claimable(self, selection: Selection, run: Run) -> set[str]:
        """What a claim of this run without a limit gets."""
        return {
            account_id
            for account_id, row in self.rows.items()
            if account_id != self.locked
            and self.eligible(row)
            and self.selected(account_id, row, selection, run.since)
            and not (self.stalled(row) and row.claimed_by == run.claims.holder)  # never from itself
        }

    def claim(self, account_id: str, claim_seq: int, run: Run, tick: datetime | None) -> Row:
        """The write of a claim. Returns the row as it was before."""
        assert claim_seq > self.newest_claim, f"claim number {claim_seq} after {self.newest_claim}"
        self.newest_claim = claim_seq
        row = self.rows[account_id]
        before = replace(row)
        if row.status == "IN_PROGRESS":  # a takeover is a failure of the run that died
            row.failures += 1
            row.error_kind = "crashed"
            if self.too_many(row, run):
                row.next_attempt = math.inf
        if row.generation > row.claimed_generation:  # what was changed has not failed yet
            row.next_attempt = None
        row.status = "IN_PROGRESS"
        row.started = self.now
        row.lease = run.lease
        row.claim_seq = claim_seq
        row.claimed_by = run.claims.holder
        row.last_tick = max((t for t in (row.last_tick, tick) if t is not None), default=None)
        row.claimed_generation = row.generation
        return before

    @staticmethod
    def too_many(row: Row, run: Run) -> bool:
        return run.policy.max_failures is not None and row.failures >= run.policy.max_failures

    def release(self, account_id: str) -> None:
        """Out of quarantine, and of our own backoff."""
        row = self.rows[account_id]
        row.failures, row.next_attempt = 0, None

    def verdict(self, account_id: str) -> Verdict:
        """What a person is told who asks why an account was not claimed."""
        row = self.rows.get(account_id)
        if row is None:
            return Verdict.UNKNOWN
        if not row.enabled:
            return Verdict.DISABLED
        if not self.eligible(row):
            return Verdict.IN_PROGRESS
        if account_id == self.locked:
            return Verdict.LOCKED
        if row.next_attempt == math.inf:
            return Verdict.QUARANTINED
        waits = [moment for moment in (row.next_attempt, row.not_before) if moment is not None]
        return Verdict.WAITING if max(waits, default=self.now) > self.now else Verdict.FREE

    def held_by(self, claim: Claim) -> Row | None:
        """The row, if it still is this very claim's: the fence."""
        row = self.rows.get(claim.account.account_id)
        if row is None or row.claim_seq != claim.account.claim_seq or row.status != "IN_PROGRESS":
            return None
        return row

    def expired(self, claim: Claim) -> bool:
        """Whether the run itself must think that its lease is over."""
        return claim.ends <= self.monotonic

    def settle(self, claim: Claim, ended: Ended) -> Fate:
        """The write of a settle or a hand-back that reaches the database once and is answered."""
        row = self.held_by(claim)
        if row is None:
            return Fate.LOST
        if ended.ending is Ending.SUCCEEDED:
            row.status = "IDLE"
            row.last_success = self.now
            row.failures = 0
            row.error_kind = row.next_attempt = row.not_before = None
        elif ended.ending is Ending.FAILED:
            row.status = "FAILED"
            row.failures += 1
            row.error_kind = "retry"
            first, longest = claim.run.policy.backoff_seconds, claim.run.policy.max_backoff_seconds
            row.next_attempt = None if first is None else self.now + min(longest, first * 2 ** (row.failures - 1))
            if self.too_many(row, claim.run):
                row.next_attempt = math.inf
            if ended.retry_after is not None:
                row.not_before = self.now + ended.retry_after
        else:
            self._give_back(row, claim, ended.ending)
        return Fate.RECORDED

    def _give_back(self, row: Row, claim: Claim, ending: Ending) -> None:
        before = claim.before
        if claim.account.answer_lost:  # how the claim found it, nobody knows
            row.status = before.status
            return
        row.status = "FAILED" if before.status == "IN_PROGRESS" else before.status
        if ending is Ending.HANDED_BACK:
            row.started = before.started
            row.last_tick = before.last_tick
            row.claimed_generation = before.claimed_generation

    def fate_without_an_answer(self, claim: Claim) -> Fate:
        """What a run may say of an outcome whose first answer was lost, after whatever was written."""
        if self.expired(claim):
            return Fate.UNKNOWN
        row = self.rows.get(claim.account.account_id)
        if row is None:
            return Fate.LOST
        if row.claim_seq != claim.account.claim_seq:
            return Fate.UNKNOWN
        assert row.status != "IN_PROGRESS", "asked again, it is written"
        return Fate.RECORDED
