"""The clock of the soak's Postgres, moved while it runs; everybody else's stays as it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from sync_assets.clock import monotonic
from sync_assets.local import embedded
from sync_assets.local.embedded_binaries import Binaries
from sync_assets.local.embedded_folders import Folders
from sync_assets.local.embedded_user import ServerUser
from sync_assets_tests.soak.fleet import FAKETIME
from sync_assets_tests.soak.history import Jump


class ServerClock:
    """By how much the wall clock of a server is off, in a file that libfaketime reads at every look at the clock.

    Where libfaketime is not installed the clock cannot be moved; `movable` says so.

    Args:
        folder: the server's user must be able to enter it.
    """

    def __init__(self, folder: Path) -> None:
        self.movable = FAKETIME is not None
        self.offset = 0.0
        self._file = folder / "server_clock"
        self._folder = folder
        self._write(0.0)

    def move(self, offset: float) -> Jump:
        """Set it to be so many seconds ahead of the real one, from one moment to the next; when that was."""
        since = monotonic()
        self._write(offset)
        jump = Jump(since, monotonic(), self.offset, offset)
        self.offset = offset
        return jump

    @contextmanager
    def starts_servers(self) -> Iterator[None]:
        """Embedded servers that are started meanwhile, and again after a crash, have this clock."""
        if not self.movable:
            yield
            return
        start = embedded._start_keeper

        def start_with_clock(folders: Folders, binaries: Binaries, user: ServerUser, durable: bool, held: int) -> None:
            start(folders, replace(binaries, folder=self._wrapped(binaries)), user, durable, held)

        with patch.object(embedded, "_start_keeper", start_with_clock):
            yield

    def _wrapped(self, binaries: Binaries) -> Path:
        """A folder with a `postgres` that becomes the real one: it inherits nothing, so it is told here."""
        folder = self._folder / "bin"
        folder.mkdir(mode=0o755)
        environment = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "NO_FAKE_STAT": "1",
        }
        told = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        script = folder / "postgres"
        script.write_text(f'#!/bin/sh\n{told} exec {shlex.quote(str(binaries.folder / "postgres"))} "$@"\n')
        script.chmod(0o755)
        return folder

    def _write(self, offset: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset:+.3f}\n")
        fresh.chmod(0o644)  # also for the server's user
        fresh.replace(self._file)
