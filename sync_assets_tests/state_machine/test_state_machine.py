"""The row against a dictionary: whatever happens in whatever order, both say the same (P1 to P4, P6, P7, P9, P10)."""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from sync_assets.claims import Ending, Fate, RetryPolicy, Selection
from sync_assets_tests.claims_rig import TICK, ids, succeeded
from sync_assets_tests.state_machine.machine import ClaimsMachine
from sync_assets_tests.state_machine.model import Model
from sync_assets_tests.state_machine.world import Lost, world_at

_EXAMPLES = os.environ.get("SYNC_TEST_EXAMPLES")
"""Unset: the same few examples each time. A number: so many new ones."""

_MUST_HAPPEN = {
    "a takeover",
    "a takeover into quarantine",
    "quarantine left by changed",
    "a claim read back",
    "an edit committed late",
    "a settle that waited for a lock",
    "a row locked past the lease",
    *(f"{ending.name} {fate}" for ending in Ending for fate in ("RECORDED", "LOST")),
    *(f"unanswered {fate}" for fate in ("RECORDED", "LOST", "UNKNOWN")),
}


@pytest.mark.timeout(120 if _EXAMPLES is None else 0)
def test_the_row_and_a_dictionary_agree_whatever_happens(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "sync_assets")  # hundreds of lost answers are told there, on purpose
    seen: Counter[str] = Counter()
    with world_at(database_url) as world:
        run_state_machine_as_test(
            lambda: ClaimsMachine(world, seen),  # type: ignore[arg-type]  # a class, or what makes one
            settings=settings(
                max_examples=int(_EXAMPLES or 80),
                stateful_step_count=50,
                derandomize=_EXAMPLES is None,
                database=None,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    if _EXAMPLES is None:  # those are known to be enough
        assert seen.keys() >= _MUST_HAPPEN, f"never happened: {_MUST_HAPPEN - seen.keys()}, but {seen}"


def test_a_claim_that_could_not_be_settled_is_never_read_back_as_a_new_one(database_url: str) -> None:
    """P1: its lease is over and anybody's; found by the machine above."""
    with world_at(database_url) as world:
        model = Model()
        run = world.begin(model, 0.5, RetryPolicy())
        world.table.add("a", "b")
        [old] = world.run(run.claims.claim(Selection.accounts(["a"]), 1))
        world.owner.execute("SELECT FROM sync.account_config WHERE account_id = 'a' FOR UPDATE")
        assert world.run(run.claims.settle(succeeded(old))) is Fate.LOST
        with world.answer_to_claim_lost(run, Lost("cut"), committed=True):
            assert ids(world.run(run.claims.claim(Selection.due(TICK), 1))) == {"b"}
