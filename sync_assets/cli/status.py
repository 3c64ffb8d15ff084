"""`sync-assets status`: the accounts at a glance, once or every few seconds."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sync_assets.accounts_database import accounts_database
from sync_assets.claims import DatabaseUnavailable
from sync_assets.cli.shared import SUCCESS, Commands, add_names, say_which_database, settings_of
from sync_assets.inspection import State, state_of
from sync_assets.sync_run import ClaimSettings, blocking

_WATCH_SECONDS = 3.0


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="all accounts at a glance: how many are due, held, failed, stalled")
    parser.set_defaults(command=_status)
    parser.add_argument("--watch", action="store_true", help=f"look every {_WATCH_SECONDS:g} s, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object (with --watch: one a line)")
    parser.epilog = (
        "exit codes: 0 told, whatever it is, and also when --watch was ended by Ctrl-C; 2 a mistake; 3 no database"
    )
    add_names(parser)


def _status(options: argparse.Namespace) -> int:
    claim_settings, _ = settings_of(options)
    say_which_database(claim_settings)
    with accounts_database(claim_settings) as found, _shown(options.json, options.watch) as show:
        state = blocking(state_of(found))
        show(state, claim_settings, "")
        while options.watch:
            try:
                time.sleep(_WATCH_SECONDS)
                trouble = ""
                try:
                    state = blocking(state_of(found))
                except DatabaseUnavailable as error:  # it may come back, and that is what somebody is watching for
                    trouble = f"{error}; this is what was seen last"
                show(state, claim_settings, trouble)
            except KeyboardInterrupt:
                break
    return SUCCESS


@contextmanager
def _shown(as_json: bool, watch: bool) -> Iterator[Callable[[State, ClaimSettings, str], None]]:
    """How a state is shown: as JSON, in place on a terminal, else one after the other."""
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        yield lambda state, _, trouble: print(json.dumps(_as_json(state, trouble)), flush=True)
    elif watch and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda *seen: live.update(_as_words(*seen), refresh=True)
    else:
        yield lambda *seen: console.print(_as_words(*seen))


def _as_json(state: State, trouble: str) -> dict[str, object]:
    told = {**asdict(state.accounts), **asdict(state)}
    del told["accounts"]
    return _plain_times({**told, **({"trouble": trouble} if trouble else {})})


def _plain_times(values: dict[str, object]) -> dict[str, object]:
    def plain(value: object) -> object:
        if isinstance(value, datetime):
            return value.isoformat()
        return _plain_times(value) if isinstance(value, dict) else value

    return {name: plain(value) for name, value in values.items()}


def _as_words(state: State, settings: ClaimSettings, trouble: str) -> RenderableType:
    accounts = state.accounts
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{settings.names.table_name}")
    for column in ("idle", "in progress", "failed"):
        table.add_column(column, justify="right")
    for name, row in (("enabled", accounts.enabled), ("disabled", accounts.disabled)):
        table.add_row(name, str(row.idle), str(row.in_progress), str(row.failed))
    lines = [f"{name:<16}{said}" for name, said in _told(state, settings)]
    return Group(table, *map(Text, lines), *([Text(trouble, style="red")] if trouble else []))


def _told(state: State, settings: ClaimSettings) -> Iterator[tuple[str, str]]:
    accounts = state.accounts
    ahead = accounts.leases_in_the_future
    recovered = f"{_utc(state.recovered_at)} at the latest"
    yield "now", _utc(accounts.at)
    yield "due", f"{accounts.due} not claimed for the last tick yet"
    yield "waiting", f"{accounts.waiting} for their time, {accounts.quarantined} until somebody releases them"
    yield "stalled", f"{accounts.stalled} past their lease"
    yield "failed", _by_kind(state)
    yield "oldest claim", _oldest(state)
    yield "stalest", _stalest(state)
    if ahead:
        yield "wrong clock", f"{ahead} claimed at a time that has not come: the database's clock was set back"
    yield "next tick", f"{_utc(state.next_tick)}, in {_length((state.next_tick - accounts.at).total_seconds())}"
    yield "schedule", f"{settings.schedule} ({settings.timezone}); whether it is switched on, Dagster knows"
    yield (
        "recovery",
        f"a claim holds for {_length(state.lease_seconds)}; if its run dies now, taken over at {recovered}",
    )


def _by_kind(state: State) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in state.accounts.failures_by_kind.items())
    return kinds or "none"


def _oldest(state: State) -> str:
    claim = state.accounts.oldest_claim
    if claim is None:
        return "none"
    return (
        f"{claim.account_id!r}, held by {claim.claimed_by or 'somebody'} since {_utc(claim.since)}, "
        f"until {_utc(claim.until)} at the latest"
    )


def _stalest(state: State) -> str:
    stalest = state.accounts.stalest
    if stalest is None:
        return "none: no account is enabled"
    if stalest.last_success is None:
        return f"{stalest.account_id!r}, never synced"
    return f"{stalest.account_id!r}, last synced {_utc(stalest.last_success)}"


def _utc(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
