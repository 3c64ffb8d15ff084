"""`sync-assets explain`: why an account was not synced, in a sentence."""

from __future__ import annotations

import argparse
import json

from sync_assets.accounts_database import accounts_database
from sync_assets.claims import Explanation, SettingsError, Verdict
from sync_assets.cli.shared import SUCCESS, Commands, add_names, say_which_database, settings_of
from sync_assets.inspection import explain_account
from sync_assets.results import print_plain
from sync_assets.sync_run import blocking


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("explain", help="say whether an account would be claimed now, and why not")
    parser.set_defaults(command=_explain)
    parser.add_argument("account", metavar="ACCOUNT", help="the account's id")
    parser.add_argument("--json", action="store_true", help="print the answer as one JSON object; times in UTC")
    parser.epilog = "exit codes: 0 told, whatever the answer is; 2 no such account, or a mistake; 3 no database"
    add_names(parser)


def _explain(options: argparse.Namespace) -> int:
    claim_settings, _ = settings_of(options)
    say_which_database(claim_settings)
    with accounts_database(claim_settings) as found:
        explanation = blocking(explain_account(found, options.account))
    if options.json:
        print(json.dumps(_as_json(explanation)))
    if explanation.verdict is Verdict.UNKNOWN:
        raise SettingsError(str(explanation))
    if not options.json:
        print_plain(str(explanation))
    return SUCCESS


def _as_json(explanation: Explanation) -> dict[str, str | None]:
    return {
        "account_id": explanation.account_id,
        "verdict": explanation.verdict.value,
        "why": str(explanation),
        "claimed_by": explanation.claimed_by,
        "since": explanation.since.isoformat() if explanation.since else None,
        "until": explanation.until.isoformat() if explanation.until else None,
    }
