"""The claim and what surrounds it, on Postgres. The rules are in the SQL files; this runs them and survives faults."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from sync_assets.claims.database import (
    STATEMENT_TIMEOUT_SECONDS,
    Database,
    answer_lost,
    is_of_a_row,
    is_passing,
    one_line,
)
from sync_assets.claims.errors import DatabaseUnavailable, SettingsError
from sync_assets.claims.explain import explain
from sync_assets.claims.model import (
    Before,
    ClaimedAccount,
    Ending,
    Explanation,
    Fate,
    Outcome,
    Selection,
    SelectionKind,
)
from sync_assets.claims.names import Names, compose, formatted, read_sql
from sync_assets.claims.retry_policy import RetryPolicy
from sync_assets.claims.schema import check_account_table
from sync_assets.claims.settling import Again, Attempt, Settler
from sync_assets.claims.typed_ids import selection_of
from sync_assets.clock import Deadline, monotonic

log = logging.getLogger(__name__)

_PACKAGE = "sync_assets.claims.sql"

CLAIM_RETRY_SECONDS = 60.0
"""How long a claim is tried again while the database is away, before the run gives up."""

_LOOK_AGAIN_SECONDS = 0.5

_TICK_AHEAD = timedelta(hours=1)


class Claims:
    """The claims of one run. Use it in one event loop, after `begin`.

    Args:
        database: the accounts' database, open.
        holder: who this run and process are, as `claimed_by` will say; no two processes may share it.
        lease_seconds: the lease, in seconds, of a claim made at a moment of the database's clock.
        retry_policy: what a failure writes into the row.
    """

    def __init__(
        self,
        database: Database,
        *,
        holder: str,
        lease_seconds: Callable[[datetime], float],
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self.holder = holder
        self._database = database
        self._lease_seconds = lease_seconds
        self._retry_policy = (retry_policy or RetryPolicy()).parameters()
        self._settler = Settler(self._write)
        self._held: set[int] = set()
        # the run's beginning on both clocks, so that the database's time is known without asking for it again
        self._since: datetime | None = None
        self._since_monotonic = 0.0
        # accounts whose rows refuse to be claimed: not tried again in this run
        self._set_aside: list[str] = []
        # claims whose answer was lost: when the first was sent, and until when the last may still be committed
        self._lost_since: float | None = None
        self._lost_until = Deadline(0.0)

    async def begin(self, selection: Selection) -> Selection:
        """Check the table and the selection, and ask the database what time it is.

        Returns:
            The selection to be claimed: its ids, which a person may have typed, as claims name their accounts.

        Raises:
            SettingsError: the table is missing or wrong, the database is read-only, the tick is too far ahead, or an id
                is none that the table's key could be.
            DatabaseUnavailable: the database does not answer.
        """
        deadline = Deadline.after(CLAIM_RETRY_SECONDS)
        try:
            await self._database.retrying(self._check_table, deadline)
            selection = await self._database.retrying(lambda: selection_of(self._database, selection), deadline)
            self._since_monotonic = monotonic()
            rows = await self._database.retrying(
                lambda: self._database.fetch(sql.SQL("SELECT now(), current_setting('transaction_read_only')")),
                deadline,
            )
        except psycopg.Error as error:
            if error.sqlstate is not None and error.sqlstate.startswith("42"):  # it has answered: this role may not
                raise
            raise DatabaseUnavailable(f"the accounts' database does not answer: {one_line(error)}") from None
        self._since, read_only = rows[0]
        if read_only == "on":
            raise SettingsError("the accounts' database is read-only (a replica?); claims need the primary")
        if selection.tick is not None and selection.tick > self._since + _TICK_AHEAD:
            # it would stamp rows that are then due for no earlier tick
            raise SettingsError(
                f"the tick {selection.tick.isoformat()} is more than an hour ahead of the database's clock "
                f"({self._since.isoformat(timespec='seconds')}); expected the time of a tick that has come"
            )
        return selection

    async def _check_table(self) -> None:
        async with self._database.connection() as connection:
            await check_account_table(connection, self._database.names)

    def lease_now(self) -> float:
        """The lease of a claim made now, in seconds.

        Raises:
            RuntimeError: `begin` was not called.
        """
        if self._since is None:
            raise RuntimeError("Claims.begin must be called first")
        return self._lease_seconds(self._since + timedelta(seconds=monotonic() - self._since_monotonic))

    async def claim(self, selection: Selection, limit: int) -> list[ClaimedAccount]:
        """Claim at most `limit` accounts in one statement. Nothing means that there is nothing to claim now.

        A row that makes the statement fail, for a value in it or a trigger of its owner's, is set aside for this run.

        Raises:
            DatabaseUnavailable: the database was away for longer than can be waited.
            psycopg.Error: a fault that another attempt does not mend.
        """
        give_up = Deadline.after(CLAIM_RETRY_SECONDS)
        wait = 0.05
        at_once = limit
        while True:
            if self._lost_since is not None and (found := await self._recover(give_up, final=False)):
                return found
            lease = self.lease_now()
            asked = monotonic()  # before it is sent: our lease can only end earlier than the database's
            parameters = {
                "limit": at_once,
                "lease": lease,
                "claimed_by": self.holder,
                "tick": selection.tick,
                "since": self._since,
                "account_ids": list(selection.account_ids),
                "set_aside": self._set_aside,
                "max_failures": self._retry_policy["max_failures"],
            }
            try:
                rows = await self._database.fetch(_claim_sql(self._database.names, selection.kind), parameters)
            except asyncio.CancelledError:
                self._note_lost(asked)
                raise
            except psycopg.Error as error:
                if is_of_a_row(error):
                    # one of many: find it by claiming them one by one
                    if at_once == 1:
                        await self._put_aside(selection, parameters, error)
                    at_once = 1 if at_once > 1 else limit
                    continue
                if not is_passing(error):
                    raise
                log.warning("claiming again: %s", one_line(error))
                if answer_lost(error):
                    self._note_lost(asked)
                if give_up.remaining() <= wait:
                    raise DatabaseUnavailable(f"the accounts' database was lost: {one_line(error)}") from None
                await self._database.forget_dead(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, 2.0)
                continue
            if rows or self._lost_since is None:
                return self._took([_claimed(row, asked) for row in rows])
            return await self._recover(give_up, final=True)

    async def _put_aside(self, selection: Selection, parameters: Mapping[str, object], error: psycopg.Error) -> None:
        """Leave the row that a claim of one failed on to its owner, for this run.

        Raises:
            psycopg.Error: there is no such row; the fault is another's.
        """
        rows = await self._database.fetch(_claim_sql(self._database.names, selection.kind, suspect=True), parameters)
        if not rows:
            raise error
        log.error("account %s cannot be claimed: %s", rows[0][0], error.diag.message_primary)
        self._set_aside.append(rows[0][0])

    def _note_lost(self, asked: float) -> None:
        self._lost_since = asked if self._lost_since is None else self._lost_since
        self._lost_until = Deadline.after(STATEMENT_TIMEOUT_SECONDS)

    async def _recover(self, give_up: Deadline, *, final: bool) -> list[ClaimedAccount]:
        """Find what a claim whose answer was lost has claimed: now, and once more when its commit can no longer come.

        Args:
            give_up: when to stop trying to reach the database.
            final: nothing else is left to claim, so wait for that moment.
        """
        if self._lost_since is None:
            return []
        if final:
            await asyncio.sleep(max(self._lost_until.remaining(), 0.0))
        asked = self._lost_since  # not later than when any of those claims was made
        certain = self._lost_until.passed()
        try:
            rows = await self._database.retrying(
                lambda: self._database.fetch(
                    compose(_PACKAGE, "read_back.sql", self._database.names),
                    {"claimed_by": self.holder, "known": list(self._held)},
                ),
                give_up,
            )
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"the accounts' database was lost: {one_line(error)}") from None
        if certain:
            self._lost_since = None
        return self._took([_claimed(row, asked, answer_lost=True) for row in rows])

    async def give_up_lost(self, deadline: Deadline) -> int:
        """When stopping: free the rows of a claim whose answer was lost, for the next tick. Returns how many."""
        if self._lost_since is None:
            return 0
        freed = 0
        while self._lost_since is not None:  # its commit may still be on its way
            found = await self._recover(deadline, final=False)
            await asyncio.gather(*(self.settle(Outcome(account, Ending.GIVEN_UP)) for account in found))
            freed += len(found)
            if self._lost_since is None or deadline.remaining() <= _LOOK_AGAIN_SECONDS:
                break
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return freed

    def _took(self, accounts: list[ClaimedAccount]) -> list[ClaimedAccount]:
        self._held.update(account.claim_seq for account in accounts)
        return accounts

    async def settle(self, outcome: Outcome) -> Fate:
        """Write back what became of an account. Tries until its lease is over; does not raise for database faults."""
        fate = await self._settler.settle(outcome)
        if fate is Fate.RECORDED:
            self._held.discard(outcome.account.claim_seq)
        # else the row may still be in our name: it stays known, or a read back would find it and have it worked again
        # as if its lease had just begun
        return fate

    async def _write(self, attempts: Sequence[Attempt]) -> Sequence[Fate | Again]:
        written: set[int] = set()
        for file, parameters in (
            ("settle.sql", {**_settle_parameters([attempt.outcome for attempt in attempts]), **self._retry_policy}),
            ("hand_back.sql", _hand_back_parameters([attempt.outcome for attempt in attempts])),
        ):
            if parameters["account_ids"]:
                fenced = {**parameters, "claimed_by": self.holder}
                rows = await self._database.fetch(compose(_PACKAGE, file, self._database.names), fenced)
                written.update(row[0] for row in rows)
        missed = [attempt for attempt in attempts if attempt.outcome.account.claim_seq not in written]
        now: dict[str, tuple[list[object], str]] = {}
        if missed:
            rows = await self._database.fetch(
                compose(_PACKAGE, "fates.sql", self._database.names),
                {"account_ids": [attempt.outcome.account.account_id for attempt in missed]},
            )
            now = {account_id: (claim, status) for account_id, *claim, status in rows}
        return [
            Fate.RECORDED
            if attempt.outcome.account.claim_seq in written
            else _fate(attempt, self.holder, now.get(attempt.outcome.account.account_id))
            for attempt in attempts
        ]

    async def explain(self, account_id: str) -> Explanation:
        """Why an account was not claimed."""
        return await self._database.retrying(
            lambda: explain(self._database, account_id, self.lease_now()), Deadline.after(CLAIM_RETRY_SECONDS)
        )


def _fate(attempt: Attempt, holder: str, now: tuple[list[object], str] | None) -> Fate | Again:
    """What became of an outcome that was not written, from the row as it is now."""
    if now is None:
        return Fate.LOST
    claim, status = now
    if claim != [attempt.outcome.account.claim_seq, holder]:
        return Fate.UNKNOWN if attempt.unanswered else Fate.LOST
    if status == "IN_PROGRESS":
        return Again.NOT_NOW
    return Fate.RECORDED if attempt.unanswered else Fate.LOST


def _settle_parameters(outcomes: Sequence[Outcome]) -> dict[str, list[object]]:
    chosen = [o for o in outcomes if o.ending in (Ending.SUCCEEDED, Ending.FAILED)]
    return {
        "account_ids": [o.account.account_id for o in chosen],
        "claim_seqs": [o.account.claim_seq for o in chosen],
        "succeeded": [o.ending is Ending.SUCCEEDED for o in chosen],
        "error_kinds": [o.error_kind for o in chosen],
        "errors": [o.error for o in chosen],
        "counted": [o.counted for o in chosen],
        "not_befores": [o.retry_after if isinstance(o.retry_after, datetime) else None for o in chosen],
        "not_before_seconds": [
            o.retry_after.total_seconds() if isinstance(o.retry_after, timedelta) else None for o in chosen
        ],
    }


def _hand_back_parameters(outcomes: Sequence[Outcome]) -> dict[str, list[object]]:
    chosen = [o for o in outcomes if o.ending in (Ending.HANDED_BACK, Ending.GIVEN_UP)]
    return {
        "account_ids": [o.account.account_id for o in chosen],
        "claim_seqs": [o.account.claim_seq for o in chosen],
        # of a claim whose answer was lost nobody knows how it found the row
        "given_up": [o.ending is Ending.GIVEN_UP or o.account.answer_lost for o in chosen],
        # a row that was taken over goes back as FAILED: its old holder is dead and must not seem to hold it
        "statuses": ["FAILED" if o.account.taken_over else o.account.before.status for o in chosen],
        "started_ats": [o.account.before.started_at for o in chosen],
        "last_ticks": [o.account.before.last_tick for o in chosen],
        "claimed_generations": [o.account.before.claimed_generation for o in chosen],
    }


@cache
def _selections() -> dict[str, dict[str, str]]:
    """The fragments of selections.sql by selection and place. `-- name:` opens a selection, `--   place` a fragment."""
    found: dict[str, dict[str, str]] = {}
    selection = place = ""
    for line in read_sql(_PACKAGE, "selections.sql").splitlines():
        if match := re.match(r"--   (\w+)", line):
            place = match[1]
            found[selection][place] = ""
        elif match := re.match(r"-- (\w+): ", line):
            selection = match[1]
            found[selection] = {}
        elif not line.startswith("--") and place and line:
            found[selection][place] += line + "\n"
    return found


@cache
def _claim_sql(names: Names, kind: SelectionKind, *, suspect: bool = False) -> sql.Composed:
    """The claim of one selection; with `suspect`, its places to look without its write."""
    places = {place: formatted(text.strip(), names) for place, text in _selections()[kind.value].items()}
    if suspect:
        looking, _ = read_sql(_PACKAGE, "claim.sql").split("\nUPDATE ", 1)
        return formatted(looking + "\n" + read_sql(_PACKAGE, "suspect.sql"), names, **places)
    return compose(_PACKAGE, "claim.sql", names, **places)


def _claimed(row: TupleRow, asked: float, *, answer_lost: bool = False) -> ClaimedAccount:
    account_id, claim_seq, generation, claimed_by, started_at, lease, quarantined, row_json, *before = row
    return ClaimedAccount(
        account_id=account_id,
        claim_seq=claim_seq,
        generation=generation,
        claimed_by=claimed_by,
        started_at=started_at,
        lease=timedelta(seconds=lease),
        lease_ends=Deadline(asked + lease),
        before=Before(*before),
        row_json=row_json,
        quarantined=quarantined,
        answer_lost=answer_lost,
    )
