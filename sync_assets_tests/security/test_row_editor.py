"""P11, P12: whoever may edit a row gets no secret, file or address by it that is not theirs; only that account fails.

What `SecretResolver` and `checked_url` refuse, one by one: test_upstream_secrets. Here: through a whole run.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from sync_assets.claims import Selection
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, run_blocking
from sync_assets_tests.claims_rig import Table
from sync_assets_tests.recording_upstream import RecordingUpstream


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as server:
        yield server


def add(table: Table, accounts: dict[str, dict[str, str]]) -> None:
    for account, columns in accounts.items():
        table.add(account, **columns)
    table.connection.execute(
        "INSERT INTO sync.account_record (account_id, record_id, data) "
        "SELECT account_id, 'r', '{}' FROM sync.account_config"
    )


def sync(database_url: str, **settings: object) -> str:
    report = run_blocking(
        ClaimSettings(database_url),
        SyncSettings(**settings),  # type: ignore[arg-type]
        Selection.all(),
        run_id="run-a",
        stop=StopSignal(),
    )
    return str(report.summary)


def test_a_secret_reference_to_what_is_not_theirs_sends_nothing(
    database_url: str, table: Table, upstream: RecordingUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-" + secrets.token_hex()
    folder = tmp_path / "secrets"
    folder.mkdir()
    (tmp_path / "outside").write_text(canary)
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "own").write_text("of-their-own")
    monkeypatch.setenv("SYNC_DATABASE_URL", f"postgresql://me:{canary}@h/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", canary)
    stolen = {
        "env:SYNC_DATABASE_URL": "is not allowed: only variables whose names begin with SYNC_SECRET_",
        "env:AWS_SECRET_ACCESS_KEY": "is not allowed",
        "env:": "is not allowed",
        "env:SYNC_SECRET_../AWS_SECRET_ACCESS_KEY": "no environment variable",
        "ENV:AWS_SECRET_ACCESS_KEY": "neither env:NAME nor file:PATH",
        "file:../outside": "leads out of the folder",
        f"file:{tmp_path}/outside": "leads out of the folder",
        "file:link": "leads out of the folder",
        "file:/proc/self/environ": "leads out of the folder",
        "file:own/../../outside": "leads out of the folder",
        "file:nowhere": "cannot be read",
        "file:.": "not a regular file",
        canary: "neither env:NAME nor file:PATH",
    }
    rows = {f"{n:02}": {"base_url": upstream.url, "secret_ref": ref} for n, ref in enumerate(stolen)}
    add(table, {**rows, "honest": {"base_url": upstream.url, "secret_ref": "file:own"}})
    told = sync(database_url, secret_directory=folder, allow_private_upstreams=True)
    assert told.startswith(f"claimed {len(rows) + 1}, succeeded 1, failed {len(rows)}")
    assert [(call.account, call.authorization) for call in upstream.calls] == [("honest", "Bearer of-their-own")]
    for account, why in zip(rows, stolen.values(), strict=True):
        row = table.row(account)
        assert (row["status"], row["error_kind"]) == ("FAILED", "auth")
        assert why in row["last_error"]
        assert canary not in row["last_error"]


def test_a_base_url_inside_the_network_sends_nothing(
    database_url: str, table: Table, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even that there is something: refused and absent are told in the same words."""
    monkeypatch.setenv("SYNC_SECRET_A", "sesame")
    port = upstream.url.rpartition(":")[2]
    addresses = [
        *(upstream.url, f"http://localhost:{port}", f"http://2130706433:{port}", f"http://[::ffff:127.0.0.1]:{port}"),
        *("http://127.0.0.1:1", "http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]", "http://10.0.0.1"),
    ]
    rows = {f"{n}": {"base_url": url, "secret_ref": "env:SYNC_SECRET_A"} for n, url in enumerate(addresses)}
    add(table, rows)
    assert sync(database_url).startswith(f"claimed {len(rows)}, succeeded 0, failed {len(rows)}")
    assert upstream.calls == []
    errors = table.column("last_error")
    assert set(table.column("error_kind").values()) == {"auth"}
    assert errors["0"] == errors["4"], "whether somebody listens there is not told"
    assert "SYNC_ALLOW_PRIVATE_UPSTREAMS" in errors["0"]


def test_two_accounts_at_one_host_share_a_connection_and_nothing_else(
    database_url: str, table: Table, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: cookies, credentials; also of one whose secret is missing, right after one that has one."""
    for name in "AB":
        monkeypatch.setenv(f"SYNC_SECRET_{name}", f"of-{name}")
    upstream.answer(200, headers={"Set-Cookie": "session=theirs; Path=/", "WWW-Authenticate": "Basic realm=x"})
    add(
        table,
        {
            "a": {"base_url": upstream.url, "secret_ref": "env:SYNC_SECRET_A"},
            "b": {"base_url": upstream.url, "secret_ref": "env:SYNC_SECRET_B"},
            "c": {"base_url": upstream.url},
            "d": {"base_url": upstream.url, "secret_ref": "env:SYNC_SECRET_MISSING"},
            "e": {"base_url": upstream.url, "secret_ref": "env:SYNC_SECRET_A"},
        },
    )
    assert sync(database_url, concurrency=1, allow_private_upstreams=True).startswith(
        "claimed 5, succeeded 4, failed 1"
    )
    sent = {call.account: call.authorization for call in upstream.calls}
    assert sent == {"a": "Bearer of-A", "b": "Bearer of-B", "c": None, "e": "Bearer of-A"}
    assert [call.headers.get("cookie") for call in upstream.calls] == [None] * 4
