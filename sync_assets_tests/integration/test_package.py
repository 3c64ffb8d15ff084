"""What an installation has in it: everything it needs, and none of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from sync_assets_tests.dagster_rig import PROJECT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", os.fspath(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [made] = folder.glob("*.whl")
    return made


def test_the_wheel_has_everything_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [about] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(about).decode())
    here = {
        path.relative_to(PROJECT).as_posix()
        for path in (PROJECT / "sync_assets").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == here
    assert "sync_assets/py.typed" in names
    assert "sync_assets/local/dagster.yaml" in names
    assert metadata["Requires-Python"] == "<3.14,>=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_installed_command_works_from_another_folder(wheel: Path, tmp_path: Path, empty_database_url: str) -> None:
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    environment = {**os.environ, "PYTHONPATH": os.fspath(installed), "SYNC_DATABASE_URL": empty_database_url}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert str(installed) in python("-c", "import sync_assets; print(sync_assets.__file__)")
    assert "created sync.account_config" in python("-m", "sync_assets.cli", "init")
    assert "nothing to do" in python("-m", "sync_assets.cli", "run")
    python("-c", "from sync_assets.definitions import defs")
