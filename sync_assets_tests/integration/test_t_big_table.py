"""T14: the claim on a big table, where little is due and an old snapshot keeps the dead."""

from __future__ import annotations

import json
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from sync_assets.claims import Names, Selection, SelectionKind
from sync_assets.claims.troubles import MOST_COUNTED, MOST_SHOWN, TroubleKind, trouble_sql
from sync_assets_tests.claim_statement import claim_statement
from sync_assets_tests.claims_rig import TICK, Table, table_at

ROWS, DUE, LIMIT = 1_000_000, 10_000, 20
_TROUBLED = 200
_PAGES_PER_ACCOUNT = 60
"""Pages touched for each account that is claimed: the row, and an entry in each index that it moves to."""


def _explained(table: Table, url: str, selection: Selection) -> tuple[str, int, int]:
    """The plan of the product's own claim, the pages it touched, and how many it claimed; nothing is kept of it."""
    statement, parameters = claim_statement(url, selection, LIMIT)
    with table.connection.transaction(force_rollback=True):
        found = table.connection.execute(
            sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + statement, parameters
        ).fetchone()
    assert found is not None
    plan = found["QUERY PLAN"][0]["Plan"]
    return json.dumps(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], plan["Actual Rows"]


@pytest.mark.timeout(180)
def test_t14_a_claim_costs_what_it_claims_and_not_what_the_table_holds(database_url: str) -> None:
    """P1: a million accounts, 1 % due; then the same after the due ones were worked ten times under an old snapshot."""
    due, changed = Selection.due(TICK), Selection.changed()
    with table_at(database_url) as table, psycopg.connect(database_url) as reporter:
        table.connection.execute(
            "ALTER TABLE sync.account_config SET (autovacuum_enabled = false);"
            "ALTER TABLE sync.account_config DISABLE TRIGGER USER"
        )
        table.connection.execute(
            "INSERT INTO sync.account_config (account_id, last_tick, started_at, generation, claimed_generation) "
            "SELECT 'a' || n, CASE WHEN n %% %(nth)s = 0 THEN %(tick)s::timestamptz - interval '15 min' "
            "ELSE %(tick)s::timestamptz END, now() - make_interval(secs => n), 1, (n %% %(nth)s <> 0)::int "
            "FROM generate_series(1, %(rows)s) AS n",
            {"rows": ROWS, "nth": ROWS // DUE, "tick": TICK},
        )
        table.connection.execute("ALTER TABLE sync.account_config ENABLE TRIGGER USER")
        table.connection.execute("VACUUM (ANALYZE) sync.account_config")
        fresh: dict[SelectionKind, int] = {}
        named = Selection.accounts([f"a{n}" for n in range(1, ROWS, ROWS // LIMIT)])
        for selection in (due, changed, Selection.all(), named):
            kind = selection.kind
            plan, fresh[kind], claimed = _explained(table, database_url, selection)
            assert claimed == LIMIT, kind
            assert '"Seq Scan"' not in plan, kind
            assert fresh[kind] < LIMIT * _PAGES_PER_ACCOUNT, kind
        _, pages, claimed = _explained(table, database_url, Selection.due(TICK - timedelta(hours=1)))
        assert claimed == 0
        assert pages < LIMIT, "a tick for which nothing is due looks at the accounts all the same"

        reporter.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reporter.execute("SELECT count(*) FROM sync.account_config")  # from now on no dead row can be removed
        worked = 0
        for n in range(10):
            # as a claim and a settle do, for a thousand of the due: out of the index, and in again further on
            for change in (
                sql.SQL("status = 'IN_PROGRESS', started_at = now(), lease = '60 s'"),
                sql.SQL("status = 'IDLE', last_tick = last_tick + interval '1 second'"),
            ):
                done = table.connection.execute(
                    sql.SQL("UPDATE sync.account_config SET {} WHERE claimed_generation = 0 ").format(change)
                    + sql.SQL("AND substr(account_id, 2)::int BETWEEN {} AND {}").format(
                        n * ROWS // 10 + 1, (n + 1) * ROWS // 10
                    )
                )
                worked += done.rowcount
        assert worked == 2 * DUE
        table.connection.execute("VACUUM (ANALYZE) sync.account_config")
        for selection in (due, changed):
            kind = selection.kind
            plan, pages, claimed = _explained(table, database_url, selection)
            assert claimed == LIMIT, kind
            assert '"Seq Scan"' not in plan, kind
            # what died since the snapshot may be passed, a page each; the table itself still is not read
            assert pages < fresh[kind] + worked, kind
        reporter.rollback()
        table.connection.execute("VACUUM sync.account_config")
        _, pages, _ = _explained(table, database_url, due)
        assert pages < LIMIT * _PAGES_PER_ACCOUNT, "the cost stays when the snapshot has gone"


@pytest.mark.timeout(180)
def test_t14_the_checks_of_every_run_cost_what_they_find(database_url: str) -> None:
    """A million accounts, few in trouble. Only freshness, where a limit is set, passes over the table, and once."""
    with table_at(database_url) as table:
        table.connection.execute("ALTER TABLE sync.account_config DISABLE TRIGGER USER")
        table.connection.execute(
            "INSERT INTO sync.account_config (account_id, status, lease, last_tick, started_at, last_success) "
            "SELECT 'a' || n, CASE n %% %(nth)s WHEN 0 THEN 'IN_PROGRESS' WHEN 1 THEN 'FAILED' ELSE 'IDLE' END, "
            "'60 s', now(), now() - make_interval(secs => CASE n %% %(nth)s WHEN 2 THEN -999 ELSE 30 END), "
            "now() - make_interval(secs => CASE n %% %(nth)s WHEN 3 THEN 9999 ELSE 20 END) "
            "FROM generate_series(1, %(rows)s) AS n",
            {"rows": ROWS, "nth": ROWS // _TROUBLED},
        )
        table.connection.execute("VACUUM (ANALYZE) sync.account_config")
        table.connection.execute(
            "UPDATE sync.account_config SET started_at = started_at - interval '1 h' WHERE status = 'IN_PROGRESS'"
        )
        size = table.connection.execute("SELECT pg_relation_size('sync.account_config') / 8192 AS pages").fetchone()
        assert size is not None
        for kind in TroubleKind:
            found = table.connection.execute(
                sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + trouble_sql(Names(), kind),
                {"lease": 60.0, "freshness": 3600.0, "most": MOST_COUNTED, "shown": MOST_SHOWN},
            ).fetchone()
            assert found is not None
            plan = found["QUERY PLAN"][0]["Plan"]
            pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert plan["Actual Rows"] == MOST_SHOWN, kind
            assert plan["Temp Written Blocks"] == 0, kind
            if kind is TroubleKind.stale:
                assert pages < 1.1 * size["pages"], kind
            else:
                assert '"Seq Scan"' not in json.dumps(plan), kind
                assert pages < 10 * _TROUBLED, kind
