"""The loop and the default push against poison, owners and dead upstreams (T13, T15, T21, T22, T26, T29)."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from sync_assets.account_sync import SyncResult
from sync_assets.claims import ClaimedAccount, Selection
from sync_assets.clock import Deadline
from sync_assets.runner import RunOptions, Summary
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table, claims_at, ids, succeeded
from sync_assets_tests.dagster_rig import add_accounts
from sync_assets_tests.push_rig import Pushing
from sync_assets_tests.recording_upstream import RecordingUpstream
from sync_assets_tests.runner_rig import fine, run_loop


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingUpstream]:
    monkeypatch.setenv("SYNC_SECRET_TEST", "s3cret")
    with RecordingUpstream() as upstream:
        yield upstream


def _push(url: str, upstream_url: str | None, selection: Selection | None = None, **settings: float) -> Summary:
    """One run of the default push."""
    return run_blocking(
        ClaimSettings(url),
        SyncSettings(upstream_url=upstream_url, allow_private_upstreams=True, **settings),  # type: ignore[arg-type]
        selection or Selection.due(TICK),
        run_id="run",
        stop=StopSignal(),
    ).summary


def test_t13_poison_rows_fail_alone_each_with_its_own_short_scrubbed_error(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P5, P11: broken settings, a missing secret, 500, an answer that never ends, a page of error, an odd address."""
    good = [f"good{n}" for n in range(5)]
    poison = {
        "settings": ("auth", "settings is a JSON array"),
        "secret": ("auth", "SYNC_SECRET_NOT_THERE"),
        "500": ("retry", "answered 500"),
        "hang": ("retry", "not answered to the end within"),
        "address": ("auth", "base_url"),
        "401": ("auth", "answered 401"),
        "429": ("rate_limited", "answered 429"),
    }
    add_accounts(table, *good, *poison)
    table.set("settings", settings="[1, 2]")
    table.set("secret", secret_ref="env:SYNC_SECRET_NOT_THERE")
    table.set("address", base_url="http://user:hunter2@/nowhere?token=hunter2")
    upstream.answer(500, account="500", body="s3cret " * 10_000)
    upstream.trickle(account="hang")
    upstream.answer(401, account="401", body="Bearer s3cret is not known")
    upstream.answer(429, account="429", headers={"Retry-After": "3600"})
    summary = _push(database_url, upstream.url, request_timeout_seconds=0.5, concurrency=4)
    assert (summary.claimed, summary.succeeded, summary.failed) == (12, 5, 7)
    for account, (kind, text) in poison.items():
        row = table.row(account)
        assert (row["status"], row["failures"], row["error_kind"]) == ("FAILED", 1, kind), account
        assert text in row["last_error"]
        assert len(row["last_error"]) <= 500
        assert "s3cret" not in row["last_error"]
        assert "hunter2" not in row["last_error"]
    assert {table.row(account)["status"] for account in good} == {"IDLE"}
    assert {call.account for call in upstream.calls if call.accepted} >= set(good)


_FLAT = """
import asyncio, json, resource, sys
from sync_assets.claims import Selection
from sync_assets.runner import RunOptions
from sync_assets_tests.claims_rig import TICK
from sync_assets_tests.runner_rig import run_loop

memory, worst = [], [1.0]

async def nothing(account, deadline):
    worst[0] = min(worst[0], account.lease_ends.remaining() / account.lease.total_seconds())

def note(result):
    memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

summary = asyncio.run(
    run_loop(sys.argv[1], nothing, Selection.due(TICK), options=RunOptions(concurrency=100), on_result=note)
)
unit = 1 if sys.platform == "darwin" else 1024
early = memory[len(memory) // 10]
print(json.dumps({"succeeded": summary.succeeded, "grown": (memory[-1] - early) * unit, "lease_left": worst[0]}))
"""


def test_t15_many_due_at_once_are_worked_in_flat_memory_and_each_with_its_whole_lease(
    database_url: str, table: Table
) -> None:
    """P1: what is claimed is started at once, and nothing of an account is kept when it is done."""
    many = 100_000
    table.connection.execute(
        "INSERT INTO sync.account_config (account_id, settings) SELECT 'a' || n, jsonb_build_object('x', repeat('x', "
        "4000)) FROM generate_series(1, %s) AS n",
        [many],
    )
    done = subprocess.run([sys.executable, "-c", _FLAT, database_url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["succeeded"] == many
    # their rows alone are more than 400 MB
    assert told["grown"] < 8 * 2**20, f"memory grew by {told['grown'] / 2**20:.1f} MB"
    assert told["lease_left"] > 0.9


def test_t15_more_accounts_than_a_statement_may_have_parameters(database_url: str, table: Table) -> None:
    """P6: by name, all in one claim; and settled."""
    names = [f"a{n}" for n in range(70_000)]

    async def run() -> None:
        async with claims_at(database_url) as claims:
            accounts = await claims.claim(Selection.accounts(names), 2_000)
            assert len(ids(accounts)) == 2_000
            await asyncio.gather(*(claims.settle(succeeded(account)) for account in accounts))

    table.add(*names[:2_000])
    asyncio.run(run())
    assert set(table.column("status").values()) == {"IDLE"}


def test_t21_a_takeover_is_logged_with_the_account_the_old_holder_and_its_age(
    database_url: str, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """P3."""
    began = datetime.now(timezone.utc) - timedelta(minutes=40)
    table.add(
        "acme", status="IN_PROGRESS", started_at=began, lease=timedelta(minutes=17), claimed_by="run-that-died/4f1c"
    )
    with caplog.at_level(logging.WARNING, "sync_assets"):
        summary = asyncio.run(run_loop(database_url, fine, holder="next/1"))
    assert summary.taken_over == 1
    (line,) = [record.getMessage() for record in caplog.records if "taken over" in record.getMessage()]
    for word in ("acme", "run-that-died/4f1c", f"{began:%Y-%m-%d %H:%M:%S}", "40 min"):
        assert word in line


def test_t22_the_owner_disables_deletes_and_renames_accounts_in_the_middle_of_a_run(
    database_url: str, table: Table
) -> None:
    """P4, P5: the batch goes on; what is gone is lost, what was renamed is free again after the lease."""

    async def works(account: ClaimedAccount, deadline: Deadline) -> SyncResult:
        match account.account_id:
            case "disabled":
                table.set("disabled", enabled=False)
            case "deleted":
                table.connection.execute("DELETE FROM sync.account_config WHERE account_id = 'deleted'")
            case "renamed":
                table.connection.execute("UPDATE sync.account_config SET account_id = 'new' WHERE account_id='renamed'")
        return SyncResult(sent=1)

    table.add("disabled", "deleted", "renamed", *(f"a{n}" for n in range(20)))
    summary = asyncio.run(run_loop(database_url, works, options=RunOptions(concurrency=2)))
    assert (summary.claimed, summary.succeeded, summary.lost, summary.failed) == (23, 21, 2, 0)
    assert table.row("disabled")["status"] == "IDLE"
    assert table.row("new")["status"] == "IN_PROGRESS"
    table.age("new", seconds=61)
    summary = asyncio.run(run_loop(database_url, fine, Selection.due(NEXT_TICK), holder="next/1"))
    assert (summary.taken_over, summary.claimed) == (1, 21), "all but the disabled one"


def test_t26_what_is_deleted_and_made_again_repeats_no_claim_number_version_or_key(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P4, P8: record and account, in the middle of a run and between runs; each new one is sent."""
    again = (
        "DELETE FROM sync.account_record WHERE account_id = 'a';"
        "INSERT INTO sync.account_record (account_id, record_id, data) VALUES ('a', 'r1', '{\"name\": \"first\"}')"
    )
    add_accounts(table, "a")
    upstream.stall("a")
    # by name: it looks for nothing else, and so never for the account that is made again
    running = Pushing(lambda: SyncResult(sent=_push(database_url, upstream.url, Selection.accounts(["a"])).lost))
    upstream.wait_for(lambda calls: len(calls) == 1, "the record is at the upstream")
    table.connection.execute(again)
    table.connection.execute("DELETE FROM sync.account_config")
    table.add("a", secret_ref="env:SYNC_SECRET_TEST")
    upstream.release("a")
    assert running.result() == SyncResult(sent=1), "the first run has lost the account it was given"
    assert _push(database_url, upstream.url, Selection.due(TICK)).sent == 1
    table.connection.execute(again)
    assert _push(database_url, upstream.url, Selection.due(NEXT_TICK)).sent == 1
    calls = upstream.of("a")
    assert len({call.key for call in calls}) == len({call.claim_seq for call in calls}) == len(calls) == 3
    assert len({json.loads(call.body)["version"] for call in calls}) == 3
    assert [call.claim_seq for call in calls] == sorted(call.claim_seq or 0 for call in calls)
    assert _push(database_url, upstream.url, Selection.all()).sent == 0


def test_t29_an_upstream_that_is_down_for_the_whole_run_makes_no_loop_of_claims(
    database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """P3, P5: each account is claimed once, and nothing is left in progress."""
    accounts = [f"a{n:02}" for n in range(40)]
    add_accounts(table, *accounts)
    upstream.answer(503)
    summary = _push(database_url, upstream.url, concurrency=8)
    assert summary.claimed == 40
    assert summary.succeeded == summary.lost == 0
    drawn = table.connection.execute("SELECT last_value FROM sync.account_config_claim_seq").fetchone()
    assert drawn is not None
    assert drawn["last_value"] == 40
    assert "IN_PROGRESS" not in table.column("status").values()
    counted = Counter(call.account for call in upstream.calls)
    assert max(counted.values()) <= 3, "no more than the quick retries"
