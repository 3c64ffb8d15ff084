"""T28, T11: the answer to a claim, a settle, a hand-back or a write-back is lost after the commit, by a real proxy."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sync_assets.claims import Selection
from sync_assets.runner import Summary
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking
from sync_assets_tests.claims_rig import NEXT_TICK, TICK, Table, table_at
from sync_assets_tests.dagster_rig import add_accounts
from sync_assets_tests.faulty_proxy import ACKNOWLEDGE, CLAIM, HAND_BACK, SETTLE, SHUTTING_DOWN, FaultyProxy
from sync_assets_tests.loop_process import LoopProcess, wait_until
from sync_assets_tests.recording_upstream import RecordingUpstream

ACCOUNTS = [f"a{n}" for n in range(6)]


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    with table_at(database_url) as table:
        add_accounts(table, *ACCOUNTS)
        yield table


@pytest.fixture
def proxy(database_url: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(database_url) as proxy:
        yield proxy


def _run(
    proxy: FaultyProxy, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch, stop: StopSignal | None = None
) -> Summary:
    # the last look for a claim whose answer was lost waits for as long as its commit may take
    monkeypatch.setattr("sync_assets.claims.store.STATEMENT_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("SYNC_SECRET_TEST", "s3cret")
    return run_blocking(
        ClaimSettings(proxy.url),
        SyncSettings(upstream_url=upstream.url, concurrency=3, allow_private_upstreams=True),
        Selection.due(TICK),
        run_id="run",
        stop=stop or StopSignal(),
    ).summary


@pytest.mark.parametrize("last_words", [b"", SHUTTING_DOWN], ids=["cut", "shutting down"])
@pytest.mark.parametrize(
    "statements",
    [[CLAIM], [CLAIM, CLAIM], [SETTLE], [ACKNOWLEDGE], [CLAIM, ACKNOWLEDGE, SETTLE]],
    ids=["claim", "claim twice", "settle", "write-back", "one of each"],
)
def test_t28_a_reply_lost_after_the_commit_orphans_nothing_and_nothing_recorded_is_told_as_lost(
    proxy: FaultyProxy,
    table: Table,
    upstream: RecordingUpstream,
    monkeypatch: pytest.MonkeyPatch,
    statements: list[bytes],
    last_words: bytes,
) -> None:
    """P3, P8: every account is called once, settled, acknowledged and counted, in this very run."""
    proxy.lose_reply(*statements, last_words=last_words)
    summary = _run(proxy, upstream, monkeypatch)
    assert Counter(proxy.lost) == Counter(statements), "the fault was not injected"
    assert (summary.claimed, summary.succeeded, summary.sent) == (6, 6, 6)
    assert (summary.lost, summary.unknown, summary.failed, summary.taken_over) == (0, 0, 0, 0)
    assert set(table.column("status").values()) == {"IDLE"}
    assert set(table.column("failures").values()) == {0}
    assert Counter(call.account for call in upstream.calls) == dict.fromkeys(ACCOUNTS, 1)
    due = table.connection.execute("SELECT FROM sync.account_record WHERE synced_version IS DISTINCT FROM version")
    assert due.fetchall() == []


def test_t28_a_hand_back_whose_reply_is_lost_is_told_as_handed_back(
    proxy: FaultyProxy, table: Table, upstream: RecordingUpstream
) -> None:
    """P10: nothing is left held, nothing counted, and the same tick takes all of them."""
    upstream.stall()
    with LoopProcess(proxy.url, upstream.url, "stopped", tick=TICK) as stopped:
        stopped.go()
        upstream.wait_for(lambda calls: len(calls) == 6, "all accounts at the upstream")
        proxy.lose_reply(HAND_BACK)
        stopped.signal(signal.SIGTERM)
        summary = stopped.wait()
    assert proxy.lost == [HAND_BACK]
    assert (summary["handed_back"], summary["lost"], summary["unknown"], summary["failed"]) == (6, 0, 0, 0)
    assert set(table.column("status").values()) == {"IDLE"}
    assert set(table.column("last_tick").values()) == {None}
    assert set(table.column("failures").values()) == {0}


def test_t11_connections_cut_exactly_when_the_upstream_answers_cost_no_second_call(
    proxy: FaultyProxy, table: Table, upstream: RecordingUpstream
) -> None:
    """P3, P8: what was accepted is acknowledged and settled on new connections."""
    upstream.stall()
    with LoopProcess(proxy.url, upstream.url, "cut", tick=TICK) as cut:
        cut.go()
        upstream.wait_for(lambda calls: len(calls) == 6, "all accounts at the upstream")
        upstream.clear()
        proxy.cut()
        summary = cut.wait()
    assert (summary["succeeded"], summary["lost"], summary["unknown"], summary["failed"]) == (6, 0, 0, 0)
    assert len(upstream.calls) == 6
    assert set(table.column("status").values()) == {"IDLE"}


def test_t28_t29_a_claim_whose_reply_is_lost_while_the_run_is_stopped_leaves_nothing_held(
    proxy: FaultyProxy, table: Table, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: the run looks for what it may have claimed, and gives it up to the next tick."""
    stop = StopSignal()
    wait = asyncio.sleep

    async def stop_then_wait(seconds: float) -> None:
        if proxy.lost:  # the first thing a claim does that has heard nothing is to wait a moment
            stop.set()
        await wait(seconds)

    monkeypatch.setattr("sync_assets.claims.store.asyncio.sleep", stop_then_wait)
    proxy.lose_reply(CLAIM)
    summary = _run(proxy, upstream, monkeypatch, stop)
    assert proxy.lost == [CLAIM]
    assert summary.stopped
    assert (summary.succeeded, summary.failed, summary.lost, summary.unknown) == (0, 0, 0, 0)
    assert upstream.calls == []
    assert set(table.column("status").values()) == {"IDLE"}
    assert set(table.column("failures").values()) == {0}
    with LoopProcess(proxy.url, upstream.url, "next", tick=NEXT_TICK) as following:
        assert following.go().wait()["succeeded"] == 6


def test_t28_a_claim_that_is_never_answered_holds_up_no_stop_and_its_rows_are_given_up(
    proxy: FaultyProxy, table: Table, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: a network that drops packets, and a stop meanwhile; the rows are found on another connection."""
    monkeypatch.setattr("sync_assets.runner._CLAIM_STOP_SECONDS", 0.1)
    stop = StopSignal()
    proxy.lose_reply(CLAIM, silently=True)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_run, proxy, upstream, monkeypatch, stop)
        wait_until(lambda: proxy.lost or running.done(), "the claim is committed and not answered")
        assert set(table.column("status").values()) == {"IDLE", "IN_PROGRESS"}
        stop.set()
        summary = running.result(30)
    assert (summary.stopped, summary.claimed, summary.failed) == (True, 0, 0)
    assert upstream.calls == []
    assert set(table.column("status").values()) == {"IDLE"}
    assert set(table.column("failures").values()) == {0}
