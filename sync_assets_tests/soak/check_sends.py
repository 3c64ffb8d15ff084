"""What was sent and what was acknowledged, against the claims."""

from __future__ import annotations

from collections import defaultdict

from sync_assets.push.request import Change, idempotency_key
from sync_assets_tests.soak.check_rows import Claim
from sync_assets_tests.soak.history import History, RecordChange, Request
from sync_assets_tests.soak.verdict import Verdict

SLACK = 0.1
"""Seconds between a request's sending and its arrival at an upstream that is not stalled."""

_CLOCKS = 0.002
"""Seconds by which a converted time of the database may be off."""

RESEND = 1.0
"""Seconds after a pause in which what it interrupted may still arrive."""


class SendChecker:
    """Holds P1, P4, P8 and P11 on the requests and on the acknowledgements.

    A request counts as late when it arrives after its claim had ended. A claim that was settled, handed back or given
    up by its own run has no late requests at all. One that was taken over, or whose row was deleted, may have a single
    late key, and only if its process was frozen (by a SIGSTOP of ours, or by a machine that did not let it run, which
    it wrote down) from before the end on, and not longer than `RESEND` after it went on: a process that is frozen
    between its last look at the clock and its send cannot know, and an account's requests go one after the other. A
    claim whose row was deleted may go on to the end of its lease, since nothing tells it. So may one that was taken
    over because the database's clock was set forward during it: its lease has not ended on any clock it can read.
    """

    def __init__(self, history: History, verdict: Verdict, claims: dict[int, Claim]) -> None:
        self._history = history
        self._verdict = verdict
        self._claims = claims
        self._pauses: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._keys: dict[tuple[str, str, int], tuple[str | None, str]] = {}
        self._version_of: dict[str | None, tuple[str, str, int]] = {}
        self._late: dict[int, str | None] = {}
        self._limited: set[int] = set()
        self._verdicts: dict[tuple[int, tuple[str, str, int]], list[tuple[float, str]]] = defaultdict(list)
        self._versions = {(c.account, c.record, c.after.version) for c in history.records if c.after}
        self._tombstones: dict[str | None, int] = {
            idempotency_key(c.account, Change(c.record, c.after.version, None), None): c.after.version
            for c in history.records
            if c.after and c.after.deleted
        }
        self.upstream: dict[tuple[str, str], int] = {}

    def replay(self) -> None:
        for fault in self._history.faults:
            if fault.kind == "pause" and fault.run and fault.until:
                self._pauses[fault.run].append((fault.at, fault.until))
        for told in self._history.told:
            if told.what == "stall" and told.since is not None:
                self._pauses[told.run].append((told.since, told.at))
                ours = any(since < told.at and told.since < until for since, until in self._pauses[told.run][:-1])
                self._verdict.counts["stalls of the machine"] += not ours
        for request in self._history.requests:
            self._request(request)
        for change in self._history.records:
            if change.who in self._history.runs:
                self._acknowledged(change)

    def _request(self, request: Request) -> None:
        hold, counts = self._verdict.hold, self._verdict.counts
        counts["requests"] += 1
        counts[f"requests {request.verdict}"] += 1
        if request.verdict == "accepted" and request.how != "answered":
            counts["ambiguous sends"] += 1
        claim = self._claims.get(request.claim_seq or 0)
        hold("P1", claim, f"sent under a number that was no claim's: {request}")
        if claim is None:
            return
        hold("P1", claim.account == request.account, f"sent under another account's claim {claim}: {request}")
        hold("P1", request.at > claim.at - SLACK, f"sent before its claim {claim}: {request}")
        expected = self._history.authorizations.get(request.account)
        hold("P11", request.authorization_hash == expected, f"sent with what is not the account's secret: {request}")
        hold("P9", claim.seq not in self._limited, f"sent again after a 429 to its claim: {request}")
        if request.verdict == "limited" and request.how == "answered":
            self._limited.add(claim.seq)
        if claim.ended is not None and request.at > claim.ended + SLACK:
            self._arrived_late(request, claim, claim.ended)
        self._keyed(request, claim)

    def _arrived_late(self, request: Request, claim: Claim, ended: float) -> None:
        if claim.how == "deleted" and request.at <= claim.lease_end + SLACK:
            self._verdict.counts["requests of a claim whose row was deleted"] += 1
            return
        early = claim.how == "taken_over" and self._history.jumped_forward(claim.at - SLACK, ended)
        if early and request.at <= claim.lease_end + SLACK:
            self._verdict.counts["requests of a claim that a jump of the database's clock had ended"] += 1
            return
        if any(since <= request.at <= until + SLACK for since, until in self._pauses["upstream"]):
            return  # it was the upstream that did not look
        frozen = any(since <= ended and request.at <= until + RESEND for since, until in self._pauses[claim.run])
        first = self._late.setdefault(claim.seq, request.key)
        allowed = claim.how in {"taken_over", "deleted"} and frozen and first == request.key
        self._verdict.hold("P1", allowed, f"sent after its claim had ended: {claim}, {request}")
        self._verdict.counts["requests in flight when their process was frozen"] += 1

    def _keyed(self, request: Request, claim: Claim) -> None:
        """P8: one version, one key, one body; and the version is one that the record really had."""
        hold = self._verdict.hold
        # a DELETE names no version, but its key is made of it
        version = request.version if request.method == "PUT" else self._tombstones.get(request.key)
        known = version is not None and (request.account, request.record, version) in self._versions
        hold("P8", known, f"no such version: {request}")
        if version is None:
            return
        sent = (request.account, request.record, version)
        as_before = self._keys.setdefault(sent, (request.key, request.body_hash))
        hold("P8", as_before == (request.key, request.body_hash), f"before it was {as_before}: {request}")
        hold("P8", self._version_of.setdefault(request.key, sent) == sent, f"a key that is another's: {request}")
        self._verdicts[(claim.seq, sent)].append((request.at, request.verdict))
        if request.verdict == "accepted":
            self.upstream[request.account, request.record] = version

    def _acknowledged(self, change: RecordChange) -> None:
        """P4 and P8: only its own claim's, and only what the upstream had said before."""
        hold, what = self._verdict.hold, f"{change}"
        if change.before is None or change.after is None:
            hold("P12", False, f"a run made or deleted a record: {what}")
            return
        claim = self._claims.get(change.holder_seq or 0)
        held = claim is not None and claim.run == change.who and change.holder_status == "IN_PROGRESS"
        hold("P4", held, f"written by a run that did not hold the account ({claim}): {what}")
        hold("P12", change.after.version == change.before.version, f"a run changed a record: {what}")
        for now, before, verdict in (
            (change.after.synced_version, change.before.synced_version, "accepted"),
            (change.after.rejected_version, change.before.rejected_version, "rejected"),
        ):
            if now is None or now == before or claim is None:
                continue
            self._verdict.counts[f"records acknowledged as {verdict}"] += 1
            answers = self._verdicts.get((claim.seq, (change.account, change.record, now)), [])
            told = any(said == verdict and at <= change.at + _CLOCKS for at, said in answers)
            hold("P8", told, f"acknowledged as {verdict} before it was ({answers}): {what}")
