"""Everything in the README is true: its commands are run, its table is computed, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sync_assets.cron import lease_seconds, next_tick
from sync_assets.settings import Settings
from sync_assets_tests.claims_rig import Table, table_at
from sync_assets_tests.dagster_dev import free_port
from sync_assets_tests.dagster_rig import PROJECT, wait_for
from sync_assets_tests.postgres import PostgresServer
from sync_assets_tests.recording_upstream import RecordingUpstream

PATIENCE = 120
README = (PROJECT / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.timeout(240)


def _blocks(language: str, heading: str) -> list[str]:
    """The code blocks of a language below a heading."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with `sync-assets` and `dagster` in it, as an installation has them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in (("sync-assets", "sync_assets.cli"), ("dagster", "dagster")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def _shell(script: str, commands: Path, folder: Path, **variables: str) -> str:
    """What the script prints; it must succeed."""
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=folder,
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "COLUMNS": "200", **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _replace(script: str, old: str, new: str) -> str:
    assert old in script, f"the README no longer says {old!r}"
    return script.replace(old, new)


def test_try_it(tmp_path: Path, commands: Path) -> None:
    """`make run` shows what the README shows; then each edit says what to watch for, and only it is sent."""
    make, edits = _blocks("sh", "Try it")
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for target in make.split("\n")[:-1]:
        assert re.search(rf"^{target.removeprefix('make ')}: .*\n\t@\$\(BIN\)/sync-assets ", makefile, re.MULTILINE)
    printed = _shell("sync-assets demo run", commands, tmp_path)
    [shown] = _blocks("text", "Try it")
    for line in shown.splitlines():
        words = line.split("…")[0].split(" in ")[0].split()
        assert re.search(r"\s+".join(map(re.escape, words)), printed), f"{line!r} is not in:\n{printed}"
    told = _shell(edits.replace(".venv/bin/", ""), commands, tmp_path)
    assert "Changed the record contact-" in told
    assert "account_config_sensor" in told
    assert "records sent 1 in" in _shell("sync-assets demo run", commands, tmp_path)


def test_your_own_accounts(
    tmp_path: Path, commands: Path, empty_database_url: str, upstream: RecordingUpstream
) -> None:
    install, runs = _blocks("sh", "Your own accounts")
    [rows] = _blocks("sql", "Your own accounts")
    install = _replace(install, "pip install .\n", "")  # what an installation has in it: test_package
    install = _replace(install, "postgresql://me:secret@localhost/accounts", f"'{empty_database_url}'")
    assert "created sync.account_config and sync.account_record" in _shell(install, commands, tmp_path)
    with table_at(empty_database_url) as table:
        table.connection.execute(_replace(rows, "https://api.example.com", upstream.url))
    printed = _shell(install + runs, commands, tmp_path)
    assert printed.count("claimed 1, succeeded 1, failed 0") == 2
    [call] = upstream.calls
    assert f"`{call.method} https://api.example.com{call.raw_path}`" in README.replace("\n", " ")
    assert f"`{call.body.decode()}`" in README
    assert call.authorization == "Bearer the-token-of-acme"


def test_your_own_sync(
    tmp_path: Path, commands: Path, database_url: str, table: Table, upstream: RecordingUpstream
) -> None:
    """The ten lines, loaded by Dagster and run."""
    [code] = _blocks("python", "Your own sync")
    (tmp_path / "definitions.py").write_text(code)
    table.add("a", base_url=upstream.url, secret_ref="env:SYNC_SECRET_A")
    upstream.answer(200)
    _shell(
        "dagster job execute -f definitions.py -j sync_accounts_job",
        commands,
        tmp_path,
        SYNC_DATABASE_URL=database_url,
        SYNC_SECRET_A="s3cret",
    )
    [call] = upstream.calls
    assert (call.method, call.raw_path, call.body) == ("POST", "/ping/a", b'{"n":1}')
    assert call.authorization == "Bearer s3cret"
    assert table.row("a")["status"] == "IDLE"
    assert table.row("a")["last_success"] is not None


def test_plain_dagster_dev(tmp_path: Path, commands: Path, postgres_server: PostgresServer, database_url: str) -> None:
    """The block is run as it is, in a copy of the project's own files, but for the port."""
    [script] = _blocks("sh", "In Dagster")
    for name in ("dagster.yaml", "workspace.yaml", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    port = free_port()
    with postgres_server.database() as storage_url:
        dagster_url = urlsplit(storage_url)._replace(scheme="postgresql+psycopg2").geturl()
        script = _replace(script, "postgresql+psycopg2://me:secret@localhost/dagster", f"'{dagster_url}'")
        script = _replace(script, "postgresql://me:secret@localhost/accounts", f"'{database_url}'")
        script = _replace(script, "\ndagster dev\n", f"\nexec dagster dev --port {port}\n")
        with subprocess.Popen(
            ["sh", "-ec", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                question = (
                    b'{"query": "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }"}'
                )
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/graphql", question, {"Content-Type": "application/json"}
                )
                opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

                def answer() -> str | None:
                    assert process.poll() is None, "dagster dev has ended"
                    try:
                        with opener.open(request, timeout=10) as response:
                            text: str = response.read().decode()
                    except OSError:
                        return None
                    return text if "LOADED" in text else None

                assert "sync_assets.definitions" in wait_for(answer, "dagster dev has loaded the project")
            finally:
                process.terminate()
                process.communicate(timeout=PATIENCE)


def test_the_recovery_table_is_what_the_cron_says() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([\dhmin ]+) \| ([\dhmin ]+) \|$", README, re.MULTILINE)
    assert len(rows) == 5
    for schedule, lease, back in rows:
        tick = next_tick(schedule, "UTC", datetime(2026, 1, 1, tzinfo=timezone.utc))
        claimed = tick + timedelta(seconds=1)
        seconds = lease_seconds(schedule, "UTC", claimed)
        assert timedelta(seconds=seconds) == _span(lease)
        returned = next_tick(schedule, "UTC", claimed + timedelta(seconds=seconds))
        assert returned - tick == _span(back)


def _span(text: str) -> timedelta:
    units = {"h": "hours", "min": "minutes"}
    return sum(
        (timedelta(**{units[unit]: int(number)}) for number, unit in re.findall(r"(\d+) (h|min)", text)), timedelta()
    )


def test_every_setting_is_in_the_table_with_its_default() -> None:
    told = dict(re.findall(r"^\| `(SYNC_[A-Z_]+)` \| (.*?) \|", README, re.MULTILINE))
    variables = {f"SYNC_{field.name.upper()}" for field in fields(Settings)}
    assert set(told) == variables | {"SYNC_LOCAL_DIR"}
    for field in fields(Settings):
        if isinstance(field.default, int | str) and field.default:
            assert told[f"SYNC_{field.name.upper()}"] == f"`{field.default}`"


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("https://") or (PROJECT / link).exists(), link
