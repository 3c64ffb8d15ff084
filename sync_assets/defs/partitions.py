"""One partition of `account_sync` for each account, kept in step with the table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dagster import DagsterInstance, DynamicPartitionsDefinition

from sync_assets.clock import Deadline

ACCOUNTS = DynamicPartitionsDefinition(name="accounts")

MOST_PARTITIONS = 100_000
"""What Dagster recommends at most for one asset; beyond it, its pages take seconds to open."""

_LONGEST_KEY = 512
"""Characters of an id. With more, Postgres could not index what Dagster stores by its key."""

_ADDED_AT_ONCE = 1_000
"""In one statement: SQLite refuses one of tens of thousands (dagster-io/dagster#16260)."""

_REMOVING_SECONDS = 10.0
"""Dagster removes keys one by one. What takes longer is left to the next run."""

# What Dagster refuses in a key (control characters and its mark for a range), and what would read as our own escape
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]|(?<=\.\.)\.|%(?=[0-9A-Fa-f]{2})")
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def key_of(account_id: str) -> str | None:
    """The partition key of an account: its id, with what a key cannot hold written as in URLs (a newline is `%0A`).

    Returns:
        The key, of which no two accounts have the same; None for an id that is too long for one.
    """
    if len(account_id) > _LONGEST_KEY:
        return None
    return _FORBIDDEN.sub(lambda found: f"%{ord(found[0]):02X}", account_id)


def account_of(key: str) -> str:
    """The account of a partition key that `key_of` made."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), key)


class Partitions:
    """The partitions Dagster knows.

    Make it before the accounts are read: what was there then and is no account now has gone, whatever another run adds
    meanwhile.

    Args:
        instance: Dagster's.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._known = set(instance.get_dynamic_partitions(_name()))

    def keep_in_step(self, account_ids: Sequence[str]) -> str:
        """Add a partition for each account that has none, and remove those of accounts that are no more.

        Args:
            account_ids: all accounts.

        Returns:
            What there is to say of it; nothing when nothing has changed.
        """
        keys = {key for key in map(key_of, account_ids) if key is not None}
        new = sorted(keys - self._known)
        self.add(new)
        gone = sorted(self._known - keys)
        removed = self._remove(gone)
        told = [
            f"{count} {what}"
            for count, what in (
                (len(new), "added"),
                (removed, "removed"),
                (len(gone) - removed, "to be removed by the next run"),
                (len(account_ids) - len(keys), f"accounts without one, their ids being over {_LONGEST_KEY} characters"),
            )
            if count
        ]
        return f"partitions of accounts: {', '.join(told)}" if told else ""

    def add(self, keys: Sequence[str]) -> None:
        """Add partitions; those that are there already stay as they are."""
        for start in range(0, len(keys), _ADDED_AT_ONCE):
            self._instance.add_dynamic_partitions(_name(), keys[start : start + _ADDED_AT_ONCE])

    def _remove(self, keys: Sequence[str]) -> int:
        limit = Deadline.after(_REMOVING_SECONDS)
        for done, key in enumerate(keys):
            if limit.passed():
                return done
            self._instance.delete_dynamic_partition(_name(), key)
        return len(keys)


def _name() -> str:
    assert ACCOUNTS.name is not None  # noqa: S101  # it was given one
    return ACCOUNTS.name
