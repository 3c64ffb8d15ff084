"""The project's files agree: what is imported is declared, what is declared is pinned, Dagster finds one place."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "sync_assets"


def pyproject() -> dict[str, Any]:
    return tomli.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


def declared(*, dev: bool = False) -> dict[str, Requirement]:
    project = pyproject()["project"]
    lines = project["dependencies"] + (project["optional-dependencies"]["dev"] if dev else [])
    return {str(canonicalize_name(requirement.name)): requirement for requirement in map(Requirement, lines)}


def pins() -> list[Requirement]:
    lines = (PROJECT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def imported(file: Path) -> set[str]:
    """The top-level packages a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"sync_assets", "sync_assets_tests", "__future__"}


def test_whatever_the_package_imports_is_a_dependency() -> None:
    owners = packages_distributions()
    dependencies = set(declared())
    for name, requirement in declared().items():
        dependencies |= {f"{name}-{extra}" for extra in requirement.extras}  # psycopg[pool] is psycopg-pool
    for file in PACKAGE.rglob("*.py"):
        for package in imported(file):
            distributions = {str(canonicalize_name(name)) for name in owners.get(package, [])}
            assert distributions & dependencies, f"{file.name} imports {package}: no dependency in pyproject.toml"


def test_dagster_family_and_psycopg2_have_the_lower_bounds_without_which_pip_walks_back() -> None:
    for name, good, bad in (
        ("dagster", "1.13.27", "1.12.0"),
        ("dagster-webserver", "1.13.27", "1.12.0"),
        ("dagster-postgres", "0.29.27", "0.11.14"),
        ("psycopg2-binary", "2.9.13", "2.9.9"),
    ):
        assert good in declared()[name].specifier
        assert bad not in declared()[name].specifier


def test_the_pins_hold_plain_versions_and_no_address_or_hash() -> None:
    text = (PROJECT / "requirements.txt").read_text(encoding="utf-8")
    for part in ("://", "--", "sha256", "@", " -e"):
        assert part not in text
    for pin in pins():
        assert [clause.operator for clause in pin.specifier] == ["=="], str(pin)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_on_each_python_every_dependency_is_pinned_once_within_its_bounds(python: str, platform: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": platform}
    pinned: dict[str, str] = {}
    for pin in pins():
        if pin.marker is None or pin.marker.evaluate(environment):
            name = str(canonicalize_name(pin.name))
            assert name not in pinned, f"{name} is pinned twice for Python {python}"
            pinned[name] = next(iter(pin.specifier)).version
    for name, requirement in declared(dev=True).items():
        assert name in pinned, f"{name} is not pinned for Python {python}"
        assert pinned[name] in requirement.specifier, f"{name}=={pinned[name]} is outside {requirement}"


def test_dagster_is_told_the_same_place_twice() -> None:
    told = pyproject()["tool"]["dagster"]
    workspace = (PROJECT / "workspace.yaml").read_text(encoding="utf-8")
    location = dict(re.findall(r"^ +(module_name|location_name): (\S+)$", workspace, re.MULTILINE))
    assert location == {"module_name": "sync_assets.definitions", "location_name": "sync_assets.definitions"}
    assert told == {"module_name": "sync_assets.definitions", "code_location_name": "sync_assets.definitions"}


def test_the_instance_at_the_top_is_the_one_in_the_package() -> None:
    assert (PROJECT / "dagster.yaml").is_symlink()
    assert (PROJECT / "dagster.yaml").resolve() == PACKAGE / "local" / "dagster.yaml"
