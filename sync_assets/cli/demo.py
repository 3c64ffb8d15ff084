"""`sync-assets dev` and `sync-assets demo`."""

from __future__ import annotations

from sync_assets.cli.shared import Commands
from sync_assets.demo import Demo


def add_to(commands: Commands) -> None:
    """Add the commands."""
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
