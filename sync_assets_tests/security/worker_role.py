"""A database role that may do what the documented grants say, and nothing else."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from psycopg import sql

from sync_assets_tests.claims_rig import Table
from sync_assets_tests.dagster_rig import PROJECT

GRANTS = re.findall(r"^GRANT [^;]*;", (PROJECT / "docs" / "grants.sql").read_text(encoding="utf-8"), re.MULTILINE)


class Worker:
    """A role that may do what it is granted, and nothing else.

    Attributes:
        url: the database, as this role.
        password: in that URL.
    """

    def __init__(self, table: Table, url: str) -> None:
        self._table = table
        self.role = f"worker_{uuid.uuid4().hex[:12]}"
        self.password = uuid.uuid4().hex
        table.connection.execute(f"CREATE ROLE {self.role} LOGIN PASSWORD '{self.password}'")
        parts = urlsplit(url)
        self.url = parts._replace(netloc=f"{self.role}:{self.password}@{parts.netloc.rpartition('@')[2]}").geturl()

    def grant(self, statements: list[str]) -> None:
        for statement in statements:
            self._table.connection.execute(sql.SQL(statement.replace("sync_worker", self.role)))

    def drop(self) -> None:
        self._table.connection.execute(f"DROP OWNED BY {self.role}; DROP ROLE {self.role}")

    def may_update(self) -> set[str]:
        rows = self._table.connection.execute(
            "SELECT column_name FROM information_schema.column_privileges "
            "WHERE grantee = %s AND privilege_type <> 'SELECT'",
            [self.role],
        )
        return {row["column_name"] for row in rows}


@contextmanager
def worker_of(table: Table, url: str) -> Iterator[Worker]:
    """Such a role, without any grant yet; dropped in the end."""
    worker = Worker(table, url)
    try:
        yield worker
    finally:
        worker.drop()
