"""CASES.md names a test for every case, and every test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = (TESTS / "CASES.md").read_text(encoding="utf-8")
LATER = {"T12"}


def named() -> dict[str, list[str]]:
    """The tests by case."""
    rows = re.findall(r"^\| ([ET]\d+) \| .* \| (.*) \|$", CASES, re.MULTILINE)
    return {case: re.findall(r"`([^`]+)`", tests) for case, tests in rows}


@cache
def defined_in(file: str) -> set[str]:
    module = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


def test_every_case_is_held_by_a_test_that_exists() -> None:
    wanted = {f"E{n}" for n in range(1, 6)} | {f"T{n}" for n in range(1, 31)} - LATER
    assert set(named()) == wanted
    for case, tests in named().items():
        assert tests, f"{case} names no test"
        for test in tests:
            file, _, name = test.partition("::")
            assert name in defined_in(file), f"{case}: there is no {test}"


def test_every_test_of_a_case_is_in_the_table() -> None:
    """A test whose name begins with a case holds that case."""
    for file in TESTS.rglob("test_t_*.py"):
        path = file.relative_to(TESTS).as_posix()
        for name in defined_in(path):
            for case in re.findall(r"(?<=_)t\d+(?=_)", name):
                assert f"{path}::{name}" in named()[case.upper()], f"{case.upper()} does not name {path}::{name}"
