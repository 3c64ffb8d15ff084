"""A run of the loop in the test's own process, with any work for its accounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sync_assets.account_sync import AccountSync, SyncResult
from sync_assets.claims import ClaimedAccount, Database, RetryPolicy, Selection
from sync_assets.clock import Deadline
from sync_assets.runner import AccountResult, RunOptions, Summary, run
from sync_assets.stop import StopSignal
from sync_assets.upstream import UpstreamClient
from sync_assets_tests.claims_rig import TICK, claims_at

Work = Callable[[ClaimedAccount, Deadline], Awaitable[SyncResult | None]]


class WorkSync(AccountSync):
    def __init__(self, database: Database, work: Work) -> None:
        super().__init__(database)
        self._work = work

    async def sync(self, account: ClaimedAccount, client: UpstreamClient, deadline: Deadline) -> SyncResult | None:
        return await self._work(account, deadline)


async def run_loop(
    url: str,
    work: Work,
    selection: Selection | None = None,
    *,
    holder: str = "run-a/1",
    lease: float = 60.0,
    options: RunOptions | None = None,
    stop: StopSignal | None = None,
    retry_policy: RetryPolicy | None = None,
    on_result: Callable[[AccountResult], None] | None = None,
) -> Summary:
    selection = selection or Selection.due(TICK)
    async with (
        claims_at(url, holder, lease=lease, selection=selection, retry_policy=retry_policy) as claims,
        Database(url) as database,
        UpstreamClient() as client,
    ):
        return await run(
            claims,
            WorkSync(database, work),
            client,
            selection,
            options=options or RunOptions(),
            stop=stop or StopSignal(),
            on_result=on_result,
        )


async def fine(account: ClaimedAccount, deadline: Deadline) -> SyncResult:
    return SyncResult(sent=2, rejected=1)
