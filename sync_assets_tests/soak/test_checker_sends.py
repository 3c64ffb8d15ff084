"""The checker finds each kind of violation in what was sent, acknowledged and believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sync_assets_tests.soak.checker import check
from sync_assets_tests.soak.story import Story, done, taken_over, worked


def _taken_over_after_a_jump(story: Story) -> None:
    """`r1` claims `a` at 10 for 3 s; at 11 the database's clock is set 5 s forward, and at 11.5 `r2` takes over."""
    story.run("r1")
    story.run("r2", tick=101.0)
    story.account("a")
    story.record("a", "r", 5, 1.0)
    story.record("a", "s", 6, 1.0)
    story.claim("r1", "a", 10.0, 1)
    story.clock_set(11.0, 0.0, 5.0)
    story.claim("r2", "a", 11.5, 2, ahead=5.0)
    for record, version in (("r", 5), ("s", 6)):
        story.send(2, "a", record, version, 11.6)
        story.acknowledge("r2", "a", record, version, 11.7)
    story.succeed("r2", "a", 11.8)


def test_what_a_jump_of_the_databases_clock_explains_is_counted_and_no_violation() -> None:
    story = Story()
    _taken_over_after_a_jump(story)
    story.send(1, "a", "r", 5, 12.9, verdict="stale")
    verdict = check(story.history)
    assert verdict.violations == []
    assert verdict.counts["requests of a claim that a jump of the database's clock had ended"] == 1


def _sent_after_the_takeover(story: Story) -> None:
    taken_over(story)
    story.send(1, "a", "s", 6, 14.5)


def _sent_twice_after_a_pause(story: Story) -> None:
    taken_over(story)
    story.fault("pause", 10.2, "r1", 15.0)
    story.send(1, "a", "r", 5, 15.1)
    story.send(1, "a", "s", 6, 15.2)


def _sent_long_after_a_pause(story: Story) -> None:
    taken_over(story)
    story.fault("pause", 10.2, "r1", 15.0)
    story.send(1, "a", "s", 6, 16.5)


def _sent_after_a_lease_that_a_jump_had_ended(story: Story) -> None:
    """The clock went forward, so `r2` was right to take over; but `r1` may not go on for longer than its own lease."""
    _taken_over_after_a_jump(story)
    story.send(1, "a", "s", 6, 13.2)


def _sent_after_a_takeover_that_no_jump_explains(story: Story) -> None:
    """Set back during the claim, not forward."""
    taken_over(story)
    story.clock_set(10.5, 8.0, 0.0)
    story.send(1, "a", "s", 6, 14.5)


def _sent_after_its_own_settle(story: Story) -> None:
    done(story)
    story.fault("pause", 10.2, "r1", 15.0)
    story.send(1, "a", "r", 5, 10.5)


def _sent_for_another(story: Story) -> None:
    worked(story)
    story.account("b", status="FAILED", enabled=False)
    story.record("b", "r", 6, 1.0)
    story.send(1, "b", "r", 6, 10.2)
    story.succeed("r1", "a", 10.3)


def _another_key(story: Story) -> None:
    worked(story)
    story.send(1, "a", "r", 5, 10.25, key="of this attempt")
    story.succeed("r1", "a", 10.3)


def _another_body(story: Story) -> None:
    worked(story)
    story.send(1, "a", "r", 5, 10.25, body_hash="another")
    story.succeed("r1", "a", 10.3)


def _one_key_for_two(story: Story) -> None:
    worked(story)
    story.record("a", "s", 6, 1.0)
    story.send(1, "a", "s", 6, 10.25, key=story.history.requests[0].key)
    story.acknowledge("r1", "a", "s", 6, 10.28)
    story.succeed("r1", "a", 10.3)


def _a_version_that_never_was(story: Story) -> None:
    done(story)
    story.history.requests.insert(0, replace(story.history.requests[0], version=4, key="k", at=10.05))


def _acknowledged_what_was_not_sent(story: Story) -> None:
    """The version the table has by then, and not the one that was sent."""
    worked(story)
    story.record("a", "r", 6, 10.2)
    story.acknowledge("r1", "a", "r", 6, 10.25)
    story.succeed("r1", "a", 10.3)


def _acknowledged_too_early(story: Story) -> None:
    done(story)
    story.history.requests[0].at = 10.25


def _acknowledged_by_the_loser(story: Story) -> None:
    taken_over(story)
    story.record("a", "r", 9, 14.5)
    story.acknowledge("r1", "a", "r", 5, 14.6)


def _reported_lost(story: Story) -> None:
    done(story)
    story.told("r1", 10.4, "settle", "fail", "a", 1, ending="succeeded", fate="lost")


def _reported_recorded(story: Story) -> None:
    taken_over(story)
    story.told("r1", 10.4, "settle", "ok", "a", 1, ending="succeeded", fate="recorded")


def _claim_lost_in_a_crash(story: Story) -> None:
    done(story)
    story.told("r1", 11.0, "claim", "ok", "a", 2)


def _ended_without_a_word(story: Story) -> None:
    done(story)
    story.run("r2", says_so=False)


@pytest.mark.parametrize(
    ("happens", "promise", "words"),
    [
        (_sent_after_the_takeover, "P1", "sent after its claim had ended"),
        (_sent_twice_after_a_pause, "P1", "sent after its claim had ended"),
        (_sent_long_after_a_pause, "P1", "sent after its claim had ended"),
        (_sent_after_a_lease_that_a_jump_had_ended, "P1", "sent after its claim had ended"),
        (_sent_after_a_takeover_that_no_jump_explains, "P1", "sent after its claim had ended"),
        (_sent_after_its_own_settle, "P1", "sent after its claim had ended"),
        (_sent_for_another, "P1", "under another account's claim"),
        (_another_key, "P8", "before it was"),
        (_another_body, "P8", "before it was"),
        (_one_key_for_two, "P8", "a key that is another's"),
        (_a_version_that_never_was, "P8", "no such version"),
        (_acknowledged_what_was_not_sent, "P8", "acknowledged as accepted before it was"),
        (_acknowledged_too_early, "P8", "acknowledged as accepted before it was"),
        (_acknowledged_by_the_loser, "P4", "by a run that did not hold the account"),
        (_reported_lost, "P4", "reported as lost, and it was recorded"),
        (_reported_recorded, "P8", "recorded, and it was not"),
        (_claim_lost_in_a_crash, "P3", "never committed"),
        (_ended_without_a_word, "P5", "run r2 ended without a word"),
    ],
)
def test_a_violation_is_found(happens: Callable[[Story], None], promise: str, words: str) -> None:
    story = Story()
    happens(story)
    found = check(story.history).violations
    assert any(kind == promise and words in what for kind, what in found), found
