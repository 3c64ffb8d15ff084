"""The row in Postgres: claim, settle, hand back, explain, and the schema they need."""

from sync_assets.claims.database import Database
from sync_assets.claims.errors import DatabaseUnavailable, SettingsError
from sync_assets.claims.model import Before, ClaimedAccount, Selection, SelectionKind
from sync_assets.claims.names import Names

__all__ = [
    "Before",
    "ClaimedAccount",
    "Database",
    "DatabaseUnavailable",
    "Names",
    "Selection",
    "SelectionKind",
    "SettingsError",
]
