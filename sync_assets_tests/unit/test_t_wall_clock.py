"""T8: the product does not look at the wall clock, except where a comment says why it may."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from sync_assets.clock import Deadline

PACKAGE = Path(__file__).parents[2] / "sync_assets"

WALL_CLOCK = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "CLOCK_REALTIME"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}

ALLOWED = {
    # settings that do not fit together are refused at load, before there is a database to ask; asked again in the run
    ("sync_run.py", "check_limits"),
    # the sensor compares the age of its own last run, stamped by the same clock; the claim is what excludes
    ("defs/sensor.py", "account_config_sensor"),
}


def looks(source: str) -> set[str]:
    """The functions of a module in which the wall clock is looked at."""
    found: set[str] = set()

    def walk(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Attribute):
                owner = child.value.attr if isinstance(child.value, ast.Attribute) else ast.unparse(child.value)
                if child.attr in WALL_CLOCK.get(owner, ()):
                    found.add(function)
            if isinstance(child, ast.ImportFrom) and child.module == "time":
                found.update(f"import of {alias.name}" for alias in child.names if alias.name in WALL_CLOCK["time"])
            walk(child, inside)

    walk(ast.parse(source), "module")
    return found


def test_t8_the_product_looks_at_the_wall_clock_only_where_it_may() -> None:
    """P1, P3: between processes only the database's clock counts, inside one the monotonic clock."""
    seen = {
        (file.relative_to(PACKAGE).as_posix(), function)
        for file in PACKAGE.rglob("*.py")
        for function in looks(file.read_text(encoding="utf-8"))
    }
    assert seen == ALLOWED


@pytest.mark.parametrize(
    "line", ["time.time()", "datetime.now(timezone.utc)", "datetime.datetime.utcnow()", "x = [date.today()]"]
)
def test_a_look_is_found(line: str) -> None:
    assert looks(f"def f():\n    {line}") == {"f"}


def test_an_import_by_name_is_found_and_the_monotonic_clock_is_none() -> None:
    assert looks("from time import time") == {"import of time"}
    assert looks("import time\ntime.monotonic()\ntime.clock_gettime(time.CLOCK_BOOTTIME)") == set()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_t8_a_jump_of_the_wall_clock_moves_no_deadline(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """P1: a process whose clock is set back would believe that it still holds its lease."""
    deadline = Deadline.after(60)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert 50 < deadline.remaining() <= 60
