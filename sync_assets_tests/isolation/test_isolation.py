"""Every interleaving of the product's statements, by Postgres' own isolationtester. Needs it: `make test-system`."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import psycopg
import pytest

from sync_assets_tests.isolation.product_sql import LOCK_TIMEOUT, rendered

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
SPECS = sorted(HERE.glob("*.spec"))

_WAITED_TOO_LONG = {
    "canceling statement due to lock timeout",
    "current transaction is aborted, commands ignored until end of transaction block",
}
"""What a session may be told in permutations that let go of a lock only after the step that waits for it."""

_NEVER_WAITS = "claim|settle|hand_back|give_up"
"""Only the owner's statements wait for a lock, and a write-back for the account's row."""
_WAITING = re.compile(r"^step (\w+): (?:(?!^step ).)*?<waiting \.\.\.>", re.MULTILINE | re.DOTALL)


def isolationtester() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/lib/pgxs/src/test/isolation/isolationtester"))
    assert found, "isolationtester is not installed; make test-system installs it on Debian and Ubuntu"
    return found[-1]


def all_permutations(spec: str) -> int:
    """How many ways there are to interleave the sessions' steps."""
    sessions = re.split(r"^session ", spec, flags=re.MULTILINE)[1:]
    steps = [len(re.findall(r"^step ", session, re.MULTILINE)) for session in sessions]
    return math.factorial(sum(steps)) // math.prod(math.factorial(n) for n in steps)


def histories(connection: psycopg.Connection[tuple[int, str]]) -> Iterator[str]:
    """What was committed in each permutation, in the order it was done."""
    rows = connection.execute("SELECT permutation, session || ' ' || event FROM history ORDER BY permutation, n")
    for _, events in groupby(rows, key=lambda row: row[0]):
        yield ", ".join(event for _, event in events)


@pytest.mark.parametrize("file", SPECS, ids=[file.stem for file in SPECS])
def test_in_every_interleaving(database_url: str, file: Path) -> None:
    spec = file.read_text(encoding="utf-8")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute((HERE / "witness.sql").read_bytes())
        done = subprocess.run(
            [isolationtester(), _with_short_waits(database_url)],
            input=rendered(spec),
            env={**os.environ, "PGAPPNAME": "isolation", "PGISOLATIONTIMEOUT": "10"},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        permutations = re.split(r"^starting permutation: ", done.stdout, flags=re.MULTILINE)[1:]
        assert len(permutations) == all_permutations(spec)
        for permutation in permutations:
            steps = permutation.partition("\n")[0]
            verdict = permutation.rpartition("\nwrong")[2]  # the last thing said, and it has no rows
            assert re.fullmatch(r" *\n-+\n\(0 rows\)\n+", verdict), f"{steps}: {verdict[-500:]}"
            errors = set(re.findall(r"ERROR: +(.*)", permutation))
            assert errors <= _WAITED_TOO_LONG, f"{steps}: {errors}"
            waited = set(_WAITING.findall(permutation))
            assert not {step for step in waited if re.search(_NEVER_WAITS, step)}, f"{steps}: {waited} waited"
        seen = set(histories(connection))
        for wanted in re.findall(r"^# happens: (.*)", spec, re.MULTILINE):
            assert any(wanted in history for history in seen), f"never: {wanted}; but {sorted(seen)}"


def _with_short_waits(url: str) -> str:
    """A deadlock is told as one before any lock timeout can hide it."""
    return psycopg.conninfo.make_conninfo(
        url, options=f"-c deadlock_timeout=10ms -c lock_timeout={LOCK_TIMEOUT} -c timezone=UTC"
    )
