"""The demo's rows: made once, never reset, and edited so that a sync sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import psycopg
import pytest

from sync_assets.claims import Names, SettingsError
from sync_assets.claims.schema import create_account_table
from sync_assets.local import demo_data, demo_upstream
from sync_assets.push.schema import create_record_table
from sync_assets_tests.claims_rig import BY_HAND

T = TypeVar("T")
NAMES = Names()


def connected(url: str, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
    async def run() -> T:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            return await work(connection)

    return asyncio.run(run())


def create(url: str) -> int:
    return connected(url, lambda connection: demo_data.create(connection, NAMES))


def edit(url: str, account_id: str, what: Literal["record", "configuration"]) -> str:
    return connected(url, lambda connection: demo_data.edit(connection, NAMES, account_id, what))


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, options=BY_HAND) as connection:
        return connection.execute(query.encode()).fetchall()


EVERYTHING = (
    "SELECT to_jsonb(a) FROM sync.account_config a UNION ALL SELECT to_jsonb(r) FROM sync.account_record r ORDER BY 1"
)


def test_the_accounts_have_one_to_five_records_each_and_the_failing_ones_are_among_them(database_url: str) -> None:
    assert create(database_url) == demo_data.ACCOUNTS
    counts = dict(rows(database_url, "SELECT account_id, count(*) FROM sync.account_record GROUP BY 1"))
    assert set(counts) == set(demo_data.account_ids())
    assert set(counts.values()) == {1, 2, 3, 4, 5}
    assert set(demo_upstream.MOODS) < set(counts)
    slow = [account for account, mood in demo_upstream.MOODS.items() if mood is demo_upstream.Mood.SLOW]
    assert [counts[account] for account in slow] == [1]  # so that nobody waits long for it
    references = dict(rows(database_url, "SELECT secret_ref, count(*) FROM sync.account_config GROUP BY 1"))
    assert references == {
        "env:SYNC_SECRET_DEMO": demo_data.ACCOUNTS - 4,
        "env:SYNC_SECRET_DEMO_EXPIRED": 3,
        "env:SYNC_SECRET_MISSING": 1,
    }
    assert rows(database_url, "SELECT account_id FROM sync.account_config WHERE NOT enabled") == [("zephyr-250",)]
    refused = rows(
        database_url, "SELECT account_id, record_id FROM sync.account_record WHERE position('@' IN data->>'email') = 0"
    )
    assert refused == [("cobalt-113", "contact-1")]
    assert rows(database_url, "SELECT DISTINCT base_url FROM sync.account_config") == [(None,)]


def test_made_again_it_adds_nothing_and_resets_nothing(database_url: str) -> None:
    create(database_url)
    rows(
        database_url,
        "UPDATE sync.account_config SET status = 'FAILED', failures = 3, enabled = NOT enabled"
        " WHERE account_id = 'acme-001' RETURNING 1",
    )
    rows(database_url, "UPDATE sync.account_record SET synced_version = version RETURNING 1")
    rows(database_url, "DELETE FROM sync.account_record WHERE account_id = 'fern-019' RETURNING 1")
    before = rows(database_url, EVERYTHING)
    assert create(database_url) == 0
    after = rows(database_url, EVERYTHING)
    added = [row for (row,) in after if (row,) not in before]
    assert [row for (row,) in before if (row,) not in after] == []
    assert {row["account_id"] for row in added} == {"fern-019"}


def test_two_who_make_it_at_once_both_succeed(database_url: str) -> None:
    async def both(first: psycopg.AsyncConnection[Any]) -> list[int]:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as second:
            return list(await asyncio.gather(demo_data.create(first, NAMES), demo_data.create(second, NAMES)))

    assert sorted(connected(database_url, both)) == [0, demo_data.ACCOUNTS]


def test_a_record_edited_is_one_record_that_changed_each_time(database_url: str) -> None:
    create(database_url)
    rows(database_url, "UPDATE sync.account_record SET synced_version = version RETURNING 1")
    changed = "SELECT account_id, record_id, version FROM sync.account_record WHERE version <> synced_version"
    told = edit(database_url, "acme-001", "record")
    assert told.startswith("Changed the record contact-1 of acme-001.")
    assert "next tick" in told
    [(account, record, version)] = rows(database_url, changed)
    assert (account, record) == ("acme-001", "contact-1")
    edit(database_url, "acme-001", "record")
    [(_, _, later)] = rows(database_url, changed)
    assert later > version


def test_p7_a_configuration_edited_is_one_account_that_changed_each_time(database_url: str) -> None:
    create(database_url)
    rows(database_url, "UPDATE sync.account_config SET claimed_generation = generation RETURNING 1")
    changed = "SELECT account_id, generation FROM sync.account_config WHERE generation > claimed_generation"
    told = edit(database_url, "acme-001", "configuration")
    assert "acme-001" in told
    assert "SYNC_SENSOR_SECONDS" in told
    [(account, generation)] = rows(database_url, changed)
    assert account == "acme-001"
    edit(database_url, "acme-001", "configuration")
    [(_, later)] = rows(database_url, changed)
    assert later > generation


def test_p6_an_edit_of_a_disabled_account_says_that_nothing_will_happen(database_url: str) -> None:
    create(database_url)
    assert "disabled" in edit(database_url, "zephyr-250", "configuration")


@pytest.mark.parametrize("what", ["record", "configuration"])
def test_p12_an_unknown_account_is_named_with_some_that_exist(
    database_url: str, what: Literal["record", "configuration"]
) -> None:
    with pytest.raises(SettingsError, match=r"'maple-1' in sync\.account_config; it is empty: sync-assets demo run"):
        edit(database_url, "maple-1", what)
    create(database_url)
    before = rows(database_url, EVERYTHING)
    with pytest.raises(SettingsError, match=r"'maple-1' in sync\.account_config; .* maple-036, maple-086, maple-136"):
        edit(database_url, "maple-1", what)
    assert rows(database_url, EVERYTHING) == before


def test_p12_an_account_without_records_has_none_to_edit(database_url: str) -> None:
    create(database_url)
    rows(database_url, "UPDATE sync.account_record SET deleted_at = now() WHERE account_id = 'acme-001' RETURNING 1")
    with pytest.raises(SettingsError, match=r"'acme-001' has no record in sync\.account_record"):
        edit(database_url, "acme-001", "record")


def test_the_demo_uses_the_names_it_is_given(empty_database_url: str) -> None:
    names = Names(schema="my demo", table="Konten", key="Konto", enabled="an", records="Sätze")

    async def all_of_it(connection: psycopg.AsyncConnection[Any]) -> str:
        await create_account_table(connection, names)
        await create_record_table(connection, names)
        assert await demo_data.create(connection, names) == demo_data.ACCOUNTS
        await demo_data.edit(connection, names, "acme-001", "configuration")
        return await demo_data.edit(connection, names, "acme-001", "record")

    assert "acme-001" in connected(empty_database_url, all_of_it)
