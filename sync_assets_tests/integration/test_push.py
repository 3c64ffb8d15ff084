"""The default sync against a real Postgres and a real upstream: what is sent, and what is acknowledged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from sync_assets.account_sync import SyncResult
from sync_assets.upstream import AuthFailed, RateLimited, RetryLater, SyncError
from sync_assets_tests.push_rig import Pushing, Records, push, push_async, records_at
from sync_assets_tests.recording_upstream import RecordingUpstream


@pytest.fixture
def records(database_url: str) -> Iterator[Records]:
    with records_at(database_url) as table:
        yield table


def sent(upstream: RecordingUpstream) -> list[str | None]:
    return [call.record for call in upstream.calls]


def test_a_change_is_sent_and_acknowledged_once(records: Records, upstream: RecordingUpstream) -> None:
    records.add("r", data={"b": [1, {"c": None}], "a": 'é "x" \\ y'})
    version = records.row("r")["version"]
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    [call] = upstream.calls
    assert (call.method, call.account, call.record, call.authorized) == ("PUT", "a", "r", False)
    assert (
        call.body.decode() == f'{{"data":{{"a":"é \\"x\\" \\\\ y","b":[1,{{"c":null}}]}},"id":"r","version":{version}}}'
    )
    assert call.headers["content-type"] == "application/json"
    assert call.claim_seq == 1
    row = records.row("r")
    assert (row["synced_version"], row["external_id"], row["error"]) == (version, "ext-a-r", None)
    assert row["synced_at"] is not None
    assert push(records.url, upstream.url) == SyncResult()
    assert len(upstream.calls) == 1


def test_a_document_arrives_with_every_digit(records: Records, upstream: RecordingUpstream) -> None:
    document = '{"n": 12345678901234567890.12345678901234567890, "big": 1e400, "deep": ' + "[" * 1500 + "]" * 1500 + "}"
    records.add("r")
    records.connection.execute("UPDATE sync.account_record SET data = %s::jsonb", [document])
    push(records.url, upstream.url)
    body = upstream.calls[0].body
    assert b"12345678901234567890.12345678901234567890" in body
    assert b"1" + b"0" * 400 in body
    assert b"[" * 1500 in body


def test_a_tombstone_is_deleted_and_gone_already_is_success(records: Records, upstream: RecordingUpstream) -> None:
    """P8: but a 404 may come of a wrong address, so it is asked again when the configuration changes, and only then."""
    records.add("accepted", "gone", "unknown")
    for record_id in ("accepted", "gone", "unknown"):
        records.bury(record_id)
    upstream.answer(410, "a", "gone")
    upstream.answer(404, "a", "unknown")
    assert push(records.url, upstream.url) == SyncResult(sent=3)
    assert {(call.method, call.body) for call in upstream.calls} == {("DELETE", b"")}
    assert records.synced() == {"accepted", "gone"}
    assert push(records.url, upstream.url) == SyncResult()
    records.connection.execute("UPDATE sync.account_config SET settings = '{\"mended\": true}'")
    upstream.clear()
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    assert (upstream.calls[-1].method, upstream.calls[-1].record) == ("DELETE", "unknown")
    assert records.synced() == {"accepted", "gone", "unknown"}
    records.connection.execute("UPDATE sync.account_record SET deleted_at = NULL WHERE record_id = 'gone'")
    upstream.clear()
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    assert upstream.calls[-1].method == "PUT"


def test_pages_are_sent_in_order_and_acknowledged_one_by_one(records: Records, upstream: RecordingUpstream) -> None:
    records.add(*"edcba")
    upstream.stall("a", "c")
    pushing = Pushing(lambda: push(records.url, upstream.url, page_size=2))
    upstream.wait_for(lambda calls: len(calls) == 3, "the third record arrived")
    assert records.synced() == {"a", "b"}
    upstream.release("a", "c")
    assert pushing.result() == SyncResult(sent=5)
    assert sent(upstream) == list("abcde")
    assert records.synced() == set("abcde")


def test_only_the_accounts_own_records_are_sent(records: Records, upstream: RecordingUpstream) -> None:
    records.add("mine")
    records.add("yours", account_id="b")
    push(records.url, upstream.url)
    assert sent(upstream) == ["mine"]


def test_p7_an_edit_during_the_send_stays_due(records: Records, upstream: RecordingUpstream) -> None:
    records.add("r", data={"n": 1})
    before = records.row("r")["version"]
    upstream.stall("a", "r")
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 1, "the record arrived")
    records.edit("r", {"n": 2})
    upstream.release("a", "r")
    assert pushing.result() == SyncResult(sent=1)
    assert records.row("r")["synced_version"] == before
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    assert [json.loads(call.body)["data"]["n"] for call in upstream.calls] == [1, 2]
    assert records.synced() == {"r"}


def test_a_record_edited_again_and_again_is_sent_once_a_run(records: Records, upstream: RecordingUpstream) -> None:
    records.add("a", "b", "c")
    upstream.stall("a", "b")
    pushing = Pushing(lambda: push(records.url, upstream.url, page_size=1))
    upstream.wait_for(lambda calls: len(calls) == 2, "the second record arrived")
    records.edit("a", {"n": 2})
    upstream.release("a", "b")
    pushing.result()
    assert sent(upstream) == ["a", "b", "c"]
    assert records.synced() == {"b", "c"}


def test_p7_a_record_committed_late_is_seen(records: Records, upstream: RecordingUpstream) -> None:
    with psycopg.connect(records.url) as late:
        late.execute("INSERT INTO sync.account_record VALUES ('a', 'late', '{}')")
        records.add("z")  # a higher version, committed first
        assert push(records.url, upstream.url) == SyncResult(sent=1)
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    assert sent(upstream) == ["z", "late"]


def test_p8_a_resend_has_the_same_key_and_body_and_another_claim(records: Records, upstream: RecordingUpstream) -> None:
    records.add("r")
    upstream.drop("a", "r")  # it took the request and nobody heard
    with pytest.raises(RetryLater):
        push(records.url, upstream.url)
    assert records.synced() == set()
    upstream.clear()
    push(records.url, upstream.url)
    assert len({(call.key, call.body) for call in upstream.calls}) == 1
    assert {call.claim_seq for call in upstream.calls} == {1, 2}


def test_p8_the_key_changes_with_version_body_record_and_account(records: Records, upstream: RecordingUpstream) -> None:
    records.account("b")
    records.add("r", data={})
    records.add("r2", data={})
    records.add("r", account_id="b", data={})
    push(records.url, upstream.url)
    push(records.url, upstream.url, account_id="b")
    records.connection.execute("DELETE FROM sync.account_record")
    records.add("r", data={})  # made again, with the same data
    push(records.url, upstream.url)
    records.bury("r")
    push(records.url, upstream.url)
    keys = [call.key for call in upstream.calls]
    assert len(keys) == 5
    assert None not in keys
    assert len(set(keys)) == 5


def test_a_rejected_record_is_remembered_and_the_account_goes_on(records: Records, upstream: RecordingUpstream) -> None:
    records.add("a", "bad", "c")
    upstream.answer(422, "a", "bad", body="name is not allowed")
    assert push(records.url, upstream.url) == SyncResult(sent=2, rejected=1)
    row = records.row("bad")
    assert (row["rejected_version"], row["synced_version"]) == (row["version"], None)
    assert row["error"] == f"PUT {upstream.url}/accounts/a/records/bad answered 422: name is not allowed"
    assert push(records.url, upstream.url) == SyncResult(), "not sent again as it is"

    records.edit("bad", {"name": "better"})
    upstream.clear()
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    row = records.row("bad")
    assert (row["rejected_version"], row["rejected_generation"], row["error"]) == (None, None, None)


def test_a_mended_configuration_sends_the_rejected_again(records: Records, upstream: RecordingUpstream) -> None:
    records.account(base_url=f"{upstream.url}/wrong")
    records.add("r")
    assert push(records.url, None) == SyncResult(rejected=1)
    assert push(records.url, None) == SyncResult()
    records.account(base_url=upstream.url)
    assert push(records.url, None) == SyncResult(sent=1)
    assert records.synced() == {"r"}


@pytest.mark.parametrize(
    ("status", "kind", "retry_after"),
    [(500, RetryLater, None), (429, RateLimited, timedelta(seconds=7)), (401, AuthFailed, timedelta(seconds=7))],
)
def test_another_fault_ends_the_sync_after_what_was_accepted_is_written(
    records: Records, upstream: RecordingUpstream, status: int, kind: type[SyncError], retry_after: timedelta | None
) -> None:
    records.add("a", "b", "c")
    headers = {"Retry-After": "7"} if retry_after else {}
    upstream.answer(status, "a", "b", headers=headers)
    with pytest.raises(SyncError) as caught:
        push(records.url, upstream.url)
    assert type(caught.value) is kind
    assert caught.value.retry_after == retry_after
    assert (caught.value.sent, caught.value.rejected) == (1, 0)
    assert records.synced() == {"a"}
    assert "c" not in sent(upstream)
    assert records.row("b")["rejected_version"] is None


def test_what_did_not_fit_in_the_time_goes_on_with_the_next_run(records: Records, upstream: RecordingUpstream) -> None:
    records.add("a", "b")
    upstream.stall("a", "b")
    with pytest.raises(RetryLater):
        push(records.url, upstream.url, seconds=1.5)
    assert records.synced() == {"a"}


ODD_IDS = [".", "..", "a/b", "../../x", "a b", "%2F", "%", "?q=1", "#f", "é😀", "a+b", ";p", "\\", "x\ny", '"']


def test_p12_odd_ids_arrive_as_they_are(records: Records, upstream: RecordingUpstream) -> None:
    for account_id in ("..", "a/b ?#%2F😀"):
        records.account(account_id)
        records.add(*ODD_IDS, account_id=account_id)
        assert push(records.url, upstream.url, account_id=account_id) == SyncResult(sent=len(ODD_IDS))
        assert sorted(str(call.record) for call in upstream.of(account_id)) == sorted(ODD_IDS)
        assert {json.loads(call.body)["id"] for call in upstream.of(account_id)} == set(ODD_IDS)


@pytest.mark.parametrize(
    ("answer", "external_id"),
    [
        ('{"id": 5}', "5"),
        ('{"id": "x", "external_id": "y"}', "y"),
        ('{"id": null}', None),
        ('{"id": true}', None),
        ('{"id": {"a": 1}}', None),
        ('{"id": ""}', None),
        ('{"id": "nul\\u0000"}', None),
        ('{"id": "\\ud800"}', None),
        ('{"id": "' + "x" * 600 + '"}', None),
        ('{"id": ' + "9" * 5000 + "}", None),
        ("[1]", None),
        ("not json", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_an_odd_answer_never_fails_a_record(
    records: Records, upstream: RecordingUpstream, answer: str, external_id: str | None
) -> None:
    records.add("r")
    upstream.answer(200, body=answer)
    assert push(records.url, upstream.url) == SyncResult(sent=1)
    assert records.row("r")["external_id"] == external_id


def test_the_rows_own_address_and_secret_are_used(
    records: Records, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC_SECRET_A", "sesame-for-a")
    records.account(base_url=f"{upstream.url}/accounts/", secret_ref="env:SYNC_SECRET_A")
    records.add("r")
    push(records.url, "http://127.0.0.1:9/not-this-one")
    [call] = upstream.calls
    assert call.raw_path == "/accounts/accounts/a/records/r"
    assert call.authorization == "Bearer sesame-for-a"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"base_url": "ftp://me:pa55@host/x?y=pa55"}, "base_url 'ftp://host/x' cannot be used"),
        ({"base_url": "https://h/?key=pa55"}, "base_url has a query"),
        ({"base_url": "https://h/x?"}, "base_url has a query or a fragment"),
        ({"base_url": "https://h/x#"}, "base_url has a query or a fragment"),
        ({"base_url": "nonsense"}, "base_url 'nonsense' cannot be used"),
        ({"settings": "[1]"}, "settings is a JSON array; expected an object"),
        ({"settings": '"x"'}, "settings is a JSON text"),
        ({"secret_ref": "env:PATH"}, "env:PATH is not allowed"),
        ({"secret_ref": "env:SYNC_SECRET_NOWHERE"}, "no environment variable SYNC_SECRET_NOWHERE"),
        ({"secret_ref": "pa55word"}, "neither env:NAME nor file:PATH"),
    ],
)
def test_p12_a_row_that_cannot_be_used_is_told_and_sends_nothing(
    records: Records, upstream: RecordingUpstream, columns: dict[str, str], why: str
) -> None:
    records.account(**columns)
    records.add("r")
    with pytest.raises(AuthFailed) as caught:
        push(records.url, upstream.url)
    assert why in caught.value.detail
    assert "pa55" not in caught.value.detail
    assert upstream.calls == []


def test_p12_no_address_at_all_is_told(records: Records) -> None:
    with pytest.raises(AuthFailed, match="set base_url in the account's row, or SYNC_UPSTREAM_URL"):
        push(records.url, None)


def test_nothing_is_open_in_the_database_during_a_call(records: Records, upstream: RecordingUpstream) -> None:
    records.add("r")
    upstream.stall()
    pushing = Pushing(lambda: push(records.url, upstream.url))
    upstream.wait_for(lambda calls: len(calls) == 1, "the record arrived")
    states = records.connection.execute(
        "SELECT state FROM pg_stat_activity WHERE application_name = 'sync-assets' AND datname = current_database()"
    ).fetchall()
    assert states
    assert {row["state"] for row in states} == {"idle"}
    upstream.clear()
    pushing.result()


def test_p8_a_cancelled_push_writes_nothing_and_resends_the_same(records: Records, upstream: RecordingUpstream) -> None:
    records.add("a", "b")
    upstream.stall("a", "b")

    async def run() -> None:
        task = asyncio.ensure_future(push_async(records.url, upstream.url))
        await asyncio.to_thread(upstream.wait_for, lambda calls: len(calls) == 2, "the second record arrived")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    [_, cut] = upstream.wait_for(lambda calls: calls[1].ended, "the call was aborted")
    assert cut.aborted
    assert records.synced() == set()
    upstream.clear()
    records.connection.execute("UPDATE sync.account_config SET status = 'FAILED'")
    assert push(records.url, upstream.url) == SyncResult(sent=2)
    assert len({call.key for call in upstream.calls}) == 2
