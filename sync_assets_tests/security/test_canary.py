"""P11: a secret that is used in every way, by upstreams that repeat it in every way, is seen nowhere."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, serialize_value

from sync_assets.account_sync import AccountSync, SyncResult
from sync_assets.claims import ClaimedAccount, Selection
from sync_assets.clock import Deadline
from sync_assets.defs import build_sync_definitions
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking
from sync_assets.upstream import Rejected, UpstreamClient
from sync_assets_tests.claims_rig import Table
from sync_assets_tests.recording_upstream import PATIENCE, RecordingUpstream
from sync_assets_tests.security.worker_role import GRANTS, Worker, worker_of

UNUSED = "canary-unused-" + secrets.token_hex(8)
"""One that stands in a row where none belongs: nobody can know it for a secret, and yet it is not repeated."""


class Canary:
    """A secret in the environment, another in the database's URL, and a look for both.

    Attributes:
        secret: what `env:SYNC_SECRET_CANARY` stands for.
        worker: the role whose password is the other.
    """

    def __init__(self, worker: Worker) -> None:
        self.secret = "canary-" + secrets.token_hex() + '+/"\\='
        self.worker = worker

    def assert_not_in(self, where: str, text: str) -> None:
        assert text, f"{where}: nothing was looked at"
        for name, value in {
            "the secret": self.secret[:30],  # however the rest of it is escaped
            "the database's password": self.worker.password,
            "what stands where a reference belongs": UNUSED,
        }.items():
            at = text.find(value)
            assert at < 0, f"{name} is in {where}: …{text[max(at - 200, 0) : at + 50]}…"


@pytest.fixture
def canary(table: Table, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canary]:
    with worker_of(table, database_url) as worker:
        worker.grant(GRANTS)
        canary = Canary(worker)
        monkeypatch.setenv("SYNC_SECRET_CANARY", canary.secret)
        monkeypatch.setenv("SYNC_DATABASE_URL", worker.url)
        yield canary


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as server:
        yield server


def add_accounts(table: Table, upstream: RecordingUpstream, secret: str) -> None:
    """An account for every way in which the secret could come back."""
    answers: dict[str, dict[str, Any]] = {
        "ok": {"status": 200},
        "its-id": {"status": 200, "body": json.dumps({"id": secret})},
        "in-the-body": {"status": 422, "body": f"what is {secret}? Authorization: Bearer {secret}"},
        "as-json": {"status": 422, "body": json.dumps({"you sent": {"authorization": f"Bearer {secret}"}})},
        "quoted": {"status": 422, "body": repr(secret)},
        "redirect": {"status": 307, "headers": {"Location": f"https://x.example/?token={secret}"}},
        "cookie": {"status": 200, "headers": {"Set-Cookie": f"session={secret}; Path=/"}},
        "unauthorized": {"status": 401, "headers": {"WWW-Authenticate": f"Bearer error={secret}"}, "body": secret},
        "limited": {"status": 429, "headers": {"Retry-After": secret}, "body": secret},
        "encoding": {"status": 200, "headers": {"Content-Encoding": secret}, "body": "x"},
        "long-header": {"status": 200, "headers": {"X-Long": secret * 200}},
        "down": {"status": 500, "body": secret},
    }
    table.add(*answers, "dropped", "bug", base_url=upstream.url, secret_ref="env:SYNC_SECRET_CANARY")
    for account, answer in answers.items():
        upstream.answer(answer.pop("status"), account, **answer)
    upstream.drop("dropped")
    table.add("in-place-of-the-reference", base_url=upstream.url, secret_ref=UNUSED)
    table.add("in-the-address", base_url=f"http://me:{UNUSED}@127.0.0.1/x?key={UNUSED}")
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT account_id, 'r', '{}' FROM sync.account_config"
    )


def everything_in(table: Table) -> str:
    """What is in both tables but the columns that are the owner's, and what the server shows of its clients."""
    found = table.connection.execute(
        "SELECT (to_jsonb(a) - 'secret_ref' - 'base_url')::text AS row FROM sync.account_config AS a "
        "UNION ALL SELECT to_jsonb(r)::text FROM sync.account_record AS r "
        "UNION ALL SELECT to_jsonb(s)::text FROM pg_stat_activity AS s"
    )
    return "\n".join(row["row"] for row in found)


def command_lines() -> str:
    """What `ps` shows of every process, also where there is no `ps`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    if found:
        return "\n".join(found)
    return subprocess.run(["ps", "-axww", "-o", "args"], capture_output=True, text=True, check=True).stdout


class Leaky(AccountSync):
    """Somebody's own sync, in which the secret finds its way into an exception, its cause and its notes."""

    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult:
        secret = os.environ["SYNC_SECRET_CANARY"]
        url = f"{account.row['base_url']}/accounts/{account.account_id}/records/r?token={secret}"
        try:
            await client.request("PUT", url, deadline=deadline, secret_ref=account.row["secret_ref"], json={})
            raise KeyError(secret)  # noqa: TRY301
        except KeyError as error:
            raise ValueError({"headers": {"Authorization": f"Bearer {secret}"}, "url": url}) from error
        except Rejected as error:
            raise Rejected(f"{error.detail} with {secret}") from error


@pytest.mark.parametrize("sync", [None, Leaky])
def test_it_is_in_no_log_and_no_table(
    canary: Canary,
    table: Table,
    upstream: RecordingUpstream,
    sync: type[AccountSync] | None,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every logger at DEBUG, asyncio's own debugging on."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    add_accounts(table, upstream, canary.secret)
    told: list[str] = []
    with caplog.at_level(logging.DEBUG):
        report = run_blocking(
            ClaimSettings(canary.worker.url),
            SyncSettings(allow_private_upstreams=True),
            Selection.all(),
            run_id="run-a",
            stop=StopSignal(),
            sync=sync,
            on_result=lambda result: told.append(repr(result)),
        )
    assert report.summary.claimed == 16
    assert canary.secret in {(call.authorization or "").removeprefix("Bearer ") for call in upstream.calls}
    assert any(record.levelno == logging.DEBUG for record in caplog.records)
    written = "\n".join([caplog.text, *(repr(record.__dict__) for record in caplog.records)])
    canary.assert_not_in("the logs", written)
    canary.assert_not_in("the tables", everything_in(table))
    canary.assert_not_in("the results", "\n".join(told) + str(report))
    canary.assert_not_in("the settings", repr(ClaimSettings(canary.worker.url)))
    out, err = capfd.readouterr()
    assert canary.secret not in out + err


@pytest.mark.parametrize("sync", [None, Leaky])
def test_it_is_in_nothing_that_dagster_keeps(
    canary: Canary,
    table: Table,
    upstream: RecordingUpstream,
    sync: type[AccountSync] | None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Events, failures, asset metadata, run config, tags; what it prints of the run."""
    add_accounts(table, upstream, canary.secret)
    with DagsterInstance.ephemeral() as instance:
        job = build_sync_definitions(sync=sync).resolve_job_def("sync_accounts_job")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        events = "\n".join(serialize_value(entry) for entry in instance.all_logs(result.run_id))
    assert "long-header" in events, "the failures are told"
    canary.assert_not_in("the events", events)
    canary.assert_not_in("the run", f"{run!r} {run.run_config} {run.tags}")
    out, err = capfd.readouterr()
    canary.assert_not_in("what is printed", out + err)
    canary.assert_not_in("the tables", everything_in(table))


def test_it_is_in_no_command_line_and_nothing_the_command_prints(
    canary: Canary, table: Table, upstream: RecordingUpstream
) -> None:
    add_accounts(table, upstream, canary.secret)
    upstream.stall("ok")
    for arguments in ([], ["--json"]):
        with subprocess.Popen(
            [sys.executable, "-m", "sync_assets.cli", "run", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                upstream.wait_for(lambda calls: any(c.account == "ok" and not c.ended for c in calls), "it is at work")
                shown = command_lines()
                assert "sync_assets.cli run" in shown
                canary.assert_not_in("the command lines", shown)
                upstream.release("ok")
                out, err = process.communicate(timeout=4 * PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 1, err
        canary.assert_not_in("what the command prints", out + err)
        upstream.stall("ok")
        table.connection.execute("UPDATE sync.account_record SET data = jsonb_build_object('v', version)")
