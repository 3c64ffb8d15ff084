"""One run, put together: database, claims, client and sync. What the Dagster op and the command line both call."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from sync_assets.account_sync import AccountSync, SyncFactory
from sync_assets.claims import (
    Claims,
    Database,
    Explanation,
    Names,
    RetryPolicy,
    Selection,
    SelectionKind,
    SettingsError,
    account_ids,
    count_changed,
    plain_faults,
)
from sync_assets.claims.retry_policy import A_DAY
from sync_assets.claims.schema import create_account_table
from sync_assets.claims.troubles import Freshness
from sync_assets.cron import check_schedule, lease_seconds
from sync_assets.push import RecordPush
from sync_assets.push.schema import check_record_table, create_record_table
from sync_assets.runner import OnResult, RunOptions, Summary, account_timeout, run
from sync_assets.stop import StopSignal
from sync_assets.upstream import MAX_RESPONSE_BYTES, SecretResolver, UpstreamClient

log = logging.getLogger(__name__)

T = TypeVar("T")

_LINGER_SECONDS = 2.0
_CLAIM_CONNECTIONS = 3
_SYNC_CONNECTIONS = 6


@dataclass(frozen=True)
class ClaimSettings:
    """Where the accounts are and how long a claim holds.

    Attributes:
        database_url: the accounts' database, as libpq reads it. Never shown.
        names: the tables and columns.
        schedule: the cron expression of the schedule; the lease is read from it.
        timezone: the IANA name of the zone the cron is in.
        lease_seconds: how long a claim holds; None: the gap between two ticks of the schedule, and 120 s.
        max_failures, backoff_seconds, max_backoff_seconds: when an account that failed is tried again (`RetryPolicy`).
        freshness_seconds, freshness_column: how long ago a last success may be, for the checks (`Freshness`).

    Raises:
        SettingsError: the cron, the zone, the lease or one of those settings cannot be used.
    """

    database_url: str = field(repr=False)
    names: Names = field(default_factory=Names)
    schedule: str = "*/15 * * * *"
    timezone: str = "UTC"
    lease_seconds: float | None = None
    max_failures: int | None = None
    backoff_seconds: float | None = None
    max_backoff_seconds: float = A_DAY
    freshness_seconds: float | None = None
    freshness_column: str | None = None

    def __post_init__(self) -> None:
        try:
            check_schedule(self.schedule, self.timezone)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        if self.lease_seconds is not None and not 1 <= self.lease_seconds <= 366 * 86400:
            raise SettingsError(f"the lease is {self.lease_seconds:g} s; expected 1 s to a year (SYNC_LEASE_SECONDS)")
        self.retry_policy()
        self.freshness()

    def retry_policy(self) -> RetryPolicy:
        """What a failure writes into the row."""
        return RetryPolicy(self.max_failures, self.backoff_seconds, self.max_backoff_seconds)

    def freshness(self) -> Freshness:
        """How long ago an account's last success may be."""
        return Freshness(self.freshness_seconds, self.freshness_column)

    def lease_at(self, moment: datetime) -> float:
        """The lease, in seconds, of a claim made at `moment` (with a zone)."""
        if self.lease_seconds is not None:
            return self.lease_seconds
        return lease_seconds(self.schedule, self.timezone, moment)


@dataclass(frozen=True)
class SyncSettings:
    """How accounts are synced.

    Attributes:
        concurrency: accounts worked at a time in one run.
        account_timeout_seconds: the time limit of one account; None: the smaller of 300 s and what fits in the lease.
        upstream_url: the API's address for accounts whose row names none.
        request_timeout_seconds: the time limit of one HTTP request, whole answer included.
        secret_env_prefix: only environment variables whose names begin so can be named by a row.
        secret_directory: only files in this folder can be named by a row; None: no files.
        allow_private_upstreams: whether private, local and reserved addresses may be sent to as well.
        connections_per_origin: requests under way at one scheme, host and port; None: as many as accounts.
        max_response_bytes: the most of an answer's body that is read.

    Raises:
        SettingsError: a number is not positive.
    """

    concurrency: int = 20
    account_timeout_seconds: float | None = None
    upstream_url: str | None = None
    request_timeout_seconds: float = 30.0
    secret_env_prefix: str = "SYNC_SECRET_"  # noqa: S105  # a prefix of names
    secret_directory: Path | None = None
    allow_private_upstreams: bool = False
    connections_per_origin: int | None = None
    max_response_bytes: int = MAX_RESPONSE_BYTES

    def __post_init__(self) -> None:
        for name in ("request_timeout_seconds", "connections_per_origin", "max_response_bytes"):
            number = getattr(self, name)
            if number is not None and not number > 0:
                raise SettingsError(f"{name} is {number:g}; expected more than 0")

    def options(self) -> RunOptions:
        """What the loop needs of it."""
        return RunOptions(concurrency=self.concurrency, account_timeout_seconds=self.account_timeout_seconds)


@dataclass(frozen=True)
class RunReport:
    """What a run came to.

    Attributes:
        summary: the numbers.
        not_claimed: for a run by hand of named accounts: why each of those that were not claimed was not.
    """

    summary: Summary
    not_claimed: tuple[Explanation, ...] = ()


async def run_sync(
    claim_settings: ClaimSettings,
    sync_settings: SyncSettings,
    selection: Selection,
    *,
    run_id: str,
    stop: StopSignal,
    sync: SyncFactory | None = None,
    on_result: OnResult | None = None,
) -> RunReport:
    """One run, from opening the database to the last result written.

    Args:
        claim_settings: where the accounts are and how long a claim holds.
        sync_settings: how they are synced.
        selection: which accounts.
        run_id: who this run is; a nonce of the process is added, so that two processes with one id are told apart.
        stop: asks it to stop; its accounts are handed back.
        sync: makes what is done for each account; None: the push of changed records.
        on_result: called in this thread for each account, when it is settled.

    Raises:
        SettingsError: a setting, the table or the selection is not as it must be.
        DatabaseUnavailable: the database cannot be reached, or was lost for too long.
    """
    with plain_faults():
        return await _run_sync(
            claim_settings, sync_settings, selection, run_id=run_id, stop=stop, sync=sync, on_result=on_result
        )


async def _run_sync(
    claim_settings: ClaimSettings,
    sync_settings: SyncSettings,
    selection: Selection,
    *,
    run_id: str,
    stop: StopSignal,
    sync: SyncFactory | None,
    on_result: OnResult | None,
) -> RunReport:
    options = sync_settings.options()
    # Connections of their own for claims and for syncs: accounts that keep theirs must not hold up a settle.
    async with (
        Database(claim_settings.database_url, claim_settings.names, max_connections=_CLAIM_CONNECTIONS) as coordination,
        Database(claim_settings.database_url, claim_settings.names, max_connections=_SYNC_CONNECTIONS) as database,
    ):
        claims = Claims(
            coordination,
            holder=f"{run_id}/{secrets.token_hex(4)}",
            lease_seconds=claim_settings.lease_at,
            retry_policy=claim_settings.retry_policy(),
        )
        selection = await claims.begin(selection)
        account_sync: AccountSync
        if sync is None:
            async with database.connection() as connection:
                await check_record_table(connection, database.names)
            account_sync = RecordPush(database, upstream_url=sync_settings.upstream_url)
        else:
            account_sync = sync(database)
        resolver = SecretResolver(env_prefix=sync_settings.secret_env_prefix, directory=sync_settings.secret_directory)
        async with UpstreamClient(
            secrets=resolver,
            request_timeout=sync_settings.request_timeout_seconds,
            max_connections=sync_settings.concurrency,
            connections_per_origin=sync_settings.connections_per_origin,
            max_response_bytes=sync_settings.max_response_bytes,
            allow_private=sync_settings.allow_private_upstreams,
        ) as client:
            worked: set[str] = set()

            def note(result: Any) -> None:
                worked.add(result.account_id)
                if on_result is not None:
                    on_result(result)

            named = selection.kind is SelectionKind.ACCOUNTS
            summary = await run(
                claims,
                account_sync,
                client,
                selection,
                options=options,
                stop=stop,
                on_result=note if named else on_result,
            )
        not_claimed = [
            await claims.explain(account_id)
            for account_id in selection.account_ids
            if account_id not in worked and not stop.is_set()
        ]
    return RunReport(summary, tuple(not_claimed))


def run_blocking(
    claim_settings: ClaimSettings,
    sync_settings: SyncSettings,
    selection: Selection,
    *,
    run_id: str,
    stop: StopSignal,
    sync: SyncFactory | None = None,
    on_result: OnResult | None = None,
) -> RunReport:
    """`run_sync` in an event loop of its own in the calling thread, until it has ended.

    Raises:
        KeyboardInterrupt: Ctrl-C, after the accounts have been handed back.
    """
    return blocking(
        run_sync(claim_settings, sync_settings, selection, run_id=run_id, stop=stop, sync=sync, on_result=on_result),
        on_interrupt=stop.set,
    )


def blocking(work: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] | None = None) -> T:
    """Run a coroutine in an event loop of its own.

    Unlike `asyncio.run` it does not wait for ever for a task that will not be cancelled: such an account is left to
    its lease, and the process must be able to end. Nor does it end when some task of an account's own, which nobody
    awaits, raises `SystemExit`.

    Args:
        work: what to run.
        on_interrupt: asks the work to come to its end on Ctrl-C; it is waited for. None: it is cancelled.

    Raises:
        KeyboardInterrupt: Ctrl-C, after the work has ended.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    interrupt: KeyboardInterrupt | None = None
    try:
        while True:
            try:
                result = loop.run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
                log.exception("a task that nobody awaits asked the process to exit; it goes on")
            except KeyboardInterrupt as error:
                if task.done():
                    raise
                interrupt = error
                (on_interrupt or task.cancel)()
            else:
                if interrupt is not None:
                    raise interrupt
                return result
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_LINGER_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def check_limits(claim_settings: ClaimSettings, sync_settings: SyncSettings) -> None:
    """Refuse settings that do not fit together, before anything runs.

    Raises:
        SettingsError: the concurrency is not positive, or the account timeout does not fit in the lease.
    """
    sync_settings.options()
    account_timeout(sync_settings.account_timeout_seconds, claim_settings.lease_at(datetime.now(timezone.utc)))


async def create_tables(claim_settings: ClaimSettings) -> list[str]:
    """Create the tables that are missing and check the others. Safe to repeat and to run twice at once.

    Returns:
        The tables that were created.

    Raises:
        SettingsError: a table is there and is not as it must be.
        DatabaseUnavailable: the database cannot be reached.
    """
    created = []
    with plain_faults():
        async with (
            Database(claim_settings.database_url, claim_settings.names) as database,
            database.connection() as connection,
            connection.transaction(),  # all or nothing
        ):
            names = database.names
            if await create_account_table(connection, names):
                created.append(names.table_name)
            if await create_record_table(connection, names):
                created.append(names.records_name)
    return created


async def changed_accounts(claim_settings: ClaimSettings, limit: int = 1000) -> int:
    """How many accounts a run with `only_changed` would claim now; counted up to `limit`.

    Raises:
        SettingsError: the table is missing or wrong.
        DatabaseUnavailable: the database cannot be reached.
    """
    with plain_faults():
        async with Database(claim_settings.database_url, claim_settings.names, max_connections=1) as database:
            return await count_changed(database, claim_settings.lease_at, limit)


async def all_account_ids(claim_settings: ClaimSettings, limit: int) -> list[str]:
    """The ids of all accounts, enabled or not, in no order; at most `limit` of them.

    Raises:
        SettingsError: the table is missing or wrong.
        DatabaseUnavailable: the database cannot be reached.
    """
    with plain_faults():
        async with Database(claim_settings.database_url, claim_settings.names, max_connections=1) as database:
            return await account_ids(database, limit)
