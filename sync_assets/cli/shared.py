"""What several commands need: exit codes, the tables' names, the settings, and stopping by signals."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from sync_assets.accounts_database import local_folder
from sync_assets.claims import Names
from sync_assets.claims.names import typed_names
from sync_assets.settings import Settings
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, SyncSettings, check_limits


class Commands(Protocol):
    """What commands are added to; argparse has no public name for it."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002  # argparse's name
        """Add a command."""


SUCCESS = 0
FAILED = 1
MISTAKE = 2
UNAVAILABLE = 3


def add_names(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that say how the tables are named."""
    group = parser.add_argument_group("the tables' names")
    for field in typed_names():
        group.add_argument(f"--{field.name}", default=field.default, metavar="NAME", help="default: %(default)s")


def settings_of(options: argparse.Namespace) -> tuple[ClaimSettings, SyncSettings]:
    """The settings of the environment, with the names given on the command line.

    Raises:
        SettingsError: a setting cannot be used, or two do not fit together.
    """
    settings = Settings.from_environment()
    claim_settings = ClaimSettings(
        database_url=settings.database_url,
        names=Names(**{field.name: getattr(options, field.name) for field in typed_names()}),
        schedule=settings.schedule,
        timezone=settings.timezone,
        lease_seconds=settings.lease_seconds,
        max_failures=settings.max_failures,
        backoff_seconds=settings.backoff_seconds,
        max_backoff_seconds=settings.max_backoff_seconds,
    )
    sync_settings = SyncSettings(
        concurrency=settings.concurrency,
        account_timeout_seconds=settings.account_timeout_seconds,
        upstream_url=settings.upstream_url or None,
        allow_private_upstreams=settings.allow_private_upstreams,
    )
    check_limits(claim_settings, sync_settings)
    return claim_settings, sync_settings


def say_which_database(settings: ClaimSettings) -> None:
    """Tell, on stderr, when no database was named and the one that comes with the package is used."""
    if not settings.database_url:
        print(f"SYNC_DATABASE_URL is not set: using the Postgres of its own in {local_folder()}", file=sys.stderr)


class Stopped:
    """Whether a signal has asked the command to stop, and which."""

    def __init__(self) -> None:
        self.stop = StopSignal()
        self.signal: int | None = None


@contextmanager
def stopped_by_signals() -> Iterator[Stopped]:
    """Ctrl-C and SIGTERM ask the run to stop and to hand its accounts back; a second Ctrl-C ends the process."""
    stopped = Stopped()

    def handle(number: int, frame: FrameType | None) -> None:
        if stopped.signal is not None:
            os._exit(128 + number)  # what is held then is left to its lease
        stopped.signal = number
        stopped.stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
