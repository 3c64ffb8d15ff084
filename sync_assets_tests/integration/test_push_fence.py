"""P4: who lost the lease writes no record, whatever it waits for; and nobody's edit deadlocks with a write-back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest

from sync_assets.account_sync import LeaseLost, SyncResult
from sync_assets.claims import Database
from sync_assets.clock import Deadline
from sync_assets.push.records import Outcome
from sync_assets.push.records import Records as RecordsOfClaim
from sync_assets.upstream import RetryLater
from sync_assets_tests.claims_rig import BY_HAND
from sync_assets_tests.push_rig import Pushing, Records, claim_one, push, records_at
from sync_assets_tests.recording_upstream import PATIENCE, RecordingUpstream


@pytest.fixture
def records(database_url: str) -> Iterator[Records]:
    with records_at(database_url) as table:
        table.add("r1", "r2")
        yield table


def delete_account(records: Records) -> None:
    records.connection.execute("DELETE FROM sync.account_config WHERE account_id = 'a'")


def settle_account(records: Records) -> None:
    records.connection.execute("UPDATE sync.account_config SET status = 'IDLE' WHERE account_id = 'a'")


def take_over(records: Records) -> None:
    records.take_over()


@pytest.mark.parametrize("lose", [take_over, settle_account, delete_account])
def test_p4_a_lost_lease_writes_no_record(
    records: Records, upstream: RecordingUpstream, lose: Callable[[Records], None]
) -> None:
    upstream.stall("a", "r2")
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 2, "the second record arrived")
    lose(records)
    upstream.release("a", "r2")
    with pytest.raises(LeaseLost):
        pushing.result()
    assert records.synced() == set()
    assert records.row("r1")["synced_at"] is None, "also a deleted account takes no record with it"


def test_p4_a_rejection_is_not_written_either(records: Records, upstream: RecordingUpstream) -> None:
    upstream.answer(422, "a", "r1")
    upstream.stall("a", "r2")
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 2, "the second record arrived")
    records.take_over()
    upstream.release("a", "r2")
    with pytest.raises(LeaseLost):
        pushing.result()
    assert records.row("r1")["rejected_version"] is None


def test_p4_a_lease_lost_while_a_record_is_edited_writes_no_record(
    records: Records, upstream: RecordingUpstream
) -> None:
    """T25: the write-back does not hold up at the record; when the record is free, the fence is looked at again."""
    with psycopg.connect(records.url) as owner:
        owner.execute("SELECT FROM sync.account_record WHERE record_id = 'r2' FOR UPDATE")
        pushing = Pushing(lambda: push(records.url, upstream.url))
        until = Deadline.after(PATIENCE)
        while records.synced() != {"r1"}:  # written: what nobody edits
            assert not until.passed(), "r1 was not written back"
        records.take_over()
        owner.rollback()
    with pytest.raises(LeaseLost):
        pushing.result()
    assert records.synced() == {"r1"}


def test_p4_a_takeover_that_the_fence_waited_for_is_seen(records: Records, upstream: RecordingUpstream) -> None:
    upstream.stall("a", "r2")
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 2, "the second record arrived")
    with psycopg.connect(records.url, options=BY_HAND) as other:
        other.execute("UPDATE sync.account_config SET claim_seq = claim_seq + 1 WHERE account_id = 'a'")
        upstream.release("a", "r2")
        records.wait_until_blocked()
    with pytest.raises(LeaseLost):
        pushing.result()
    assert records.synced() == set()


def test_p4_an_account_cannot_be_taken_over_while_it_is_written_back(
    records: Records, upstream: RecordingUpstream
) -> None:
    """Whoever holds a record up by a trigger of their own holds the account's row with it, not the fence open."""
    records.connection.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "SET LOCAL lock_timeout = 0; PERFORM pg_advisory_xact_lock(5); RETURN NEW; END $$"
    )
    records.connection.execute(
        "CREATE TRIGGER wait BEFORE UPDATE ON sync.account_record FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    with psycopg.connect(records.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(5)")
        pushing = Pushing(lambda: push(records.url, upstream.url))
        records.wait_until_blocked()
        free = records.connection.execute(
            "SELECT FROM sync.account_config WHERE account_id = 'a' FOR NO KEY UPDATE SKIP LOCKED"
        )
        assert free.fetchone() is None
    assert pushing.result() == SyncResult(sent=2)


def test_the_owner_may_edit_record_and_then_account(records: Records, upstream: RecordingUpstream) -> None:
    """T25: no deadlock, whichever of the two comes first."""
    with psycopg.connect(records.url) as owner:
        owner.execute("UPDATE sync.account_record SET data = '{}' WHERE record_id = 'r2'")
        pushing = Pushing(lambda: push(records.url, upstream.url))
        upstream.wait_for(lambda calls: len(calls) == 2, "both records arrived")
        owner.execute("SET lock_timeout = '5s'")
        owner.execute("UPDATE sync.account_config SET base_url = NULL, settings = '{\"x\": 1}' WHERE account_id = 'a'")
        records.wait_until_blocked()  # the write-back now waits for the account, holding nothing
        owner.execute("UPDATE sync.account_record SET data = '{}' WHERE record_id = 'r1'")
        owner.commit()
    assert pushing.result() == SyncResult(sent=2)
    assert records.synced() == set(), "both were edited meanwhile and are due"
    assert records.row("r1")["synced_version"] is not None


def test_an_owner_who_holds_the_account_longer_than_the_lock_timeout_is_waited_for(
    records: Records, upstream: RecordingUpstream
) -> None:
    with psycopg.connect(records.url) as owner:
        upstream.stall("a", "r1")
        pushing = Pushing(lambda: push(records.url, upstream.url))
        upstream.wait_for(lambda calls: len(calls) == 1, "the first record arrived")
        owner.execute("UPDATE sync.account_config SET settings = '{\"x\": 1}' WHERE account_id = 'a'")
        upstream.release("a", "r1")
        records.wait_until_blocked()
        waits = "SELECT pid FROM pg_stat_activity WHERE application_name = 'sync-assets' AND wait_event_type = 'Lock'"
        until = Deadline.after(PATIENCE)
        while records.connection.execute(waits).fetchone() is not None:
            assert not until.passed(), "the lock timeout did not end the statement"
        assert pushing.running
        owner.commit()
    assert pushing.result() == SyncResult(sent=2)
    assert records.synced() == {"r1", "r2"}


def test_the_lock_timeout_is_the_statements_and_not_the_connections(database_url: str, records: Records) -> None:
    async def run() -> str:
        async with Database(database_url, max_connections=1) as database:
            _, account = await claim_one(database)
            own = RecordsOfClaim(database, account, Deadline.after(PATIENCE))
            assert await own.acknowledge({"r1": Outcome(1, accepted=True)}) == set()
            async with database.connection() as connection:
                row = await (await connection.execute("SHOW lock_timeout")).fetchone()
        assert row is not None
        return str(row[0])

    assert asyncio.run(run()) == "0"


def test_a_record_edited_to_the_end_is_told_and_sent_again(records: Records, upstream: RecordingUpstream) -> None:
    with psycopg.connect(records.url) as owner:
        owner.execute("SELECT FROM sync.account_record WHERE record_id = 'r1' FOR UPDATE")
        with pytest.raises(RetryLater, match=r"'r1' was sent, but is being edited"):
            push(records.url, upstream.url, seconds=2)
    assert records.synced() == {"r2"}
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    keys = [call.key for call in upstream.calls if call.record == "r1"]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_record_that_is_edited_does_not_hold_up_the_others(records: Records, upstream: RecordingUpstream) -> None:
    with psycopg.connect(records.url) as owner:
        owner.execute("SELECT FROM sync.account_record WHERE record_id = 'r1' FOR UPDATE")
        pushing = Pushing(lambda: push(records.url, upstream.url, page_size=1))
        until = Deadline.after(PATIENCE)
        while records.synced() != {"r2"}:
            assert not until.passed(), "r2 was not written back"
        assert pushing.running
    assert pushing.result() == SyncResult(sent=2)
    assert records.synced() == {"r1", "r2"}
    assert len(upstream.calls) == 2


def test_a_record_removed_during_the_send_holds_nothing_up(records: Records, upstream: RecordingUpstream) -> None:
    upstream.stall("a", "r2")
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 2, "the second record arrived")
    records.connection.execute("DELETE FROM sync.account_record WHERE record_id = 'r1'")
    upstream.release("a", "r2")
    assert pushing.result() == SyncResult(sent=2)
    assert records.synced() == {"r2"}


def test_connections_that_die_during_the_send_lose_nothing(records: Records, upstream: RecordingUpstream) -> None:
    upstream.stall("a", "r2")
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 2, "the second record arrived")
    records.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'sync-assets' AND datname = current_database()"
    )
    upstream.release("a", "r2")
    assert pushing.result() == SyncResult(sent=2)
    assert records.synced() == {"r1", "r2"}
