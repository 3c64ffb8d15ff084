"""Replays a soak's history, once through, and holds the design's promises on it as far as a history can show them."""

from __future__ import annotations

from sync_assets_tests.soak.check_rows import Claim, RowChecker
from sync_assets_tests.soak.check_sends import SendChecker
from sync_assets_tests.soak.history import Fault, History, RecordState, Told
from sync_assets_tests.soak.verdict import Verdict

_LASTS = 6.0
"""Seconds in which a fault of the database may still be felt: a restart, or a connection on which nothing comes."""

_ENDINGS = {
    "succeeded": {"succeeded"},
    "failed": {"failed"},
    "handed_back": {"handed_back", "given_up"},  # of a claim whose answer was lost nobody knows how it found the row
    "given_up": {"given_up"},
}


def check(history: History) -> Verdict:
    """Replay it all."""
    verdict = Verdict()
    rows = RowChecker(history, verdict)
    rows.replay()
    sends = SendChecker(history, verdict, rows.claims)
    sends.replay()
    checker = _Checker(history, verdict, rows, sends)
    checker.beliefs()
    checker.faults()
    checker.end()
    verdict.hold("P11", not history.leaked, f"a secret is in {', '.join(history.leaked)}")
    return verdict


class _Checker:
    """What the runs believed against what was, what the faults met, and how it all ended."""

    def __init__(self, history: History, verdict: Verdict, rows: RowChecker, sends: SendChecker) -> None:
        self._history = history
        self._verdict = verdict
        self._rows = rows
        self._sends = sends
        self._of_run: dict[str, list[Claim]] = {}
        for claim in rows.claims.values():
            self._of_run.setdefault(claim.run, []).append(claim)

    def beliefs(self) -> None:
        """Nothing reported as recorded that was not, nor as lost that was; and each run that was let end said so."""
        ended = set()
        for told in self._history.told:
            if told.what == "run":
                ended.add(told.run)
            claim = self._rows.claims.get(told.claim_seq or 0)
            if told.what not in {"claim", "settle", "acknowledge"}:
                continue
            self._verdict.hold(
                "P3", claim and claim.run == told.run, f"told of a claim that was never committed: {told}"
            )
            if claim is not None and told.phase != "invoke":
                self._believed(told, claim)
        killed = {fault.run for fault in self._history.faults if fault.kind == "kill"}
        for run in self._history.runs.keys() - killed:
            self._verdict.hold("P5", run in ended, f"run {run} ended without a word, and was not killed")

    def _believed(self, told: Told, claim: Claim) -> None:
        what = f"{told}, {claim}"
        if told.what == "settle" and told.phase == "ok":
            self._verdict.hold("P8", claim.how in _ENDINGS[told.ending or ""], f"recorded, and it was not: {what}")
        elif told.phase == "fail":
            written = told.what == "settle" and claim.how in _ENDINGS[told.ending or ""]
            self._verdict.hold("P4", not written, f"reported as lost, and it was recorded: {what}")
            if claim.how in {"taken_over", "deleted"} and claim.ended is not None and claim.ended <= told.at:
                self._verdict.counts["fenced-out writes"] += 1
            else:
                self._verdict.counts["writes given up at the lease's end"] += 1
        elif told.phase == "info":
            self._verdict.counts["writes whose outcome was unknown"] += 1

    def faults(self) -> None:
        """Count them; and P10: a run that was asked to stop and did leaves nothing held."""
        asked: dict[str | None, Fault] = {}
        for fault in self._history.faults:
            if fault.kind == "stopped":
                self._stopped(asked[fault.run], fault)
                continue
            self._verdict.counts[f"fault: {fault.kind}"] += 1
            if fault.kind == "stop":
                asked[fault.run] = fault
            if fault.kind in {"kill", "pause"} and fault.at < self._history.calm and self._held(fault.run, fault.at):
                self._verdict.counts["kills and pauses while holding rows"] += 1

    def _held(self, run: str | None, at: float) -> list[Claim]:
        claims = self._of_run.get(run or "", [])
        return [claim for claim in claims if claim.at <= at and (claim.ended is None or at < claim.ended)]

    def _stopped(self, asked: Fault, ended: Fault) -> None:
        if any(self._disturbs(other, asked, ended) for other in self._history.faults):
            return
        self._verdict.counts["stops that nothing disturbed"] += 1
        held = self._held(asked.run, ended.at)
        self._verdict.hold("P10", not held, f"{asked.run} was asked to stop, ended, and left {held}")

    def _disturbs(self, other: Fault, asked: Fault, ended: Fault) -> bool:
        """Whether a fault may have kept a run from handing back: by a database that was away, or by freezing it."""
        if not asked.at - _LASTS < (other.until or other.at) or not other.at < ended.at:
            return False
        if other.kind.startswith("proxy"):
            return self._history.runs[asked.run or ""].proxied
        same = other.run == asked.run and other.kind in {"kill", "pause", "terminate"}
        return same or other.kind.startswith("restart of Postgres")

    def end(self) -> None:
        """All is at rest, the hopeless failed in the way that is theirs, and nobody else because of them."""
        good: set[str] = set()
        for account, change in self._rows.last.items():
            row = change.after
            if row is None:
                continue
            self._verdict.hold("P3", row.status != "IN_PROGRESS", f"held at the end: {change}")
            if account in self._history.hopeless:
                as_expected = (row.status, row.error_kind) == ("FAILED", self._history.hopeless[account])
                self._verdict.hold("P5", as_expected, f"at the end, with no hope: {change}")
            elif row.enabled:
                good.add(account)
                self._verdict.hold("P5", row.status == "IDLE" and row.failures == 0, f"not healed at the end: {change}")
                self._verdict.hold("P7", row.generation == row.claimed_generation, f"a change was not seen: {change}")
        self._verdict.counts["accounts at rest in the end"] = len(good)
        last: dict[tuple[str, str], RecordState | None] = {
            (change.account, change.record): change.after for change in self._history.records
        }
        for (account, record), state in last.items():
            if state is None or account not in good or state.rejected_version == state.version:
                continue
            upstream = self._sends.upstream.get((account, record))
            equal = state.synced_version == state.version == upstream
            self._verdict.hold("P8", equal, f"at the end {account}/{record} is {state}, and upstream {upstream}")
            self._verdict.counts["records equal upstream in the end"] += 1
