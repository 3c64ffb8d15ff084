"""The row in Postgres: claim, settle, hand back, explain, and the schema they need."""

from sync_assets.claims.account_ids import account_ids
from sync_assets.claims.database import Database, plain_faults
from sync_assets.claims.errors import DatabaseUnavailable, SettingsError
from sync_assets.claims.explain import count_changed
from sync_assets.claims.model import (
    Before,
    ClaimedAccount,
    Ending,
    Explanation,
    Fate,
    Outcome,
    Selection,
    SelectionKind,
    Verdict,
)
from sync_assets.claims.names import Names
from sync_assets.claims.retry_policy import RetryPolicy
from sync_assets.claims.store import Claims

__all__ = [
    "Before",
    "ClaimedAccount",
    "Claims",
    "Database",
    "DatabaseUnavailable",
    "Ending",
    "Explanation",
    "Fate",
    "Names",
    "Outcome",
    "RetryPolicy",
    "Selection",
    "SelectionKind",
    "SettingsError",
    "Verdict",
    "account_ids",
    "count_changed",
    "plain_faults",
]
