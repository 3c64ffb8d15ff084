"""What Dagster loads: complete without a database, described, free of secrets; and P12 at load."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import AssetKey, ConfigurableResource, DefaultScheduleStatus, DefaultSensorStatus, EnvVar

from sync_assets.claims import Names, SettingsError
from sync_assets.defs import ClaimsResource, SyncAccountsConfig, SyncerResource, build_sync_definitions

UNREACHABLE = "postgresql://someone:hunter2@127.0.0.1:9/accounts"


def test_everything_is_there_under_its_name() -> None:
    definitions = build_sync_definitions()
    job = definitions.resolve_job_def("sync_accounts_job")
    assert [node.name for node in job.nodes] == ["sync_accounts"]
    assert definitions.resolve_schedule_def("sync_accounts_schedule").job_name == job.name
    assert definitions.resolve_sensor_def("account_config_sensor").job_name == job.name
    assert set(definitions.resources or {}) == {"claims", "syncer"}
    assert {spec.key for spec in definitions.resolve_all_asset_specs()} == {
        AssetKey("account_config"),
        AssetKey("account_sync"),
        AssetKey("sync_runs"),
    }
    lineage = {
        spec.key.to_user_string(): [dep.asset_key for dep in spec.deps]
        for spec in definitions.resolve_all_asset_specs()
    }
    assert lineage["account_sync"] == [AssetKey("account_config")]
    assert lineage["sync_runs"] == [AssetKey("account_sync")]


def test_switched_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = build_sync_definitions()
    assert definitions.resolve_schedule_def("sync_accounts_schedule").default_status == DefaultScheduleStatus.STOPPED
    assert definitions.resolve_sensor_def("account_config_sensor").default_status == DefaultSensorStatus.STOPPED
    monkeypatch.setenv("SYNC_AUTOSTART", "1")
    definitions = build_sync_definitions()
    assert definitions.resolve_schedule_def("sync_accounts_schedule").default_status == DefaultScheduleStatus.RUNNING
    assert definitions.resolve_sensor_def("account_config_sensor").default_status == DefaultSensorStatus.RUNNING


def test_the_environment_is_read_and_arguments_come_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNC_SCHEDULE", "0 * * * *")
    monkeypatch.setenv("SYNC_CONCURRENCY", "7")
    definitions = build_sync_definitions(concurrency=9, names=Names(schema="crm", table="tenant"))
    assert definitions.resolve_schedule_def("sync_accounts_schedule").cron_schedule == "0 * * * *"
    claims, syncer = (definitions.resources or {})["claims"], (definitions.resources or {})["syncer"]
    assert isinstance(claims, ClaimsResource)
    assert isinstance(syncer, SyncerResource)
    assert claims.settings().schedule == "0 * * * *"
    assert claims.settings().names == Names(schema="crm", table="tenant")
    assert syncer.settings().concurrency == 9


def test_every_field_is_described_and_the_launchpad_shows_those_of_the_op() -> None:
    for model in (SyncAccountsConfig, ClaimsResource, SyncerResource):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name} has no description"
            assert not field.is_required(), f"{model.__name__}.{name} has no default"
    # the Launchpad's YAML leaves out a field whose default is None
    assert all(field.default is not None for field in SyncAccountsConfig.model_fields.values())
    assert "quotes" in (SyncAccountsConfig.model_fields["account_id"].description or "")


def test_p11_the_url_of_the_environment_is_in_no_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNC_DATABASE_URL", UNREACHABLE)
    for resource in (build_sync_definitions().resources or {}).values():
        assert isinstance(resource, ConfigurableResource)
        assert "hunter2" not in repr(resource)
        assert "hunter2" not in str(resource.model_dump())


def test_p11_a_url_in_the_code_is_refused_and_a_variable_is_not() -> None:
    in_clear: Any = UNREACHABLE
    with pytest.raises(
        SettingsError, match=r'would be shown in the UI; name the variable .* dagster\.EnvVar\("NAME"\)'
    ):
        build_sync_definitions(database_url=in_clear)
    build_sync_definitions(database_url=EnvVar("TEAM_DATABASE_URL"))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("SYNC_CONCURRENCY", "abc", "SYNC_CONCURRENCY"),
        ("SYNC_SCHEDULE", "every day", "every day"),
        ("SYNC_TIMEZONE", "Europe/Atlantis", "Europe/Atlantis"),
        ("SYNC_LEASE_SECONDS", "0.5", "SYNC_LEASE_SECONDS"),
        ("SYNC_FRESHNESS_SECONDS", "0.5", "SYNC_FRESHNESS_SECONDS"),
        ("SYNC_ACCOUNT_TIMEOUT_SECONDS", "5000", "SYNC_ACCOUNT_TIMEOUT_SECONDS"),  # does not fit in 15 + 2 minutes
    ],
)
def test_p12_what_cannot_be_used_is_refused_at_load_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, told: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=told):
        build_sync_definitions()


def test_p12_a_request_timeout_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="request_timeout_seconds is 0; expected more than 0"):
        build_sync_definitions(request_timeout_seconds=0)
