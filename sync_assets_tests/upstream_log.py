"""What the recording upstream writes down, and what can be asserted about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Call:
    """One request, as it arrived and as it ended."""

    number: int
    method: str
    raw_path: str
    account: str | None
    record: str | None
    key: str | None
    claim_seq: int | None
    body_hash: str
    authorized: bool
    started: float
    ended: float | None = None
    status: int | None = None
    aborted: bool = False
    """The client went away before it had its answer."""
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def authorization(self) -> str | None:
        """The header's value: in memory only, never in the log."""
        return self.headers.get("authorization")

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    def for_log(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in {"body", "headers"}}


def assert_no_overlap(calls: Iterable[Call]) -> None:
    """P1: at no moment were two claims of one account both at the upstream."""
    by_account: dict[str | None, list[Call]] = {}
    for call in calls:
        by_account.setdefault(call.account, []).append(call)
    for account, own in by_account.items():
        own.sort(key=lambda call: call.started)
        for at, first in enumerate(own):
            for second in own[at + 1 :]:
                if first.ended is not None and second.started >= first.ended:
                    break
                assert first.claim_seq == second.claim_seq, (
                    f"account {account!r}: claims {first.claim_seq} and {second.claim_seq} were at work together: "
                    f"{first} and {second}"
                )


def read_log(log: Path) -> list[Call]:
    """The calls written to a log so far."""
    calls: dict[int, Call] = {}
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        entry = json.loads(line)
        del entry["event"]
        calls[entry["number"]] = Call(**entry)
    return list(calls.values())
