"""`sync-assets import`: accounts or records from a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from sync_assets.accounts_database import accounts_database
from sync_assets.claims import Database, SettingsError, plain_faults
from sync_assets.cli.shared import MISTAKE, SUCCESS, Commands, add_names, say_which_database, settings_of
from sync_assets.importing import FileFormat, Imported, ImportRefused, format_of, import_accounts, import_records
from sync_assets.sync_run import ClaimSettings, blocking

_KINDS = {"accounts": import_accounts, "records": import_records}


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("import", help="accounts or records from a CSV or NDJSON file, all or nothing")
    parser.set_defaults(command=_import)
    parser.add_argument("kind", choices=_KINDS, metavar="accounts|records", help="what is in the file")
    parser.add_argument("file", metavar="FILE", help="in UTF-8; - reads standard input and needs --format")
    parser.add_argument("--format", choices=[each.value for each in FileFormat], help="default: by the file's name")
    parser.add_argument("--dry-run", action="store_true", help="check all of it and change nothing")
    parser.add_argument("--json", action="store_true", help="print what came of it as one JSON object")
    add_names(parser)


def _import(options: argparse.Namespace) -> int:
    claim_settings, _ = settings_of(options)
    form = FileFormat(options.format) if options.format else format_of(options.file)
    with _opened(options.file) as file:
        say_which_database(claim_settings)
        with accounts_database(claim_settings) as found:
            try:
                imported = blocking(_loaded(found, options.kind, file, form, dry_run=options.dry_run))
            except ImportRefused as refused:
                if not options.json:
                    raise
                faults = [asdict(fault) for fault in refused.faults]
                print(json.dumps({"refused": len(faults) + refused.more, "faults": faults}))
                return MISTAKE
    if options.json:
        print(json.dumps({**asdict(imported), "unchanged": imported.unchanged, "dry_run": options.dry_run}))
    else:
        said = "would be imported" if options.dry_run else "imported"
        print(
            f"{imported.rows:,} {options.kind} {said}: {imported.made:,} new, {imported.changed:,} changed, "
            f"{imported.unchanged:,} as they were"
        )
    return SUCCESS


async def _loaded(settings: ClaimSettings, kind: str, file: BinaryIO, form: FileFormat, *, dry_run: bool) -> Imported:
    with plain_faults():
        async with Database(settings.database_url, settings.names, max_connections=1) as database:
            return await _KINDS[kind](database, file, form, dry_run=dry_run)


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  # closed below; only the opening is the person's mistake
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}") from None
    with file:
        yield file
