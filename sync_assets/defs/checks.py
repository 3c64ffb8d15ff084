"""The asset checks of `account_config`: accounts that are stalled, failed, not fresh, or claimed in the future.

They are the table's and not those of `account_sync`: they judge rows, whoever synced them, and what is materialized by
hand must not be judged twice. Every run judges them when it has settled; they can be executed by hand as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    MetadataValue,
    OpExecutionContext,
    TableColumn,
    TableRecord,
    TableSchema,
    multi_asset_check,
)

from sync_assets.accounts_database import accounts_database
from sync_assets.claims import DatabaseUnavailable, SettingsError
from sync_assets.claims.troubles import MOST_COUNTED, Freshness, Trouble, TroubledAccount, TroubleKind
from sync_assets.defs.assets import ACCOUNT_CONFIG
from sync_assets.defs.failures import plain_failures
from sync_assets.defs.resources import ClaimsResource
from sync_assets.inspection import troubles_of
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, blocking


@dataclass(frozen=True)
class _Check:
    """One check.

    Attributes:
        name: what people see and alerts name.
        severity: of a failure.
        description: what it holds, on the asset's page.
        troubled: what is wrong, after a number of accounts.
        fine: what is right.
        columns: of its table, beside the account; keys of `_CELLS`.
    """

    name: str
    severity: AssetCheckSeverity
    description: str
    troubled: str
    fine: str
    columns: tuple[str, ...]


_CHECKS = {
    TroubleKind.stalled: _Check(
        "no_stalled_accounts",
        AssetCheckSeverity.ERROR,
        "No enabled account is in progress past the lease on its row. One that is was left by a run that died; the "
        "next run by schedule takes it over, so that this passes again unless no run comes.",
        "past the lease, left by a run that died: the next run by schedule takes over",
        "no account is past its lease",
        ("claimed_at", "lease_ended", "held_by", "failures", "last_success"),
    ),
    TroubleKind.failed: _Check(
        "no_failed_accounts",
        AssetCheckSeverity.WARN,
        "No enabled account's last attempt has failed. Those in quarantine wait until they are released, the others "
        "are tried again.",
        "failed at the last attempt",
        "no account's last attempt has failed",
        ("last_success", "failures", "error_kind", "error", "claimed_at", "next_attempt", "claimed_by"),
    ),
    TroubleKind.stale: _Check(
        "every_account_fresh",
        AssetCheckSeverity.ERROR,
        "Every enabled account was synced within its limit (freshness_seconds, or freshness_column for its own). An "
        "account that was tried and never synced is not fresh; one that no run has tried yet is not judged.",
        "not synced within the limit",
        "every account that was ever tried has been synced within its limit",
        ("last_success", "limit_seconds", "status", "failures", "error_kind", "error", "claimed_at", "next_attempt"),
    ),
    TroubleKind.future: _Check(
        "no_lease_in_the_future",
        AssetCheckSeverity.ERROR,
        "No account was claimed more than five minutes ahead of the database's clock. If one was, that clock has been "
        "set back: an account that is in progress stays so until its lease ends by the clock as it is now.",
        "claimed at a time that has not come, by a clock that has been set back since",
        "no account was claimed at a time that has not come",
        ("claimed_at", "lease_ends", "status", "held_by", "last_success"),
    ),
}
_KINDS = {check.name: kind for kind, check in _CHECKS.items()}

_DESCRIBED = {
    "claimed_at": "When it was claimed last.",
    "lease_ended": "When that claim's lease ended.",
    "lease_ends": "When that claim's lease ends.",
    "held_by": "The run that holds it, or held it last, and a nonce of its process.",
    "claimed_by": "The run that claimed it last, and a nonce of its process.",
    "failures": "Failures in a row.",
    "error_kind": "retry, rate_limited, auth, rejected, timeout, crashed or bug.",
    "error": "What went wrong, in one line.",
    "last_success": "When it was synced last.",
    "limit_seconds": "How long ago that may be.",
    "next_attempt": "No tick claims it before.",
    "status": "IDLE, IN_PROGRESS or FAILED.",
}
_NUMBERS = {"failures": "int", "limit_seconds": "float"}


class CheckReporter:
    """Judges the accounts at the end of a run. Nothing here can fail it: they are settled.

    Args:
        context: the op's.
    """

    def __init__(self, context: OpExecutionContext) -> None:
        self._context = context
        self._troubles: list[Trouble] = []
        self._error: Exception | None = None

    def look(self, claim_settings: ClaimSettings, stop: StopSignal) -> None:
        """Look at the accounts; in whatever thread. Not once the run is being stopped: somebody waits for its end.

        Args:
            claim_settings: where they are.
            stop: of the run.
        """
        try:
            self._troubles = blocking(troubles_of(claim_settings, stop=stop))
        except Exception as error:  # noqa: BLE001  # whatever it is, the run has done its work
            self._error = error

    def report(self, freshness: Freshness) -> None:
        """Tell Dagster, from the main thread, of a run that was not stopped.

        Args:
            freshness: the limits.
        """
        try:
            for trouble in self._troubles:
                # it takes them, and its annotation does not say so
                self._context.log_event(AssetCheckEvaluation(**_verdict(trouble, freshness)))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # Dagster's database may be away
            self._error = error
        if self._error is not None:
            plain = isinstance(self._error, SettingsError | DatabaseUnavailable)
            why = str(self._error) if plain else type(self._error).__name__
            self._context.log.warning("the checks of account_config were not evaluated: %s", why)


def build_checks() -> AssetChecksDefinition:
    """The checks, declared; and executable by hand, all or some of them."""

    @multi_asset_check(
        name="account_checks",
        description="Looks at all accounts by the database's clock, and changes nothing.",
        specs=[
            AssetCheckSpec(check.name, asset=ACCOUNT_CONFIG, description=check.description)
            for check in _CHECKS.values()
        ],
        can_subset=True,
    )
    def account_checks(context: AssetCheckExecutionContext, claims: ClaimsResource) -> Iterator[AssetCheckResult]:
        kinds = [_KINDS[key.name] for key in context.selected_asset_check_keys]
        with plain_failures():
            claim_settings = claims.settings()
            with accounts_database(claim_settings) as found_at:
                troubles = blocking(troubles_of(found_at, kinds))
        for trouble in troubles:
            yield AssetCheckResult(**_verdict(trouble, claim_settings.freshness()))

    return account_checks


def _verdict(trouble: Trouble, freshness: Freshness) -> dict[str, Any]:
    """What either form of a result is made of."""
    check = _CHECKS[trouble.kind]
    metadata: dict[str, object] = {
        "count": trouble.count,
        "accounts": MetadataValue.table(
            [TableRecord(_row(account, check.columns)) for account in trouble.accounts], schema=_schema(check.columns)
        ),
    }
    if trouble.kind is TroubleKind.stale and freshness.seconds is not None:
        metadata["limit_seconds"] = freshness.seconds
    return {
        "asset_key": ACCOUNT_CONFIG,
        "check_name": check.name,
        "passed": not trouble.count and not trouble.not_judged,
        "severity": check.severity,
        "description": _sentence(trouble, check, freshness),
        "metadata": metadata,
    }


def _sentence(trouble: Trouble, check: _Check, freshness: Freshness) -> str:
    if trouble.not_judged:
        return f"not judged: {trouble.not_judged}"
    if trouble.kind is TroubleKind.stale and not freshness.is_set:
        return "no limit is set (SYNC_FRESHNESS_SECONDS), so that every account is fresh"
    if not trouble.count:
        return check.fine
    more = " or more" if trouble.count >= MOST_COUNTED else ""
    accounts = "account" if trouble.count == 1 else "accounts"
    return f"{trouble.count:,}{more} {accounts} {check.troubled}; the worst: {trouble.accounts[0].account_id!r}"


def _schema(columns: tuple[str, ...]) -> TableSchema:
    return TableSchema(
        columns=[
            TableColumn("account_id", description="The account."),
            *(TableColumn(name, _NUMBERS.get(name, "string"), description=_DESCRIBED[name]) for name in columns),
        ]
    )


def _row(account: TroubledAccount, columns: tuple[str, ...]) -> dict[str, str | int | float]:
    cells: dict[str, str | int | float] = {
        "claimed_at": _utc(account.since, "never"),
        "lease_ended": _utc(account.until),
        "lease_ends": _utc(account.until),
        "held_by": account.claimed_by or "",
        "claimed_by": account.claimed_by or "",
        "failures": account.failures,
        "error_kind": account.error_kind or "",
        "error": account.error or "",
        "last_success": _utc(account.last_success, "never"),
        "limit_seconds": account.fresh_for_seconds or 0.0,
        "next_attempt": "when released" if account.is_quarantined else _utc(account.waits_until),
        "status": account.status,
    }
    return {"account_id": account.account_id, **{name: cells[name] for name in columns}}


def _utc(moment: datetime | None, never: str = "") -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC") if moment is not None else never
