"""Small histories made by hand, for the checker's own tests: each line is one thing that happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sync_assets.push.request import Change, idempotency_key
from sync_assets_tests.soak.history import (
    AccountState,
    Fault,
    History,
    Jump,
    RecordChange,
    RecordState,
    Request,
    RowChange,
    RunInfo,
    Told,
)

LEASE = 3.0


class Story:
    """A history in the making. All clocks agree."""

    def __init__(self) -> None:
        self.history = History(hopeless={"bad": "auth"}, calm=1000.0)
        self._rows: dict[str, AccountState | None] = {}
        self._records: dict[tuple[str, str], RecordState | None] = {}

    def run(self, name: str, kind: str = "due", tick: float | None = 100.0, *, says_so: bool = True) -> None:
        self.history.runs[name] = RunInfo(name, kind, LEASE, tick if kind == "due" else None)
        if says_so:
            self.told(name, 900.0, "run", "ok")

    def account(self, name: str, at: float = 0.0, **columns: Any) -> None:
        self._note(at, "owner", name, AccountState(generation=1, **columns))
        self.history.authorizations[name] = f"hash of {name}'s"

    def row(self, who: str, account: str, at: float, *, ahead: float = 0.0, **columns: Any) -> None:
        before = self._rows[account]
        assert before is not None
        self._note(at, who, account, replace(before, **columns), ahead)

    def delete(self, account: str, at: float) -> None:
        self._note(at, "owner", account, None)

    def claim(self, run: str, account: str, at: float, seq: int, *, ahead: float = 0.0, **columns: Any) -> None:
        """A claim at a moment of everybody's clock, which the database's may be ahead of."""
        before = self._rows[account]
        assert before is not None
        tick = self.history.runs[run].tick
        died = before.status == "IN_PROGRESS"
        usual = {
            "status": "IN_PROGRESS",
            "started_at": at + ahead,
            "lease": LEASE,
            "claim_seq": seq,
            "claimed_by": f"{run}/1",
            "last_tick": before.last_tick if tick is None else max(tick, before.last_tick or 0.0),
            "claimed_generation": before.generation,
            "failures": before.failures + died,
            "error_kind": "crashed" if died else before.error_kind,
        }
        self.row(run, account, at, ahead=ahead, **{**usual, **columns})
        self.told(run, at, "claim", "ok", account, seq)

    def succeed(self, run: str, account: str, at: float, **columns: Any) -> None:
        usual = {"status": "IDLE", "last_success": at, "failures": 0, "error_kind": None, "not_before": None}
        self.row(run, account, at, **{**usual, **columns})
        self._settled(run, account, at, "succeeded")

    def fail(self, run: str, account: str, at: float, kind: str, **columns: Any) -> None:
        before = self._rows[account]
        assert before is not None
        usual = {"status": "FAILED", "failures": before.failures + 1, "error_kind": kind}
        self.row(run, account, at, **{**usual, **columns})
        self._settled(run, account, at, "failed")

    def hand_back(self, run: str, account: str, at: float, **columns: Any) -> None:
        """As a row that had never been claimed before."""
        self.row(run, account, at, **{"status": "IDLE", "started_at": None, "last_tick": None, **columns})
        self._settled(run, account, at, "handed_back")

    def _settled(self, run: str, account: str, at: float, ending: str) -> None:
        row = self._rows[account]
        assert row is not None
        self.told(run, at, "settle", "ok", account, row.claim_seq, ending=ending, fate="recorded")

    def told(
        self,
        run: str,
        at: float,
        what: str,
        phase: str,
        account: str | None = None,
        seq: int | None = None,
        **more: Any,
    ) -> None:
        self.history.told.append(Told(at, run, what, phase, account, seq, **more))

    def fault(self, kind: str, at: float, run: str | None = None, until: float | None = None) -> None:
        self.history.faults.append(Fault(at, kind, run, until))

    def clock_set(self, at: float, before: float, offset: float) -> None:
        """The database's clock, which is what `claim` is told its times of."""
        self.history.jumps.append(Jump(at, at, before, offset))

    def record(self, account: str, record: str, version: int, at: float, *, deleted: bool = False) -> None:
        before = self._records.get((account, record))
        synced = before.synced_version if before else None
        self._note_record(at, "owner", account, record, RecordState(version, synced, deleted=deleted))

    def acknowledge(self, run: str, account: str, record: str, version: int, at: float, **holder: Any) -> None:
        before = self._records[account, record]
        assert before is not None
        self._note_record(at, run, account, record, replace(before, synced_version=version), **holder)

    def refuse(self, run: str, account: str, record: str, version: int, at: float) -> None:
        before = self._records[account, record]
        assert before is not None
        self._note_record(at, run, account, record, replace(before, rejected_version=version))

    def send(self, seq: int, account: str, record: str, version: int, at: float, **more: Any) -> None:
        state = self._records[account, record]
        deleted = state is not None and state.deleted
        body = None if deleted else f"{account}{record}{version}".encode()
        usual = {
            "number": len(self.history.requests),
            "at": at,
            "method": "DELETE" if deleted else "PUT",
            "account": account,
            "record": record,
            "key": idempotency_key(account, Change(record, version, None if deleted else "{}"), body),
            "claim_seq": seq,
            "version": None if deleted else version,
            "body_hash": str(body),
            "authorization_hash": self.history.authorizations[account],
            "verdict": "accepted",
            "ended": at + 0.01,
            "how": "answered",
        }
        self.history.requests.append(Request(**{**usual, **more}))

    def _note(self, at: float, who: str, account: str, after: AccountState | None, ahead: float = 0.0) -> None:
        rows = self.history.rows
        rows.append(RowChange(len(rows), at, at + ahead, who, account, self._rows.get(account), after, ahead))
        self._rows[account] = after

    def _note_record(self, at: float, who: str, account: str, record: str, after: RecordState, **holder: Any) -> None:
        row = self._rows[account]
        usual = {"holder_seq": row.claim_seq if row else None, "holder_status": row.status if row else None}
        before = self._records.get((account, record))
        number = len(self.history.records)
        self.history.records.append(
            RecordChange(number, at, who, account, record, before, after, **{**usual, **holder})
        )
        self._records[account, record] = after


def worked(story: Story) -> None:
    """`r1` claims `a` at 10, sends its record, acknowledges it, and is about to settle."""
    story.run("r1")
    story.account("a")
    story.record("a", "r", 5, 1.0)
    story.claim("r1", "a", 10.0, 1)
    story.send(1, "a", "r", 5, 10.1)
    story.acknowledge("r1", "a", "r", 5, 10.2)


def done(story: Story) -> None:
    worked(story)
    story.succeed("r1", "a", 10.3)


def taken_over(story: Story) -> None:
    """`r1` claims `a` at 10 and sends; `r2` takes over at 14, and settles. The lease is 3 s."""
    story.run("r1")
    story.run("r2", tick=101.0)
    story.account("a")
    story.record("a", "r", 5, 1.0)
    story.record("a", "s", 6, 1.0)
    story.claim("r1", "a", 10.0, 1)
    story.send(1, "a", "r", 5, 10.1, how="gone")
    story.claim("r2", "a", 14.0, 2)
    story.send(2, "a", "r", 5, 14.1)
    story.send(2, "a", "s", 6, 14.2)
    story.acknowledge("r2", "a", "r", 5, 14.3)
    story.acknowledge("r2", "a", "s", 6, 14.3)
    story.succeed("r2", "a", 14.4)
