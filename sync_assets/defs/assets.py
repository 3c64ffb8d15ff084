"""What people see in the catalog: the table and the runs, which the job reports, and the accounts' syncs themselves."""

from __future__ import annotations

from dagster import AssetKey, AssetsDefinition, AssetSpec, BackfillPolicy, OpDefinition

from sync_assets.claims import Names
from sync_assets.defs.partitions import ACCOUNTS

ACCOUNT_CONFIG = AssetKey("account_config")
ACCOUNT_SYNC = AssetKey("account_sync")
SYNC_RUNS = AssetKey("sync_runs")

ACCOUNTS_INPUT = "accounts"
"""The op's input, through which the table comes before the syncs in the lineage."""


def build_account_sync(op: OpDefinition) -> AssetsDefinition:
    """The op once more, as an asset with a partition per account: what is picked there is synced by hand.

    Args:
        op: the one the job has. It reports its own events, so neither form reports twice.
    """
    (output,) = op.output_dict
    return AssetsDefinition.from_op(
        op,
        keys_by_input_name={ACCOUNTS_INPUT: ACCOUNT_CONFIG},
        keys_by_output_name={output: ACCOUNT_SYNC},
        partitions_def=ACCOUNTS,
        backfill_policy=BackfillPolicy.single_run(),
        group_name="sync_assets",
        descriptions_by_output_name={
            output: (
                "The sync of each account. Materialized is an account that was synced; one that failed is observed, "
                "so green means synced. Pick accounts and press Materialize: a run by hand of just those, now, through "
                "the same claim as every other run; leave its config as it is."
            )
        },
    )


def build_reported(names: Names) -> list[AssetSpec]:
    """The external assets: nothing in Dagster makes them, the op reports them.

    Args:
        names: the tables by name, for the descriptions.
    """
    return [
        AssetSpec(
            ACCOUNT_CONFIG,
            description=(
                f"The table {names.schema}.{names.table}: one row per account, with its configuration and the state of "
                "its sync. Observed once a run."
            ),
            kinds={"postgres"},
            group_name="sync_assets",
            metadata={"dagster/table_name": f"{names.schema}.{names.table}"},
        ),
        AssetSpec(
            SYNC_RUNS,
            deps=[ACCOUNT_SYNC],
            description=(
                "One materialization per run of sync_accounts_job: how many accounts were claimed, succeeded, failed, "
                "lost and handed back, how fast, and a table of those that failed."
            ),
            group_name="sync_assets",
        ),
    ]
