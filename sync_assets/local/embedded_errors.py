"""The one error of the embedded Postgres."""

from __future__ import annotations


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot be started. The message names the cause, the log's last lines and the way out."""
