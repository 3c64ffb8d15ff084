"""The connection pool to the accounts' database, and the one rule for trying again."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from sync_assets.claims.errors import DatabaseUnavailable, SettingsError
from sync_assets.claims.names import Names
from sync_assets.claims.recorded import recorded_names
from sync_assets.clock import Deadline, within

log = logging.getLogger(__name__)

T = TypeVar("T")

STATEMENT_TIMEOUT_SECONDS = 30
"""How long one of our statements may take on the server. A commit whose answer was lost has come by then, or never."""

CONNECT_TIMEOUT_SECONDS = 10

# What another attempt on a fresh connection may mend, and nothing else: deadlock, serialization failure, a lock that
# was not to be had in time, a server that is going away, starting, read-only in a failover, or out of something (53).
_PASSING = {"40P01", "40001", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25006"}
_PASSING_CLASSES = ("08", "53")

# A value in a row (22, 23), and whatever an owner's trigger raises (P0).
_OF_A_ROW_CLASSES = ("22", "23", "P0")
_REFUSED_CLASSES = ("42",)

_SESSION_ENDS = {"57P01", "57P02"}


_FIRST = datetime(1, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


class _Timestamptz(TimestamptzLoader):
    """`infinity` and years Python has not are legal in the row and must not spoil the rows read with it."""

    def load(self, data: Buffer) -> datetime:
        return _within_python(super().load, data, bytes(data).lstrip().startswith(b"-"))


class _TimestamptzBinary(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        return _within_python(super().load, data, bool(bytes(data)[0] & 0x80))


def _within_python(load: Callable[[Buffer], datetime], data: Buffer, before: bool) -> datetime:
    try:
        return load(data)
    except psycopg.DataError:
        return _FIRST if before else _LAST


def is_passing(error: BaseException) -> bool:
    """Whether a database error may be gone on a fresh connection: a lost connection, a restart, a deadlock."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.DatabaseError):
        return False
    if error.sqlstate is None:  # no answer from the server at all: the connection is gone (or the pool waited in vain)
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate in _PASSING or error.sqlstate.startswith(_PASSING_CLASSES)


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether a statement failed on a value in one of its rows, or on a trigger of its owner's."""
    return error.sqlstate is not None and error.sqlstate.startswith(_OF_A_ROW_CLASSES)


def is_refused(error: psycopg.Error) -> bool:
    """Whether the database refuses the role, or has not what is named."""
    return error.sqlstate is not None and error.sqlstate.startswith(_REFUSED_CLASSES)


def answer_lost(error: psycopg.Error) -> bool:
    """Whether a statement may have been committed all the same: the connection was lost while its answer was awaited.

    An error that the server itself reported means that it was not, but for the news that the session ends: a server
    that is shut down or killed, or told to end a session, may say so between the commit and the answer.
    """
    if error.sqlstate is None:
        return not isinstance(error, PoolTimeout)
    return error.sqlstate in _SESSION_ENDS or error.sqlstate.startswith("08")


@contextmanager
def plain_faults() -> Iterator[None]:
    """Tell a refusal of the database, or its loss, in words for whoever set it up instead of a traceback.

    Raises:
        SettingsError: the database refuses the role or does not have what is named (Postgres' error class 42).
        DatabaseUnavailable: it was lost.
    """
    try:
        yield
    except psycopg.Error as error:
        if is_refused(error):
            raise SettingsError(
                f"the accounts' database refuses: {error.diag.message_primary}; expected a role that may select and "
                "update the tables and use their sequences (to init: also create them), on tables made by "
                "sync-assets init"
            ) from None
        if is_passing(error):
            raise DatabaseUnavailable(f"the accounts' database was lost: {one_line(error)}") from None
        raise


class Database:
    """The accounts' database: a small pool in autocommit. Open it in the event loop that uses it.

    Args:
        url: a libpq URL or connection string. Never shown.
        names: the tables and columns; what was noted of an adopted table is added when it is opened.
        max_connections: the most connections held at once.
    """

    def __init__(self, url: str, names: Names | None = None, *, max_connections: int = 6) -> None:
        self.names = names or Names()
        self._url = url
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]] = AsyncConnectionPool(
            url,
            kwargs={
                "autocommit": True,
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "application_name": "sync-assets",
                # what the role or the database may have set otherwise and we cannot read: one odd row must not stop all
                "client_encoding": "utf8",
                "options": f"{_options_of(url)} -c statement_timeout={STATEMENT_TIMEOUT_SECONDS}s "
                "-c timezone=UTC -c datestyle=ISO",
                # a peer that is gone without a word is noticed also where nothing is being sent
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 1000 * STATEMENT_TIMEOUT_SECONDS,
            },
            min_size=1,
            max_size=max_connections,
            timeout=CONNECT_TIMEOUT_SECONDS,
            configure=_configure,
            open=False,
        )

    async def __aenter__(self) -> Database:
        await self._try_once()
        await self._pool.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._pool.close()

    def _refuse_misread(self) -> None:
        """Refuse what libpq would take apart at the wrong place: its errors then quote pieces of the password."""
        scheme, found, rest = self._url.partition("://")
        if not found:
            return
        if "+" in scheme:
            raise SettingsError(
                "the database URL (SYNC_DATABASE_URL) names a driver, as SQLAlchemy's do; expected postgresql://…"
            )
        authority, _, path = rest.partition("?")[0].partition("/")
        if authority.count("@") > 1 or "@" in path:
            raise SettingsError(
                "the database URL (SYNC_DATABASE_URL) has a user or password in it that cannot be told from the rest; "
                "percent-encode @ / : ? and # in them (%40 %2F %3A %3F %23)"
            )

    async def _try_once(self) -> None:
        """One plain connection first: the pool would try on for its whole timeout and then not say why it failed."""
        self._refuse_misread()
        try:
            connection = await psycopg.AsyncConnection.connect(self._url, connect_timeout=CONNECT_TIMEOUT_SECONDS)
        except psycopg.ProgrammingError:
            # libpq quotes the string it could not read, password and all
            raise SettingsError(
                "the database URL (SYNC_DATABASE_URL) cannot be read; expected "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            ) from None
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(
                f"cannot connect to the accounts' database (SYNC_DATABASE_URL): {one_line(error)}"
            ) from None
        try:
            self.names = await recorded_names(connection, self.names)
        except psycopg.OperationalError as error:
            raise DatabaseUnavailable(f"the accounts' database was lost: {one_line(error)}") from None
        finally:
            await connection.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[TupleRow]]:
        """A connection in autocommit: each statement is its own transaction, and none stays open."""
        async with self._pool.connection() as connection:
            yield connection

    async def fetch(
        self, query: sql.SQL | sql.Composed, parameters: Mapping[str, object] | None = None
    ) -> Sequence[TupleRow]:
        """Run one statement in autocommit and fetch all its rows.

        Raises:
            psycopg.OperationalError: also when no answer came long after the server must have given up: the
                connection is dead and nobody noticed.
            psycopg.Error: anything else.
        """

        async def attempt() -> Sequence[TupleRow]:
            async with self.connection() as connection:
                cursor = await connection.execute(query, parameters)
                rows: list[TupleRow] = await cursor.fetchall()
                return rows

        try:
            return await within(attempt(), STATEMENT_TIMEOUT_SECONDS + 2 * CONNECT_TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            raise psycopg.OperationalError("the database gave no answer") from None

    async def forget_dead(self, error: psycopg.Error) -> None:
        """After a lost connection: drop the others that died with it, in one go."""
        if error.sqlstate is None or error.sqlstate.startswith("57"):
            # a connection that is dead without a word answers its check as little as anything else
            with suppress(asyncio.TimeoutError):
                await within(self._pool.check(), CONNECT_TIMEOUT_SECONDS)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """Run `attempt` until it works, its fault is not a passing one, or the deadline is over.

        Args:
            attempt: takes its own connection; must be safe to run again when its answer was lost.
            deadline: no new attempt starts after it.

        Raises:
            psycopg.Error: what the last attempt raised.
        """
        wait = 0.02
        while True:
            try:
                return await attempt()
            except psycopg.Error as error:
                if not is_passing(error) or deadline.remaining() <= wait:
                    raise
                log.warning("trying the database again: %s", one_line(error))
                await self.forget_dead(error)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(wait * 2, 2.0)


def _options_of(url: str) -> str:
    """The session's options that the user has set: ours are added, and must not take their place."""
    try:
        given = conninfo_to_dict(url).get("options")
    except psycopg.ProgrammingError:  # told when it is opened
        given = None
    return str(given or os.environ.get("PGOPTIONS", ""))


async def _configure(connection: psycopg.AsyncConnection[Any]) -> None:
    connection.adapters.register_loader("timestamptz", _Timestamptz)
    connection.adapters.register_loader("timestamptz", _TimestamptzBinary)


def one_line(error: BaseException) -> str:
    """A database error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
