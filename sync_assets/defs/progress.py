"""How far a run is, every few seconds, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic

from sync_assets.runner import AccountResult

PROGRESS_SECONDS = 5.0
"""Between two lines: a run of ten thousand accounts stays a page to read, and one that hangs is seen to."""


class Progress:
    """Counts what has been settled, and says so now and then.

    Args:
        say: takes a line. It must not raise.
        seconds: between two lines.
    """

    def __init__(self, say: Callable[[str], None], seconds: float = PROGRESS_SECONDS) -> None:
        self._say = say
        self._seconds = seconds
        self._outcomes: Counter[str] = Counter()
        self._began = self._said_at = monotonic()
        self._said = 0

    def heard(self, result: AccountResult) -> None:
        """One account has been settled."""
        self._outcomes[result.outcome] += 1

    def pulse(self) -> None:
        """Called several times a second: says how far the run is when it is time to."""
        now = monotonic()
        if now - self._said_at < self._seconds:
            return
        settled = sum(self._outcomes.values())
        fresh = settled - self._said
        rate = fresh / (now - self._said_at)
        kinds = ", ".join(f"{count:,} {outcome}" for outcome, count in self._outcomes.most_common())
        elapsed = f"{now - self._began:.0f} s"
        if fresh:
            self._say(f"after {elapsed}: {settled:,} accounts settled ({kinds}); now {rate:.1f} accounts a second")
        else:
            self._say(f"after {elapsed}: {settled:,} accounts settled, none in the last {now - self._said_at:.0f} s")
        self._said_at, self._said = now, settled
