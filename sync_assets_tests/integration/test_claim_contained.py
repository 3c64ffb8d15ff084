"""One row that cannot be claimed, read or counted on stops no other (P5); and no run takes over from itself (P1)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from sync_assets.claims import ClaimedAccount, Selection
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, claims_at, failed, ids, succeeded, table_at


def test_of_one_tick_those_that_fail_go_last(database_url: str) -> None:
    """P5: or what they do to an upstream's patience would be done to the others at every tick. But none starves."""

    async def order(tick: datetime) -> list[str]:
        async with claims_at(database_url) as claims:
            found: list[str] = []
            while account := await claims.claim(Selection.due(tick), 1):
                found += ids(account)
            return found

    with table_at(database_url) as table:
        table.add("bad", status="FAILED", failures=3, started_at=TICK - timedelta(hours=9), last_tick=TICK)
        table.add("good", started_at=TICK, last_tick=TICK)
        table.add("left over", status="FAILED", failures=1, started_at=TICK, last_tick=TICK - timedelta(hours=1))
        assert asyncio.run(order(NEXT_TICK)) == ["left over", "good", "bad"]


_REFUSES = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;"
    "CREATE TRIGGER refuse BEFORE UPDATE OF claim_seq ON sync.account_config FOR EACH ROW "
    "WHEN (NEW.account_id IN ('poison 1', 'poison 2')) EXECUTE FUNCTION refuse()"
)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_row_that_refuses_to_be_claimed_stops_no_other(
    database_url: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """P5 (T13): an owner's trigger that raises; at this tick and at the next."""

    async def claim(tick: datetime, holder: str) -> set[str]:
        async with claims_at(database_url, holder) as claims:
            found: list[ClaimedAccount] = []
            while accounts := await claims.claim(Selection.due(tick), limit):
                found += accounts
                for account in accounts:
                    await claims.settle(succeeded(account))
            return ids(found)

    with table_at(database_url) as table:
        table.add("a", "b", "poison 1", "poison 2", "z")
        table.connection.execute(_REFUSES)
        assert asyncio.run(claim(TICK, "first/1")) == {"a", "b", "z"}
        assert asyncio.run(claim(NEXT_TICK, "second/1")) == {"a", "b", "z"}
        assert "account poison 1 cannot be claimed: not this one" in caplog.text


def test_counts_and_columns_at_their_end_stop_nobody(database_url: str) -> None:
    """P5 (T13): as many failures as a number holds, and a json column that no jsonb could hold."""

    async def claim() -> None:
        async with claims_at(database_url) as claims:
            accounts = await claims.claim(Selection.due(TICK), 10)
            assert ids(accounts) == {"failed", "stalled", "odd"}
            for account in accounts:
                await claims.settle(failed(account))

    with table_at(database_url) as table:
        table.connection.execute("ALTER TABLE sync.account_config ADD COLUMN extra json")
        table.add("failed", status="FAILED", failures=2**31 - 1)
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        table.add("stalled", status="IN_PROGRESS", started_at=hour_ago, failures=2**31 - 1, lease="1 s")
        table.add("odd", extra='{"nul": "\\u0000", "big": 1e400000}')
        asyncio.run(claim())
        assert set(table.column("status").values()) == {"FAILED"}
        assert table.column("failures") == {"failed": 2**31 - 1, "stalled": 2**31 - 1, "odd": 1}


def test_a_run_never_takes_over_from_itself(database_url: str) -> None:
    """P1: what it holds past its lease may still be worked, in this very process."""

    async def run() -> None:
        async with claims_at(database_url, "run/1") as claims, claims_at(database_url, "other/1") as other:
            assert ids(await claims.claim(Selection.due(TICK), 1)) == {"a"}
            table.age("a", seconds=61)
            for selection in (Selection.due(NEXT_TICK), Selection.all(), Selection.accounts(["a"])):
                assert await claims.claim(selection, 1) == []
            assert ids(await other.claim(Selection.due(TICK), 1)) == {"a"}

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


def test_a_row_python_cannot_hold_spoils_nobody(database_url: str) -> None:
    """P5 (T13): infinite and ancient times, and numbers of a thousand digits."""

    async def claim() -> None:
        async with claims_at(database_url) as claims:
            accounts = {account.account_id: account for account in await claims.claim(Selection.due(TICK), 10)}
            assert set(accounts) == {"fine", "odd"}
            assert accounts["odd"].before.started_at == datetime(1, 1, 1, tzinfo=timezone.utc)
            assert accounts["fine"].row["settings"] == {}
            with pytest.raises(ValueError, match="digits"):
                _ = accounts["odd"].row

    with table_at(database_url) as table:
        table.add("fine", "odd")
        table.connection.execute(
            "UPDATE sync.account_config SET started_at = '-infinity', last_success = '20000-01-01+00', "
            "settings = ('{\"n\": ' || repeat('9', 5000) || '}')::jsonb WHERE account_id = 'odd'"
        )
        asyncio.run(claim())
