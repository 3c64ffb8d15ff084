"""The fence: a run that lost its lease writes nothing, whatever it was about to write (P4)."""

from __future__ import annotations

import asyncio

import pytest

from sync_assets.claims import Ending, Fate, Outcome, Selection
from sync_assets_tests.claims_rig import TICK, claims_at, succeeded, table_at


@pytest.mark.parametrize("ending", list(Ending))
def test_a_run_that_lost_its_lease_writes_nothing(database_url: str, ending: Ending) -> None:
    """P4 (T4, T20): also when both runs have one id; the row keeps the second's claim and then its outcome."""

    async def run() -> None:
        async with claims_at(database_url, "same/1") as first, claims_at(database_url, "same/2") as second:
            [old] = await first.claim(Selection.due(TICK), 1)
            table.age("a", seconds=61)
            [new] = await second.claim(Selection.due(TICK), 1)
            before = table.row("a")
            assert await first.settle(Outcome(old, ending, "bug", "of the loser")) is Fate.LOST
            assert table.row("a") == before
            assert await second.settle(succeeded(new)) is Fate.RECORDED
            before = table.row("a")
            assert await first.settle(Outcome(old, ending, "bug", "of the loser")) is Fate.LOST
            assert table.row("a") == before

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


@pytest.mark.parametrize("ending", list(Ending))
def test_the_number_fences_within_one_run(database_url: str, ending: Ending) -> None:
    """P4: a row that its owner freed by hand and that the very same run has claimed again."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            [old] = await claims.claim(Selection.due(TICK), 1)
            table.set("a", status="IDLE")
            [new] = await claims.claim(Selection.accounts(["a"]), 1)
            before = table.row("a")
            assert await claims.settle(Outcome(old, ending, "bug", "of the loser")) is Fate.LOST
            assert table.row("a") == before
            assert await claims.settle(succeeded(new)) is Fate.RECORDED

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


@pytest.mark.parametrize("ending", list(Ending))
def test_the_holder_fences_where_a_server_gives_a_number_twice(database_url: str, ending: Ending) -> None:
    """P4: a server that lost its last commits in a crash or a failover, and goes on from before them."""

    async def run() -> None:
        async with claims_at(database_url, "first/1") as first, claims_at(database_url, "second/1") as second:
            [old] = await first.claim(Selection.due(TICK), 1)
            table.set("a", status="IDLE", claim_seq=0, last_tick=None)
            table.connection.execute("SELECT setval('sync.account_config_claim_seq', %s, false)", [old.claim_seq])
            [new] = await second.claim(Selection.due(TICK), 1)
            assert new.claim_seq == old.claim_seq
            before = table.row("a")
            assert await first.settle(Outcome(old, ending, "bug", "of the loser")) is Fate.LOST
            assert table.row("a") == before
            assert await second.settle(succeeded(new)) is Fate.RECORDED

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


def test_a_row_deleted_or_made_again_is_a_lost_lease(database_url: str) -> None:
    """P4 (T22, T26): no claim number repeats, so the new row is not the old one's."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts = {account.account_id: account for account in await claims.claim(Selection.due(TICK), 10)}
            table.connection.execute("DELETE FROM sync.account_config WHERE account_id IN ('gone', 'again')")
            table.add("again")
            fates = await asyncio.gather(*(claims.settle(succeeded(account)) for account in accounts.values()))
            assert dict(zip(accounts, fates, strict=True)) == {
                "stays": Fate.RECORDED,
                "gone": Fate.LOST,
                "again": Fate.LOST,
            }
            [again] = await claims.claim(Selection.due(TICK), 10)
            assert again.claim_seq > max(account.claim_seq for account in accounts.values())

    with table_at(database_url) as table:
        table.add("stays", "gone", "again")
        asyncio.run(run())
