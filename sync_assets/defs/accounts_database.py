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


@contextmanager
def accounts_database(settings: ClaimSettings) -> Iterator[ClaimSettings]:
    """The settings with a database to use: unchanged when they name one, else with the embedded one.

    The embedded server lies in the folder `SYNC_LOCAL_DIR` (`.sync-assets` in the working directory), is joined or
    started, has the tables it lacks created, and is held as long as the context lasts.

    Raises:
        EmbeddedPostgresError: the embedded server cannot be started.
    """
    if settings.database_url:
        yield settings
        return
    with EmbeddedPostgres.start(Path(os.environ.get("SYNC_LOCAL_DIR") or ".sync-assets")) as server:
        server.create_database(EMBEDDED_DATABASE)
        found = replace(settings, database_url=server.url(EMBEDDED_DATABASE))
        blocking(create_tables(found))
        yield found
