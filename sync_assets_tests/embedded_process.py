"""A process of its own that uses an embedded server until its standard input ends: `python -m … FOLDER`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sync_assets.local.embedded import EmbeddedPostgres, EmbeddedPostgresError

REPOSITORY = Path(__file__).parents[1]


def start_user(folder: Path, prefix: Sequence[str] = (), **popen: Any) -> subprocess.Popen[str]:
    """Start such a process; its first line is the server's URL, or `error: …`."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "sync_assets_tests.embedded_process", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        **popen,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """What the process says when it has the server or has failed to get it."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the process that was to use the server said nothing and ended with {process.wait(10)}"
    return line


@contextmanager
def using(folder: Path, prefix: Sequence[str] = (), **popen: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Such a process and its first line; killed in the end if it still runs."""
    with start_user(folder, prefix, **popen) as process:
        try:
            yield process, first_line(process)
        finally:
            process.kill()


def main() -> None:
    """Use the server in the folder of the command line."""
    try:
        with EmbeddedPostgres.start(Path(sys.argv[1]), durable=False) as server:
            sys.stdout.write(f"{server.url('postgres')}\n")
            sys.stdout.flush()
            sys.stdin.read()
    except EmbeddedPostgresError as error:
        sys.stdout.write(f"error: {' '.join(str(error).split())}\n")


if __name__ == "__main__":
    main()
