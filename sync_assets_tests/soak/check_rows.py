"""The account rows, replayed change by change: each a claim, a write of the claim's own holder, or the owner's."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from sync_assets_tests.soak.history import AccountState, History, RowChange, RunInfo
from sync_assets_tests.soak.verdict import Verdict

_EPSILON = 1e-4
"""Seconds: what is lost when microseconds since the epoch become a float."""

LONGEST_WAIT = 20.0
"""Seconds a dead claim may wait for its takeover: ticks come every second, but a run works a suspect account alone,
an owner may hold the row for two seconds, and Postgres is restarted."""


@dataclass
class Claim:
    """One claim: from when until when its number was the row's, and how it came to its end.

    `how`: succeeded, failed, handed_back, given_up, taken_over, deleted; None: it never ended. Times are everybody's.
    """

    account: str
    seq: int
    run: str
    at: float
    lease_end: float
    taken_over: bool
    ended: float | None = None
    how: str | None = None


class RowChecker:
    """Holds P1 to P4, P9 and P10 on the changes of the account rows; afterwards `claims` has every claim by number."""

    def __init__(self, history: History, verdict: Verdict) -> None:
        self.claims: dict[int, Claim] = {}
        self.last: dict[str, RowChange] = {}
        self._history = history
        self._verdict = verdict
        # by account: how many claims of a tick count, those handed back do not
        self._claimed_for: defaultdict[str, Counter[float]] = defaultdict(Counter)
        self._found: dict[int, AccountState] = {}
        self._claimable_since: dict[str, float] = {}
        # of limited requests: by claim, when the upstream allows the next
        self._allowed = {
            request.claim_seq: (request.ended or request.at) + (request.retry_after or 0.0)
            for request in history.requests
            if request.verdict == "limited" and request.how == "answered"
        }

    def replay(self) -> None:
        for change in self._history.rows:
            previous = self.last.get(change.account)
            self._verdict.hold(
                "history",
                change.before == (previous.after if previous else None),
                f"a change is missing before {change}",
            )
            self.last[change.account] = change
            if change.after is None:
                self._end(change, "deleted")
            elif change.before is None:
                self._claimed_for[change.account].clear()  # another row, which no tick has claimed yet
            elif change.who in self._history.runs:
                self._by_run(self._history.runs[change.who], change, change.before, change.after)
            if change.after and change.after.enabled and not (change.before and change.before.enabled):
                self._claimable_since[change.account] = change.at

    def _by_run(self, run: RunInfo, change: RowChange, before: AccountState, after: AccountState) -> None:
        hold, what = self._verdict.hold, f"{run} by {change}"
        hold("P1", (after.claimed_by or "").startswith(f"{run.run}/"), f"a run wrote in another's name: {what}")
        hold("P12", after.enabled == before.enabled, f"a run wrote what is the owner's: {what}")
        if after.claim_seq != before.claim_seq:
            self._claim(run, change, before, after)
            return
        hold("P4", before.status == "IN_PROGRESS", f"a settle met a row that nobody held: {what}")
        hold("P4", before.claimed_by == after.claimed_by, f"a settle was not the holder's: {what}")
        hold("P4", after.status in {"IDLE", "FAILED"}, f"a settle left the row held: {what}")
        self._end(change, self._ending(run, change, before, after))

    def _claim(self, run: RunInfo, change: RowChange, before: AccountState, after: AccountState) -> None:
        hold, what = self._verdict.hold, f"{run} by {change}"
        hold("P1", after.claim_seq > before.claim_seq, f"a claim number went back: {what}")
        hold("P1", after.claim_seq not in self.claims, f"a claim number was given twice: {what}")
        hold("P1", after.status == "IN_PROGRESS", f"a claim left the row free: {what}")
        hold("P6", before.enabled, f"a disabled account was claimed: {what}")
        hold("P3", after.started_at is not None and abs(after.started_at - change.began) < _EPSILON, f"start: {what}")
        hold("P3", after.lease is not None and abs(after.lease - run.lease) < _EPSILON, f"another lease: {what}")
        taken_over = before.status == "IN_PROGRESS"
        if taken_over:
            self._verdict.counts["takeovers"] += 1
            hold("P3", before.lease_end < change.began + _EPSILON, f"taken over before its lease ended: {what}")
            hold("P3", after.failures == before.failures + 1, f"a takeover was not counted: {what}")
            # by the database's clock, wherever that was set meanwhile
            times = (max(before.lease_end, before.not_before or 0.0), change.at)
            since = max(self._history.reached(*times), self._claimable_since.get(change.account, 0.0))
            if change.at < self._history.calm:  # afterwards no tick comes for a while
                self._verdict.longest_wait = max(self._verdict.longest_wait, change.at - since)
                hold("P3", change.at - since < LONGEST_WAIT, f"stuck for {change.at - since:.1f} s: {what}")
            self._end(change, "taken_over")
        self._selected(run, change, before, after, taken_over=taken_over)
        self._verdict.counts[f"claims ({run.kind})"] += 1
        self._found[after.claim_seq] = before
        self.claims[after.claim_seq] = Claim(
            change.account,
            after.claim_seq,
            run.run,
            change.at,
            after.lease_end - change.ahead,
            taken_over,
        )

    def _selected(
        self, run: RunInfo, change: RowChange, before: AccountState, after: AccountState, *, taken_over: bool
    ) -> None:
        """P2 and P9: what each kind of run may claim."""
        hold, what, now = self._verdict.hold, f"{run} by {change}", change.began + _EPSILON
        if run.kind != "accounts":
            hold("P9", before.not_before is None or before.not_before <= now, f"before the upstream's time: {what}")
        if run.kind in {"due", "all"} and not taken_over:
            waited = before.next_attempt_at is None or before.next_attempt_at <= now
            hold("P9", waited, f"before our own backoff: {what}")
        if run.kind == "changed":
            hold("P7", before.generation > before.claimed_generation, f"nothing had changed: {what}")
        if run.kind != "due" or run.tick is None:
            return
        counted = self._claimed_for[change.account]
        if not taken_over:
            hold("P2", not counted[run.tick], f"claimed twice for one tick: {what}")
            hold("P2", before.last_tick is None or before.last_tick < run.tick, f"for a tick that has been: {what}")
        counted[run.tick] += 1
        hold("P2", after.last_tick == max(run.tick, before.last_tick or 0.0), f"the tick is not in the row: {what}")

    def _ending(self, run: RunInfo, change: RowChange, before: AccountState, after: AccountState) -> str:
        """Which of the four writes it was, by what it left in the row."""
        hold, what = self._verdict.hold, f"{run} by {change}"
        if after.failures == before.failures + 1:
            hold("P5", after.status == "FAILED" and after.error_kind, f"a failure that is none: {what}")
            if after.error_kind == "rate_limited":
                allowed = self._allowed.get(before.claim_seq)
                named = None if after.not_before is None else after.not_before - change.ahead
                kept = allowed is not None and named is not None and named >= allowed - 0.05
                hold("P9", kept, f"the upstream allows {allowed}, the row {named}: {what}")
            return "failed"
        if after.status == "IDLE" and after.last_success is not None and after.last_success != before.last_success:
            hold("P5", after.failures == 0 and after.not_before is None, f"a success that remembers failures: {what}")
            return "succeeded"
        hold("P10", after.failures == before.failures, f"a hand-back counted something: {what}")
        found = self._found.get(before.claim_seq)
        if found is None or after.started_at == before.started_at:
            return "given_up"
        same = (after.started_at, after.last_tick) == (found.started_at, found.last_tick)
        hold("P10", same, f"handed back otherwise than it was found ({found}): {what}")
        hold("P10", after.status == ("FAILED" if found.status == "IN_PROGRESS" else found.status), f"status: {what}")
        if run.kind == "due" and run.tick is not None:
            self._claimed_for[change.account][run.tick] -= 1
        return "handed_back"

    def _end(self, change: RowChange, how: str) -> None:
        claim = self.claims.get(change.before.claim_seq) if change.before else None
        if claim is not None and claim.how is None:
            claim.ended, claim.how = change.at, how
            self._verdict.counts[f"claims ended: {how}"] += 1
