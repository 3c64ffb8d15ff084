"""The loop: claim what can start now, work each account contained and on time, settle. No SQL, no HTTP, no Dagster."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sync_assets.account_sync import AccountSync
from sync_assets.account_work import AccountWork, Ended, Reason
from sync_assets.claims import ClaimedAccount, Claims, Fate, Outcome, Selection, SelectionKind, SettingsError
from sync_assets.clock import Deadline, monotonic
from sync_assets.stop import StopSignal
from sync_assets.upstream import UpstreamClient, redact

log = logging.getLogger(__name__)

DEFAULT_ACCOUNT_TIMEOUT_SECONDS = 300.0


_BY_ITSELF = (SelectionKind.DUE, SelectionKind.ALL)
"""The selections that quarantine is for: nobody has asked for the account, and nothing of it has changed."""

_CLAIM_STOP_SECONDS = 3.0
_LOOK_AGAIN_SECONDS = 0.2
_MOST_UNWRITTEN = 500
"""Results that may wait for the database while more is claimed: what it does not keep up with is not piled up."""


def lease_margin(lease_seconds: float) -> float:
    """How long before the lease's end an account is cancelled: the time for its work to really end, in seconds."""
    return min(10.0, lease_seconds / 10)


def account_timeout(wanted: float | None, lease_seconds: float) -> float:
    """The time limit of one account, in seconds: as set, else the smaller of 300 s and what fits in the lease.

    Raises:
        SettingsError: the limit that was set does not fit in the lease.
    """
    fits = lease_seconds - lease_margin(lease_seconds)
    if wanted is None:
        return min(DEFAULT_ACCOUNT_TIMEOUT_SECONDS, fits)
    if not 0 < wanted <= fits:
        raise SettingsError(
            f"the account timeout of {wanted:g} s does not fit: the lease is {lease_seconds:g} s, of which "
            f"{fits:g} s can be used; set a shorter SYNC_ACCOUNT_TIMEOUT_SECONDS or a longer SYNC_LEASE_SECONDS"
        )
    return wanted


@dataclass(frozen=True)
class RunOptions:
    """How a run works.

    Attributes:
        concurrency: accounts worked at a time.
        account_timeout_seconds: time limit of one account; None: the smaller of 300 s and what fits in the lease.
        stop_seconds: how long a stopping run waits for its accounts' work to end and to be handed back.
    """

    concurrency: int = 20
    account_timeout_seconds: float | None = None
    stop_seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise SettingsError(f"the concurrency is {self.concurrency}; expected a whole number from 1")


@dataclass(frozen=True)
class AccountResult:
    """What became of one account in this run.

    Attributes:
        account_id: the account.
        outcome: `succeeded`, `failed`, `lost` (the row was in other hands: nothing written), `unknown` (an answer was
            lost: it may have been written), `handed_back` or `given_up`.
        error_kind: the kind of failure.
        error: one redacted line.
        sent: records the upstream accepted.
        rejected: records the upstream refused for good.
        seconds: from the claim to the end of its work.
        taken_over_from: the dead run that held it, if this claim took it over.
    """

    account_id: str
    outcome: str
    error_kind: str | None
    error: str | None
    sent: int
    rejected: int
    seconds: float
    taken_over_from: str | None


@dataclass
class Summary:
    """A run in numbers; `seconds` is its whole length."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    unknown: int = 0
    handed_back: int = 0
    given_up: int = 0
    taken_over: int = 0
    sent: int = 0
    rejected: int = 0
    seconds: float = 0.0
    stopped: bool = False

    def count(self, result: AccountResult) -> None:
        """Add one account's result."""
        setattr(self, result.outcome, getattr(self, result.outcome) + 1)
        self.sent += result.sent
        self.rejected += result.rejected

    def __str__(self) -> str:
        parts = [f"claimed {self.claimed}", f"succeeded {self.succeeded}", f"failed {self.failed}"]
        parts += [
            f"{name.replace('_', ' ')} {getattr(self, name)}"
            for name in ("lost", "unknown", "handed_back", "given_up", "taken_over")
            if getattr(self, name)
        ]
        parts.append(f"records sent {self.sent}")
        if self.rejected:
            parts.append(f"rejected {self.rejected}")
        return ", ".join(parts) + f" in {self.seconds:.1f} s"


OnResult = Callable[[AccountResult], None]


async def run(
    claims: Claims,
    sync: AccountSync,
    client: UpstreamClient,
    selection: Selection,
    *,
    options: RunOptions,
    stop: StopSignal,
    on_result: OnResult | None = None,
) -> Summary:
    """Claim and work accounts until nothing selected is left to claim, or the stop is asked for.

    Args:
        claims: after `Claims.begin`.
        sync: what is done for each account.
        client: handed to each account's sync, open.
        selection: which accounts.
        options: concurrency and time limits.
        stop: asks the run to stop; its accounts are handed back.
        on_result: called in the loop's thread when an account is settled; its faults are logged, never felt.

    Raises:
        SettingsError: the account timeout does not fit in the lease.
        DatabaseUnavailable: the database was lost for longer than can be waited; what was claimed has been dealt with
            as far as that goes.
    """
    account_timeout(options.account_timeout_seconds, claims.lease_now())
    loop = _Loop(claims, sync, client, selection, options=options, stop=stop, on_result=on_result)
    await loop.work()
    return loop.summary


class _Loop:
    def __init__(
        self,
        claims: Claims,
        sync: AccountSync,
        client: UpstreamClient,
        selection: Selection,
        *,
        options: RunOptions,
        stop: StopSignal,
        on_result: OnResult | None,
    ) -> None:
        self.summary = Summary()
        self._claims = claims
        self._sync = sync
        self._client = client
        self._selection = selection
        self._options = options
        self._stop = stop
        self._on_result = on_result
        self._working: dict[str, AccountWork] = {}  # a task is running, by account
        self._following: set[asyncio.Task[None]] = set()  # until its result is written
        self._suspects: deque[ClaimedAccount] = deque()
        self._never_ended: set[str] = set()  # accounts whose work may still be running, in this very process
        self._exhausted = False
        self._looked_again = False
        self._claiming: asyncio.Task[list[ClaimedAccount]] | None = None
        self._bug: BaseException | None = None
        self._wake = asyncio.Event()

    async def work(self) -> None:
        began = monotonic()
        loop = asyncio.get_running_loop()
        self._stop.when_set(lambda: _call_soon(loop, self._stop_asked))
        try:
            await self._claim_until_done()
        except BaseException:
            self._stop.set()
            raise
        finally:
            if self._stop.is_set():
                self.summary.stopped = True
                await self._hand_back_all()
            self.summary.seconds = monotonic() - began
        if self._bug is not None:
            raise self._bug

    def _stop_asked(self) -> None:
        self._wake.set()
        if self._claiming is not None:  # it is let finish, or its rows would have to be found; but not for ever
            asyncio.get_running_loop().call_later(_CLAIM_STOP_SECONDS, self._claiming.cancel)

    async def _claim_until_done(self) -> None:
        """Start accounts as places become free: no lease is spent waiting in a queue of ours."""
        while not self._stop.is_set():
            self._wake.clear()
            # results that wait to be written hold their rows in memory, and spend their leases
            unwritten = len(self._following) - len(self._working)
            free = min(self._options.concurrency - len(self._working), _MOST_UNWRITTEN - unwritten)
            alone = any(work.alone for work in self._working.values())
            if self._suspects and not self._working:
                self._start_suspect(self._suspects.popleft())
            elif not self._suspects and not alone and not self._exhausted and free > 0:
                await self._claim(free)
                continue
            elif not self._suspects and not self._following:
                return
            if not self._stop.is_set():
                await self._wake.wait()

    async def _claim(self, limit: int) -> None:
        self._claiming = asyncio.create_task(self._claims.claim(self._selection, limit))
        try:
            accounts = await self._claiming
        except asyncio.CancelledError:
            if not self._claiming.cancelled() or not self._stop.is_set():
                raise  # it is this loop that was cancelled
            accounts = []
        finally:
            self._claiming.cancel()  # does nothing to one that has ended
            self._claiming = None
        self._exhausted = not accounts
        self.summary.claimed += len(accounts)
        for account in accounts:
            if account.taken_over:
                self.summary.taken_over += 1
                log.warning("account %s: taken over from %s", account.account_id, _holder_before(account))
            if account.account_id in self._working or account.account_id in self._never_ended:
                # a row that was deleted and made again, or freed by hand, while its work goes on
                self._follow(account, Ended(Reason.GIVEN_UP, error="its work from before still goes on in this run"))
            elif account.quarantined and self._selection.kind in _BY_ITSELF:
                # a takeover too many: whoever works it dies of it. By hand, or with a changed configuration, it may
                self._follow(account, Ended(Reason.FAILED, error_kind="crashed", error=_died(account)))
            elif self._stop.is_set() or account.before.error_kind == "crashed":
                # its last run died of it, perhaps: it must not take others along a second time
                self._suspects.append(account)
            else:
                self._start(account)
        if self._selection.kind is SelectionKind.ACCOUNTS:
            claimed = {account.account_id for account in accounts}
            left = [each for each in self._selection.account_ids if each not in claimed]
            self._selection = Selection.accounts(left)
            if self._exhausted and left and not self._looked_again:
                # somebody pressed a button; a lock that was on the row just then may be gone in a moment
                self._looked_again, self._exhausted = True, False
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            self._exhausted = self._exhausted or not left

    def _start_suspect(self, account: ClaimedAccount) -> None:
        lease = account.lease.total_seconds()
        if account.lease_ends.remaining() < lease / 2:
            # it waited for those before it; a claim next tick gives it a whole lease again
            self._follow(account, Ended(Reason.GIVEN_UP))
        else:
            self._start(account, alone=True)

    def _start(self, account: ClaimedAccount, *, alone: bool = False) -> None:
        lease = account.lease.total_seconds()
        limit = account_timeout(None, lease)
        if self._options.account_timeout_seconds is not None:
            limit = min(limit, self._options.account_timeout_seconds)
        deadline = Deadline(min(monotonic() + limit, account.lease_ends.at - lease_margin(lease)))
        work = AccountWork(self._sync, account, self._client, deadline, limit, alone=alone)
        self._working[account.account_id] = work
        self._follow(account, work)

    def _follow(self, account: ClaimedAccount, work: AccountWork | Ended) -> None:
        task = asyncio.create_task(self._finish(account, work))
        self._following.add(task)
        task.add_done_callback(self._followed)

    def _followed(self, task: asyncio.Task[None]) -> None:
        self._following.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:  # a fault of ours, not of an account
            self._bug = task.exception()
            self._stop.set()

    async def _finish(self, account: ClaimedAccount, work: AccountWork | Ended) -> None:
        """Wait for one account's work to end, write what it came to, and tell."""
        began = monotonic()
        ended = work
        if isinstance(work, AccountWork):
            try:
                ended = await work.ended()
            finally:
                del self._working[account.account_id]  # its place is free before its result is written
                self._wake.set()
        assert isinstance(ended, Ended)  # noqa: S101
        if ended.reason is Reason.NEVER_ENDED:
            self._never_ended.add(account.account_id)
        seconds = monotonic() - began
        fate = Fate.LOST
        if ended.reason.ending is not None:
            fate = await self._claims.settle(
                Outcome(
                    account,
                    ended.reason.ending,
                    ended.error_kind,
                    ended.error,
                    counted=not isinstance(work, AccountWork),  # the takeover has, or there is nothing to count
                    retry_after=ended.retry_after,
                )
            )
        self._tell(account, ended, fate, seconds)

    def _tell(self, account: ClaimedAccount, ended: Ended, fate: Fate, seconds: float) -> None:
        ending = ended.reason.ending
        outcome = ending.value if ending is not None and fate is Fate.RECORDED else fate.value
        if fate is not Fate.RECORDED:
            log.warning("account %s: %s", account.account_id, ended.error or f"its lease was {fate.value}")
        result = AccountResult(
            account_id=account.account_id,
            outcome=outcome,
            error_kind=ended.error_kind,
            error=ended.error,
            sent=ended.result.sent,
            rejected=ended.result.rejected,
            seconds=seconds,
            taken_over_from=account.before.claimed_by if account.taken_over else None,
        )
        self.summary.count(result)
        if self._on_result is not None:
            try:
                self._on_result(result)
            except Exception as error:  # noqa: BLE001  # telling must not fail the sync
                log.error("reporting account %s failed: %s", account.account_id, redact(repr(error)))  # noqa: TRY400

    async def _hand_back_all(self) -> None:
        """End what is running, hand back what has really ended, and leave the rest to its lease."""
        give_up = Deadline.after(self._options.stop_seconds)
        for work in self._working.values():
            work.cancel(Reason.HANDED_BACK)
        while self._suspects:
            self._follow(self._suspects.popleft(), Ended(Reason.HANDED_BACK))
        lost = asyncio.create_task(self._claims.give_up_lost(give_up))
        waiting = {*self._following, lost}
        _, late = await asyncio.wait(waiting, timeout=max(give_up.remaining(), 0))
        for task in late:
            task.cancel()
        for work in self._working.values():
            log.error("account %s: its work did not end; it is left to its lease", work.account.account_id)
        if late:
            await asyncio.wait(late, timeout=1.0)
        if not lost.cancelled() and lost.done() and lost.exception() is not None:
            log.error("claims whose answer was lost are left to their lease: %s", type(lost.exception()).__name__)


def _holder_before(account: ClaimedAccount) -> str:
    """Who held the account, since when and for how long, by the database's clock."""
    since = account.before.started_at or account.started_at
    minutes = (account.started_at - since).total_seconds() / 60
    return f"{account.before.claimed_by}, which claimed it at {since:%Y-%m-%d %H:%M:%S} UTC, {minutes:.0f} min before"


def _died(account: ClaimedAccount) -> str:
    return f"in quarantine, and not worked: taken over from {_holder_before(account)}, and its runs died before that"


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop has ended: there is nothing left to stop
        log.debug("asked to stop after the end")
