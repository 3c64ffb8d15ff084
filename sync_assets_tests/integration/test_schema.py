"""The tables: made once however often they are asked for, and refused when they are not as they must be."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql

from sync_assets.claims import Database, DatabaseUnavailable, Names, Selection, SettingsError
from sync_assets.claims.schema import check_account_table
from sync_assets.push.schema import check_record_table
from sync_assets.sync_run import ClaimSettings, create_tables
from sync_assets_tests.claims_rig import claims_at, table_at

_ODD = Names(schema='Odd "schema"', table="Kunden; $$ DROP", key="Kunden-Nr", enabled="is on?", records="Säтze $1 {}")


def test_init_is_safe_to_repeat_and_to_run_at_once(empty_database_url: str) -> None:
    """P12."""

    async def at_once() -> list[list[str]]:
        return await asyncio.gather(*(create_tables(ClaimSettings(empty_database_url)) for _ in range(8)))

    created = asyncio.run(at_once())
    assert sorted(created, key=len) == [[]] * 7 + [["sync.account_config", "sync.account_record"]]
    with table_at(empty_database_url) as table:
        table.add("kept")
        assert asyncio.run(create_tables(ClaimSettings(empty_database_url))) == []
        assert table.row("kept")["status"] == "IDLE"


async def _check(url: str) -> None:
    """As every run does."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await check_account_table(connection, Names())
        await check_record_table(connection, Names())


@pytest.mark.parametrize("lost", ["sync_assets_claim_guard", "sync_assets_generation", "sync_assets_version_new"])
def test_init_makes_a_trigger_that_is_lost(database_url: str, lost: str) -> None:
    """P7, P12: an earlier version made the table without it, or somebody dropped it. A run says the way out."""
    owner = "account_record" if "version" in lost else "account_config"
    with table_at(database_url) as table:
        table.add("kept")
        table.connection.execute(f"DROP TRIGGER {lost} ON sync.{owner}".encode())
        with pytest.raises(SettingsError, match=rf"sync\.{owner} .*no trigger {lost}.*sync-assets init"):
            asyncio.run(_check(database_url))
        for _ in range(2):
            assert asyncio.run(create_tables(ClaimSettings(database_url))) == []
        found = table.connection.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal")
        assert found.fetchone() == {"count": 5}
        before = table.row("kept")["generation"]
        table.connection.execute("UPDATE sync.account_config SET enabled = false")
        assert table.row("kept")["generation"] > before


def test_every_name_is_quoted(empty_database_url: str) -> None:
    settings = ClaimSettings(empty_database_url, _ODD)
    asyncio.run(create_tables(settings))
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        table = sql.Identifier(_ODD.schema, _ODD.table)
        connection.execute(sql.SQL("INSERT INTO {} ({}) VALUES ('a')").format(table, sql.Identifier(_ODD.key)))

    async def claim() -> None:
        async with Database(empty_database_url, _ODD) as database:
            from sync_assets.claims import Claims, Ending, Fate, Outcome  # noqa: PLC0415

            claims = Claims(database, holder="run/1", lease_seconds=lambda _: 60.0)
            await claims.begin(Selection.all())
            [account] = await claims.claim(Selection.all(), 5)
            assert "busy" in str(await claims.explain("a"))
            assert account.row["Kunden-Nr"] == "a"
            assert await claims.settle(Outcome(account, Ending.HANDED_BACK)) is Fate.RECORDED
            [account] = await claims.claim(Selection.accounts(["a"]), 5)
            assert await claims.settle(Outcome(account, Ending.SUCCEEDED)) is Fate.RECORDED

    asyncio.run(claim())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "ALTER COLUMN started_at TYPE timestamp",
            "started_at is timestamp without time zone (expected timestamp with",
        ),
        ("ALTER COLUMN claim_seq TYPE integer", "claim_seq is integer (expected bigint)"),
        ("DROP COLUMN lease", "lease is missing (expected interval)"),
        ("ALTER COLUMN enabled DROP DEFAULT, ALTER COLUMN enabled TYPE text", "enabled is text (expected boolean)"),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(empty_database_url: str, change: str, told: str) -> None:
    """P12 (T7): by init and by a run alike; a zone-less timestamp would be claimed twice."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA sync")
        connection.execute(
            "CREATE TABLE sync.account_config (account_id text PRIMARY KEY, enabled boolean DEFAULT true, status text, "
            "started_at timestamptz, lease interval, claim_seq bigint, claimed_by text, last_tick timestamptz, "
            "last_success timestamptz, failures integer, error_kind text, last_error text, "
            "next_attempt_at timestamptz, not_before timestamptz, generation bigint, claimed_generation bigint)"
        )
        connection.execute(f"ALTER TABLE sync.account_config {change}")
    with pytest.raises(SettingsError, match=r"sync\.account_config") as refused:
        asyncio.run(create_tables(ClaimSettings(empty_database_url)))
    assert told in str(refused.value)
    with psycopg.connect(empty_database_url) as connection:
        found = connection.execute("SELECT to_regclass('sync.account_record')").fetchone()
    assert found == (None,), "half done"

    async def begin() -> None:
        async with claims_at(empty_database_url):
            pass

    with pytest.raises(SettingsError, match=r"sync\.account_config"):
        asyncio.run(begin())


def test_a_missing_table_names_the_way_out(empty_database_url: str) -> None:
    async def begin() -> None:
        async with claims_at(empty_database_url):
            pass

    with pytest.raises(SettingsError, match=r"no table sync\.account_config.*sync-assets init"):
        asyncio.run(begin())


@pytest.mark.parametrize(
    "impossible",
    [
        {"status": "IN_PROGRESS", "started_at": None},
        {"status": "DONE"},
        {"account_id": ""},
        {"account_id": "x" * 513},
    ],
)
def test_the_table_refuses_the_impossible(database_url: str, impossible: dict[str, object]) -> None:
    """T6: a claim without its start could never be found stalled."""
    with table_at(database_url) as table:
        table.add("a")
        with pytest.raises(psycopg.errors.CheckViolation):
            table.set("a", **impossible)


def test_a_database_that_cannot_be_reached_or_read_is_told_without_its_password() -> None:
    """P11, P12."""

    async def open_it(url: str) -> None:
        async with Database(url):
            pass

    with pytest.raises(DatabaseUnavailable, match="cannot connect to the accounts' database") as refused:
        asyncio.run(open_it("postgresql://me:hunter2@127.0.0.1:1/x"))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(SettingsError, match="expected postgresql://") as unreadable:
        asyncio.run(open_it("postgres//me:hunter2@host"))
    assert "hunter2" not in str(unreadable.value)


def test_a_role_without_rights_on_the_sequence_may_edit_the_configuration(database_url: str) -> None:
    """The owner's application needs no grants of ours."""
    with table_at(database_url) as table:
        table.add("a")
        table.connection.execute("CREATE ROLE owner_app_of_accounts")
        try:
            table.connection.execute("GRANT USAGE ON SCHEMA sync TO owner_app_of_accounts")
            table.connection.execute("GRANT SELECT, UPDATE (base_url) ON sync.account_config TO owner_app_of_accounts")
            before = table.row("a")["generation"]
            table.connection.execute("SET ROLE owner_app_of_accounts")
            table.set("a", base_url="https://new.example")
            assert table.row("a")["generation"] > before
            table.connection.execute("RESET ROLE")
        finally:
            table.connection.execute("RESET ROLE")
            table.connection.execute("DROP OWNED BY owner_app_of_accounts")
            table.connection.execute("DROP ROLE owner_app_of_accounts")
