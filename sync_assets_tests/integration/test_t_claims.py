"""Claims against each other, in odd sessions, under odd plans, beside the owner (T3, T7, T18, T23, T27)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import psycopg
import pytest

from sync_assets.claims import ClaimedAccount, Claims, Database, Fate, Selection, Verdict
from sync_assets.clock import Deadline
from sync_assets_tests.claim_statement import claim_statement
from sync_assets_tests.claims_rig import TICK, Table, claims_at, ids, succeeded, table_at
from sync_assets_tests.runner_rig import run_loop

ROWS = 150


async def _claims_with_plan(database: Database, holder: str, settings: Sequence[str]) -> Claims:
    """Claims whose only connection makes its plans so."""
    async with database.connection() as connection:
        for setting in settings:
            await connection.execute(f"SET {setting}".encode())
    claims = Claims(database, holder=holder, lease_seconds=lambda _: 60.0)
    await claims.begin(Selection.all())
    return claims


def test_t3_claimers_that_walk_the_table_in_opposite_orders_do_not_deadlock(database_url: str) -> None:
    """P1, P5: 100 rounds; what one has locked the other leaves to it, and both settle at once, too."""
    names = [f"a{n:04}" for n in range(ROWS)]
    by_key, by_generation = Selection.accounts(names), Selection.changed()
    won: dict[str, int] = {"forwards/1": 0, "backwards/1": 0}

    async def claim_and_settle(claims: Claims, selection: Selection) -> set[str]:
        accounts = await claims.claim(selection, ROWS)
        fates = await asyncio.gather(*(claims.settle(succeeded(account)) for account in accounts))
        assert set(fates) <= {Fate.RECORDED}
        won[claims.holder] += len(accounts)
        return ids(accounts)

    async def rounds() -> None:
        async with Database(database_url, max_connections=1) as one, Database(database_url, max_connections=1) as other:
            forwards = await _claims_with_plan(one, "forwards/1", ["enable_seqscan = off", "enable_hashjoin = off"])
            backwards = await _claims_with_plan(
                other, "backwards/1", ["enable_indexscan = off", "enable_bitmapscan = off", "enable_nestloop = off"]
            )
            for _ in range(100):
                mine, theirs = await asyncio.gather(
                    claim_and_settle(forwards, by_key), claim_and_settle(backwards, by_generation)
                )
                assert mine | theirs == set(names)
                table.set(names, claimed_generation=0, started_at=None)

    with table_at(database_url) as table:
        # the order of the keys is the opposite of the order in which they were made, and of their generations
        table.add(*reversed(names))
        table.connection.execute("ALTER TABLE sync.account_config SET (autovacuum_enabled = false)")
        asyncio.run(rounds())
        deadlocks = table.connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert deadlocks is not None
        assert deadlocks["deadlocks"] == 0
        assert min(won.values()) > 0, f"nothing was raced: {won}"


# seconds around now, in the words of the test
_PAST, _SOON = timedelta(seconds=-30), timedelta(seconds=30)
_ELIGIBLE = {"never", "stalled", "stalled months", "stalled no lease", "waited", "earlier tick"}


def _add_rows_around_now(table: Table) -> None:
    """For each way of being due, one row that just is and one that just is not yet."""
    now = datetime.now(timezone.utc)
    held = {"status": "IN_PROGRESS", "claimed_by": "somebody/1"}
    minute, months = timedelta(minutes=1), timedelta(days=200)  # over a change of the clocks in many zones
    table.add("never")
    table.add("stalled", **held, started_at=now - minute + _PAST, lease=minute)
    table.add("held", **held, started_at=now - minute + _SOON, lease=minute)
    table.add("stalled months", **held, started_at=now - months + _PAST, lease="200 days")
    table.add("held months", **held, started_at=now - months + _SOON, lease="200 days")
    table.add("stalled no lease", **held, started_at=now - minute + _PAST)
    table.add("held no lease", **held, started_at=now - minute + _SOON)
    table.add("waited", next_attempt_at=now + _PAST, not_before=now + _PAST)
    table.add("waits", next_attempt_at=now + _SOON)
    table.add("told to wait", not_before=now + _SOON)
    table.add("earlier tick", last_tick=TICK - timedelta(seconds=1))
    table.add("this tick", last_tick=TICK)


@pytest.mark.parametrize(
    "zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]
)
def test_t7_t30_the_zone_of_the_role_or_the_session_changes_no_row_and_no_verdict(database_url: str, zone: str) -> None:
    """P1, P3: fourteen hours ahead, twelve behind, and leases of months over a change of the clocks, to the second."""

    async def product() -> tuple[set[str], dict[str, Verdict]]:
        async with claims_at(database_url, lease=60) as claims:
            verdicts = {name: (await claims.explain(name)).verdict for name in table.column("status")}
            return ids(await claims.claim(Selection.due(TICK), 100)), verdicts

    with table_at(database_url) as table, psycopg.connect(database_url) as session:
        _add_rows_around_now(table)
        dbname = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
        # the statement itself in a session of that zone, whatever the connections of ours are set to
        session.execute(f"SET timezone TO '{zone}'".encode())
        claimed = session.execute(*claim_statement(database_url, Selection.due(TICK), 100)).fetchall()
        assert {row[0] for row in claimed} == _ELIGIBLE
        session.rollback()
        # and a role that has it in this database
        table.connection.execute(f"ALTER ROLE CURRENT_USER IN DATABASE \"{dbname}\" SET timezone TO '{zone}'".encode())
        with psycopg.connect(database_url) as other:
            assert other.execute("SHOW timezone").fetchone() == (zone,)
        claimed_by_us, verdicts = asyncio.run(product())
        assert claimed_by_us == _ELIGIBLE
        assert {name for name, verdict in verdicts.items() if verdict is Verdict.IN_PROGRESS} == {
            "held", "held months", "held no lease"
        }  # fmt: skip
        assert {name for name, verdict in verdicts.items() if verdict is Verdict.WAITING} == {"waits", "told to wait"}


def test_t18_a_run_by_hand_that_races_with_a_tick_makes_one_claim_or_is_told_who_holds_it(database_url: str) -> None:
    """P1, P6: 60 rounds at one instant, through two pools."""
    by_hand = Selection.accounts(["a"])
    winners: list[str] = []

    async def rounds() -> None:
        async with claims_at(database_url, "tick/1") as tick, claims_at(database_url, "hand/1") as hand:
            for n in range(60):
                # whichever was first in the round before is second now
                due = Selection.due(TICK + timedelta(minutes=n))
                racers = [tick.claim(due, 1), hand.claim(by_hand, 1)][:: 1 if n % 2 else -1]
                found = [account for accounts in await asyncio.gather(*racers) for account in accounts]
                assert len(found) == 1, "the account was claimed twice, or by nobody"
                [account] = found
                winners.append(account.claimed_by)
                if account.claimed_by == "tick/1":
                    told = await hand.explain("a")
                    assert told.verdict is Verdict.IN_PROGRESS
                    assert (told.claimed_by, told.since) == ("tick/1", account.started_at)
                winner = tick if account.claimed_by == "tick/1" else hand
                assert await winner.settle(succeeded(account)) is Fate.RECORDED

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(rounds())
        assert set(winners) == {"tick/1", "hand/1"}, "one of them always won: nothing was raced"


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["enable_hashjoin = off", "enable_mergejoin = off"],  # a nested loop is what would run a subquery again
        ["enable_seqscan = off", "enable_sort = off", "enable_material = off"],
        ["enable_indexscan = off", "enable_bitmapscan = off", "enable_hashjoin = off"],
    ],
)
def test_t23_never_more_than_the_limit_whatever_the_plan_and_the_statistics(
    database_url: str, settings: list[str]
) -> None:
    """P1: statistics of an empty table, forced joins, and two who claim at once."""

    async def claim() -> None:
        async with Database(database_url, max_connections=1) as one, Database(database_url, max_connections=1) as other:
            claimers = [await _claims_with_plan(each, f"run-{n}/1", settings) for n, each in enumerate((one, other))]
            for _ in range(10):
                for found in await asyncio.gather(*(each.claim(Selection.due(TICK), 3) for each in claimers)):
                    assert len(found) <= 3
                for each in claimers:
                    held = list(table.column("claimed_by").values()).count(each.holder)
                    assert held == len(each._held), "more rows are in its name than it was told"

    with table_at(database_url) as table:
        table.connection.execute("ALTER TABLE sync.account_config SET (autovacuum_enabled = false)")
        table.connection.execute("ANALYZE sync.account_config")
        table.add(*(f"a{n:04}" for n in range(300)))
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        table.set([f"a{n:04}" for n in range(100)], next_attempt_at=hour_ago)
        table.set(
            [f"a{n:04}" for n in range(100, 200)],
            status="IN_PROGRESS",
            started_at=hour_ago,
            lease=timedelta(seconds=1),
        )
        asyncio.run(claim())


def test_t27_a_child_row_being_inserted_does_not_hold_up_the_settle(database_url: str) -> None:
    """P5: the foreign key's lock on the account's row, in a transaction of the owner's that stays open."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts: list[ClaimedAccount] = await claims.claim(Selection.due(TICK), 10)
            owner.execute("INSERT INTO child VALUES ('a')")
            fates = await asyncio.wait_for(asyncio.gather(*(claims.settle(succeeded(a)) for a in accounts)), 10)
            assert fates == [Fate.RECORDED] * 2

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a", "b")
        table.connection.execute("CREATE TABLE child (account_id text REFERENCES sync.account_config)")
        asyncio.run(run())
        assert set(table.column("status").values()) == {"IDLE"}


def test_p3_the_lease_is_stamped_by_the_very_statement_that_claims(database_url: str) -> None:
    """P3: no moment, however short, in which a row is held and does not say since when and for how long."""

    async def claim(selection: Selection) -> None:
        async with claims_at(database_url, selection=selection) as claims:
            [account] = await claims.claim(selection, 1)
            await claims.settle(succeeded(account))

    with table_at(database_url) as table:
        table.add("a")
        table.connection.execute(
            "CREATE FUNCTION honest() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'claimed without a lease'; END $$;"
            "CREATE TRIGGER honest AFTER UPDATE ON sync.account_config FOR EACH ROW WHEN (NEW.status = 'IN_PROGRESS' "
            "AND (NEW.lease IS NULL OR NEW.started_at IS NOT DISTINCT FROM OLD.started_at "
            "OR NEW.claim_seq = OLD.claim_seq OR NEW.claimed_by IS NULL)) EXECUTE FUNCTION honest()"
        )
        for selection in (Selection.due(TICK), Selection.accounts(["a"])):
            table.set("a", lease=None, claimed_by=None)
            asyncio.run(claim(selection))


def test_p1_a_lease_is_counted_from_before_the_claim_was_sent(database_url: str) -> None:
    """P1: a claim whose answer came late has that much less time, and its work ends inside the lease."""
    left: list[tuple[float, float]] = []

    async def hangs(account: ClaimedAccount, deadline: Deadline) -> None:
        at_start = account.lease_ends.remaining()
        try:
            await asyncio.Event().wait()
        finally:
            left.append((at_start, account.lease_ends.remaining()))

    with table_at(database_url) as table:
        table.add("a")
        table.connection.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; "
            "END $$; CREATE TRIGGER slow AFTER UPDATE OF lease ON sync.account_config FOR EACH ROW "
            "EXECUTE FUNCTION slow()"
        )
        assert asyncio.run(run_loop(database_url, hangs, lease=2.0)).failed == 1
    [(at_start, at_end)] = left
    assert at_start <= 1.4
    assert at_end > 0
