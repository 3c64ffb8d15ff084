"""The records table: made once however often, versions that never repeat, and a wrong table told in full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sync_assets.claims import Names, SettingsError
from sync_assets.claims.names import compose
from sync_assets.push.schema import PACKAGE, check_record_table, create_record_table
from sync_assets_tests.push_rig import Records, records_at

ODD = Names(schema='my "schema"', table="T", records="Records; $$ {}")


def on(url: str, *work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[Any]]) -> list[Any]:
    """Run each on a connection of its own, all at once."""

    async def run() -> list[Any]:
        async def one(part: Callable[[psycopg.AsyncConnection[Any]], Awaitable[Any]]) -> Any:
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                return await part(connection)

        return await asyncio.gather(*map(one, work))

    return asyncio.run(run())


@pytest.mark.parametrize("names", [Names(), ODD], ids=["default", "odd"])
def test_p12_it_is_made_once_by_many_at_once(empty_database_url: str, names: Names) -> None:
    made = on(empty_database_url, *[lambda connection: create_record_table(connection, names)] * 4)
    assert sorted(made) == [False, False, False, True]
    assert on(empty_database_url, lambda connection: create_record_table(connection, names)) == [False]
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        table = sql.Identifier(names.schema, names.records)
        connection.execute(sql.SQL("INSERT INTO {} VALUES ('a', 'r', '{{}}')").format(table))
        assert connection.execute(sql.SQL("SELECT version FROM {}").format(table)).fetchone() == (1,)


def refusal(url: str) -> str:
    with pytest.raises(SettingsError) as caught:
        on(url, lambda connection: check_record_table(connection, Names()))
    return str(caught.value)


def test_p12_a_missing_table_is_told(empty_database_url: str) -> None:
    assert refusal(empty_database_url) == (
        "there is no table sync.account_record in this database; create it with: sync-assets init (and the same names)"
    )


def test_p12_every_wrong_column_is_named_and_the_table_left_alone(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE sync.account_record DROP COLUMN error")
        connection.execute("ALTER TABLE sync.account_record ALTER synced_at TYPE timestamp")
    for refuse in (check_record_table, create_record_table):
        with pytest.raises(SettingsError) as caught:
            on(database_url, lambda connection, refuse=refuse: refuse(connection, Names()))  # type: ignore[misc]
        told = str(caught.value)
        assert "sync.account_record" in told
        assert "synced_at is timestamp without time zone (expected timestamp with time zone)" in told
        assert "error is missing (expected text)" in told


def test_p12_a_table_that_draws_no_versions_is_refused(database_url: str) -> None:
    on(database_url, lambda connection: check_record_table(connection, Names()))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE sync.account_record DISABLE TRIGGER sync_assets_version")
    assert "its trigger sync_assets_version is disabled; ALTER TABLE" in refusal(database_url)


def test_p7_a_version_is_drawn_when_a_record_really_changes_and_never_twice(database_url: str) -> None:
    with records_at(database_url) as records:
        seen: list[int] = []

        def drawn(statement: str) -> bool:
            records.connection.execute(statement.encode())
            version = int(records.row("r")["version"])
            new = version not in seen
            assert not new or not seen or version > max(seen)
            seen.append(version)
            return new

        insert = "INSERT INTO sync.account_record (account_id, record_id, data, version) VALUES ('a', 'r', '[1]', 1000)"
        update = "UPDATE sync.account_record SET "
        assert drawn(insert)
        assert max(seen) < 1000, "what the owner says it is does not count"
        assert drawn(update + "data = '[2]'")
        assert not drawn(update + "data = '[2]', deleted_at = NULL")
        assert not drawn(update + "synced_version = version, external_id = 'x', error = 'y'")
        assert drawn(update + "deleted_at = now()")
        assert drawn(update + "deleted_at = NULL")
        assert drawn(insert + " ON CONFLICT (account_id, record_id) DO UPDATE SET data = excluded.data")
        assert not drawn(insert + " ON CONFLICT (account_id, record_id) DO UPDATE SET data = excluded.data")
        records.connection.execute("DELETE FROM sync.account_record")
        assert drawn(insert), "made again with the same data"
        assert drawn(update + "account_id = 'b'"), "another record upstream"


@pytest.mark.parametrize(("account_id", "record_id"), [("", "r"), ("a", ""), ("a", "x" * 513), ("x" * 513, "r")])
def test_p12_ids_that_cannot_be_are_refused_by_the_table(database_url: str, account_id: str, record_id: str) -> None:
    with records_at(database_url) as records, pytest.raises(psycopg.errors.CheckViolation):
        records.add(record_id, account_id=account_id)


def test_an_owner_needs_no_rights_on_the_sequence(database_url: str) -> None:
    with records_at(database_url) as records:
        role = sql.Identifier(f"owner_{records.connection.info.backend_pid}")
        records.connection.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            records.connection.execute(sql.SQL("GRANT USAGE ON SCHEMA sync TO {}").format(role))
            records.connection.execute(sql.SQL("GRANT INSERT, SELECT ON sync.account_record TO {}").format(role))
            records.connection.execute(sql.SQL("SET ROLE {}").format(role))
            records.add("r")
            assert records.row("r")["version"] > 0
        finally:
            records.connection.execute("RESET ROLE")
            records.connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            records.connection.execute(sql.SQL("DROP ROLE {}").format(role))


def plan_of(records: Records, after: str = "") -> tuple[str, int]:
    """The plan in words, and the pages of memory it touched."""
    query = compose(PACKAGE, "changed.sql", Names())
    values = {"account_id": "a", "generation": 1, "after": after, "page_size": 100}
    explained = records.connection.execute(
        sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + query, values
    ).fetchone()
    assert explained is not None
    plan = explained["QUERY PLAN"][0]["Plan"]
    return json.dumps(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_changed_records_are_found_without_a_look_at_the_synced_ones(database_url: str) -> None:
    with records_at(database_url) as records:
        records.connection.execute(
            "INSERT INTO sync.account_record (account_id, record_id, data) "
            "SELECT account_id, n::text, '{}' FROM generate_series(1, 5000) AS n, unnest('{a,b}'::text[]) AS account_id"
        )
        records.connection.execute("UPDATE sync.account_record SET synced_version = version")
        records.connection.execute("VACUUM (ANALYZE) sync.account_record")
        plan, pages = plan_of(records)
        assert "account_record_changed" in plan
        assert pages < 10
        records.connection.execute("UPDATE sync.account_record SET data = '1' WHERE record_id IN ('7', '4000')")
        plan, pages = plan_of(records)
        assert "account_record_changed" in plan
        assert '"Actual Rows": 2' in plan
        assert pages < 30
