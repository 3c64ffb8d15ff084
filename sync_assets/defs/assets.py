"""The two things a run tells about, as external assets: nothing in Dagster makes them, the job reports them."""

from __future__ import annotations

from dagster import AssetKey, AssetSpec

from sync_assets.claims import Names

ACCOUNT_CONFIG = AssetKey("account_config")
SYNC_RUNS = AssetKey("sync_runs")


def build_assets(names: Names) -> list[AssetSpec]:
    """The declared assets.

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
            deps=[ACCOUNT_CONFIG],
            description=(
                "One materialization per run of sync_accounts_job: how many accounts were claimed, succeeded, failed, "
                "lost and handed back, how fast, and a table of those that failed."
            ),
            group_name="sync_assets",
        ),
    ]
