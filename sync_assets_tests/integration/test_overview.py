"""All accounts at a glance, and `sync-assets status`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone

from sync_assets.claims.overview import ByStatus, Overview
from sync_assets.inspection import state_of
from sync_assets.sync_run import ClaimSettings
from sync_assets_tests.claims_rig import Table

PATIENCE = 60
COMMAND = [sys.executable, "-m", "sync_assets.cli", "status"]


def _overview(url: str) -> Overview:
    return asyncio.run(state_of(ClaimSettings(url))).accounts


def _one_of_each(table: Table) -> datetime:
    now: datetime = table.connection.execute("SELECT now() AS now").fetchone()["now"]  # type: ignore[index]
    hour = timedelta(hours=1)
    table.add(
        "never", "done", "off", "off and held", "held", "stalled", "failed", "waits", "waits too", "set aside", "ahead"
    )
    table.set(["done", "failed", "held", "stalled", "off", "ahead"], last_tick=now + hour, last_success=now)
    table.set(["waits", "waits too", "set aside"], last_success=now)
    table.set("never", last_success=now - 2 * hour)
    table.set(["off", "off and held"], enabled=False)
    held = {"status": "IN_PROGRESS", "started_at": now - hour / 2, "lease": hour, "claimed_by": "run/1"}
    table.set(["held", "off and held"], **held)
    table.set("held", started_at=now - hour / 3)
    table.set("stalled", **{**held, "started_at": now - 2 * hour, "claimed_by": "dead/1"})
    table.set("ahead", **{**held, "started_at": now + hour})
    table.set(["failed", "waits"], status="FAILED", error_kind="retry")
    table.set("set aside", status="FAILED", error_kind="auth", next_attempt_at="infinity")
    table.set("waits", next_attempt_at=now + hour)
    table.set("waits too", not_before=now + hour)
    return now


def test_each_account_is_counted_where_it_belongs(database_url: str, table: Table) -> None:
    now = _one_of_each(table)
    seen = _overview(database_url)
    assert seen.enabled == ByStatus(idle=3, failed=3, in_progress=3)
    assert seen.disabled == ByStatus(idle=1, failed=0, in_progress=1)
    assert (seen.due, seen.waiting, seen.quarantined, seen.stalled, seen.leases_in_the_future) == (1, 2, 1, 1, 1)
    assert list(seen.failures_by_kind.items()) == [("retry", 2), ("auth", 1)]
    assert seen.oldest_claim is not None
    assert (seen.oldest_claim.account_id, seen.oldest_claim.claimed_by) == ("stalled", "dead/1")
    assert seen.oldest_claim.until == now - timedelta(hours=1)
    assert seen.stalest is not None
    assert (seen.stalest.account_id, seen.stalest.last_success) == ("never", now - timedelta(hours=2))


def test_an_empty_table_is_no_trouble(database_url: str) -> None:
    seen = _overview(database_url)
    assert (seen.enabled, seen.oldest_claim, seen.stalest) == (ByStatus(0, 0, 0), None, None)


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "SYNC_DATABASE_URL": url, "SYNC_SCHEDULE": "0 * * * *"}


def test_status_says_it_in_words_and_as_json(database_url: str, table: Table) -> None:
    _one_of_each(table)
    environment = _environment(database_url)
    words = subprocess.run(
        COMMAND, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    for said in (
        "sync.account_config  idle  in progress  failed",
        "2 for their time, 1 until somebody releases them",
        "2 retry, 1 auth",
        "'stalled', held by dead/1 since ",
        "'never', last synced ",
        "0 * * * * (UTC)",
        "a claim holds for 62 min",
        "1 claimed at a time that has not come",
    ):
        assert said in words
    told = json.loads(
        subprocess.run(
            [*COMMAND, "--json"], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout
    )
    assert (told["due"], told["enabled"]["failed"], told["lease_seconds"]) == (1, 3, 3720)
    next_tick, recovered = (datetime.fromisoformat(told[name]) for name in ("next_tick", "recovered_at"))
    assert next_tick.minute == 0
    assert recovered - next_tick in (timedelta(hours=1), timedelta(hours=2))
    assert next_tick > datetime.fromisoformat(told["at"]).astimezone(timezone.utc)


def test_watching_goes_on_until_ctrl_c_and_ends_well(database_url: str, table: Table) -> None:
    with subprocess.Popen(
        [*COMMAND, "--watch", "--json"], env=_environment(database_url), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["enabled"]["idle"] == 0
            table.add("new")
            assert json.loads(process.stdout.readline())["enabled"]["idle"] == 1
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "")
