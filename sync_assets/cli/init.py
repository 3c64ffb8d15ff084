"""`sync-assets init`."""

from __future__ import annotations

import argparse

from sync_assets.accounts_database import accounts_database
from sync_assets.cli.shared import SUCCESS, Commands, add_names, settings_of
from sync_assets.sync_run import blocking, create_tables


def add_to(commands: Commands) -> None:
    """Add the command."""
    init = commands.add_parser("init", help="create the tables that are missing; safe to repeat")
    init.set_defaults(command=_init)
    add_names(init)


def _init(options: argparse.Namespace) -> int:
    claim_settings, _ = settings_of(options)
    with accounts_database(claim_settings, create=False) as found:
        created = blocking(create_tables(found))
    if created:
        print(f"created {' and '.join(created)}")
    else:
        print(f"{claim_settings.names.table_name} and {claim_settings.names.records_name} are there already, and right")
    return SUCCESS
