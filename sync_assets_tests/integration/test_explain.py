"""Why an account was not claimed, in words that name the way out (P6)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import psycopg
import pytest

from sync_assets.claims import Database, Explanation, Selection, Verdict, count_changed
from sync_assets_tests.claims_rig import TICK, claims_at, ids, table_at


def _explain(url: str, account_id: str) -> Explanation:
    async def explain() -> Explanation:
        async with claims_at(url, "asks/1") as claims:
            return await claims.explain(account_id)

    return asyncio.run(explain())


def test_unknown_and_disabled(database_url: str) -> None:
    with table_at(database_url) as table:
        table.add("off", enabled=False)
        unknown = _explain(database_url, "nobody's")
        assert unknown.verdict is Verdict.UNKNOWN
        assert "nobody's" in str(unknown)
        assert "sync.account_config" in str(unknown)
        disabled = _explain(database_url, "off")
        assert disabled.verdict is Verdict.DISABLED
        assert "set enabled to true" in str(disabled)


def test_in_progress_names_the_holder_since_when_and_until_when(database_url: str) -> None:
    async def claim() -> None:
        async with claims_at(database_url, "busy-run/7", lease=600) as claims:
            assert ids(await claims.claim(Selection.due(TICK), 1)) == {"a"}

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(claim())
        busy = _explain(database_url, "a")
        row = table.row("a")
        assert busy.verdict is Verdict.IN_PROGRESS
        assert (busy.claimed_by, busy.since) == ("busy-run/7", row["started_at"])
        assert busy.until == row["started_at"] + timedelta(seconds=600)
        for word in ("busy-run/7", f"{row['started_at']:%H:%M:%S} UTC", f"{busy.until:%H:%M:%S} UTC"):
            assert word in str(busy)
        table.age("a", seconds=601)
        assert _explain(database_url, "a").verdict is Verdict.FREE


def test_locked_just_now_is_told_from_free(database_url: str) -> None:
    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a")
        owner.execute("SELECT FROM sync.account_config FOR UPDATE")
        locked = _explain(database_url, "a")
        assert locked.verdict is Verdict.LOCKED
        assert "locked just now" in str(locked)
        owner.rollback()
        assert _explain(database_url, "a").verdict is Verdict.FREE


@pytest.mark.parametrize(
    ("columns", "word"), [({"not_before": 1}, "the upstream asked"), ({"next_attempt_at": 1}, "our backoff")]
)
def test_waiting_says_until_when_and_why(database_url: str, columns: dict[str, int], word: str) -> None:
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    with table_at(database_url) as table:
        table.add("a", failures=4, error_kind="rate_limited", last_error="429", **dict.fromkeys(columns, until))
        waiting = _explain(database_url, "a")
        assert (waiting.verdict, waiting.until) == (Verdict.WAITING, until)
        assert word in str(waiting)
        assert f"{until:%Y-%m-%d %H:%M:%S} UTC" in str(waiting)


def test_counting_the_changed_is_what_a_claim_would_get(database_url: str) -> None:
    async def count(limit: int) -> int:
        async with Database(database_url) as database:
            return await count_changed(database, lambda _: 60.0, limit)

    async def claim() -> int:
        async with claims_at(database_url) as claims:
            return len(await claims.claim(Selection.changed(), 10))

    now = datetime.now(timezone.utc)
    with table_at(database_url) as table:
        table.add("a", "b", "off", "busy", "stalled", "told to wait", "known")
        table.set("off", enabled=False)
        table.set("busy", status="IN_PROGRESS", started_at=now)
        table.set("stalled", status="IN_PROGRESS", started_at=now - timedelta(hours=1), lease=timedelta(seconds=1))
        table.set("told to wait", not_before=now + timedelta(hours=1))
        table.set("known", claimed_generation=2**40)
        assert asyncio.run(count(100)) == 3
        assert asyncio.run(count(2)) == 2
        assert asyncio.run(claim()) == 3
        assert asyncio.run(count(100)) == 0
