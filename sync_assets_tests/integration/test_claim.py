"""The claim, on a real Postgres: what is eligible, what is selected, what is stamped."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import psycopg
import pytest

from sync_assets.claims import Selection, SettingsError
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, claims_at, failed, ids, succeeded, table_at


def test_a_claim_stamps_the_lease_in_the_same_statement(database_url: str) -> None:
    """P3: a claimed row always carries an honest lease."""

    async def claim() -> None:
        async with claims_at(database_url, "run-a/1", lease=90) as claims:
            [account] = await claims.claim(Selection.due(TICK), 10)
            row = table.row("a")
            assert (row["status"], row["claimed_by"], row["last_tick"]) == ("IN_PROGRESS", "run-a/1", TICK)
            assert row["lease"] == timedelta(seconds=90)
            assert row["claim_seq"] == account.claim_seq > 0
            assert row["claimed_generation"] == row["generation"] == account.generation
            assert row["started_at"] == account.started_at
            assert account.row["base_url"] == "https://api.example"
            assert 0 < account.lease_ends.remaining() <= 90

    with table_at(database_url) as table:
        table.add("a", base_url="https://api.example")
        before = table.connection.execute("SELECT clock_timestamp() AS now").fetchone()
        asyncio.run(claim())
        assert before is not None
        assert table.row("a")["started_at"] >= before["now"]


def test_twenty_claimers_at_a_barrier_share_a_thousand_rows(database_url: str) -> None:
    """P1 (T1): the union is all of them, none twice."""
    wanted = {f"account-{n:04}" for n in range(1000)}

    async def claimer(number: int, barrier: list[asyncio.Event]) -> list[str]:
        async with claims_at(database_url, f"run-{number}/1") as claims:
            barrier[number].set()
            for event in barrier:
                await event.wait()
            mine: list[str] = []
            while found := await claims.claim(Selection.due(TICK), 7):
                mine += [account.account_id for account in found]
            return mine

    async def all_at_once() -> list[list[str]]:
        barrier = [asyncio.Event() for _ in range(20)]
        return await asyncio.gather(*(claimer(number, barrier) for number in range(20)))

    with table_at(database_url) as table:
        table.add(*wanted)
        shares = asyncio.run(all_at_once())
        every = [account_id for share in shares for account_id in share]
        assert len(every) == len(set(every))
        assert set(every) == wanted
        holders = {row["claimed_by"] for row in table.connection.execute("SELECT claimed_by FROM sync.account_config")}
        assert len(holders) > 1, "one claimer took everything: nothing was raced"


@pytest.mark.parametrize(
    "selection", [Selection.due(TICK), Selection.all(), Selection.accounts(["a"]), Selection.changed()]
)
def test_a_busy_or_disabled_account_is_never_claimed(database_url: str, selection: Selection) -> None:
    """P1, P6: one eligibility clause for every entry point."""

    async def claim() -> None:
        async with claims_at(database_url, selection=selection) as claims:
            table.set("a", enabled=False)
            assert await claims.claim(selection, 10) == []
            table.set("a", enabled=True, status="IN_PROGRESS", started_at=now, lease=timedelta(seconds=60))
            assert await claims.claim(selection, 10) == []
            table.set("a", status="IDLE", started_at=None)
            assert ids(await claims.claim(selection, 10)) == {"a"}

    with table_at(database_url) as table:
        table.add("a")
        now = datetime.now(timezone.utc)
        asyncio.run(claim())


@pytest.mark.parametrize("selection", [Selection.due(NEXT_TICK), Selection.all(), Selection.accounts(["a"])])
def test_a_stalled_claim_is_taken_over_after_its_own_lease_and_never_before(
    database_url: str, selection: Selection
) -> None:
    """P3, T17: the lease on the row counts, whatever lease the next run has."""

    async def dies() -> None:
        async with claims_at(database_url, "dead/1", lease=3600) as claims:
            assert ids(await claims.claim(Selection.due(TICK), 1)) == {"a"}

    async def next_run() -> None:
        async with claims_at(database_url, "next/1", lease=10, selection=selection) as claims:
            table.age("a", seconds=3590)
            assert await claims.claim(selection, 1) == []
            table.age("a", seconds=11)
            [account] = await claims.claim(selection, 1)
            assert account.taken_over
            assert account.before.claimed_by == "dead/1"
            row = table.row("a")
            assert (row["failures"], row["error_kind"], row["claimed_by"]) == (1, "crashed", "next/1")
            assert "dead/1" in row["last_error"]
            assert row["lease"] == timedelta(seconds=10)

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(dies())
        asyncio.run(next_run())


def test_a_claim_without_a_lease_on_the_row_gets_this_runs(database_url: str) -> None:
    """P3: rows marked by an older scheme are not stuck, and not taken early."""

    async def claim() -> None:
        async with claims_at(database_url, lease=100) as claims:
            table.set("old", status="IN_PROGRESS", started_at=datetime.now(timezone.utc) - timedelta(seconds=90))
            assert await claims.claim(Selection.due(TICK), 1) == []
            table.age("old", seconds=20)
            assert ids(await claims.claim(Selection.due(TICK), 1)) == {"old"}

    with table_at(database_url) as table:
        table.add("old")
        asyncio.run(claim())


def test_one_tick_claims_an_account_once_however_often_it_is_fired(database_url: str) -> None:
    """P2 (T5): again after it finished, and as a late catch-up; a failed one waits for the next tick too."""

    async def fire(tick: datetime, holder: str) -> set[str]:
        async with claims_at(database_url, holder, selection=Selection.due(tick)) as claims:
            accounts = await claims.claim(Selection.due(tick), 10)
            for account in accounts:
                await claims.settle(failed(account) if account.account_id == "bad" else succeeded(account))
            return ids(accounts)

    with table_at(database_url) as table:
        table.add("good", "bad")
        assert asyncio.run(fire(TICK, "first/1")) == {"good", "bad"}
        assert asyncio.run(fire(TICK, "again/1")) == set()
        assert asyncio.run(fire(NEXT_TICK, "next/1")) == {"good", "bad"}
        assert asyncio.run(fire(TICK, "late/1")) == set()
        assert table.row("good")["last_tick"] == NEXT_TICK


def test_a_run_by_hand_over_everything_takes_each_account_once(database_url: str) -> None:
    async def run() -> None:
        async with claims_at(database_url) as claims:
            seen: list[str] = []
            while found := await claims.claim(Selection.all(), 2):
                seen += [account.account_id for account in found]
                for account in found:
                    await claims.settle(failed(account))
            assert sorted(seen) == ["a", "b", "c", "future"]

    with table_at(database_url) as table:
        table.add("a", "b", "c")
        # stamped by a clock that was then set back: it must not be left out for as long as the clock was ahead
        table.add("future", started_at=datetime.now(timezone.utc) + timedelta(days=1))
        asyncio.run(run())


def test_waiting_accounts(database_url: str) -> None:
    """P9: the upstream's time holds for all but a run by hand for the account; our own backoff not for a change."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    past = datetime.now(timezone.utc) - timedelta(hours=1)

    async def get(selection: Selection) -> set[str]:
        async with claims_at(database_url, selection=selection) as claims:
            accounts = await claims.claim(selection, 10)
            for account in accounts:
                assert account.row["status"] == "IN_PROGRESS"
            found = ids(accounts)
        table.set(["backoff", "named", "past"], status="IDLE", started_at=None, claimed_generation=0, last_tick=None)
        return found

    with table_at(database_url) as table:
        table.add("backoff", next_attempt_at=soon)
        table.add("named", not_before=soon)
        table.add("past", next_attempt_at=past, not_before=past)
        assert asyncio.run(get(Selection.due(TICK))) == {"past"}
        assert asyncio.run(get(Selection.all())) == {"past"}
        assert asyncio.run(get(Selection.changed())) == {"past", "backoff"}
        assert asyncio.run(get(Selection.accounts(["backoff", "named", "past"]))) == {"past", "backoff", "named"}


def test_a_stalled_row_waits_for_the_upstreams_time_too(database_url: str) -> None:
    """P9: a takeover at a tick passes over its own backoff, never over the time the upstream named."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    dead = {"status": "IN_PROGRESS", "started_at": soon - timedelta(days=1), "lease": timedelta(seconds=1)}

    async def get(selection: Selection) -> set[str]:
        async with claims_at(database_url, selection=selection) as claims:
            return ids(await claims.claim(selection, 10))

    with table_at(database_url) as table:
        table.add("backoff", **dead, next_attempt_at=soon, last_tick=TICK)
        table.add("named", **dead, not_before=soon)
        assert asyncio.run(get(Selection.due(TICK))) == {"backoff"}
        assert asyncio.run(get(Selection.accounts(["named"]))) == {"named"}


def test_the_sensor_sees_a_change_that_is_committed_late(database_url: str) -> None:
    """P7: the generation is drawn under the row's lock, so a claim cannot pass it by."""

    async def claim_changed() -> set[str]:
        async with claims_at(database_url) as claims:
            accounts = await claims.claim(Selection.changed(), 10)
            for account in accounts:
                await claims.settle(succeeded(account))
            return ids(accounts)

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a", "b")
        assert asyncio.run(claim_changed()) == {"a", "b"}
        assert asyncio.run(claim_changed()) == set()
        owner.execute("UPDATE sync.account_config SET base_url = 'https://new.example' WHERE account_id = 'a'")
        table.set("b", settings='{"x": 1}')
        assert asyncio.run(claim_changed()) == {"b"}  # a's change is not committed yet, and its row is locked
        owner.commit()
        assert asyncio.run(claim_changed()) == {"a"}


def test_a_change_during_the_sync_is_seen_after_it(database_url: str) -> None:
    """P7: what is acknowledged is the generation that the claim saw."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.changed(), 10)
            table.set("a", secret_ref="env:SYNC_SECRET_NEW")
            await claims.settle(succeeded(account))
        async with claims_at(database_url) as claims:
            assert ids(await claims.claim(Selection.changed(), 10)) == {"a"}

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


def test_saving_a_row_unchanged_and_claiming_it_move_no_generation(database_url: str) -> None:
    async def claim() -> None:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.all(), 1)
            await claims.settle(failed(account))

    with table_at(database_url) as table:
        table.add("a", base_url="https://api.example")
        before = table.row("a")["generation"]
        table.set("a", base_url="https://api.example", enabled=True, settings="{}", secret_ref=None)
        asyncio.run(claim())
        assert table.row("a")["generation"] == before
        table.set("a", enabled=False)
        assert table.row("a")["generation"] > before


def test_a_row_locked_by_another_transaction_is_passed_by(database_url: str) -> None:
    """P5 (T2): all others at once, that one at the next look, no error, nobody waits."""

    async def claim() -> set[str]:
        async with claims_at(database_url) as claims:
            return ids(await claims.claim(Selection.due(TICK), 10))

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a", "b", "c")
        owner.execute("SELECT FROM sync.account_config WHERE account_id = 'b' FOR UPDATE")
        assert asyncio.run(claim()) == {"a", "c"}
        owner.rollback()
        assert asyncio.run(claim()) == {"b"}


def test_a_child_row_being_inserted_hides_no_account(database_url: str) -> None:
    """P5 (T27): a foreign key's lock on the account is none of ours."""

    async def claim() -> set[str]:
        async with claims_at(database_url) as claims:
            return ids(await claims.claim(Selection.due(TICK), 10))

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a")
        table.connection.execute("CREATE TABLE child (account_id text REFERENCES sync.account_config)")
        owner.execute("INSERT INTO child VALUES ('a')")
        assert asyncio.run(claim()) == {"a"}


def test_never_more_than_the_limit_and_the_longest_waiting_first(database_url: str) -> None:
    """Also T23: whatever the three places to look hold between them."""
    hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)

    async def claim() -> None:
        async with claims_at(database_url) as claims:
            order = []
            while found := await claims.claim(Selection.due(TICK), 2):
                assert len(found) <= 2
                order.append(ids(found))
            assert order == [{"new", "oldest"}, {"stalled", "waited"}, {"fresh"}]

    with table_at(database_url) as table:
        table.add("fresh", started_at=hour_ago + timedelta(minutes=50))
        table.add("waited", started_at=hour_ago + timedelta(minutes=20), next_attempt_at=hour_ago)
        table.add(
            "stalled", status="IN_PROGRESS", started_at=hour_ago + timedelta(minutes=10), lease=timedelta(seconds=1)
        )
        table.add("oldest", started_at=hour_ago)
        table.add("new")
        asyncio.run(claim())


def test_a_lease_of_days_is_exact_in_a_session_with_a_local_zone(database_url: str) -> None:
    """T30, T7: over a clock change, with the database's zone on a local one, to the second."""
    database = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    # Berlin put its clocks forward on 2026-03-29: that day was an hour short
    started = datetime(2026, 3, 28, 12, 0, tzinfo=timezone.utc)

    with table_at(database_url) as table:
        table.connection.execute(f"ALTER DATABASE \"{database}\" SET timezone TO 'Europe/Berlin'")
        table.add("a", status="IN_PROGRESS", started_at=started, lease="1 day")
        with psycopg.connect(database_url, autocommit=True) as local:
            assert local.execute("SHOW timezone").fetchone() == ("Europe/Berlin",)
            ends = local.execute(
                "SELECT ((started_at AT TIME ZONE 'UTC') + lease) AT TIME ZONE 'UTC' FROM sync.account_config"
            ).fetchone()
            assert ends == (started + timedelta(days=1),)

        async def explain() -> datetime | None:
            async with claims_at(database_url) as claims:
                table.set("a", started_at=datetime.now(timezone.utc), lease="400 days")
                return (await claims.explain("a")).until

        until = asyncio.run(explain())
        assert until is not None
        assert until - table.row("a")["started_at"] == timedelta(days=400)


def test_a_tick_far_ahead_is_refused(database_url: str) -> None:
    """P12: it would leave rows that are never due."""

    async def begin(tick: datetime) -> None:
        async with claims_at(database_url, selection=Selection.due(tick)):
            pass

    now = datetime.now(timezone.utc)
    asyncio.run(begin(now + timedelta(minutes=50)))
    with pytest.raises(SettingsError, match="more than an hour ahead"):
        asyncio.run(begin(now + timedelta(minutes=70)))


def test_a_tick_without_a_zone_is_refused() -> None:
    """P12."""
    with pytest.raises(ValueError, match="no time zone"):
        Selection.due(datetime(2026, 1, 31, 8, 0))  # noqa: DTZ001
