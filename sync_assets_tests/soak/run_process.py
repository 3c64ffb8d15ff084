"""One run of the loop in a process of its own, which writes down what it believes it did."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sync_assets import sync_run
from sync_assets.account_sync import LeaseLost
from sync_assets.claims import ClaimedAccount, Claims, Fate, Outcome, Selection
from sync_assets.claims.errors import DatabaseUnavailable
from sync_assets.clock import monotonic
from sync_assets.push import push
from sync_assets.push.records import Outcome as RecordOutcome
from sync_assets.push.records import Records
from sync_assets.runner import AccountResult
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking
from sync_assets_tests.soak.children import end_with_parent
from sync_assets_tests.soak.events import EventLog

_JUMP_AFTER_SECONDS = 0.5


@dataclass(frozen=True)
class Order:
    """What a run is to do.

    Attributes:
        run: its id, and the database role it logs in as.
        kind: due, all, accounts or changed.
        tick: for `due`.
        accounts: for `accounts`.
        clock_jump: seconds by which its wall clock is set soon after the start.
    """

    run: str
    folder: Path
    database_url: str
    upstream_url: str
    kind: str
    lease: float
    concurrency: int
    tick: datetime | None = None
    accounts: tuple[str, ...] = ()
    clock_jump: float = 0.0

    def to_json(self) -> str:
        tick = self.tick.isoformat() if self.tick else None
        return json.dumps({**vars(self), "folder": str(self.folder), "tick": tick})

    @classmethod
    def from_json(cls, text: str) -> Order:
        told = json.loads(text)
        tick = datetime.fromisoformat(told["tick"]) if told["tick"] else None
        return cls(**{**told, "folder": Path(told["folder"]), "tick": tick, "accounts": tuple(told["accounts"])})

    def selection(self) -> Selection:
        if self.tick is not None:
            return Selection.due(self.tick)
        if self.kind == "accounts":
            return Selection.accounts(self.accounts)
        return Selection.changed() if self.kind == "changed" else Selection.all()


def work(order: Order) -> None:
    """The whole life of the process."""
    end_with_parent()
    _jump(order.clock_jump)
    logging.basicConfig(filename=order.folder / f"run-{order.run}.log", level=logging.DEBUG, force=True)
    log = EventLog(order.folder / f"run-{order.run}.jsonl")
    stop = StopSignal()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    _listen(log, order.run)

    def on_result(result: AccountResult) -> None:
        log.write(run=order.run, what="result", phase="info", account=result.account_id, fate=result.outcome)

    try:
        run_blocking(
            ClaimSettings(order.database_url, lease_seconds=order.lease),
            SyncSettings(
                concurrency=order.concurrency,
                upstream_url=order.upstream_url,
                request_timeout_seconds=order.lease,
                allow_private_upstreams=True,
            ),
            order.selection(),
            run_id=order.run,
            stop=stop,
            on_result=on_result,
        )
    except DatabaseUnavailable:
        log.write(run=order.run, what="run", phase="fail")
    else:
        log.write(run=order.run, what="run", phase="ok")


def _listen(log: EventLog, run: str) -> None:
    """Have what this run's claims and acknowledgements say written down, as they say it."""

    class RecordingClaims(Claims):
        async def begin(self, selection: Selection) -> Selection:
            self._watching = asyncio.create_task(log.watch_stalls(run=run, what="stall", phase="info"))
            return await super().begin(selection)

        async def claim(self, selection: Selection, limit: int) -> list[ClaimedAccount]:
            accounts = await super().claim(selection, limit)
            for each in accounts:
                log.write(run=run, what="claim", phase="ok", account=each.account_id, claim_seq=each.claim_seq)
            return accounts

        async def settle(self, outcome: Outcome) -> Fate:
            what = {
                "run": run,
                "what": "settle",
                "account": outcome.account.account_id,
                "claim_seq": outcome.account.claim_seq,
                "ending": outcome.ending.value,
            }
            log.write(phase="invoke", **what)
            fate = await super().settle(outcome)
            phase = {Fate.RECORDED: "ok", Fate.LOST: "fail", Fate.UNKNOWN: "info"}[fate]
            log.write(phase=phase, fate=fate.value, **what)
            return fate

    class RecordingRecords(Records):
        async def acknowledge(self, outcomes: Mapping[str, RecordOutcome]) -> set[str]:
            what = {
                "run": run,
                "what": "acknowledge",
                "account": self._account.account_id,
                "claim_seq": self._account.claim_seq,
            }
            log.write(phase="invoke", **what)
            try:
                edited = await super().acknowledge(outcomes)
            except LeaseLost:
                log.write(phase="fail", fate="lost", **what)
                raise
            except BaseException:
                log.write(phase="info", **what)
                raise
            log.write(phase="ok", **what)
            return edited

    sync_run.Claims = RecordingClaims  # type: ignore[attr-defined]
    push.Records = RecordingRecords  # type: ignore[attr-defined]


def _jump(seconds: float) -> None:
    """Set what Python takes for the wall clock, a little after now; libfaketime, where it is, has done it already."""
    if not seconds or "FAKETIME" in os.environ:
        return
    real, jumps_at = time.time, monotonic() + _JUMP_AFTER_SECONDS
    time.time = lambda: real() + (seconds if monotonic() > jumps_at else 0.0)


if __name__ == "__main__":
    work(Order.from_json(sys.argv[1]))
