"""A real `dagster dev`, webserver and daemon, used by its GraphQL API as people and the daemon use it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import sql

from sync_assets_tests.claims_rig import Table, table_at
from sync_assets_tests.dagster_dev import DagsterDev
from sync_assets_tests.dagster_rig import DagsterHome, add_accounts, change_records, wait_for
from sync_assets_tests.postgres import PostgresServer
from sync_assets_tests.recording_upstream import RecordingUpstream

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("dagster_dev")]


@pytest.fixture(scope="module")
def accounts_url(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database(postgres_server.template()) as url:
        yield url


@pytest.fixture(scope="module")
def dev(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
    accounts_url: str,
) -> Iterator[DagsterDev]:
    with postgres_server.database() as dagster_url:
        home = DagsterHome(
            tmp_path_factory.mktemp("dagster_dev"),
            dagster_url,
            {
                "SYNC_DATABASE_URL": accounts_url,
                "SYNC_SECRET_TEST": "s3cret",
                "SYNC_SCHEDULE": "* * * * *",
                "SYNC_SENSOR_SECONDS": "1",
            },
        )
        with DagsterDev(home) as dev:
            yield dev


@pytest.fixture
def table(accounts_url: str) -> Iterator[Table]:
    """The accounts' table, emptied: one `dagster dev` serves all tests here."""
    with table_at(accounts_url) as table:
        table.connection.execute("TRUNCATE sync.account_config, sync.account_record")
        yield table


def state(table: Table, account: str) -> dict[str, Any]:
    """What a hand-back must put back."""
    row = table.row(account)
    return {name: row[name] for name in ("status", "started_at", "last_tick", "failures", "claimed_generation")}


def test_p2_the_schedule_ticks_by_itself_and_its_tick_fired_again_calls_nobody(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "a", "b", base_url=upstream.url)
    with dev.schedule_running("sync_accounts_schedule"):
        calls = upstream.wait_for(lambda calls: len(calls) == 2, "the schedule has ticked and both are synced", 100)
    assert {call.account for call in calls} == {"a", "b"}
    runs = dev.runs(sync_trigger="schedule")
    for run in runs:
        dev.wait_until(run["runId"], "SUCCESS")
    row = table.row("a")
    (tick,) = [run["tags"]["sync/tick"] for run in runs if row["claimed_by"].startswith(run["runId"])]
    assert tick == row["last_tick"].isoformat()

    change_records(table)
    before = table.column("claim_seq")
    told = len(upstream.calls)
    again = dev.launch(scheduled_for=tick)
    dev.wait_until(again, "SUCCESS")
    assert len(upstream.calls) == told
    assert table.column("claim_seq") == before
    assert any(line.startswith("nothing to do: ") for line in dev.messages(again))


def test_p7_an_edited_configuration_makes_the_sensor_launch_a_run_and_not_a_second_one_beside_it(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "a", "b", base_url=upstream.url)
    dev.wait_until(dev.launch(), "SUCCESS")
    change_records(table)
    upstream.stall(account="b")
    earlier = len(dev.runs(sync_trigger="sensor"))
    table.set("b", settings='{"edited": true}')
    with dev.sensor_running("account_config_sensor"):
        upstream.wait_for(lambda calls: len(calls) == 3, "the sensor's run works on the edited account", 60)
        (run,) = dev.runs(sync_trigger="sensor")[: -earlier or None]
        table.set("a", settings='{"edited": true}')
        told = wait_for(
            lambda: next((why for why in dev.sensor_said("account_config_sensor") if run["runId"][:8] in why), None),
            "the sensor skips a tick because of its unfinished run",
        )
        assert told.startswith("accounts with a changed configuration: 1; run ")
        upstream.release(account="b")
        dev.wait_until(run["runId"], "SUCCESS")
        upstream.wait_for(lambda calls: len(calls) == 4, "the sensor's next run has synced the other account", 60)
    assert [call.account for call in upstream.calls[2:]] == ["b", "a"]
    for each in dev.runs(sync_trigger="sensor"):
        dev.wait_until(each["runId"], "SUCCESS")
    row = table.row("b")
    assert row["claimed_generation"] == row["generation"]


def test_p6_the_launchpad_opens_filled_in_and_one_account_typed_there_syncs_just_that_one(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "42", "43", base_url=upstream.url)
    shown = dev.launchpad()
    for field in ("account_id: ''", "only_changed: false", "scheduled_for: ''", "concurrency: 20"):
        assert field in shown
    assert "postgresql" not in shown
    run = dev.launch_as_typed(shown.replace("account_id: ''", "account_id: '42'"))
    dev.wait_until(run, "SUCCESS")
    assert [call.account for call in upstream.calls] == ["42"]
    assert dev.runs(sync_account="42")[0]["runId"] == run


def test_p6_by_hand_a_busy_account_is_refused_in_words_that_name_its_holder(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "busy", base_url=upstream.url)
    upstream.stall(account="busy")
    holder = dev.launch(account_id="busy")
    upstream.wait_for(lambda calls: len(calls) == 1, "the first run works on the account")

    refused = dev.launch(account_id="busy")
    dev.wait_until(refused, "SUCCESS")
    (told,) = [line for line in dev.messages(refused) if line.startswith("nothing was done: ")]
    assert holder in told
    assert table.row("busy")["started_at"].strftime("%H:%M:%S") in told

    upstream.release(account="busy")
    dev.wait_until(holder, "SUCCESS")
    assert len(upstream.of("busy")) == 1


def test_p10_terminate_ends_as_canceled_with_everything_handed_back(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "a", "b", "c", base_url=upstream.url)
    before = {account: state(table, account) for account in ("a", "b", "c")}
    upstream.stall()
    run = dev.launch()
    upstream.wait_for(lambda calls: len(calls) == 3, "the run works on all three")
    dev.terminate(run)
    dev.wait_until(run, "CANCELED")
    assert {account: state(table, account) for account in ("a", "b", "c")} == before
    assert all(call.aborted for call in upstream.calls)
    assert any("handed back 3" in line for line in dev.messages(run))


def test_p10_sigterm_of_the_run_s_process_hands_everything_back(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "a", "b", base_url=upstream.url)
    before = {account: state(table, account) for account in ("a", "b")}
    upstream.stall()
    run = dev.launch()
    upstream.wait_for(lambda calls: len(calls) == 2, "the run works on both")
    os.kill(dev.pid(run), signal.SIGTERM)
    dev.wait_until(run, "FAILURE")
    assert {account: state(table, account) for account in ("a", "b")} == before
    assert any("handed back 2" in line for line in dev.messages(run))


def test_p12_a_run_for_an_account_that_is_not_there_fails_with_a_plain_message(dev: DagsterDev, table: Table) -> None:
    add_accounts(table, "a")
    run = dev.launch(account_id="nobody")
    dev.wait_until(run, "FAILURE")
    told = dev.failure(run)
    assert "nobody" in told
    assert "unknown" in told or "no account" in told
    assert table.row("a")["claim_seq"] == 0


def test_p11_no_secret_is_in_what_the_ui_can_show(dev: DagsterDev, table: Table, upstream: RecordingUpstream) -> None:
    add_accounts(table, "a", base_url=upstream.url)
    upstream.answer(401, account="a", body="Bearer s3cret is not known here")
    run = dev.launch(account_id="a")
    dev.wait_until(run, "FAILURE")
    assert upstream.calls[0].authorization == "Bearer s3cret"
    assert table.row("a")["error_kind"] == "auth"
    shown = "\n".join([*dev.messages(run), dev.failure(run), dev.log(), str(table.row("a"))])
    assert "account a failed (auth)" in shown
    assert "s3cret" not in shown


def test_the_checks_are_shown_after_a_run_and_the_execute_button_judges_again(
    dev: DagsterDev, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, "fine", "ahead", base_url=upstream.url)
    table.set("ahead", status="IN_PROGRESS", started_at=sql.SQL("now() + interval '1 h'"), claimed_by="x/1")
    run = dev.launch()
    dev.wait_until(run, "SUCCESS")
    shown = checks_of(dev)
    assert {name for name, check in shown.items() if not check["evaluation"]["success"]} == {"no_lease_in_the_future"}
    assert {check["runId"] for check in shown.values()} == {run}
    assert shown["no_lease_in_the_future"]["evaluation"]["severity"] == "ERROR"

    table.set("ahead", status="IDLE", started_at=sql.SQL("now()"))
    by_hand = dev.execute_check("account_config", "no_lease_in_the_future")
    dev.wait_until(by_hand, "SUCCESS")
    now = checks_of(dev)
    assert now["no_lease_in_the_future"]["runId"] == by_hand
    assert now["no_lease_in_the_future"]["evaluation"]["success"]
    assert now["no_failed_accounts"]["runId"] == run


def checks_of(dev: DagsterDev) -> dict[str, dict[str, Any]]:
    """What the Checks tab of the table shows: all of them executable, and what was said last."""
    checks = dev.checks("account_config")
    assert {check["canExecuteIndividually"] for check in checks} == {"CAN_EXECUTE"}
    return {check["name"]: check["executionForLatestMaterialization"] for check in checks}
