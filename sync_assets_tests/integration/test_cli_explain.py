"""`sync-assets explain`: why an account was not synced."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from sync_assets_tests.claims_rig import Table


def _explain(database_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sync_assets.cli", "explain", *arguments],
        env={**os.environ, "SYNC_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_sentence_says_who_holds_an_account_and_until_when(database_url: str, table: Table) -> None:
    """P6."""
    table.add("busy [1]")
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'IN_PROGRESS', lease = '10 min', started_at = now(), "
        "claimed_by = 'another/1'"
    )
    said = _explain(database_url, "busy [1]")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("account 'busy [1]' is busy: another/1 has held it since ")
    as_json = _explain(database_url, "busy [1]", "--json")
    told = json.loads(as_json.stdout)
    since = table.row("busy [1]")["started_at"]
    assert (told["verdict"], told["claimed_by"], told["since"]) == ("in_progress", "another/1", since.isoformat())
    assert "is busy: another/1 has held it since" in told["why"]


def test_an_account_that_waits_for_ever_is_told_of(database_url: str, table: Table) -> None:
    table.add("a", status="FAILED", failures=3, error_kind="retry", last_error="503", next_attempt_at="infinity")
    as_json = _explain(database_url, "a", "--json")
    assert (as_json.returncode, as_json.stderr) == (0, "")
    assert json.loads(as_json.stdout)["account_id"] == "a"


def test_an_unknown_account_is_a_mistake(database_url: str) -> None:
    """P12."""
    for arguments in (["nobody"], ["nobody", "--json"]):
        said = _explain(database_url, *arguments)
        assert said.returncode == 2
        assert said.stderr.startswith("sync-assets: account 'nobody' is unknown")
        assert "Traceback" not in said.stderr
    assert json.loads(said.stdout)["verdict"] == "unknown"


def test_a_missing_table_is_told(empty_database_url: str) -> None:
    """P12."""
    said = _explain(empty_database_url, "a")
    assert (said.returncode, said.stdout) == (2, "")
    assert "there is no table sync.account_config" in said.stderr
