"""The product's own statements, with values where psycopg would send parameters, for the specs to run."""

from __future__ import annotations

import re

from psycopg import sql

from sync_assets.claims.model import SelectionKind
from sync_assets.claims.names import Names, compose
from sync_assets.claims.store import _claim_sql
from sync_assets.push.schema import PACKAGE as PUSH
from sync_assets_tests.claims_rig import NEXT_TICK, TICK

CLAIMS = "sync_assets.claims.sql"
LOCK_TIMEOUT = "60ms"
"""Of whoever waits for a lock. In some permutations it is never let go before the step that waits for it."""

_CLAIM = {
    "since": "(SELECT max(begun) FROM permutation)",
    "account_ids": "ARRAY['x']",
    "set_aside": "ARRAY[]",
    "max_failures": "NULL",
    "limit": "10",
}
_SETTLE = {
    "account_ids": "ARRAY['x']",
    "claim_seqs": "ARRAY[mine()]",
    "error_kinds": "ARRAY[NULL]",
    "errors": "ARRAY[NULL]",
    "counted": "ARRAY[false]",
    "not_befores": "ARRAY[NULL]",
    "not_before_seconds": "ARRAY[NULL]",
    "max_failures": "NULL",
    "backoff": "NULL",
    "max_backoff": "86400",
}
_HAND_BACK = {
    "account_ids": "ARRAY['x']",
    "claim_seqs": "ARRAY[mine()]",
    "statuses": "ARRAY[replace(found() ->> 'status', 'IN_PROGRESS', 'FAILED')]",
    "started_ats": "ARRAY[found() ->> 'started_at']",
    "last_ticks": "ARRAY[found() ->> 'last_tick']",
    "claimed_generations": "ARRAY[found() ->> 'claimed_generation']",
}
_ACKNOWLEDGE = {
    "account_id": "'x'",
    "claim_seq": "mine()",
    "lock_timeout": f"'{LOCK_TIMEOUT}'",
    "record_ids": "ARRAY['r1', 'r2']",
    "versions": "ARRAY[1, 2]",
    "accepted": "ARRAY[true, true]",
    "external_ids": "ARRAY[NULL, NULL]",
    "errors": "ARRAY[NULL, NULL]",
    "generation": "1",
}


def rendered(spec: str) -> str:
    """A spec with each `<<statement word …>>` replaced by the statement."""
    return re.sub(r"<<([^<>]+)>>", lambda match: _statement(*match[1].split()), spec)


def _statement(name: str, *words: str) -> str:
    names = Names()
    if name == "claim":
        kind, lease = words
        tick = {"due": f"'{TICK.isoformat()}'", "due_next": f"'{NEXT_TICK.isoformat()}'"}.get(kind, "NULL")
        query = _claim_sql(names, SelectionKind(kind.removesuffix("_next")))
        return _filled(query, {**_CLAIM, "tick": tick, "lease": lease})
    if name == "settle":
        [succeeded] = words
        value = {"succeeded": "true", "failed": "false"}[succeeded]
        return _filled(compose(CLAIMS, "settle.sql", names), {**_SETTLE, "succeeded": f"ARRAY[{value}]"})
    if name in {"hand_back", "give_up"}:
        value = str(name == "give_up").lower()
        return _filled(compose(CLAIMS, "hand_back.sql", names), {**_HAND_BACK, "given_up": f"ARRAY[{value}]"})
    assert name == "acknowledge", f"no statement is called {name}"
    return _filled(compose(PUSH, "acknowledge.sql", names), _ACKNOWLEDGE)


def _filled(query: sql.Composed, values: dict[str, str]) -> str:
    text = query.as_string(None) % {"claimed_by": "'run/' || me()", **values}
    assert "}" not in text, "the tester would take it for the end of the step"
    return text
