"""The one op-job: schedule, sensor and Launchpad all launch it."""

import logging
from collections.abc import Callable, Iterator

from dagster import (
    In,
    JobDefinition,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    Out,
    Output,
    in_process_executor,
    job,
    op,
)

from sync_assets.account_sync import SyncFactory
from sync_assets.accounts_database import accounts_database
from sync_assets.claims import DatabaseUnavailable, Selection, SelectionKind, SettingsError, Verdict
from sync_assets.defs.assets import ACCOUNTS_INPUT
from sync_assets.defs.checks import CheckReporter
from sync_assets.defs.config import SyncAccountsConfig
from sync_assets.defs.failures import failure, plain_failures
from sync_assets.defs.partitions import MOST_PARTITIONS, account_of
from sync_assets.defs.progress import Progress
from sync_assets.defs.refusal import tell_refusal
from sync_assets.defs.reporting import LOGGED_ACCOUNTS, Reporter, describe
from sync_assets.defs.resources import ClaimsResource, FailRunWhen, SyncerResource
from sync_assets.defs.waiting import InterruptibleWork
from sync_assets.runner import AccountResult, Summary
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, RunReport, all_account_ids, blocking, run_blocking

log = logging.getLogger(__name__)

JOB_NAME = "sync_accounts_job"
OP_NAME = "sync_accounts"

TRIGGER_TAG = "sync/trigger"
ACCOUNT_TAG = "sync/account"
TICK_TAG = "sync/tick"

DRAIN_SECONDS = 30.0
"""How long a stopped run waits for its accounts to be handed back; what is left then is left to its lease."""


def build_job(sync_accounts: OpDefinition) -> JobDefinition:
    """The job with its one op.

    Args:
        sync_accounts: the op, as `build_op` makes it.
    """

    # in process: half the memory, and no orphan step process after a kill. No retry policy: it would start the op again
    # after Terminate.
    @job(
        name=JOB_NAME,
        executor_def=in_process_executor,
        description=(
            "Claims the accounts that may be synced, syncs each, and writes the outcome back. Launch it as often as "
            "you like: an account is worked by one run at a time. For one account, type its id into account_id."
        ),
    )
    def sync_accounts_job() -> None:
        sync_accounts()

    return sync_accounts_job


def build_op(sync: SyncFactory | None) -> OpDefinition:
    """The op, which is also the asset `account_sync`.

    Args:
        sync: makes the run's `AccountSync`; None: the default, pushing the account's changed records.
    """

    # the input is what the asset's lineage is drawn from; nothing passes through it, and the job leaves it open
    @op(
        name=OP_NAME,
        ins={ACCOUNTS_INPUT: In(Nothing)},
        out=Out(Nothing, is_required=False),
        description="Claim, sync, settle.",
    )
    def sync_accounts(
        context: OpExecutionContext, config: SyncAccountsConfig, claims: ClaimsResource, syncer: SyncerResource
    ) -> Iterator[Output[None]]:
        reporter, checks = Reporter(context), CheckReporter(context)
        with plain_failures():
            reporter.add_tags(_tags(context, config))
            selection = _selection(context, config)
            claim_settings, sync_settings = claims.settings(), syncer.settings()
            stop = StopSignal()

            def work(tell: Callable[[AccountResult], None]) -> RunReport:
                with accounts_database(claim_settings) as found_at:
                    report = run_blocking(
                        found_at,
                        sync_settings,
                        selection,
                        run_id=context.run_id,
                        stop=stop,
                        sync=sync,
                        on_result=tell,
                    )
                    if not stop.is_set():  # somebody waits for the end of a run that is stopped
                        reporter.accounts = _all_accounts(found_at)
                        checks.look(found_at, stop)
                    return report

            progress = Progress(context.log.info)

            def heard(result: AccountResult) -> None:
                progress.heard(result)
                reporter.heard(result)

            trigger = context.run.tags.get(TRIGGER_TAG, "manual")
            report = _work(InterruptibleWork(work, heard, progress.pulse), stop, reporter, trigger)
            checks.report(claim_settings.freshness())
            _say_why_nothing(context, selection, report)
            _judge(selection, report, reporter.failures, syncer.fail_run_when)
        yield from ()  # no output, and none that Dagster would warn about

    return sync_accounts


def _work(
    work: InterruptibleWork[AccountResult, RunReport], stop: StopSignal, reporter: Reporter, trigger: str
) -> RunReport:
    try:
        report = work.wait()
    except BaseException:
        # Terminate or a signal: no new claims, end what is being worked, hand it back, and only then let go
        stopped = work.drain(stop, DRAIN_SECONDS)
        if stopped is not None:
            reporter.settled(stopped.summary, trigger)
        raise
    reporter.settled(report.summary, trigger)
    return report


def _selection(context: OpExecutionContext, config: SyncAccountsConfig) -> Selection:
    """What is asked for: the accounts that were picked as partitions, else what the config says.

    Raises:
        SettingsError: both, or a config that cannot be meant.
    """
    if not context.has_partitions:
        return config.selection()
    if config != SyncAccountsConfig():
        raise SettingsError(
            "accounts were picked as partitions, and the config says something as well; leave the config of "
            f"{OP_NAME} as it is, or launch {JOB_NAME} with it"
        )
    return Selection.accounts([account_of(key) for key in context.partition_keys])


def _all_accounts(found_at: ClaimSettings) -> list[str] | None:
    """All accounts, for their partitions; None when the database that has just served the run does not answer."""
    try:
        return blocking(all_account_ids(found_at, MOST_PARTITIONS + 1))
    except (SettingsError, DatabaseUnavailable) as error:
        log.warning("the partitions of accounts stay as they are: %s", error)
        return None


def _tags(context: OpExecutionContext, config: SyncAccountsConfig) -> dict[str, str]:
    account_id = account_of(context.partition_key) if context.has_partition_key else config.account_id
    given = {ACCOUNT_TAG: account_id, TICK_TAG: config.scheduled_for}
    return {TRIGGER_TAG: "manual", **{name: value for name, value in given.items() if value}}


def _say_why_nothing(context: OpExecutionContext, selection: Selection, report: RunReport) -> None:
    for explanation in report.not_claimed[:LOGGED_ACCOUNTS]:
        tell_refusal(context, explanation)
    if len(report.not_claimed) > LOGGED_ACCOUNTS:
        context.log.warning("nothing was done for %s accounts more", len(report.not_claimed) - LOGGED_ACCOUNTS)
    if report.summary.claimed == 0 and selection.kind is not SelectionKind.ACCOUNTS:
        context.log.info("nothing to do: %s. That is not a fault.", _NOTHING[selection.kind])


_NOTHING = {
    SelectionKind.DUE: "every account has been claimed for this tick already, is being worked by another run, or waits",
    SelectionKind.ALL: "every account is disabled, is being worked by another run, or waits",
    SelectionKind.CHANGED: "no configuration has changed since it was claimed last, or another run works on it",
}


def _judge(selection: Selection, report: RunReport, failures: list[AccountResult], fail_run_when: FailRunWhen) -> None:
    """Fail the run where a person should look; all is settled and reported by now."""
    if selection.kind is SelectionKind.ACCOUNTS:
        mistaken = [str(e) for e in report.not_claimed if e.verdict in {Verdict.UNKNOWN, Verdict.DISABLED}]
        if mistaken:
            more = len(mistaken) - LOGGED_ACCOUNTS
            raise failure("; ".join([*mistaken[:LOGGED_ACCOUNTS], *([f"and {more} more"] if more > 0 else [])]))
    if _is_failed(report.summary, fail_run_when):
        first = next((describe(result) for result in failures if result.outcome == "failed"), "")
        raise failure(f"{report.summary}. The first: {first}")


def _is_failed(summary: Summary, fail_run_when: FailRunWhen) -> bool:
    if fail_run_when is FailRunWhen.none or not summary.failed:
        return False
    return fail_run_when is FailRunWhen.any or not summary.succeeded
