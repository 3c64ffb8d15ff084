"""Accounts in trouble: the right rows and no others, at the very edge too, whatever the names and the zone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import tuple_row

from sync_assets.claims import Names, SettingsError
from sync_assets.claims.names import Shape
from sync_assets.claims.schema import STATE_COLUMNS
from sync_assets.claims.troubles import MOST_COUNTED, MOST_SHOWN, Freshness, Trouble, TroubleKind, trouble_sql
from sync_assets.inspection import troubles_of
from sync_assets.stop import StopSignal
from sync_assets.sync_run import ClaimSettings, create_tables
from sync_assets_tests.claims_rig import BY_HAND, Table

LEASE = 60.0
LIMIT = 3600.0


def ago(text: str) -> sql.SQL:
    """So long before the statement that is asked; within a transaction it is always the same moment."""
    return sql.SQL(f"now() - interval '{text}'")


def ahead(text: str) -> sql.SQL:
    return sql.SQL(f"now() + interval '{text}'")


def seen(table: Table, kind: TroubleKind, freshness: float | None = LIMIT) -> list[str]:
    """The accounts that the product's own statement finds in this transaction, in its order."""
    parameters = {"lease": LEASE, "freshness": freshness, "most": MOST_COUNTED, "shown": MOST_SHOWN}
    with table.connection.cursor(row_factory=tuple_row) as cursor:
        rows = cursor.execute(trouble_sql(Names(), kind), parameters).fetchall()
    assert [row[0] for row in rows] == [len(rows)] * len(rows)
    return [row[1] for row in rows]


def look(url: str, kind: TroubleKind, names: Names | None = None, **settings: object) -> Trouble:
    claim_settings = ClaimSettings(url, names or Names(), lease_seconds=LEASE, **settings)  # type: ignore[arg-type]
    [trouble] = asyncio.run(troubles_of(claim_settings, [kind]))
    return trouble


@contextmanager
def one_moment(table: Table) -> Iterator[None]:
    """Within it, `now()` is one moment: an edge can be met exactly."""
    with table.connection.transaction():
        yield


def test_stalled_is_what_is_past_the_lease_on_its_row(table: Table) -> None:
    table.add("edge", "past", "longer", "shorter", "own lease", "no lease", "no lease, edge", "off", "failed", "idle")
    held = {"status": "IN_PROGRESS", "claimed_by": "dead/1"}
    with one_moment(table):
        table.set("edge", **held, started_at=ago("60 s"), lease="60 s")
        table.set("past", **held, started_at=ago("60.000001 s"), lease="60 s")
        table.set("longer", **held, started_at=ago("1 h"), lease="1 min")
        table.set("shorter", **held, started_at=ago("45 s"), lease="30 s")
        table.set("own lease", **held, started_at=ago("1 h"), lease="2 h")
        table.set("no lease", **held, started_at=ago("60.000001 s"))  # this run's lease
        table.set("no lease, edge", **held, started_at=ago("60 s"))
        table.set("off", **held, started_at=ago("1 h"), lease="1 min", enabled=False)
        table.set("failed", status="FAILED", started_at=ago("1 h"), lease="1 min")
        table.set("idle", started_at=ago("1 h"), lease="1 min")
        assert seen(table, TroubleKind.stalled) == ["longer", "shorter", "no lease", "past"]


def test_failed_is_what_failed_last_also_in_quarantine(table: Table) -> None:
    table.add("never", "long ago", "lately", "set aside", "off", "again", "fine")
    with one_moment(table):
        table.set("never", status="FAILED", failures=1)
        table.set("long ago", status="FAILED", failures=9, last_success=ago("9 d"))
        table.set("lately", status="FAILED", failures=1, last_success=ago("1 h"), next_attempt_at=ahead("1 h"))
        table.set("set aside", status="FAILED", failures=5, last_success=ago("1 d"), next_attempt_at="infinity")
        table.set("off", status="FAILED", failures=1, enabled=False)
        table.set("again", status="IN_PROGRESS", failures=3, started_at=ago("1 s"))
        table.set("fine", failures=0, last_success=ago("9 d"))
        # the longest without a success first
        assert seen(table, TroubleKind.failed) == ["never", "long ago", "set aside", "lately"]


def test_stale_is_what_was_not_synced_within_the_limit(table: Table) -> None:
    table.add("edge", "past", "older", "fresh", "off", "set aside")
    table.add("new", "first try", "handed back", "given up", "failed", "second try")
    with one_moment(table):
        table.set("edge", last_success=ago("3600 s"))
        table.set("past", last_success=ago("3600.000001 s"))
        table.set("older", last_success=ago("2 h"), status="IN_PROGRESS", started_at=ago("1 s"))
        table.set("set aside", last_success=ago("3 h"), status="FAILED", next_attempt_at="infinity")
        table.set("fresh", last_success=ago("1 s"))
        table.set("off", last_success=ago("2 h"), enabled=False)
        # never synced: no attempt has ended yet, or one has
        table.set("first try", status="IN_PROGRESS", started_at=ago("1 s"))
        table.set("handed back", claim_seq=3)  # as the claim found it: never started
        table.set("given up", started_at=ago("1 s"))
        table.set("failed", status="FAILED", started_at=ago("1 s"), failures=1)
        table.set("second try", status="IN_PROGRESS", started_at=ago("1 s"), failures=1)
        never = ["failed", "given up", "second try"]
        assert seen(table, TroubleKind.stale) == [*never, "set aside", "older", "past"]
        assert seen(table, TroubleKind.stale, freshness=None) == []


@pytest.mark.parametrize(
    ("kind", "own", "longest"),
    [
        ("interval", {"short": "10 min", "zero": "0", "odd": "-1 day", "huge": "9999 years"}, None),
        ("integer", {"short": "600", "zero": "0", "odd": "-5"}, "2147483647"),
        ("numeric", {"short": "600.5", "zero": "0", "odd": "-1e300", "huge": "NaN"}, "1e300"),
        ("double precision", {"short": "600", "zero": "0", "odd": "-infinity", "huge": "NaN"}, "infinity"),
    ],
)
def test_an_account_may_have_a_limit_of_its_own(
    table: Table, database_url: str, kind: str, own: dict[str, str], longest: str | None
) -> None:
    """One odd value spoils neither the statement nor another account's verdict."""
    table.connection.execute(f'ALTER TABLE sync.account_config ADD COLUMN "fresh {{for}}" {kind}')
    limits = {**own, **({"longest": longest} if longest else {})}
    table.add(*limits, "as the others", last_success=ago("20 min"))
    for account_id, limit in limits.items():
        table.set(account_id, **{"fresh {for}": sql.SQL(f"'{limit}'")})
    column = "fresh {for}"
    late = {"short", "zero", "odd"}
    for_all = look(database_url, TroubleKind.stale, freshness_column=column, freshness_seconds=300.0)
    assert {account.account_id for account in for_all.accounts} == {*late, "as the others"}
    assert for_all.count == len(late) + 1
    only_own = look(database_url, TroubleKind.stale, freshness_column=column)
    assert {account.account_id for account in only_own.accounts} == late
    assert {account.account_id: account.fresh_for_seconds for account in only_own.accounts}["odd"] == 0


@pytest.mark.parametrize(("kind", "is_now"), [("text", "text"), ("boolean", "boolean"), (None, "missing")])
def test_p12_a_column_that_can_be_no_limit_is_named_and_spoils_no_other_check(
    table: Table, database_url: str, kind: str | None, is_now: str
) -> None:
    if kind is not None:
        table.connection.execute(f"ALTER TABLE sync.account_config ADD COLUMN max_age {kind}")
    table.add("bad", status="FAILED")
    settings = ClaimSettings(database_url, freshness_column="max_age")
    troubles = {trouble.kind: trouble for trouble in asyncio.run(troubles_of(settings))}
    assert troubles[TroubleKind.stale].not_judged == (
        f"freshness_column is 'max_age', and in sync.account_config that column is {is_now}; expected an interval, or "
        "a number of seconds"
    )
    assert troubles[TroubleKind.failed].count == 1


@pytest.mark.parametrize("settings", [{"seconds": 0.5}, {"seconds": 1e10}, {"column": ""}, {"column": "50%"}])
def test_p12_a_limit_that_cannot_be_is_refused_by_name(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(SettingsError, match=f"freshness_{name}"):
        Freshness(**settings)  # type: ignore[arg-type]


def test_t6_in_the_future_is_what_was_claimed_more_than_five_minutes_ahead(table: Table) -> None:
    """By the clock and the rule of the claim; what is free counts as well, since its start is as wrong."""
    table.add(
        "held", "held, edge", "held, soon", "free", "free, edge", "failed", "off, held", "off, free", "now", "new"
    )
    held = {"status": "IN_PROGRESS", "claimed_by": "run/1", "lease": "1 h"}
    with one_moment(table):
        table.set("held", **held, started_at=ahead("301 s"))
        table.set("held, edge", **held, started_at=ahead("5 min"))
        table.set("held, soon", **held, started_at=ahead("4 min"))
        table.set("free", started_at=ahead("300.000001 s"))
        table.set("free, edge", started_at=ahead("5 min"))
        table.set("failed", status="FAILED", started_at=ahead("1 d"))
        table.set("off, held", **{**held, "lease": None}, started_at=ahead("1 h"), enabled=False)
        table.set("off, free", started_at=ahead("1 h"), enabled=False)
        table.set("now", **held, started_at=sql.SQL("now()"))
        assert seen(table, TroubleKind.future) == ["failed", "off, held", "held", "free"]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_the_session_s_zone_and_its_clock_changes_move_no_edge(table: Table, zone: str) -> None:
    table.connection.execute(sql.SQL("SET timezone = {}").format(zone))
    days = (60, 120, 180, 240, 300)  # whenever this runs, the clocks of Berlin have changed within some of these
    table.add(*(f"{where} {n}" for n in days for where in ("edge", "past")))
    with one_moment(table):
        for n in days:
            for where, more in (("edge", 0), ("past", 1)):
                began = sql.SQL(f"now() - make_interval(secs => {n * 86400 + more})")
                table.set(f"{where} {n}", status="IN_PROGRESS", started_at=began, lease=f"{n} days")
        assert set(seen(table, TroubleKind.stalled)) == {f"past {n}" for n in days}
        for n in days:
            table.set([*table.column("status")], last_success=sql.SQL("now()"))
            for where, more in (("edge", 0), ("past", 1)):
                table.set(f"{where} {n}", last_success=sql.SQL(f"now() - make_interval(secs => {n * 86400 + more})"))
            assert seen(table, TroubleKind.stale, freshness=n * 86400.0) == [f"past {n}"]


def test_all_that_a_person_needs_is_told(table: Table, database_url: str) -> None:
    table.add("a")
    table.set("a", status="FAILED", failures=3, error_kind="auth", last_error="PUT answered 401", claimed_by="run/1")
    table.set("a", started_at=ago("2 h"), lease="1 h", last_success=ago("3 h"), not_before=ahead("1 h"))
    row = table.row("a")
    [account] = look(database_url, TroubleKind.failed).accounts
    assert (account.account_id, account.status, account.failures) == ("a", "FAILED", 3)
    assert (account.claimed_by, account.error_kind, account.error) == ("run/1", "auth", "PUT answered 401")
    assert (account.since, account.last_success) == (row["started_at"], row["last_success"])
    assert (account.until, account.waits_until) == (row["started_at"] + row["lease"], row["not_before"])
    assert not account.is_quarantined
    table.set("a", next_attempt_at="infinity")
    [account] = look(database_url, TroubleKind.failed).accounts
    assert (account.waits_until, account.is_quarantined) == (None, True)


def test_many_are_counted_up_to_a_bound_and_the_worst_are_listed(table: Table, database_url: str) -> None:
    table.connection.execute(
        "INSERT INTO sync.account_config (account_id) SELECT 'a' || n FROM generate_series(1, %s) AS n",
        [MOST_COUNTED + 50],
    )
    table.connection.execute(
        "UPDATE sync.account_config SET status = 'FAILED', last_success = now() - make_interval(secs => "
        "substr(account_id, 2)::integer)"
    )
    trouble = look(database_url, TroubleKind.failed)
    assert trouble.count == MOST_COUNTED
    assert [account.account_id for account in trouble.accounts[:2]] == [
        f"a{MOST_COUNTED + 50}",
        f"a{MOST_COUNTED + 49}",
    ]
    assert len(trouble.accounts) == MOST_SHOWN
    stale = look(database_url, TroubleKind.stale, freshness_seconds=MOST_COUNTED)
    assert [account.account_id for account in stale.accounts[:2]] == [f"a{MOST_COUNTED + 50}", f"a{MOST_COUNTED + 49}"]
    assert stale.count in range(50, 60)  # another passes the limit each second


def test_every_name_is_quoted(empty_database_url: str) -> None:
    names = Names(schema='odd "schema"', table="my {table}", key="the 'id'", enabled="on", records="re cords")
    asyncio.run(create_tables(ClaimSettings(empty_database_url, names)))
    with psycopg.connect(empty_database_url, autocommit=True, options=BY_HAND) as connection:
        table = sql.Identifier(names.schema, names.table)
        connection.execute(sql.SQL('ALTER TABLE {} ADD COLUMN "max ""age""" interval').format(table))
        connection.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ('stalled'), ('failed'), ('stale'), ('future'), ('fine')").format(
                table, sql.Identifier(names.key)
            )
        )
        for account_id, changes in (
            ("stalled", "status = 'IN_PROGRESS', started_at = now() - interval '1 d', last_success = now()"),
            ("failed", "status = 'FAILED', last_success = now()"),
            ("stale", 'last_success = now() - interval \'2 h\', "max ""age""" = \'1 h\''),
            ("future", "started_at = now() + interval '1 d', last_success = now()"),
        ):
            connection.execute(
                sql.SQL("UPDATE {} SET {} WHERE {} = {}").format(
                    table, sql.SQL(changes), sql.Identifier(names.key), account_id
                )
            )
    for kind in TroubleKind:
        trouble = look(empty_database_url, kind, names, freshness_column='max "age"')
        assert [account.account_id for account in trouble.accounts] == [kind.value]


def test_a_table_whose_key_switch_and_columns_are_others(table: Table) -> None:
    """As a table that was adopted may be: a key of two columns, an expression for enabled, `status` its owner's."""
    shape = Shape((("region", "text"), ("n", "bigint")), "account.plan <> 'free'", (("status", "sync_status"),))
    columns = ", ".join(f"{'sync_status' if name == 'status' else name} {kind}" for name, kind in STATE_COLUMNS.items())
    table.connection.execute(f"CREATE TABLE sync.tenant (region text, n bigint, plan text, status integer, {columns})")
    for n, status, started_at, last_success in (
        (1, "IN_PROGRESS", "-1 d", "0"),
        (2, "FAILED", "-1 d", "0"),
        (3, "IDLE", "-1 d", "-1 d"),
        (4, "IDLE", "1 d", "0"),
    ):
        for plan, region in (("paid", "eu"), ("free", "us")):
            table.connection.execute(
                "INSERT INTO sync.tenant (region, n, plan, status, sync_status, started_at, last_success, failures) "
                "VALUES (%s, %s, %s, 7, %s, now() + %s::interval, now() + %s::interval, 0)",
                [region, n, plan, status, started_at, last_success],
            )
    parameters = {"lease": LEASE, "freshness": LIMIT, "most": MOST_COUNTED, "shown": MOST_SHOWN}
    names = Names(table="tenant", key="region", shape=shape)
    with table.connection.cursor(row_factory=tuple_row) as cursor:
        for n, kind in enumerate((TroubleKind.stalled, TroubleKind.failed, TroubleKind.stale, TroubleKind.future), 1):
            rows = cursor.execute(trouble_sql(names, kind), parameters).fetchall()
            assert [row[:2] for row in rows] == [(1, f'["eu", {n}]')]


def test_nothing_is_looked_for_once_the_run_is_being_stopped(database_url: str) -> None:
    stop = StopSignal()
    assert len(asyncio.run(troubles_of(ClaimSettings(database_url), stop=stop))) == len(TroubleKind)
    stop.set()
    assert asyncio.run(troubles_of(ClaimSettings(database_url), stop=stop)) == []
