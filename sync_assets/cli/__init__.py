"""The command line: `sync-assets COMMAND`. One file a command; `main` puts them together."""

from sync_assets.cli.main import main

__all__ = ["main"]
