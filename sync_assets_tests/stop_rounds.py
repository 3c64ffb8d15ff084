"""Many short runs in one process, each sent a real SIGTERM at a random point; a script for T10.

    python -m sync_assets_tests.stop_rounds DATABASE_URL ROUNDS SEED

After each run it looks at the table through a connection of its own, and it ends with a report as JSON: where the
signals hit, and the rounds after which something was held or counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

from sync_assets.claims import ClaimedAccount, Claims, Database, Selection
from sync_assets.clock import Deadline
from sync_assets.runner import RunOptions, Summary, run
from sync_assets.stop import StopSignal
from sync_assets.upstream import UpstreamClient
from sync_assets_tests.claims_rig import TICK, table_at
from sync_assets_tests.runner_rig import WorkSync

ACCOUNTS = 12


class _Where:
    """What the run is doing: for the report, and for signals that are to hit it there."""

    def __init__(self, monkeypatched: type[Claims]) -> None:
        self.now = "before the first claim"
        self.working = 0
        self.on_first_claim: threading.Timer | None = None
        claim = monkeypatched.claim

        async def claiming(*args: Any) -> Any:
            self.now = "during a claim"
            if self.on_first_claim is not None:
                self.on_first_claim.start()
                self.on_first_claim = None
            try:
                return await claim(*args)
            finally:
                self.now = "after a claim"

        monkeypatched.claim = claiming  # type: ignore[method-assign,assignment]

    def told(self) -> str:
        return f"{self.now}, {'accounts at work' if self.working else 'nothing at work'}"


async def _round(database: Database, client: UpstreamClient, number: int, where: _Where) -> tuple[Summary, str | None]:
    """One run of the loop with a SIGTERM at a random point. Returns where that hit it."""
    stop = StopSignal()
    hit: list[str] = []

    def on_signal(*_: object) -> None:
        hit.append(where.told())
        stop.set()

    async def work(account: ClaimedAccount, deadline: Deadline) -> None:
        where.working += 1
        try:
            await asyncio.sleep(random.uniform(0, 0.01))
        finally:
            where.working -= 1

    where.now = "before the first claim"
    signal.signal(signal.SIGTERM, on_signal)
    timer = threading.Timer(random.uniform(0.0, 0.06), os.kill, (os.getpid(), signal.SIGTERM))
    if number % 5 == 0:
        timer.interval /= 40  # what comes before the first claim is short
        timer.start()
    else:
        where.on_first_claim = timer
    tick = Selection.due(TICK + timedelta(seconds=number))
    try:
        claims = Claims(database, holder=f"run-{number}/1", lease_seconds=lambda _: 60.0)
        await claims.begin(tick)
        sync = WorkSync(database, work)
        summary = await run(claims, sync, client, tick, options=RunOptions(concurrency=4), stop=stop)
    finally:
        timer.cancel()
        where.on_first_claim = None
        if timer.is_alive():
            timer.join()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return summary, hit[0] if hit else None


async def main(url: str, rounds: int, seed: int) -> None:
    """Run them and print the report."""
    random.seed(seed)
    where = _Where(Claims)
    hits: Counter[str] = Counter()
    wrong: list[str] = []
    handed_back = 0
    with table_at(url) as table:
        table.add(*(f"a{n:02}" for n in range(ACCOUNTS)))
        # a claim that takes a while to be committed, so that a signal can hit it
        table.connection.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.004); RETURN NULL; "
            "END $$; CREATE TRIGGER slow AFTER UPDATE OF lease ON sync.account_config FOR EACH STATEMENT "
            "EXECUTE FUNCTION slow()"
        )
        async with Database(url) as database, UpstreamClient() as client:
            for number in range(rounds):
                summary, hit = await _round(database, client, number, where)
                hits[hit or "after the end"] += 1
                handed_back += summary.handed_back
                held = [name for name, status in table.column("status").items() if status != "IDLE"]
                counted = [name for name, failures in table.column("failures").items() if failures]
                if held or counted or summary.failed or summary.lost or summary.unknown:
                    wrong.append(f"round {number}, hit {hit}: {summary}; held {held}, counted {counted}")
    print(json.dumps({"hits": hits, "handed_back": handed_back, "wrong": wrong}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
