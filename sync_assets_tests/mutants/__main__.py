"""Apply each mutant in a scratch copy, run the tests that must notice, and print which did.

    python -m sync_assets_tests.mutants [PART OF A NAME …]

Ends with 1 when a mutant survives, when one no longer applies, or when a test fails without any mutation.
"""

# ruff: noqa: T201

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from sync_assets.local.embedded import EmbeddedPostgres
from sync_assets_tests.mutants.mutant import PROJECT, Mutant, load_mutants
from sync_assets_tests.postgres import make_server_folder, remove_server_folder

_PATIENCE = 900.0
_FAILED = 1  # pytest's exit code when tests ran and some failed; the others mean that nothing was shown


def _copy(to: Path) -> Path:
    project = to / "project"
    shutil.copytree(
        PROJECT, project, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "docs")
    )
    return project


def _pytest(project: Path, database_url: str, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run tests of the copy with the copy's own code. Returns pytest's exit code and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(project), "SYNC_TEST_DATABASE_URL": database_url}
    options = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-rfE")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *options, *tests],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _caught_by(project: Path, database_url: str, mutant: Mutant) -> str | None:
    """The name of the test that noticed, or None; the copy is as before afterwards."""
    file = project / mutant.file
    before = file.read_text(encoding="utf-8")
    file.write_text(mutant.apply(project), encoding="utf-8")
    try:
        code, output = _pytest(project, database_url, (mutant.test,))
    finally:
        file.write_text(before, encoding="utf-8")
    found = re.search(r"^FAILED \S+?::(.*)", output, re.MULTILINE)
    if code == _FAILED and found:
        test, _, why = found[1].partition(" - ")
        return f"{test}\n    {why}" if why else test
    if code != 0:
        print(output[-2000:])
        raise SystemExit(f"mutant {mutant.name!r}: its test could not be run (pytest ended with {code})")
    return None


def main(*wanted: str) -> int:
    """Run the mutants whose name contains one of `wanted`; all of them by default."""
    chosen = [mutant for mutant in load_mutants() if not wanted or any(part in mutant.name for part in wanted)]
    if not chosen:
        print(f"no mutant is named like {', '.join(wanted)}")
        return 1
    survivors = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sync-assets-mutants-")))
        folder = make_server_folder()
        stack.callback(remove_server_folder, folder)
        postgres = stack.enter_context(EmbeddedPostgres.start(folder, durable=False))
        project, url = _copy(scratch), postgres.url("postgres")
        tests = tuple(dict.fromkeys(mutant.test for mutant in chosen))
        print(f"{len(tests)} tests without a mutation …", flush=True)
        code, output = _pytest(project, url, tests)
        if code != 0:
            print(output[-4000:])
            print("these tests fail without any mutation: they would show nothing")
            return 1
        width = max(len(mutant.name) for mutant in chosen)
        for mutant in chosen:
            caught = _caught_by(project, url, mutant)
            print(f"{mutant.name:{width}}  {caught or 'SURVIVED'}", flush=True)
            if caught is None:
                survivors.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(chosen) - len(survivors)} caught")
    if survivors:
        print("survived, so a test is missing: " + "; ".join(survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
