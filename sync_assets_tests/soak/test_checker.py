"""The checker finds each kind of violation in the rows of a history made by hand, and none in a clean one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sync_assets_tests.soak.checker import check
from sync_assets_tests.soak.report import Needed, report_of
from sync_assets_tests.soak.story import Story, done, taken_over, worked
from sync_assets_tests.soak.verdict import Verdict


def _clean(story: Story) -> None:
    """Of everything that is allowed, one."""
    taken_over(story)
    # r1 was frozen with a request in flight, which arrives when it goes on; then it is fenced out
    story.fault("pause", 10.2, "r1", 15.0)
    story.send(1, "a", "s", 6, 15.1, verdict="stale")
    story.told("r1", 15.2, "settle", "fail", "a", 1, ending="failed", fate="lost")
    # handed back, and claimed again for the same tick
    story.run("r3", tick=101.0)
    story.account("b")
    story.record("b", "gone", 7, 1.0, deleted=True)
    story.claim("r3", "b", 20.0, 3)
    story.fault("stop", 20.1, "r3")
    story.hand_back("r3", "b", 20.2)
    story.fault("stopped", 20.3, "r3")
    story.run("r4", tick=101.0)
    story.claim("r4", "b", 21.0, 4)
    story.send(4, "b", "gone", 7, 21.1, verdict="limited", retry_after=2.0)
    story.fail("r4", "b", 21.2, "rate_limited", not_before=23.2)
    # by hand, before the upstream's time
    story.run("r5", "accounts")
    story.claim("r5", "b", 22.0, 5)
    story.send(5, "b", "gone", 7, 22.1)
    story.acknowledge("r5", "b", "gone", 7, 22.2)
    story.succeed("r5", "b", 22.3)
    # refused for good, and without hope
    story.account("c")
    story.record("c", "r", 8, 1.0)
    story.claim("r4", "c", 24.0, 6)
    story.send(6, "c", "r", 8, 24.1, verdict="rejected")
    story.refuse("r4", "c", "r", 8, 24.2)
    story.succeed("r4", "c", 24.3)
    story.account("bad")
    story.claim("r4", "bad", 25.0, 7)
    story.fail("r4", "bad", 25.1, "auth")
    # killed, and its row made again by the owner
    story.run("r6", tick=102.0, says_so=False)
    story.account("d")
    story.claim("r6", "d", 30.0, 8)
    story.fault("kill", 30.1, "r6")
    story.delete("d", 31.0)
    story.account("d", 31.0)
    story.run("r7", tick=102.0)
    story.claim("r7", "d", 31.1, 9)
    story.succeed("r7", "d", 31.2)


def test_a_clean_history_has_no_violation_and_is_counted() -> None:
    story = Story()
    _clean(story)
    verdict = check(story.history)
    assert verdict.violations == []
    expected = {
        "takeovers": 1,
        "fenced-out writes": 1,
        "ambiguous sends": 1,
        "kills and pauses while holding rows": 2,
        "requests in flight when their process was frozen": 1,
        "records equal upstream in the end": 3,
    }
    assert {name: verdict.counts[name] for name in expected} == expected


def _early(story: Story) -> None:
    worked(story)
    story.run("r2", tick=101.0)
    story.claim("r2", "a", 12.9, 2)
    story.succeed("r2", "a", 12.95)


def _twice_for_a_tick(story: Story) -> None:
    done(story)
    story.run("r2")
    story.claim("r2", "a", 11.0, 2)
    story.succeed("r2", "a", 11.1)


def _for_an_older_tick(story: Story) -> None:
    done(story)
    story.run("r2", tick=99.0)
    story.claim("r2", "a", 11.0, 2)
    story.succeed("r2", "a", 11.1)


def _settled_by_another(story: Story) -> None:
    worked(story)
    story.run("r2", tick=101.0)
    story.row("r2", "a", 10.3, status="IDLE", last_success=10.3)


def _settled_what_nobody_held(story: Story) -> None:
    done(story)
    story.row("r1", "a", 10.4, status="FAILED", failures=1, error_kind="retry")
    story.row("r1", "a", 10.5, status="IDLE", failures=0, last_success=10.5)


def _number_again(story: Story) -> None:
    done(story)
    story.run("r2", tick=101.0)
    story.account("b")
    story.claim("r2", "b", 12.0, 1)
    story.succeed("r2", "b", 12.1)


def _disabled(story: Story) -> None:
    story.run("r1")
    story.account("a", enabled=False)
    story.claim("r1", "a", 10.0, 1)
    story.succeed("r1", "a", 10.1)


def _nothing_changed(story: Story) -> None:
    done(story)
    story.run("r2", "changed")
    story.claim("r2", "a", 12.0, 2)
    story.succeed("r2", "a", 12.1)


def _before_the_upstreams_time(story: Story) -> None:
    story.run("r1")
    story.account("a", not_before=11.0)
    story.claim("r1", "a", 10.0, 1)
    story.succeed("r1", "a", 10.1)


def _limited_and_forgotten(story: Story) -> None:
    story.run("r1")
    story.account("bad")
    story.record("bad", "r", 5, 1.0)
    story.claim("r1", "bad", 10.0, 1)
    story.send(1, "bad", "r", 5, 10.1, verdict="limited", retry_after=5.0)
    story.fail("r1", "bad", 10.2, "rate_limited", not_before=12.0)


def _asked_again_after_a_429(story: Story) -> None:
    worked(story)
    story.record("a", "r", 6, 10.15)
    story.send(1, "a", "r", 6, 10.2, verdict="limited", retry_after=5.0)
    story.send(1, "a", "r", 6, 10.22)
    story.acknowledge("r1", "a", "r", 6, 10.25)
    story.succeed("r1", "a", 10.3)


def _stuck(story: Story) -> None:
    worked(story)
    story.run("r2", tick=101.0)
    story.claim("r2", "a", 60.0, 2)
    story.succeed("r2", "a", 60.1)


def _handed_back_and_counted(story: Story) -> None:
    story.run("r1")
    story.run("r2", tick=101.0)
    story.account("a")
    story.claim("r1", "a", 10.0, 1)
    story.hand_back("r1", "a", 10.1, failures=1)
    story.claim("r2", "a", 11.0, 2)
    story.succeed("r2", "a", 11.1)


def _handed_back_with_the_tick(story: Story) -> None:
    story.run("r1")
    story.account("a")
    story.claim("r1", "a", 10.0, 1)
    story.hand_back("r1", "a", 10.1, last_tick=100.0)


def _stopped_and_left_it_held(story: Story) -> None:
    worked(story)
    story.fault("stop", 10.2, "r1")
    story.fault("stopped", 10.25, "r1")
    story.succeed("r1", "a", 10.3)


def _another_secret(story: Story) -> None:
    done(story)
    story.history.requests[0].authorization_hash = "hash of b's"


def _leaked(story: Story) -> None:
    done(story)
    story.history.leaked.append("run-r1.log")


def _change_missing(story: Story) -> None:
    done(story)
    del story.history.rows[1]


def _held_at_the_end(story: Story) -> None:
    worked(story)


def _failed_at_the_end(story: Story) -> None:
    worked(story)
    story.fail("r1", "a", 10.3, "retry")


def _configuration_not_seen(story: Story) -> None:
    done(story)
    story.row("owner", "a", 11.0, generation=2)


def _record_not_sent(story: Story) -> None:
    done(story)
    story.record("a", "r", 6, 11.0)


def _upstream_has_an_older_version(story: Story) -> None:
    taken_over(story)
    story.record("a", "r", 9, 14.35)
    story.send(2, "a", "r", 9, 14.36)
    story.acknowledge("r2", "a", "r", 9, 14.37)
    story.send(2, "a", "r", 5, 14.38)


def _hopeless_and_yet_idle(story: Story) -> None:
    done(story)
    story.account("bad")


def _stuck_on_a_clock_that_was_right_again(story: Story) -> None:
    """Set back for 10 s only: from 23 on the lease had ended, and 23 s later nobody had come."""
    story.clock_set(12.0, 0.0, -10.0)
    story.clock_set(22.0, -10.0, 0.0)
    worked(story)
    story.run("r2", tick=101.0)
    story.claim("r2", "a", 45.0, 2)
    story.succeed("r2", "a", 45.1)


@pytest.mark.parametrize(
    ("happens", "promise", "words"),
    [
        (_early, "P3", "taken over before its lease ended"),
        (_twice_for_a_tick, "P2", "claimed twice for one tick"),
        (_for_an_older_tick, "P2", "for a tick that has been"),
        (_settled_by_another, "P1", "in another's name"),
        (_settled_what_nobody_held, "P4", "a row that nobody held"),
        (_number_again, "P1", "given twice"),
        (_disabled, "P6", "a disabled account was claimed"),
        (_nothing_changed, "P7", "nothing had changed"),
        (_before_the_upstreams_time, "P9", "before the upstream's time"),
        (_limited_and_forgotten, "P9", "the upstream allows 15"),
        (_asked_again_after_a_429, "P9", "sent again after a 429"),
        (_stuck, "P3", "stuck for 47.0 s"),
        (_stuck_on_a_clock_that_was_right_again, "P3", "stuck for 23.0 s"),
        (_handed_back_and_counted, "P5", "a failure that is none"),
        (_handed_back_with_the_tick, "P10", "handed back otherwise than it was found"),
        (_stopped_and_left_it_held, "P10", "r1 was asked to stop, ended, and left"),
        (_another_secret, "P11", "not the account's secret"),
        (_leaked, "P11", "a secret is in run-r1.log"),
        (_change_missing, "history", "a change is missing"),
        (_held_at_the_end, "P3", "held at the end"),
        (_failed_at_the_end, "P5", "not healed at the end"),
        (_configuration_not_seen, "P7", "a change was not seen"),
        (_record_not_sent, "P8", "at the end a/r is"),
        (_upstream_has_an_older_version, "P8", "and upstream 5"),
        (_hopeless_and_yet_idle, "P5", "with no hope"),
    ],
)
def test_a_violation_is_found(happens: Callable[[Story], None], promise: str, words: str) -> None:
    story = Story()
    happens(story)
    found = check(story.history).violations
    assert any(kind == promise and words in what for kind, what in found), found


def test_the_exit_status_tells_broken_from_vacuous_from_held() -> None:
    verdict = Verdict()
    verdict.counts.update({"takeovers": 20, "fenced-out writes": 19, "ambiguous sends": 20})
    needed = Needed(hits=0, takeovers=20, fenced=20, ambiguous=20, jumps=1)
    text, status = report_of(verdict, needed, {"seed": "7"})
    assert status == 3
    assert "fenced-out writes: 19, and 20 are needed" in text
    verdict.counts["fenced-out writes"] += 1
    text, status = report_of(verdict, needed, {})
    assert status == 3, "the database's clock was not set"
    verdict.counts.update({"fault: database's clock set forward": 1, "fault: database's clock set back": 1})
    assert report_of(verdict, needed, {})[1] == 0
    verdict.hold("P1", condition=False, what="it was worked twice")
    text, status = report_of(verdict, needed, {})
    assert status == 1
    assert "P1: it was worked twice" in text
