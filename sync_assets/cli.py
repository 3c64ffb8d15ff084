"""The command line: `sync-assets init | run | dev | demo`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from types import FrameType

from sync_assets.accounts_database import accounts_database, local_folder
from sync_assets.claims import DatabaseUnavailable, Names, Selection, SettingsError, Verdict
from sync_assets.demo import Demo
from sync_assets.local.embedded import EmbeddedPostgresError
from sync_assets.results import Results
from sync_assets.settings import Settings, unknown_settings
from sync_assets.stop import StopSignal
from sync_assets.sync_run import (
    ClaimSettings,
    RunReport,
    SyncSettings,
    blocking,
    check_limits,
    create_tables,
    run_blocking,
)

SUCCESS = 0
FAILED = 1
MISTAKE = 2
UNAVAILABLE = 3

_EPILOG = """\
exit codes:
  0    done; also when there was nothing to do, or the account is busy just now
  1    some accounts failed, or what they did could not be recorded (the run itself went on)
  2    a mistake: an unknown or disabled account, a wrong setting, table or argument
  3    the database cannot be reached, or the embedded one cannot start
  130  stopped by Ctrl-C (143: by SIGTERM), with every account handed back

settings come from the environment: SYNC_DATABASE_URL (without it, a Postgres of its own in SYNC_LOCAL_DIR),
SYNC_SENSOR_SECONDS and SYNC_AUTOSTART (for dev), SYNC_UPSTREAM_URL,
SYNC_SCHEDULE, SYNC_TIMEZONE, SYNC_LEASE_SECONDS, SYNC_ACCOUNT_TIMEOUT_SECONDS, SYNC_CONCURRENCY,
SYNC_ALLOW_PRIVATE_UPSTREAMS
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line after the program's name; this process's when not given.

    Returns:
        The exit code; see `sync-assets --help`.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # each dead connection; the fault itself is told by us
    for name in unknown_settings():
        print(f"sync-assets: {name} is not a setting and is ignored (a typo? see sync-assets --help)", file=sys.stderr)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except SettingsError as error:
        return _complain(str(error), MISTAKE)
    except (DatabaseUnavailable, EmbeddedPostgresError) as error:
        return _complain(str(error), UNAVAILABLE)
    except KeyboardInterrupt:
        return 130


def _complain(message: str, code: int) -> int:
    print(f"sync-assets: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sync-assets",
        description="Claims the accounts that are due from your own Postgres table and syncs each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="create the tables that are missing; safe to repeat")
    init.set_defaults(command=_init)
    _add_names(init)

    run = commands.add_parser("run", help="one run now, in this process")
    run.set_defaults(command=_run)
    run.add_argument("--account", metavar="ID", help="this account only, now, whatever it waits for")
    run.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    _add_names(run)

    dev = commands.add_parser("dev", help="Dagster's UI; without SYNC_DATABASE_URL, with the demo")
    dev.set_defaults(command=lambda options: Demo().dev(options.host, options.port))
    dev.add_argument("--host", default="127.0.0.1", help="where the UI listens (default: %(default)s)")
    dev.add_argument("--port", default=3000, type=int, help="on which port (default: %(default)s)")

    demo = commands.add_parser("demo", help="the demo: some accounts, and an API of its own to sync them to")
    demos = demo.add_subparsers(required=True, metavar="COMMAND")
    once = demos.add_parser("run", help="sync the demo accounts once, as a Dagster run, and show what came of it")
    once.set_defaults(command=lambda _: Demo().run())
    edit = demos.add_parser("edit", help="change a record, or the configuration, of a demo account")
    edit.add_argument("account", metavar="ACCOUNT")
    edit.add_argument("--configuration", action="store_true", help="change the configuration instead of a record")
    edit.set_defaults(command=lambda options: Demo().edit(options.account, configuration=options.configuration))
    return parser


def _add_names(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the tables' names")
    for field in fields(Names):
        group.add_argument(f"--{field.name}", default=field.default, metavar="NAME", help="default: %(default)s")


def _settings(options: argparse.Namespace) -> tuple[ClaimSettings, SyncSettings]:
    settings = Settings.from_environment()
    claim_settings = ClaimSettings(
        database_url=settings.database_url,
        names=Names(**{field.name: getattr(options, field.name) for field in fields(Names)}),
        schedule=settings.schedule,
        timezone=settings.timezone,
        lease_seconds=settings.lease_seconds,
    )
    sync_settings = SyncSettings(
        concurrency=settings.concurrency,
        account_timeout_seconds=settings.account_timeout_seconds,
        upstream_url=settings.upstream_url or None,
        allow_private_upstreams=settings.allow_private_upstreams,
    )
    check_limits(claim_settings, sync_settings)
    return claim_settings, sync_settings


def _init(options: argparse.Namespace) -> int:
    claim_settings, _ = _settings(options)
    with accounts_database(claim_settings, create=False) as found:
        created = blocking(create_tables(found))
    if created:
        print(f"created {' and '.join(created)}")
    else:
        print(f"{claim_settings.names.table_name} and {claim_settings.names.records_name} are there already, and right")
    return SUCCESS


def _run(options: argparse.Namespace) -> int:
    claim_settings, sync_settings = _settings(options)
    selection = Selection.all() if options.account is None else Selection.accounts([options.account])
    results = Results()
    if not claim_settings.database_url:
        print(f"SYNC_DATABASE_URL is not set: using the Postgres of its own in {local_folder()}", file=sys.stderr)
    with accounts_database(claim_settings) as found, _stopped_by_signals() as stopped:
        report = run_blocking(
            found,
            sync_settings,
            selection,
            run_id=f"cli-{uuid.uuid4()}",
            stop=stopped.stop,
            on_result=results.add,
        )
    if options.json:
        print(json.dumps(_as_json(report, results)))
    else:
        results.show(report)
    return _exit_code(report, stopped.signal)


def _exit_code(report: RunReport, signal_number: int | None) -> int:
    if signal_number is not None:
        return 128 + signal_number
    if any(explanation.verdict in (Verdict.UNKNOWN, Verdict.DISABLED) for explanation in report.not_claimed):
        return MISTAKE
    summary = report.summary
    return FAILED if summary.failed or summary.lost or summary.unknown else SUCCESS


def _as_json(report: RunReport, results: Results) -> dict[str, object]:
    return {
        **asdict(report.summary),
        "failures": [asdict(result) for result in results.failures],
        "not_claimed": [
            {"account_id": each.account_id, "verdict": each.verdict.value, "why": str(each)}
            for each in report.not_claimed
        ],
    }


class _Stopped:
    def __init__(self) -> None:
        self.stop = StopSignal()
        self.signal: int | None = None


@contextmanager
def _stopped_by_signals() -> Iterator[_Stopped]:
    """Ctrl-C and SIGTERM ask the run to stop and to hand its accounts back; a second Ctrl-C ends the process."""
    stopped = _Stopped()

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


if __name__ == "__main__":
    sys.exit(main())
