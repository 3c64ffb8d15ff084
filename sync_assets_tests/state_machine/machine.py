"""Rules drawn at random, on the table and on the dictionary; after each, the two must agree."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sync_assets.claims import ClaimedAccount, Ending, Fate, Outcome, RetryPolicy, Selection
from sync_assets.claims.model import SelectionKind
from sync_assets.clock import Deadline
from sync_assets_tests.claims_rig import TICK
from sync_assets_tests.state_machine.model import Claim, Ended, Model, Row, Run
from sync_assets_tests.state_machine.world import Lost, World

ACCOUNTS = ("a", "b", "c", "d")
_MOMENT = 0.001  # between two things that happen one after the other

# Time passes in steps of 600 s, and whatever ends, ends 300 s beside them: no verdict hangs on how fast a test runs.
_passes = st.sampled_from([600.0, 1200.0, 3600.0, 7200.0])
_leases = st.sampled_from([900.0, 3300.0])
_policies = st.builds(
    RetryPolicy, st.sampled_from([None, 1, 1, 2]), st.sampled_from([None, 1500.0]), st.sampled_from([3900.0])
)
_retry_afters = st.sampled_from([None, None, 2700.0, 6300.0])

_accounts = st.sampled_from(ACCOUNTS)
_slots = st.sampled_from([0, 1, 2])
_limits = st.sampled_from([10, 10, 2, 1])
_endings = st.builds(Ended, st.sampled_from(Ending), _retry_afters, st.booleans())
_kinds = st.sampled_from([SelectionKind.DUE, SelectionKind.DUE, *SelectionKind])
_meanwhile = st.sampled_from(["nothing", "claimed", "deleted"])
_ticks = st.sampled_from([1, 1, 0, -1])  # the next one, the same again, an old one
_places = st.integers(0, 11)  # in a list of claims, counted round and round


class ClaimsMachine(RuleBasedStateMachine):
    """Three runs, four accounts, their owner, and time.

    Which accounts a claim with a limit takes is the database's choice, where they are equally old. So nothing here may
    hang on it that Hypothesis has to find again when it replays an example: claims are kept in lists, not in bundles,
    and a rule that has nothing to act on does nothing, instead of not being a rule of that moment.
    """

    def __init__(self, world: World, seen: Counter[str]) -> None:
        super().__init__()
        self.world = world
        self.seen = seen
        self.model = Model()
        self.tick = 0
        self.edits = 0
        self.late_edit: str | None = None
        self.claims: list[Claim] = []
        self.held: list[Claim] = []
        """Not settled by their runs yet; theirs or, if time has passed, not theirs any more."""
        self.ended: list[Claim] = []
        """Settled by their runs, or tried to."""
        self.every_run: list[Run] = []
        world.empty()
        self.runs = [self.new_run(3300.0, RetryPolicy(most)) for most in (None, 1, 2)]

    def teardown(self) -> None:
        self.world.empty()

    def new_run(self, lease: float, policy: RetryPolicy) -> Run:
        self.step()
        run = self.world.begin(self.model, lease, policy)
        self.every_run.append(run)
        self.step()
        return run

    def step(self) -> None:
        """Something happens after what has happened."""
        self.model.now += _MOMENT
        self.model.monotonic += _MOMENT

    def happened(self, *what: str) -> None:
        self.seen.update(what)

    # -- the owner of the table -------------------------------------------------------------------------------------

    @initialize()
    def begin_with_three(self) -> None:
        for account_id in ACCOUNTS[:3]:
            self.add(account_id)

    def add(self, account_id: str) -> None:
        self.step()
        self.world.table.add(account_id)
        self.model.rows[account_id] = Row(self.newer_generation(account_id))

    def newer_generation(self, account_id: str) -> int:
        """The row's generation in the table, which must be one that no row has had."""
        generation: int = self.world.table.row(account_id)["generation"]
        assert generation > self.model.newest_generation, "a generation was used again"
        self.model.newest_generation = generation
        return generation

    @rule(account_id=_accounts)
    def delete_or_add(self, account_id: str) -> None:
        if account_id == self.model.locked:
            return
        if self.model.rows.pop(account_id, None):
            self.world.table.connection.execute("DELETE FROM sync.account_config WHERE account_id = %s", [account_id])
        else:
            self.add(account_id)

    @rule(account_id=_accounts, really=st.booleans())
    def edit(self, account_id: str, really: bool) -> None:
        row = self.model.rows.get(account_id)
        if row is None or account_id == self.model.locked:
            return
        if really:
            self.edits += 1
            row.base_url = f"https://{self.edits}.example"
        self.world.table.set(account_id, base_url=row.base_url)
        if really:  # else an application has saved the row as it was: nothing has changed
            row.generation = self.newer_generation(account_id)

    @rule(account_id=_accounts)
    def disable_or_enable(self, account_id: str) -> None:
        row = self.model.rows.get(account_id)
        if row is None or account_id == self.model.locked:
            return
        row.enabled = not row.enabled
        self.world.table.set(account_id, enabled=row.enabled)
        row.generation = self.newer_generation(account_id)

    @rule(account_id=_accounts, edits=st.booleans())
    def lock(self, account_id: str, edits: bool) -> None:
        """A transaction of the owner's takes a row, and perhaps changes it, and stays open."""
        self.unlock(True)
        if account_id not in self.model.rows:
            return
        self.model.locked = account_id
        self.world.owner.execute(
            "SELECT FROM sync.account_config WHERE account_id = %s FOR NO KEY UPDATE", [account_id]
        )
        if edits:
            self.edits += 1
            self.late_edit = f"https://{self.edits}.example"
            changed = self.world.owner.execute(
                "UPDATE sync.account_config SET base_url = %s WHERE account_id = %s RETURNING generation",
                [self.late_edit, account_id],
            ).fetchone()
            assert changed is not None
            self.late_generation = changed[0]
            self.model.newest_generation = changed[0]

    @rule(commits=st.booleans())
    def unlock(self, commits: bool) -> None:
        if self.model.locked is None:
            return
        if commits and self.late_edit is not None:  # committed late: others may have newer generations by now
            row = self.model.rows[self.model.locked]
            row.base_url, row.generation = self.late_edit, self.late_generation
            self.happened("an edit committed late")
        if commits:
            self.world.owner.commit()
        else:
            self.world.owner.rollback()
        self.model.locked = self.late_edit = None

    # -- time -------------------------------------------------------------------------------------------------------

    @rule(seconds=_passes)
    def time_passes(self, seconds: float) -> None:
        self.unlock(True)  # no transaction of the owner's stays open that long
        self.world.shift(self.every_run, self.claims, seconds, clock_set=False)
        self.model.now += seconds
        self.model.monotonic += seconds

    @rule()
    def database_clock_is_set_back(self) -> None:
        self.unlock(True)
        self.world.shift(self.every_run, self.claims, -600.0, clock_set=True)
        self.model.now -= 600.0

    # -- runs -------------------------------------------------------------------------------------------------------

    @rule(slot=_slots, lease=_leases, policy=_policies)
    def another_run(self, slot: int, lease: float, policy: RetryPolicy) -> None:
        """The one before is gone, or frozen: its claims are settled late, if at all."""
        self.runs[slot] = self.new_run(lease, policy)

    def selection(self, kind: SelectionKind, tick: int, account_id: str) -> Selection:
        if kind is SelectionKind.DUE:
            self.tick = max(self.tick, self.tick + tick)
            return Selection.due(TICK + timedelta(minutes=15) * min(self.tick, self.tick + tick))
        if kind is SelectionKind.ACCOUNTS:
            return Selection.accounts([account_id, ACCOUNTS[0]])
        return Selection(kind)

    def claimed(
        self, run: Run, selection: Selection, accounts: dict[str, int], expected: set[str], limit: int
    ) -> dict[str, Row]:
        """Tell the model what was claimed, if it is what it had to be. Returns the rows as they were before."""
        assert set(accounts) <= expected
        assert len(accounts) == min(limit, len(expected)), f"claimed {set(accounts)} of {expected}"
        before = {}
        for account_id in sorted(accounts, key=accounts.__getitem__):
            before[account_id] = self.model.claim(account_id, accounts[account_id], run, selection.tick)
            if before[account_id].status == "IN_PROGRESS":
                self.happened("a takeover")
                if self.model.rows[account_id].next_attempt == math.inf:
                    self.happened("a takeover into quarantine")
            if before[account_id].next_attempt == math.inf:
                self.happened(f"quarantine left by {selection.kind.value}")
        return before

    def keep(self, run: Run, account: ClaimedAccount, before: Row) -> Claim:
        """What the claim has told its run must be how the model knows the row."""
        now = self.model.rows[account.account_id]
        assert (account.generation, account.claimed_by) == (now.generation, run.claims.holder)
        if account.answer_lost:
            before.status = "FAILED" if now.failures else "IDLE"
            self.happened("a claim read back")
        else:
            found = account.before
            assert (found.status, found.last_tick, found.claimed_generation, found.claimed_by, found.error_kind) == (
                before.status, before.last_tick, before.claimed_generation, before.claimed_by, before.error_kind
            )  # fmt: skip
        assert account.quarantined == (now.next_attempt == math.inf)
        claim = Claim(run, account, before, self.model.monotonic + run.lease)
        self.claims.append(claim)
        return claim

    @rule(slot=_slots, kind=_kinds, tick=_ticks, account_id=_accounts, limit=_limits)
    def claim(self, slot: int, kind: SelectionKind, tick: int, account_id: str, limit: int) -> None:
        run, selection = self.runs[slot], self.selection(kind, tick, account_id)
        self.step()
        expected = self.model.claimable(selection, run)
        accounts = self.world.run(run.claims.claim(selection, limit))
        before = self.claimed(run, selection, {a.account_id: a.claim_seq for a in accounts}, expected, limit)
        self.held += [self.keep(run, account, before[account.account_id]) for account in accounts]

    @rule(slot=_slots, kind=_kinds, limit=_limits, committed=st.booleans())
    def claim_unanswered(self, slot: int, kind: SelectionKind, limit: int, committed: bool) -> None:
        """The answer is lost, before or after the commit; the run must find what it has."""
        run, selection = self.runs[slot], self.selection(kind, 1, ACCOUNTS[1])
        self.step()
        expected = self.model.claimable(selection, run)
        with self.world.answer_to_claim_lost(run, Lost("cut"), committed=committed):
            accounts = self.world.run(run.claims.claim(selection, limit))
        assert {account.answer_lost for account in accounts} <= {committed}
        before = self.claimed(run, selection, {a.account_id: a.claim_seq for a in accounts}, expected, limit)
        self.held += [self.keep(run, account, before[account.account_id]) for account in accounts]

    @rule(slot=_slots, kind=_kinds, lease=_leases)
    def stopped_while_claiming(self, slot: int, kind: SelectionKind, lease: float) -> None:
        """SIGTERM during the claim's commit: what it has claimed is free again, unworked, for the next tick."""
        run, selection = self.runs[slot], self.selection(kind, 1, ACCOUNTS[2])
        self.step()
        expected = self.model.claimable(selection, run)

        async def claim_and_stop() -> int:
            try:
                await run.claims.claim(selection, 10)
            except asyncio.CancelledError:
                return await run.claims.give_up_lost(Deadline.after(10))
            raise AssertionError("it was not stopped")

        with self.world.answer_to_claim_lost(run, asyncio.CancelledError(), committed=True) as rows:
            given_up = self.world.run(claim_and_stop())
        accounts = {row[0]: row[1] for row in rows}
        self.claimed(run, selection, accounts, expected, 10)
        for account_id in accounts:
            row_now = self.model.rows[account_id]
            row_now.status = "FAILED" if row_now.failures else "IDLE"
        assert given_up == len(accounts)
        self.runs[slot] = self.new_run(lease, run.policy)

    # -- settling ---------------------------------------------------------------------------------------------------

    def outcome(self, claim: Claim, how: Ended) -> Outcome:
        if how.ending is not Ending.FAILED:
            return Outcome(claim.account, how.ending)
        after = None if how.retry_after is None else timedelta(seconds=how.retry_after)
        return Outcome(
            claim.account,
            how.ending,
            error_kind="retry",
            error="it did not answer",
            retry_after=self.world.database_time() + after if after and how.names_a_moment else after,
        )

    def settle_all(self, batch: list[tuple[Claim, Ended]]) -> None:
        """Settle together; a row that is locked is tried while it is, and then it is let go."""
        self.step()
        outcomes = [(claim, self.outcome(claim, how)) for claim, how in batch]
        expected, waiting = [], None
        for claim, how in batch:
            if claim.account.account_id != self.model.locked or self.model.held_by(claim) is None:
                expected.append(self.model.settle(claim, how))
            elif self.model.expired(claim):
                expected.append(Fate.LOST)
                self.happened("a row locked past the lease")
            else:
                expected.append(self.model.settle(claim, how))
                waiting = claim

        async def write(own: Any, attempts: Any) -> Any:
            fates = await own(attempts)
            if self.model.locked in {attempt.outcome.account.account_id for attempt in attempts}:
                self.happened("a settle that waited for a lock")
                self.unlock(True)
            return fates

        async def all_at_once() -> list[Fate]:
            return await asyncio.gather(*(claim.run.claims.settle(outcome) for claim, outcome in outcomes))

        if waiting is None:
            fates = self.world.run(all_at_once())
        else:
            with self.world.around_settle(waiting.run, write):
                fates = self.world.run(all_at_once())
        assert fates == expected
        self.happened(*(f"{how.ending.name} {fate.name}" for (_, how), fate in zip(batch, fates, strict=True)))

    def take(self, place: int, at_most: int = 1) -> list[Claim]:
        """Held claims from this place on; they count as ended. If there are none, a tick claims first what is due."""
        taken: list[Claim] = []
        if not self.held:
            self.claim(place % len(self.runs), SelectionKind.DUE, 1, ACCOUNTS[0], 10)
        while self.held and len(taken) < at_most:
            taken.append(self.held.pop(place % len(self.held)))
        self.ended += taken
        return taken

    @rule(place=_places, how=_endings)
    def settle(self, place: int, how: Ended) -> None:
        self.settle_all([(claim, how) for claim in self.take(place)])

    @rule(place=_places, how=st.lists(_endings, min_size=2, max_size=4))
    def settle_together(self, place: int, how: list[Ended]) -> None:
        self.settle_all(list(zip(self.take(place, len(how)), how, strict=False)))

    @rule(place=_places, how=_endings, late=st.booleans(), edits=st.booleans())
    def settle_what_is_locked(self, place: int, how: Ended, late: bool, edits: bool) -> None:
        self.unlock(True)
        for claim in self.take(place):
            if late:  # past its lease, a settle may not wait for the row any more
                self.time_passes(3600.0)
            self.lock(claim.account.account_id, edits)
            self.settle_all([(claim, how)])

    @rule(place=_places, how=_endings)
    def settle_again(self, place: int, how: Ended) -> None:
        """A process that was frozen or has two minds: only a row that still is this claim's may change."""
        if self.ended:
            self.settle_all([(self.ended[place % len(self.ended)], how)])

    @rule(place=_places, how=_endings, written=st.booleans(), then=_meanwhile, slot=_slots)
    def settle_unanswered(self, place: int, how: Ended, written: bool, then: str, slot: int) -> None:
        """The answer is lost, before or after the commit, and the row may be others' before the run asks again."""
        for claim in self.take(place):
            if claim.account.account_id == self.model.locked:
                self.settle_all([(claim, how)])
            else:
                self.settle_one_unanswered(claim, how, written, then, slot)

    def settle_one_unanswered(self, claim: Claim, how: Ended, written: bool, then: str, slot: int) -> None:
        account_id = claim.account.account_id
        self.step()
        other, mine = self.runs[slot], Selection.accounts([account_id])
        first = True

        async def write(own: Any, attempts: Any) -> Any:
            nonlocal first
            if not first:
                return await own(attempts)
            first = False
            if written:
                await own(attempts)
                self.model.settle(claim, how)
            if then == "deleted" and account_id in self.model.rows:
                self.delete_or_add(account_id)
            if then == "claimed":
                self.step()
                expected = self.model.claimable(mine, other)
                accounts = await other.claims.claim(mine, 1)
                before = self.claimed(other, mine, {a.account_id: a.claim_seq for a in accounts}, expected, 1)
                for account in accounts:  # nobody will settle it: this one is taken over some day
                    self.keep(other, account, before[account.account_id])
            raise Lost("cut")

        outcome = self.outcome(claim, how)
        with self.world.around_settle(claim.run, write):
            fate = self.world.run(claim.run.claims.settle(outcome))
        if not written and not self.model.expired(claim):
            self.model.settle(claim, how)
        assert fate is self.model.fate_without_an_answer(claim)
        self.happened(f"unanswered {fate.name}")

    @rule(slot=_slots, account_id=_accounts)
    def explain(self, slot: int, account_id: str) -> None:
        told = self.world.run(self.runs[slot].claims.explain(account_id))
        assert told.verdict is self.model.verdict(account_id), str(told)

    @invariant()
    def table_and_dictionary_agree(self) -> None:
        assert self.world.rows(self.model) == self.model.rows
