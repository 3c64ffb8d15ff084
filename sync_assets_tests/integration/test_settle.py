"""Settling and handing back: fenced, contained, and certain about what became of it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from sync_assets.claims import ClaimedAccount, Ending, Fate, Outcome, RetryPolicy, Selection
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table, claims_at, failed, ids, succeeded, table_at


def test_success_clears_what_the_failures_left(database_url: str) -> None:
    async def run() -> None:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.accounts(["a"]), 1)
            assert await claims.settle(succeeded(account)) is Fate.RECORDED

    with table_at(database_url) as table:
        soon = datetime.now(timezone.utc) + timedelta(hours=1)
        table.add("a", failures=3, error_kind="retry", last_error="x", next_attempt_at=soon, not_before=soon)
        asyncio.run(run())
        row = table.row("a")
        assert (row["status"], row["failures"], row["error_kind"], row["last_error"]) == ("IDLE", 0, None, None)
        assert row["next_attempt_at"] is row["not_before"] is None
        assert row["last_success"] >= row["started_at"]


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        (timedelta(seconds=120), "span"),
        (datetime(2090, 1, 1, tzinfo=timezone.utc), "moment"),
        (None, "kept"),
    ],
)
def test_failure_counts_and_keeps_the_upstreams_time(
    database_url: str, retry_after: timedelta | datetime | None, expected: str
) -> None:
    """P9: a failure that names no time leaves the one that was named before."""
    named = datetime(2080, 1, 1, tzinfo=timezone.utc)

    async def run() -> None:
        async with claims_at(database_url, retry_policy=RetryPolicy(backoff_seconds=7.5)) as claims:
            [account] = await claims.claim(Selection.accounts(["a"]), 1)
            outcome = failed(account, retry_after=retry_after)
            assert await claims.settle(outcome) is Fate.RECORDED

    with table_at(database_url) as table:
        table.add("a", failures=2, not_before=named)
        asyncio.run(run())
        row = table.row("a")
        assert (row["status"], row["failures"], row["error_kind"]) == ("FAILED", 3, "retry")
        assert row["last_error"] == "it did not answer"
        assert timedelta(seconds=30) <= row["next_attempt_at"] - row["started_at"] < timedelta(seconds=60)
        if expected == "span":
            assert timedelta(seconds=120) <= row["not_before"] - row["started_at"] < timedelta(seconds=150)
        else:
            assert row["not_before"] == (named if expected == "kept" else retry_after)


def _state(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("status", "last_tick", "started_at", "claimed_generation", "failures")}


def test_handing_back_restores_what_the_claim_found(database_url: str) -> None:
    """P10: nothing is counted, and the same tick may claim it again."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts = await claims.claim(Selection.due(NEXT_TICK), 10)
            assert ids(accounts) == {"new", "failed"}
            fates = await asyncio.gather(*(claims.settle(Outcome(account, Ending.HANDED_BACK)) for account in accounts))
            assert set(fates) == {Fate.RECORDED}
            assert {name: _state(table.row(name)) for name in ("new", "failed")} == before
            assert ids(await claims.claim(Selection.due(NEXT_TICK), 10)) == {"new", "failed"}

    with table_at(database_url) as table:
        table.add("new")
        table.add("failed", status="FAILED", failures=2, last_tick=TICK, started_at=TICK, claimed_generation=0)
        before = {name: _state(table.row(name)) for name in ("new", "failed")}
        asyncio.run(run())


def test_handing_back_a_takeover_leaves_it_free_and_its_crash_counted(database_url: str) -> None:
    """P10, T29: no row in progress in the name of a run that is dead."""

    async def run() -> None:
        async with claims_at(database_url, "next/1") as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)
            assert await claims.settle(Outcome(account, Ending.HANDED_BACK)) is Fate.RECORDED

    with table_at(database_url) as table:
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        table.add(
            "a", status="IN_PROGRESS", started_at=hour_ago, lease=timedelta(seconds=1), claimed_by="dead/1",
            last_tick=TICK - timedelta(days=1),
        )  # fmt: skip
        asyncio.run(run())
        row = table.row("a")
        assert (row["status"], row["failures"], row["error_kind"]) == ("FAILED", 1, "crashed")
        assert (row["started_at"], row["last_tick"]) == (hour_ago, TICK - timedelta(days=1))


def test_an_account_given_up_is_free_but_not_due_again_at_this_tick(database_url: str) -> None:
    """T29: or the loop would claim it again at once."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)
            assert await claims.settle(Outcome(account, Ending.GIVEN_UP)) is Fate.RECORDED
            assert await claims.claim(Selection.due(TICK), 1) == []
            assert table.row("a")["status"] == "IDLE"
            assert ids(await claims.claim(Selection.due(NEXT_TICK), 1)) == {"a"}

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


def test_a_locked_row_holds_up_no_other_and_is_written_when_free(database_url: str) -> None:
    """P5 (T27)."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts = {account.account_id: account for account in await claims.claim(Selection.due(TICK), 10)}
            owner.execute("SELECT FROM sync.account_config WHERE account_id = 'b' FOR UPDATE")
            writing = {name: asyncio.create_task(claims.settle(succeeded(accounts[name]))) for name in "abc"}
            done, _ = await asyncio.wait({writing["a"], writing["c"]}, timeout=10)
            assert len(done) == 2, "rows beside the locked one were not written"
            assert not writing["b"].done()
            owner.rollback()
            assert await asyncio.wait_for(writing["b"], 10) is Fate.RECORDED

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a", "b", "c")
        asyncio.run(run())
        assert set(table.column("status").values()) == {"IDLE"}


def test_one_row_that_cannot_be_written_spoils_no_other(database_url: str) -> None:
    """P5 (T13): an owner's trigger that refuses one row, in one batch with others."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts = {account.account_id: account for account in await claims.claim(Selection.due(TICK), 10)}
            names = sorted(accounts)
            fates = await asyncio.gather(*(claims.settle(succeeded(accounts[name])) for name in names))
            assert dict(zip(names, fates, strict=True)) == {"a": Fate.RECORDED, "b": Fate.LOST, "c": Fate.RECORDED}

    with table_at(database_url) as table:
        table.add("a", "b", "c")
        table.connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;"
            "CREATE TRIGGER refuse BEFORE UPDATE OF last_success ON sync.account_config FOR EACH ROW "
            "WHEN (NEW.account_id = 'b') EXECUTE FUNCTION refuse()"
        )
        asyncio.run(run())
        assert table.column("status") == {"a": "IDLE", "b": "IN_PROGRESS", "c": "IDLE"}


def test_many_outcomes_go_in_few_statements(database_url: str) -> None:
    """Immediate when idle, together when busy: counted, not timed."""

    async def run() -> int:
        async with claims_at(database_url) as claims:
            accounts = await claims.claim(Selection.due(TICK), 1000)
            await asyncio.gather(*(claims.settle(succeeded(account)) for account in accounts))
        return len(accounts)

    with table_at(database_url) as table:
        table.add(*(f"a{n}" for n in range(1000)))
        _count_statements(table)
        assert asyncio.run(run()) == 1000
        assert set(table.column("status").values()) == {"IDLE"}
        updates = table.connection.execute("SELECT count(*) AS n FROM statements").fetchone()
        assert updates is not None
        assert updates["n"] <= 1 + 3  # the claim, and at most: the first alone, then 500 at a time


def _count_statements(table: Table) -> None:
    table.connection.execute(
        "CREATE TABLE statements (at timestamptz DEFAULT now());"
        "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO statements DEFAULT VALUES; "
        "RETURN NULL; END $$;"
        "CREATE TRIGGER counted AFTER UPDATE ON sync.account_config FOR EACH STATEMENT EXECUTE FUNCTION counted()"
    )


def _kill(table: Table) -> None:
    """End every session of ours, as a restart would."""
    table.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'sync-assets'"
    )


def test_a_settle_goes_on_over_a_lost_connection(database_url: str) -> None:
    """P3 (T11): recorded on a new connection, without a second claim."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)
            _kill(table)
            assert await claims.settle(succeeded(account)) is Fate.RECORDED

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())
        assert table.row("a")["status"] == "IDLE"


def test_a_settle_whose_answer_was_lost_is_known_to_be_recorded(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T28: the row has our number and is no longer in progress: it was written. With a newer number: unknown."""

    async def run(later: bool) -> Fate:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.due(NEXT_TICK if later else TICK), 1)
            write = claims._settler._write

            async def loses_the_answer(attempts: Any) -> Any:
                monkeypatch.setattr(claims._settler, "_write", write)
                await write(attempts)
                if later:
                    async with claims_at(database_url, "next/1") as others:
                        await others.claim(Selection.accounts(["a"]), 1)
                raise psycopg.OperationalError("the connection was lost after the commit")

            monkeypatch.setattr(claims._settler, "_write", loses_the_answer)
            return await claims.settle(succeeded(account))

    with table_at(database_url) as table:
        table.add("a")
        assert asyncio.run(run(later=False)) is Fate.RECORDED
        assert asyncio.run(run(later=True)) is Fate.UNKNOWN


def test_a_claim_whose_answer_was_lost_is_read_back_and_worked(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T28: nothing orphaned; and once more when its commit can no longer come."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            fetch = claims._database.fetch

            async def loses_the_answer(*args: Any) -> Any:
                await fetch(*args)
                monkeypatch.setattr(claims._database, "fetch", fetch)
                raise psycopg.OperationalError("the connection was lost after the commit")

            monkeypatch.setattr(claims._database, "fetch", loses_the_answer)
            accounts = await claims.claim(Selection.due(TICK), 2)
            assert len(ids(accounts)) == 2
            assert all(account.answer_lost and 0 < account.lease_ends.remaining() <= 60 for account in accounts)
            assert len(await claims.claim(Selection.due(TICK), 2)) == 1
            # the commit of the lost one could still come: the last look waits for the statement timeout
            monkeypatch.setattr(claims, "_lost_until", type(claims._lost_until)(0.0))
            assert await claims.claim(Selection.due(TICK), 2) == []
            assert claims._lost_since is None
            for account in accounts:
                assert await claims.settle(succeeded(account)) is Fate.RECORDED

    with table_at(database_url) as table:
        table.add("a", "b", "c")
        asyncio.run(run())


def test_a_fault_of_ours_while_writing_is_heard_by_whoever_waits(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with claims_at(database_url) as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)

            async def writes_too_little(attempts: Any) -> Any:
                return []

            monkeypatch.setattr(claims._settler, "_write", writes_too_little)
            with pytest.raises(ValueError, match="zip"):
                await asyncio.wait_for(claims.settle(succeeded(account)), 10)

    with table_at(database_url) as table:
        table.add("a")
        asyncio.run(run())


def test_an_outcome_that_cannot_be_written_is_given_up_when_its_lease_ends(database_url: str) -> None:
    """P3: the loop goes on; the lease heals the row."""

    async def run() -> Fate:
        async with claims_at(database_url, lease=1.0) as claims:
            [account] = await claims.claim(Selection.due(TICK), 1)
            owner.execute("SELECT FROM sync.account_config FOR UPDATE")
            return await asyncio.wait_for(claims.settle(succeeded(account)), 20)

    with table_at(database_url) as table, psycopg.connect(database_url) as owner:
        table.add("a")
        assert asyncio.run(run()) is Fate.LOST


def _names(accounts: list[ClaimedAccount]) -> list[str]:
    return [account.account_id for account in accounts]


def test_the_owner_may_disable_or_rename_an_account_in_the_middle(database_url: str) -> None:
    """T22: a disabled one is still settled; a re-keyed one is lost; the others go on."""

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts = await claims.claim(Selection.due(TICK), 10)
            assert sorted(_names(accounts)) == ["disabled", "other", "renamed"]
            table.set("disabled", enabled=False)
            table.connection.execute("UPDATE sync.account_config SET account_id = 'new' WHERE account_id = 'renamed'")
            fates = {a.account_id: await claims.settle(succeeded(a)) for a in accounts}
            assert fates == {"disabled": Fate.RECORDED, "other": Fate.RECORDED, "renamed": Fate.LOST}

    with table_at(database_url) as table:
        table.add("disabled", "renamed", "other")
        asyncio.run(run())
        assert table.row("disabled")["status"] == "IDLE"
