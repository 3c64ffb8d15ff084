"""Which database: the one that was named, else the embedded Postgres."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sync_assets.local.embedded import EmbeddedPostgres
from sync_assets.sync_run import ClaimSettings, blocking, create_tables

EMBEDDED_DATABASE = "sync_assets"


def local_folder() -> Path:
    """Where the embedded Postgres and the demo lie: `SYNC_LOCAL_DIR`, else `.sync-assets` in the working directory."""
    return Path(os.environ.get("SYNC_LOCAL_DIR") or ".sync-assets").absolute()


@contextmanager
def accounts_database(settings: ClaimSettings, *, create: bool = True) -> Iterator[ClaimSettings]:
    """The settings with a database to use: unchanged when they name one, else with the embedded one.

    The embedded server is joined or started, and held as long as the context lasts.

    Args:
        settings: what was set.
        create: make the tables the embedded database lacks, so that nobody has to. Another's database is never touched.

    Raises:
        EmbeddedPostgresError: the embedded server cannot be started.
    """
    if settings.database_url:
        yield settings
        return
    with EmbeddedPostgres.start(local_folder()) as server:
        server.create_database(EMBEDDED_DATABASE)
        found = replace(settings, database_url=server.url(EMBEDDED_DATABASE))
        if create:
            blocking(create_tables(found))
        yield found
