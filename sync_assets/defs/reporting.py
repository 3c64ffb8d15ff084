"""What people see of a run in Dagster: a few log lines while it works, and two asset events when it has settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from dagster import (
    AssetMaterialization,
    AssetObservation,
    MetadataValue,
    OpExecutionContext,
    TableColumn,
    TableRecord,
    TableSchema,
)

from sync_assets.defs.assets import ACCOUNT_CONFIG, SYNC_RUNS
from sync_assets.defs.partitions import MOST_PARTITIONS, Partitions
from sync_assets.runner import AccountResult, Summary

LOGGED_ACCOUNTS = 20
"""Accounts of one kind of trouble that get a log line of their own: a thousand lines cost a run five seconds."""

TABLE_ROWS = 100
"""Failed accounts listed in the table of `sync_runs`."""

_FAILURES = TableSchema(
    columns=[
        TableColumn("account_id", description="The account."),
        TableColumn("outcome", description="failed, lost (another run took it over) or unknown (the answer was lost)."),
        TableColumn("error_kind", description="retry, rate_limited, auth, rejected or bug."),
        TableColumn("error", description="What went wrong, in one line."),
    ]
)
_TROUBLE = {"failed", "lost", "unknown"}


class Reporter:
    """Tells Dagster about one run. Nothing here can fail it: the accounts are settled, whatever Dagster can store.

    Args:
        context: the op's.

    Attributes:
        failures: the first accounts that did not succeed.
        accounts: all accounts, for their partitions; None: not known, and the partitions stay as they are.
    """

    def __init__(self, context: OpExecutionContext) -> None:
        self._context = context
        self._logged: Counter[str] = Counter()
        self.failures: list[AccountResult] = []
        self.accounts: list[str] | None = None
        self._partitions: Partitions | None = None
        self._guarded(self._look_at_partitions)

    def heard(self, result: AccountResult) -> None:
        """One account has been settled."""
        if result.taken_over_from is not None:
            self._log_some(
                "taken over",
                f"account {result.account_id} was taken over from {result.taken_over_from}, which never settled it",
            )
        if result.outcome in _TROUBLE:
            if len(self.failures) < TABLE_ROWS:
                self.failures.append(result)
            self._log_some(result.outcome, describe(result))

    def settled(self, summary: Summary, trigger: str) -> None:
        """The run has come to its end."""
        self._guarded(lambda: self._context.log.info(str(summary)))
        self._guarded(self._keep_partitions_in_step)
        self._guarded(lambda: self._context.log_event(self._sync_run(summary, trigger)))
        self._guarded(lambda: self._context.log_event(self._observation(summary)))

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Tag the run, for one that was launched without the tags the schedule and the sensor set."""
        missing = {key: value for key, value in tags.items() if key not in self._context.run.tags}
        if missing:
            self._guarded(lambda: self._context.instance.add_run_tags(self._context.run_id, missing))

    def _look_at_partitions(self) -> None:
        self._partitions = Partitions(self._context.instance)

    def _keep_partitions_in_step(self) -> None:
        if self.accounts is None or self._partitions is None:
            return
        if len(self.accounts) > MOST_PARTITIONS:
            self._context.log.warning(
                "the table has more than the %s accounts that Dagster's partitions are good for: the partitions stay "
                "as they are; sync_runs has the numbers of each run all the same",
                MOST_PARTITIONS,
            )
        elif told := self._partitions.keep_in_step(self.accounts):
            self._context.log.info(told)

    def _log_some(self, kind: str, line: str) -> None:
        self._logged[kind] += 1
        if self._logged[kind] <= LOGGED_ACCOUNTS:
            self._guarded(lambda: self._context.log.warning(line))
        elif self._logged[kind] == LOGGED_ACCOUNTS + 1:
            self._guarded(lambda: self._context.log.warning("more accounts %s; they are counted at the end", kind))

    def _sync_run(self, summary: Summary, trigger: str) -> AssetMaterialization:
        rate = summary.claimed / summary.seconds if summary.seconds > 0 else 0.0
        table = MetadataValue.table([TableRecord(_row(result)) for result in self.failures], schema=_FAILURES)
        return AssetMaterialization(
            asset_key=SYNC_RUNS,
            description=str(summary),
            metadata={
                "claimed": summary.claimed,
                "succeeded": summary.succeeded,
                "failed": summary.failed,
                "lost": summary.lost,
                "handed_back": summary.handed_back,
                "given_up": summary.given_up,
                "taken_over": summary.taken_over,
                "records_sent": summary.sent,
                "records_rejected": summary.rejected,
                "seconds": round(summary.seconds, 3),
                "accounts_per_second": round(rate, 3),
                "trigger": trigger,
                "failures": table,
            },
        )

    def _observation(self, summary: Summary) -> AssetObservation:
        return AssetObservation(
            asset_key=ACCOUNT_CONFIG,
            description="The rows this run claimed, and what they are now.",
            metadata={
                "claimed": summary.claimed,
                "now_idle": summary.succeeded,
                "now_failed": summary.failed,
                "taken_over": summary.taken_over,
            },
        )

    def _guarded(self, report: Callable[[], object]) -> None:
        try:
            report()
        except Exception as error:  # noqa: BLE001  # Dagster's database may be away; what was synced stays synced
            self._context.log.warning("could not report to Dagster: %s", type(error).__name__)


def describe(result: AccountResult) -> str:
    """What became of one account, in one line."""
    kind = f" ({result.error_kind})" if result.error_kind else ""
    detail = f": {result.error}" if result.error else ""
    return f"account {result.account_id} {result.outcome}{kind}{detail}"


def _row(result: AccountResult) -> dict[str, str]:
    return {
        "account_id": result.account_id,
        "outcome": result.outcome,
        "error_kind": result.error_kind or "",
        "error": result.error or "",
    }
