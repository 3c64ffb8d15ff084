"""An application that saves whole rows, as ORMs do, next to runs: its own columns are kept, ours stay as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from sync_assets.claims import Fate, RetryPolicy, Selection
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table, claims_at, failed, succeeded

OWNERS = {"account_id", "enabled", "base_url", "secret_ref", "settings"}

Save = Callable[[psycopg.Connection[DictRow], Mapping[str, Any]], None]


def _values(row: Mapping[str, Any]) -> list[Any]:
    return [Jsonb(value) if isinstance(value, dict) else value for value in row.values()]


def _update(connection: psycopg.Connection[DictRow], row: Mapping[str, Any]) -> None:
    """Save every column of a row as it was read some time ago."""
    pairs = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in row)
    connection.execute(
        sql.SQL("UPDATE sync.account_config SET {} WHERE account_id = %s").format(pairs),
        [*_values(row), row["account_id"]],
    )


def _upsert(connection: psycopg.Connection[DictRow], row: Mapping[str, Any]) -> None:
    columns = [sql.Identifier(name) for name in row]
    connection.execute(
        sql.SQL("INSERT INTO sync.account_config ({}) VALUES ({}) ON CONFLICT (account_id) DO UPDATE SET {}").format(
            sql.SQL(", ").join(columns),
            sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
            sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in columns),
        ),
        _values(row),
    )


def _read(application: psycopg.Connection[DictRow], account_id: str) -> dict[str, Any]:
    row = application.execute("SELECT * FROM sync.account_config WHERE account_id = %s", [account_id]).fetchone()
    assert row is not None
    return row


def _state(table: Table, account_id: str) -> dict[str, Any]:
    return {name: value for name, value in table.row(account_id).items() if name not in OWNERS}


@pytest.mark.parametrize("save", [_update, _upsert])
def test_p1_p2_p4_p7_a_whole_row_saved_from_an_old_read_resets_no_claim(
    database_url: str, table: Table, save: Save
) -> None:
    """Read before a claim and saved during it, read during it and saved after it: as the very role of the runs."""
    table.add("a")

    async def work() -> None:
        with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as application:
            before = _read(application, "a")
            policy = RetryPolicy(backoff_seconds=3600.0)
            async with claims_at(database_url, retry_policy=policy) as claims:
                [account] = await claims.claim(Selection.due(TICK), 5)
                held = _state(table, "a")
                save(application, before)  # nothing of its own changed: not even a generation
                assert _state(table, "a") == held
                during = _read(application, "a")
                save(application, {**before, "base_url": "https://new.example"})
                assert table.row("a")["base_url"] == "https://new.example"
                changed = _state(table, "a")
                assert changed.pop("generation") > held.pop("generation"), "the change of the configuration is lost"
                assert changed == held
                assert await claims.claim(Selection.due(TICK), 5) == []
                assert await claims.settle(failed(account)) is Fate.RECORDED
            settled = _state(table, "a")
            assert (settled["status"], settled["failures"]) == ("FAILED", 1)
            save(application, during)
            assert table.row("a")["base_url"] is None
            assert {**_state(table, "a"), "generation": 0} == {**settled, "generation": 0}
            async with claims_at(database_url, "run-b/1") as others:
                assert await others.claim(Selection.due(NEXT_TICK), 5) == [], "our backoff was undone"
                [account] = await others.claim(Selection.changed(), 5)
                save(application, during)  # of the claim of another run, now over
                assert await others.settle(succeeded(account)) is Fate.RECORDED

    asyncio.run(work())


def test_p3_a_row_that_is_a_copy_of_a_held_one_is_free(database_url: str, table: Table) -> None:
    """Nobody works it: it must not wait for a lease of somebody else's account."""
    table.add("a")

    async def work() -> None:
        async with claims_at(database_url) as claims:
            [_] = await claims.claim(Selection.due(TICK), 5)
            with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as application:
                _upsert(application, {**_read(application, "a"), "account_id": "copy"})
            assert _state(table, "copy")["status"] == "IDLE"
            [copy] = await claims.claim(Selection.due(TICK), 5)
            assert copy.account_id == "copy"

    asyncio.run(work())


def test_by_hand_our_columns_can_be_written_by_who_says_so(database_url: str, table: Table) -> None:
    table.add("a")
    with psycopg.connect(database_url, autocommit=True) as person:
        person.execute("UPDATE sync.account_config SET failures = 3")
        assert table.row("a")["failures"] == 0
        person.execute("SET sync_assets.writes = on")
        person.execute("UPDATE sync.account_config SET failures = 3")
        assert table.row("a")["failures"] == 3
