"""What a run came to, on a terminal: the failures first, the rest shortened, the numbers last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from sync_assets.runner import AccountResult
from sync_assets.sync_run import RunReport

_MOST_FAILURES = 100
_MOST_OTHERS = 8

_STYLES = {"succeeded": "green", "failed": "red"}


@dataclass(frozen=True)
class Line:
    """One account's line."""

    account_id: str
    outcome: str
    records: int
    error: str


class Results:
    """Collects what accounts came to, in bounded memory."""

    def __init__(self) -> None:
        self.failures: list[AccountResult] = []
        self._rejected: list[AccountResult] = []
        self._others: list[AccountResult] = []

    def add(self, result: AccountResult) -> None:
        """Take note of one account's result."""
        if result.outcome != "succeeded":
            if len(self.failures) < _MOST_FAILURES:
                self.failures.append(result)
        elif result.rejected and len(self._rejected) < _MOST_OTHERS:
            self._rejected.append(result)
        elif len(self._others) < _MOST_OTHERS:
            self._others.append(result)

    def show(self, report: RunReport) -> None:
        """Print the table, why accounts were not claimed, and the numbers."""
        lines = [_line(result) for result in (*self.failures, *self._rejected, *self._others)]
        if lines:
            show_lines(lines, report.summary.claimed - len(lines))
        for explanation in report.not_claimed:
            print_plain(str(explanation))
        print_plain(str(report.summary))
        if report.summary.claimed == 0 and not report.not_claimed:
            print_plain("nothing to do: no account is enabled, free and not waiting; or there is none at all")


def show_lines(lines: Sequence[Line], more: int) -> None:
    """Print a table of accounts.

    Args:
        lines: in the order in which they are shown.
        more: how many accounts are not in it.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("account", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("records", justify="right")
    table.add_column("error", overflow="fold")
    for line in lines:
        style = _STYLES.get(line.outcome, "yellow")
        table.add_row(_plain(line.account_id), f"[{style}]{line.outcome}[/]", str(line.records), _plain(line.error))
    if more > 0:
        table.add_row(f"… and {more} more", "", "", "", style="dim")
    Console(highlight=False).print(table)


def print_plain(text: str) -> None:
    """Print a line as it is, whatever brackets are in it."""
    Console(highlight=False, markup=False, soft_wrap=True).print(text)


def shortened(lines: Iterable[Line]) -> tuple[list[Line], int]:
    """The lines to show, failures first, and how many are left out."""
    every = sorted(lines, key=lambda line: (line.outcome == "succeeded", not line.error))
    failures = [line for line in every if line.outcome != "succeeded"][:_MOST_FAILURES]
    others = [line for line in every if line.outcome == "succeeded"][:_MOST_OTHERS]
    return [*failures, *others], len(every) - len(failures) - len(others)


def _line(result: AccountResult) -> Line:
    error = f"{result.error_kind}: {result.error}" if result.error_kind else result.error or ""
    if result.rejected and not error:
        error = f"rejected: {result.rejected} of its records, remembered until they or the configuration change"
    return Line(result.account_id, result.outcome.replace("_", " "), result.sent, error)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
