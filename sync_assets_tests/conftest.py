"""A database for each test, on one server for the session; and nothing of the environment of whoever runs them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sync_assets.local.embedded import EmbeddedPostgres
from sync_assets_tests.claims_rig import Table, table_at
from sync_assets_tests.postgres import PostgresServer, make_server_folder, remove_server_folder
from sync_assets_tests.recording_upstream import RecordingUpstream

_GIVEN_SERVER = os.environ.get("SYNC_TEST_DATABASE_URL")
_FOLDER = pytest.StashKey[Path]()
_SESSION = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Agree on the server with all workers of this session: the first that needs it starts it."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[_FOLDER] = Path(told["sync_folder"]) if told else make_server_folder()
    config.stash[_SESSION] = told["sync_session"] if told else f"sync_test_{uuid.uuid4().hex[:8]}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist before it starts."""
    node.workerinput["sync_folder"] = str(node.config.stash[_FOLDER])
    node.workerinput["sync_session"] = node.config.stash[_SESSION]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind, when all workers have ended."""
    if hasattr(config, "workerinput"):
        return
    if _GIVEN_SERVER:
        server = PostgresServer(_GIVEN_SERVER, config.stash[_SESSION])
        server.drop(server.template_name)
    remove_server_folder(config.stash[_FOLDER])


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """The server of `SYNC_TEST_DATABASE_URL` (a superuser's), else an embedded one; never of SYNC_DATABASE_URL."""
    session = pytestconfig.stash[_SESSION]
    if _GIVEN_SERVER:
        yield PostgresServer(_GIVEN_SERVER, session)
        return
    with EmbeddedPostgres.start(pytestconfig.stash[_FOLDER], durable=False) as embedded:
        yield PostgresServer(embedded.url("postgres"), session)


@pytest.fixture
def empty_database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty database."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new database with our empty tables in it."""
    with postgres_server.database(postgres_server.template()) as url:
        yield url


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    """The account table in the test's database, as its owner sees it."""
    with table_at(database_url) as table:
        yield table


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    """An upstream of the test's own."""
    with RecordingUpstream() as upstream:
        yield upstream


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SYNC_", "DAGSTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SYNC_ALLOW_PRIVATE_UPSTREAMS", "1")  # the tests' upstreams are on loopback
