"""What goes wrong around the row, by whose it is to mend."""

from __future__ import annotations


class SettingsError(ValueError):
    """A setting, an argument or the database is not as it must be. The message names it and the way out."""


class DatabaseUnavailable(Exception):
    """The accounts' database could not be reached, or was lost for longer than could be waited."""
