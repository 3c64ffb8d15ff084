"""Accounts and records from files of any size: all of a file or nothing of it, and every fault by its line."""

from sync_assets.importing.loading import Imported, import_accounts, import_records
from sync_assets.importing.reading import Fault, FileFormat, ImportRefused, format_of

__all__ = ["Fault", "FileFormat", "ImportRefused", "Imported", "format_of", "import_accounts", "import_records"]
