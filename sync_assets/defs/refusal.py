"""An account asked for by hand that was not claimed: why, and a link to the run that holds it."""

from __future__ import annotations

from dagster import AssetObservation, MetadataValue, OpExecutionContext

from sync_assets.claims import Explanation, Verdict
from sync_assets.defs.assets import ACCOUNT_CONFIG


def tell_refusal(context: OpExecutionContext, explanation: Explanation) -> None:
    """Say it in the log, and as an event whose metadata the run page shows. Never fails the run.

    Args:
        context: the op's.
        explanation: why the account was not claimed.
    """
    context.log.warning("nothing was done: %s", explanation)
    if explanation.verdict is not Verdict.IN_PROGRESS:
        return
    try:
        context.log_event(_observation(context, explanation))
    except Exception as error:  # noqa: BLE001  # the log line above has said all of it
        context.log.warning("could not report to Dagster: %s", type(error).__name__)


def _observation(context: OpExecutionContext, explanation: Explanation) -> AssetObservation:
    metadata: dict[str, MetadataValue] = {"account_id": MetadataValue.text(explanation.account_id)}
    run_id = (explanation.claimed_by or "").split("/")[0]
    if run_id and context.instance.has_run(run_id):  # a run of the command line, or of another Dagster, has no page
        metadata["held_by_run"] = MetadataValue.dagster_run(run_id)
    elif explanation.claimed_by:
        metadata["held_by"] = MetadataValue.text(explanation.claimed_by)
    if explanation.since is not None:
        metadata["held_since"] = MetadataValue.timestamp(explanation.since)
    if explanation.until is not None:
        metadata["until_at_the_latest"] = MetadataValue.timestamp(explanation.until)
    return AssetObservation(asset_key=ACCOUNT_CONFIG, description=str(explanation), metadata=metadata)
