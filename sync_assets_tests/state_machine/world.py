"""The real side: Postgres, runs without a loop around them, time that is made to pass, and answers that get lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from unittest import mock

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, TupleRow

from sync_assets.claims import Claims, Database, RetryPolicy, Selection
from sync_assets.clock import Deadline
from sync_assets_tests.claims_rig import BY_HAND, INFINITY, Table
from sync_assets_tests.state_machine.model import Claim, Model, Row, Run

T = TypeVar("T")

TOLERANCE = 140.0
"""Seconds an example may take. The rules let time pass in steps that keep every moment further apart than this."""

_TIMES = ("started_at", "next_attempt_at", "not_before", "last_success")
_SHIFT = sql.SQL("UPDATE sync.account_config SET {}").format(
    sql.SQL(", ").join(sql.SQL("{0} = {0} - %(by)s").format(sql.Identifier(name)) for name in _TIMES)
)


class Lost(psycopg.OperationalError):
    """The connection was cut while an answer was awaited."""


class World:
    """Everything that outlives one example. Each example begins with an empty table."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, database: Database, connection: psycopg.Connection[DictRow], url: str
    ) -> None:
        self.database = database
        self.table = Table(connection)
        self.owner = psycopg.connect(
            url, options=BY_HAND
        )  # not in autocommit: its transactions stay open as long as a rule wants
        self._loop = loop
        self._holders = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, 20))

    def empty(self) -> None:
        self.owner.rollback()
        self.table.connection.execute("DELETE FROM sync.account_config")

    def begin(self, model: Model, lease: float, policy: RetryPolicy) -> Run:
        """A new run, under a name nobody has had."""
        self._holders += 1
        claims = Claims(
            self.database, holder=f"run/{self._holders}", lease_seconds=lambda _: lease, retry_policy=policy
        )
        self.run(claims.begin(Selection.all()))
        return Run(claims, model.now, lease, policy)

    def database_time(self) -> datetime:
        row = self.table.connection.execute("SELECT clock_timestamp() AS now").fetchone()
        assert row is not None
        now: datetime = row["now"]
        return now

    def shift(self, runs: Sequence[Run], claims: Sequence[Claim], seconds: float, *, clock_set: bool) -> None:
        """Let time pass without waiting: whatever was read off the database's clock was read that much earlier.

        Args:
            runs: the runs that remember when they began.
            claims: the claims that remember how they found their rows.
            seconds: how much; negative for a clock that was set back.
            clock_set: only the database's clock moves, and not that of the processes.
        """
        by = timedelta(seconds=seconds)
        self.table.connection.execute(_SHIFT, {"by": by})
        for run in runs:
            assert run.claims._since is not None
            run.claims._since -= by
        for claim in claims:
            before = claim.account.before
            if before.started_at is not None:
                before = replace(before, started_at=before.started_at - by)
            ends = claim.account.lease_ends
            claim.account = replace(
                claim.account, before=before, lease_ends=ends if clock_set else Deadline(ends.at - seconds)
            )

    def rows(self, model: Model) -> dict[str, Row]:
        """The table in the model's terms; moments that are as near to the model's as they can be told are its own."""
        now = self.database_time()

        def moment(value: datetime | None, expected: float | None) -> float | None:
            if value is None:
                return None
            if value == INFINITY:
                return math.inf
            told = model.now + (value - now).total_seconds()
            return expected if expected is not None and abs(told - expected) < TOLERANCE else told

        found = {}
        for row in self.table.connection.execute("SELECT * FROM sync.account_config"):
            like = model.rows.get(row["account_id"], Row(0))
            found[row["account_id"]] = Row(
                started=moment(row["started_at"], like.started),
                next_attempt=moment(row["next_attempt_at"], like.next_attempt),
                not_before=moment(row["not_before"], like.not_before),
                last_success=moment(row["last_success"], like.last_success),
                lease=None if row["lease"] is None else row["lease"].total_seconds(),
                **{
                    name: row[name]
                    for name in (
                        "generation", "enabled", "base_url", "status", "claim_seq", "claimed_by", "last_tick",
                        "failures", "error_kind", "claimed_generation",
                    )
                },
            )  # fmt: skip
        return found

    @contextmanager
    def answer_to_claim_lost(self, run: Run, error: BaseException, *, committed: bool) -> Iterator[list[TupleRow]]:
        """The run's next statement is a claim whose answer does not come. Yields what it has claimed all the same."""
        fetch = self.database.fetch
        claimed: list[TupleRow] = []

        async def loses(*args: Any) -> Sequence[TupleRow]:
            self.database.fetch = fetch  # type: ignore[method-assign]
            if committed:
                claimed.extend(await fetch(*args))
            raise error

        self.database.fetch = loses  # type: ignore[assignment,method-assign]
        try:
            # by then the commit has come or never will: the second look need not be waited for
            store = "sync_assets.claims.store"
            with (
                mock.patch(f"{store}.STATEMENT_TIMEOUT_SECONDS", 0.0),
                mock.patch(f"{store}._LOOK_AGAIN_SECONDS", 0.0, create=True),
            ):
                yield claimed
        finally:
            self.database.fetch = fetch  # type: ignore[method-assign]

    @contextmanager
    def around_settle(
        self, run: Run, write: Callable[[Callable[[Any], Awaitable[Any]], Any], Awaitable[Any]]
    ) -> Iterator[None]:
        """`write` is asked, in place of the settler's own write, with that and the attempts, until this ends."""
        settler = run.claims._settler
        own = settler._write

        async def instead(attempts: Any) -> Any:
            return await write(own, attempts)

        settler._write = instead
        try:
            yield
        finally:
            settler._write = own


@contextmanager
def world_at(url: str) -> Iterator[World]:
    """The world on a database of its own, in an event loop of its own."""
    loop = asyncio.new_event_loop()
    try:
        database = Database(url, max_connections=2)
        loop.run_until_complete(database.__aenter__())
        try:
            with psycopg.connect(
                url, autocommit=True, row_factory=psycopg.rows.dict_row, options=BY_HAND
            ) as connection:
                world = World(loop, database, connection, url)
                try:
                    yield world
                finally:
                    with suppress(psycopg.Error):
                        world.owner.close()
        finally:
            loop.run_until_complete(database.__aexit__(None, None, None))
    finally:
        loop.close()
