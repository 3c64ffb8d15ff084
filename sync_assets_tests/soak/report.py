"""A soak's report as text, and what it means for whoever asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sync_assets_tests.soak.verdict import Verdict

_SHOWN = 20


@dataclass(frozen=True)
class Needed:
    """How much must have been met for a soak to prove anything."""

    hits: int
    takeovers: int
    fenced: int
    ambiguous: int
    jumps: int

    def missing(self, verdict: Verdict) -> list[str]:
        needed = {
            "kills and pauses while holding rows": self.hits,
            "takeovers": self.takeovers,
            "fenced-out writes": self.fenced,
            "ambiguous sends": self.ambiguous,
            "fault: database's clock set forward": self.jumps,
            "fault: database's clock set back": self.jumps,
        }
        return [
            f"{name}: {verdict.counts[name]}, and {least} are needed"
            for name, least in needed.items()
            if verdict.counts[name] < least
        ]


def report_of(verdict: Verdict, needed: Needed, about: Mapping[str, str]) -> tuple[str, int]:
    """The report, and the exit status: 0 all held, 1 a promise was broken, 3 nothing was proven."""
    lines = ["Soak", "====", "", *(f"{name}: {value}" for name, value in about.items()), ""]
    checks = {name: times for name, times in verdict.counts.items() if name.startswith("checked ")}
    met = sorted((name, times) for name, times in verdict.counts.items() if name not in checks)
    lines += [f"{times:>8}  {name}" for name, times in met]
    lines += [f"{verdict.longest_wait:>8.1f}  longest wait of a dead claim for its takeover, in seconds", ""]
    lines += [f"{times:>8}  {name}" for name, times in sorted(checks.items(), key=lambda item: (len(item[0]), item[0]))]
    lines.append("")
    if verdict.violations:
        lines.append(f"VIOLATIONS: {len(verdict.violations)}")
        lines += [f"  {promise}: {what}" for promise, what in verdict.violations[:_SHOWN]]
        return "\n".join(lines) + "\n", 1
    missing = needed.missing(verdict)
    if missing:
        lines += ["no violations, but VACUOUS: it proves nothing", *(f"  {each}" for each in missing)]
        return "\n".join(lines) + "\n", 3
    lines.append("no violations; the state converged")
    return "\n".join(lines) + "\n", 0
