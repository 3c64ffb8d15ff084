"""Pushing one account's records under a real claim, and looking at the records from outside."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from sync_assets.account_sync import SyncResult
from sync_assets.claims import ClaimedAccount, Claims, Database, Ending, Outcome, Selection
from sync_assets.clock import Deadline
from sync_assets.push import RecordPush
from sync_assets.upstream import SyncError, UpstreamClient
from sync_assets_tests.claims_rig import BY_HAND
from sync_assets_tests.recording_upstream import PATIENCE


class Records:
    """The records as their owner sees them; account `a` is there from the start."""

    def __init__(self, url: str, connection: psycopg.Connection[DictRow]) -> None:
        self.url = url
        self.connection = connection

    def account(self, account_id: str = "a", **columns: object) -> None:
        self.connection.execute(
            "INSERT INTO sync.account_config (account_id) VALUES (%s) ON CONFLICT DO NOTHING", [account_id]
        )
        for name, value in columns.items():
            self.connection.execute(
                sql.SQL("UPDATE sync.account_config SET {} = %s WHERE account_id = %s").format(sql.Identifier(name)),
                [value, account_id],
            )

    def add(self, *record_ids: str, account_id: str = "a", data: object = None) -> None:
        for record_id in record_ids:
            self.connection.execute(
                "INSERT INTO sync.account_record (account_id, record_id, data) VALUES (%s, %s, %s)",
                [account_id, record_id, Jsonb(data if data is not None else {"name": record_id})],
            )

    def edit(self, record_id: str, data: object) -> None:
        self.connection.execute(
            "UPDATE sync.account_record SET data = %s WHERE account_id = 'a' AND record_id = %s",
            [Jsonb(data), record_id],
        )

    def bury(self, record_id: str) -> None:
        self.connection.execute("UPDATE sync.account_record SET deleted_at = now() WHERE record_id = %s", [record_id])

    def row(self, record_id: str) -> dict[str, Any]:
        found = self.connection.execute("SELECT * FROM sync.account_record WHERE record_id = %s", [record_id])
        row = found.fetchone()
        assert row is not None, f"no record {record_id}"
        return row

    def synced(self) -> set[str]:
        """The records whose present version is acknowledged."""
        rows = self.connection.execute("SELECT record_id FROM sync.account_record WHERE synced_version = version")
        return {row["record_id"] for row in rows}

    def take_over(self) -> int:
        """What the claim of another run does to account `a`, in one statement; returns its number."""
        row = self.connection.execute(
            "UPDATE sync.account_config SET claim_seq = nextval('sync.account_config_claim_seq'), started_at = now(), "
            "claimed_by = 'another/run' WHERE account_id = 'a' RETURNING claim_seq"
        ).fetchone()
        assert row is not None
        return int(row["claim_seq"])

    def wait_until_blocked(self) -> None:
        """Wait until a statement of the sync waits for a lock."""
        until = time.monotonic() + PATIENCE
        query = (
            "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sync-assets' AND wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        with psycopg.connect(self.url, autocommit=True) as other:
            while other.execute(query).fetchone() is None:
                assert time.monotonic() < until, f"no statement of the sync waited for a lock within {PATIENCE} s"
                time.sleep(0.01)


@contextmanager
def records_at(url: str) -> Iterator[Records]:
    with psycopg.connect(url, autocommit=True, row_factory=dict_row, options=BY_HAND) as connection:
        records = Records(url, connection)
        records.account("a")
        yield records


async def claim_one(database: Database, account_id: str = "a") -> tuple[Claims, ClaimedAccount]:
    claims = Claims(database, holder="run-a/1", lease_seconds=lambda _: 60.0)
    selection = Selection.accounts([account_id])
    await claims.begin(selection)
    [account] = await claims.claim(selection, 1)
    return claims, account


async def push_async(
    url: str, upstream_url: str | None, *, account_id: str = "a", seconds: float = PATIENCE, page_size: int = 100
) -> SyncResult:
    """Claim, push and settle one account."""
    async with Database(url) as database, UpstreamClient(allow_private=True) as client:
        claims, account = await claim_one(database, account_id)
        sync = RecordPush(database, upstream_url=upstream_url, page_size=page_size)
        try:
            result = await sync.sync(account, client, Deadline.after(seconds))
        except SyncError:
            await claims.settle(Outcome(account, Ending.FAILED, error_kind="retry", error="as the test wanted"))
            raise
        await claims.settle(Outcome(account, Ending.SUCCEEDED))
        return result


def push(
    url: str, upstream_url: str | None, *, account_id: str = "a", seconds: float = PATIENCE, page_size: int = 100
) -> SyncResult:
    """Claim, push and settle one account, in an event loop of its own."""
    return asyncio.run(push_async(url, upstream_url, account_id=account_id, seconds=seconds, page_size=page_size))


class Pushing:
    """A push in a thread, for tests that do something meanwhile."""

    def __init__(self, work: Callable[[], SyncResult]) -> None:
        self._outcome: SyncResult | BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], SyncResult]) -> None:
        try:
            self._outcome = work()
        except BaseException as error:  # noqa: BLE001 raised again for the test by result()
            self._outcome = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> SyncResult:
        self._thread.join(2 * PATIENCE)
        assert not self.running, f"the push did not end within {2 * PATIENCE} s"
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome
