"""The demo's accounts and records: some 250 accounts, a few of which fail, each in a way of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from sync_assets.claims import Names, SettingsError
from sync_assets.claims.names import compose
from sync_assets.local.demo_upstream import EXPIRED_SECRET_VARIABLE, SECRET_VARIABLE

ACCOUNTS = 250

_PACKAGE = "sync_assets.local.sql"

_COMPANIES = (
    "acme alder amber aspen birch bluebird brightwater bramble canyon cedar cinder clover cobalt copper coral dune "
    "ember fable fern finch flint foxglove garnet glacier granite harbor hazel heron indigo ivy juniper kestrel "
    "lantern larch lumen maple meadow mistral nectar north oakridge opal orchard pebble quartz raven saffron tundra "
    "willow zephyr"
)
_PEOPLE = "Ada Amir Bao Carla Dilek Emre Farah Goran Hana Ines Jonas Kofi Lena Mei Nils Olga Priya Rosa Sven Yara"
_PLANS = ("free", "team", "business")

# What goes wrong and is not the upstream's mood (demo_upstream.MOODS).
_EXPIRED = {"fern-019", "opal-142", "mistral-188"}
_WITHOUT_SECRET = {"juniper-081"}
_DISABLED = {"zephyr-250"}
_BAD_EMAIL = {("cobalt-113", "contact-1")}


@dataclass(frozen=True)
class _Record:
    account_id: str
    record_id: str
    data: str


def account_ids() -> list[str]:
    """The demo's accounts by id, the same ones every time."""
    companies = _COMPANIES.split()
    return [f"{companies[n % len(companies)]}-{n + 1:03}" for n in range(ACCOUNTS)]


async def create(connection: psycopg.AsyncConnection[Any], names: Names) -> int:
    """Add the demo's accounts and records that are missing. What is there stays as it is.

    The rows name no upstream: set `DemoUpstream.environment` where the sync runs.

    Args:
        connection: to a database with our tables in it.
        names: the tables.

    Returns:
        How many accounts were added.
    """
    ids = account_ids()
    records = [record for n, account_id in enumerate(ids, start=1) for record in _records(n, account_id)]
    async with connection.transaction():
        added = await connection.execute(
            compose(_PACKAGE, "demo_accounts.sql", names),
            {
                "ids": ids,
                "enabled": [account_id not in _DISABLED for account_id in ids],
                "secret_refs": [f"env:{_secret_variable(account_id)}" for account_id in ids],
            },
        )
        await connection.execute(
            compose(_PACKAGE, "demo_records.sql", names),
            {
                "account_ids": [record.account_id for record in records],
                "record_ids": [record.record_id for record in records],
                "data": [record.data for record in records],
            },
        )
    return added.rowcount


async def edit(
    connection: psycopg.AsyncConnection[Any], names: Names, account_id: str, what: Literal["record", "configuration"]
) -> str:
    """Change one record of an account, or its configuration, as its owner would.

    Args:
        connection: to a database with our tables in it.
        names: the tables.
        account_id: one of the accounts.
        what: which of the two.

    Returns:
        What was changed, and what to watch for.

    Raises:
        SettingsError: there is no such account, or it has no record.
    """
    await _refuse_unknown(connection, names, account_id)
    edited = await connection.execute(compose(_PACKAGE, f"demo_edit_{what}.sql", names), {"account_id": account_id})
    row = await edited.fetchone()
    if row is None:
        raise SettingsError(
            f"the account {account_id!r} has no record in {names.records_name} to edit; "
            "choose another, or edit its configuration"
        )
    if what == "record":
        return (
            f"Changed the record {row[0]} of {account_id}. It goes out, alone, when the account is claimed next: at "
            "the schedule's next tick, or in a run by hand."
        )
    if not row[0]:
        return (
            f"Changed the settings of {account_id}, which is disabled: nothing will happen until its owner sets "
            f"{names.enabled}."
        )
    return (
        f"Changed the settings of {account_id}. Within SYNC_SENSOR_SECONDS (30 unless set) account_config_sensor "
        "starts a run with only_changed, which claims this account and no other."
    )


async def _refuse_unknown(connection: psycopg.AsyncConnection[Any], names: Names, account_id: str) -> None:
    found = await connection.execute(compose(_PACKAGE, "demo_account.sql", names), {"account_id": account_id})
    there = [str(row[0]) for row in await found.fetchall()]
    if account_id not in there:
        way_out = f"there are for example {', '.join(there)}" if there else "it is empty: sync-assets demo run fills it"
        raise SettingsError(f"there is no account {account_id!r} in {names.table_name}; {way_out}")


def _secret_variable(account_id: str) -> str:
    if account_id in _WITHOUT_SECRET:
        return "SYNC_SECRET_MISSING"
    return EXPIRED_SECRET_VARIABLE if account_id in _EXPIRED else SECRET_VARIABLE


def _records(number: int, account_id: str) -> list[_Record]:
    return [_record(number, account_id, f"contact-{n}", number + 31 * n) for n in range(1, 2 + number * 7 % 5)]


def _record(number: int, account_id: str, record_id: str, turn: int) -> _Record:
    people = _PEOPLE.split()
    name = people[turn % len(people)]
    company, _, _ = account_id.partition("-")
    at = " at " if (account_id, record_id) in _BAD_EMAIL else "@"
    data = {
        "name": name,
        "email": f"{name.lower()}{at}{company}.example",
        "plan": _PLANS[number % len(_PLANS)],
        "seats": 1 + turn % 40,
    }
    return _Record(account_id, record_id, json.dumps(data))
