"""`sync-assets run`: one run now, in this process."""

from __future__ import annotations

import argparse
import json
import uuid
from dataclasses import asdict

from sync_assets.accounts_database import accounts_database
from sync_assets.claims import Selection, Verdict
from sync_assets.cli.shared import (
    FAILED,
    MISTAKE,
    SUCCESS,
    Commands,
    add_names,
    say_which_database,
    settings_of,
    stopped_by_signals,
)
from sync_assets.results import Results
from sync_assets.sync_run import RunReport, run_blocking


def add_to(commands: Commands) -> None:
    """Add the command."""
    run = commands.add_parser("run", help="one run now, in this process")
    run.set_defaults(command=_run)
    run.add_argument("--account", metavar="ID", help="this account only, now, whatever it waits for")
    run.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    add_names(run)


def _run(options: argparse.Namespace) -> int:
    claim_settings, sync_settings = settings_of(options)
    selection = Selection.all() if options.account is None else Selection.accounts([options.account])
    results = Results()
    say_which_database(claim_settings)
    with accounts_database(claim_settings) as found, stopped_by_signals() as stopped:
        report = run_blocking(
            found,
            sync_settings,
            selection,
            run_id=f"cli-{uuid.uuid4()}",
            stop=stopped.stop,
            on_result=results.add,
        )
    if options.json:
        print(json.dumps(_as_json(report, results)))
    else:
        results.show(report)
    return _exit_code(report, stopped.signal)


def _exit_code(report: RunReport, signal_number: int | None) -> int:
    if signal_number is not None:
        return 128 + signal_number
    if any(explanation.verdict in (Verdict.UNKNOWN, Verdict.DISABLED) for explanation in report.not_claimed):
        return MISTAKE
    summary = report.summary
    return FAILED if summary.failed or summary.lost or summary.unknown else SUCCESS


def _as_json(report: RunReport, results: Results) -> dict[str, object]:
    return {
        **asdict(report.summary),
        "failures": [asdict(result) for result in results.failures],
        "not_claimed": [
            {"account_id": each.account_id, "verdict": each.verdict.value, "why": str(each)}
            for each in report.not_claimed
        ],
    }
