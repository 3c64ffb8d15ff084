"""The grants that are documented are enough for everything but init, and each of them is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from sync_assets.claims import Claims, Database, Selection, SettingsError, Verdict
from sync_assets.inspection import troubles_of
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, RunReport, SyncSettings, changed_accounts, run_blocking
from sync_assets_tests.claims_rig import TICK, Table
from sync_assets_tests.recording_upstream import RecordingUpstream
from sync_assets_tests.security.worker_role import GRANTS, Worker, worker_of

OWNERS = {"account_id", "enabled", "base_url", "secret_ref", "settings", "data", "deleted_at", "record_id", "version"}


@pytest.fixture
def worker(table: Table, database_url: str) -> Iterator[Worker]:
    with worker_of(table, database_url) as worker:
        yield worker


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as server:
        yield server


def add(table: Table, *accounts: str) -> None:
    table.add(*accounts)
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT account_id, record_id, '{}' FROM unnest(%s::text[]) AS account_id, "
        "unnest('{r1,r2}'::text[]) AS record_id",
        [list(accounts)],
    )


def sync(worker: Worker, upstream: RecordingUpstream, selection: Selection, stop: StopSignal) -> RunReport:
    return run_blocking(
        ClaimSettings(worker.url),
        SyncSettings(upstream_url=upstream.url, allow_private_upstreams=True),
        selection,
        run_id="run-a",
        stop=stop,
    )


def test_everything_works_under_the_documented_grants(
    table: Table, worker: Worker, upstream: RecordingUpstream
) -> None:
    """A run by tick with success, rejection, failure and takeover; the sensor; by hand; explain; a stop."""
    worker.grant(GRANTS)
    assert not worker.may_update() & OWNERS
    add(table, "ok", "bad", "dead", "odd")
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'IN_PROGRESS', started_at = now() - interval '1 hour', lease = '1 s' "
        "WHERE account_id = 'dead'"
    )
    upstream.answer(401, "bad")
    upstream.answer(422, "odd", "r1")
    assert asyncio.run(changed_accounts(ClaimSettings(worker.url))) == 4
    troubles = asyncio.run(troubles_of(ClaimSettings(worker.url, freshness_seconds=60.0)))
    assert [trouble.count for trouble in troubles] == [1, 0, 0, 0]
    summary = sync(worker, upstream, Selection.due(TICK), StopSignal()).summary
    assert (summary.claimed, summary.succeeded, summary.failed, summary.taken_over) == (4, 3, 1, 1)
    assert (summary.sent, summary.rejected) == (5, 1)
    table.set("ok", settings="{}", base_url=f"{upstream.url}/v2")
    assert asyncio.run(changed_accounts(ClaimSettings(worker.url))) == 1
    assert sync(worker, upstream, Selection.changed(), StopSignal()).summary.succeeded == 1
    assert sync(worker, upstream, Selection.all(), StopSignal()).summary.claimed == 4
    report = sync(worker, upstream, Selection.accounts(["ok", "nobody"]), StopSignal())
    assert (report.summary.succeeded, [each.verdict for each in report.not_claimed]) == (1, [Verdict.UNKNOWN])

    async def explained() -> Verdict:
        async with Database(worker.url) as database:
            claims = Claims(database, holder="run-b/1", lease_seconds=lambda _: 60.0)
            await claims.begin(Selection.all())
            return (await claims.explain("ok")).verdict

    assert asyncio.run(explained()) is Verdict.FREE


def test_a_stop_hands_back_under_the_documented_grants(
    table: Table, worker: Worker, upstream: RecordingUpstream
) -> None:
    """P10."""
    worker.grant(GRANTS)
    add(table, "a")
    upstream.stall()
    stop = StopSignal()

    async def stops() -> None:
        run = asyncio.to_thread(sync, worker, upstream, Selection.all(), stop)
        running = asyncio.ensure_future(run)
        await asyncio.to_thread(upstream.wait_for, lambda calls: len(calls) == 1, "the account is being worked")
        stop.set()
        assert (await running).summary.handed_back == 1

    asyncio.run(stops())
    assert table.row("a")["status"] == "IDLE"


@pytest.mark.parametrize("missing", range(len(GRANTS)))
def test_each_grant_is_needed_and_its_absence_is_told(
    table: Table, worker: Worker, upstream: RecordingUpstream, missing: int
) -> None:
    """P12."""
    worker.grant([grant for n, grant in enumerate(GRANTS) if n != missing])
    add(table, "a")
    summary = None
    try:
        summary = sync(worker, upstream, Selection.all(), StopSignal()).summary
    except SettingsError as error:
        assert "the accounts' database refuses: permission denied" in str(error)  # noqa: PT017
    assert summary is None or summary.failed == 1, f"not needed: {GRANTS[missing]}"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sync.account_config SET enabled = false",
        "UPDATE sync.account_config SET base_url = 'https://elsewhere.example'",
        "UPDATE sync.account_config SET secret_ref = 'env:SYNC_SECRET_B'",
        "UPDATE sync.account_record SET data = '{}'",
        "DELETE FROM sync.account_config",
        "INSERT INTO sync.account_record (account_id, record_id, data) VALUES ('a', 'b', '{}')",
        "TRUNCATE sync.account_record",
        "SELECT nextval('sync.account_config_gen_seq')",
        "CREATE TABLE sync.mine ()",
        "SELECT * FROM pg_authid",
    ],
)
def test_what_is_the_owners_cannot_be_touched(worker: Worker, statement: str) -> None:
    worker.grant(GRANTS)
    with (
        psycopg.connect(worker.url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)
