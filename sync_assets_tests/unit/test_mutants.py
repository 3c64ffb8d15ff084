"""Every mutant still fits the source and names a test that exists; `make mutants` runs them."""

from __future__ import annotations

import ast

import pytest

from sync_assets_tests.mutants.mutant import PROJECT, Mutant, load_mutants

MUTANTS = load_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_applies_and_its_test_is_there(mutant: Mutant) -> None:
    mutated = mutant.apply(PROJECT)
    assert mutated != (PROJECT / mutant.file).read_text(encoding="utf-8")
    if mutant.file.endswith(".py"):
        ast.parse(mutated)
    file, _, name = mutant.test.partition("::")
    module = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}, mutant.test


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_no_longer_fits_is_told() -> None:
    stale = Mutant("stale", "sync_assets/clock.py", (("no such line", ""),), "x::y")
    with pytest.raises(LookupError, match="'no such line' is 0 times"):
        stale.apply(PROJECT)
