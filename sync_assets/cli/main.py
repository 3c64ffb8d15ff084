"""The commands put together, and how they end: plain words on stderr and an exit code, never a traceback."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from sync_assets.claims import DatabaseUnavailable, SettingsError
from sync_assets.cli import demo, explain, import_files, init, run, status
from sync_assets.cli.shared import MISTAKE, UNAVAILABLE
from sync_assets.local.embedded import EmbeddedPostgresError
from sync_assets.settings import unknown_settings

_COMMANDS = (init, import_files, run, status, explain, demo)
"""In the order in which the help lists them."""

_EPILOG = """\
exit codes:
  0    done; also when there was nothing to do, or the account is busy just now
  1    some accounts failed, or what they did could not be recorded (the run itself went on)
  2    a mistake: an unknown or disabled account, a wrong setting, table or argument
  3    the database cannot be reached, or the embedded one cannot start
  130  stopped by Ctrl-C (143: by SIGTERM), with every account handed back

settings come from the environment: SYNC_DATABASE_URL (without it, a Postgres of its own in SYNC_LOCAL_DIR),
SYNC_SENSOR_SECONDS, SYNC_FRESHNESS_SECONDS and SYNC_AUTOSTART (for dev), SYNC_UPSTREAM_URL,
SYNC_SCHEDULE, SYNC_TIMEZONE, SYNC_LEASE_SECONDS, SYNC_ACCOUNT_TIMEOUT_SECONDS, SYNC_CONCURRENCY,
SYNC_MAX_FAILURES, SYNC_BACKOFF_SECONDS, SYNC_MAX_BACKOFF_SECONDS, SYNC_ALLOW_PRIVATE_UPSTREAMS
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
    for command in _COMMANDS:
        command.add_to(commands)
    return parser
