"""What a checker comes to: violations, each with the promise it breaks, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """Grows while a history is replayed.

    Attributes:
        violations: (promise, what happened).
        counts: what there was to see.
    """

    violations: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    longest_wait: float = 0.0
    """Seconds from the end of a dead claim's lease to its takeover."""

    def hold(self, promise: str, condition: object, what: str) -> None:
        """Count a promise that was looked at, and note it when it does not hold."""
        self.counts[f"checked {promise}"] += 1
        if not condition:
            self.violations.append((promise, what))
