"""Where the server's files lie: data, locks and log in the wanted folder, the socket where its path is short enough."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sync_assets.local.embedded_errors import EmbeddedPostgresError
from sync_assets.local.embedded_user import ServerUser

_SOCKET_PATH_LIMIT = 103  # sun_path of macOS, less its end; Linux has four more
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")  # what needs quoting neither in a libpq host list nor in Postgres' own list


@dataclass(frozen=True)
class Folders:
    """The places of one server.

    Attributes:
        home: everything of the server but its socket.
        socket: the folder of the socket; only the server's user and root can enter it.
    """

    home: Path
    socket: Path

    @property
    def users_lock(self) -> Path:
        """Held shared by everyone who uses the server."""
        return self.home / "users.lock"

    @property
    def server_lock(self) -> Path:
        """Held by whoever starts the server, then by its keeper, and by each of the server's processes."""
        return self.home / "server.lock"

    @property
    def log(self) -> Path:
        """What keeper and server say since the last start; the start before it is in `server.log.1`."""
        return self.home / "server.log"

    def data(self, major: int) -> Path:
        """The data of that major version."""
        return self.home / str(major)

    def majors(self) -> set[int]:
        """The major versions of which there is data."""
        return _majors(self.home)


def _majors(home: Path) -> set[int]:
    return {int(path.name) for path in home.iterdir() if path.name.isdigit() and (path / "PG_VERSION").exists()}


def prepare_folders(folder: Path, user: ServerUser) -> Folders:
    """Make the server's home, at `folder` unless the server's user cannot get there.

    Raises:
        EmbeddedPostgresError: the folder cannot be made or belongs to somebody else.
    """
    wanted = folder.resolve()
    home = _own_folder(wanted, parents=True)
    # where data lies already, there it stays: a second, empty cluster would look like the loss of the first
    if not _majors(home) and not user.can_enter(home):
        home = _home_elsewhere(wanted)
    if not os.access(home, os.W_OK | os.X_OK):
        raise EmbeddedPostgresError(
            f"the folder {home} for the embedded Postgres is not writable; choose another, or set SYNC_DATABASE_URL"
        )
    return Folders(home, _socket_folder(home))


def _home_elsewhere(wanted: Path) -> Path:
    """The home that the wanted folder's link leads to; a new one where there is no link.

    The link alone says which it is: whoever removes the folder and starts again wants a new server, not the old data.

    Raises:
        EmbeddedPostgresError: what the link leads to is not ours, or something else is in its place.
    """
    link = wanted / "server"
    folder = os.open(wanted, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # of several who start at once, one makes it
        if not link.is_symlink():
            link.symlink_to(shared_folder() / f"{_short_hash(wanted)}-{secrets.token_hex(4)}")
        return _own_folder(link.readlink())
    except OSError as error:
        raise EmbeddedPostgresError(
            f"{link} cannot be made a link to the embedded Postgres' data ({error.strerror}); choose another folder, "
            "or set SYNC_DATABASE_URL"
        ) from error
    finally:
        os.close(folder)


def shared_folder() -> Path:
    """A folder of root's that every user can enter, for what cannot lie in the wanted one; lasting where it can be."""
    lasting = Path("/var/lib")
    parent = lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())
    return _own_folder(parent / "sync-assets")


def _own_folder(path: Path, *, parents: bool = False) -> Path:
    """Make the folder if it is missing, and make sure that it is ours: somebody else may have laid one in our way.

    Raises:
        EmbeddedPostgresError: it cannot be made, is no folder, or belongs to somebody else.
    """
    try:
        path.parent.mkdir(parents=parents, exist_ok=True)
        try:
            path.mkdir()
            # Whatever the umask: it is ours, just made. The server's user must be able to pass through root's.
            path.chmod(0o700 if os.geteuid() else 0o711)
        except FileExistsError:
            pass
        found = path.lstat()
    except OSError as error:
        raise EmbeddedPostgresError(
            f"the folder {path} for the embedded Postgres cannot be made ({error.strerror}); choose another, "
            "or set SYNC_DATABASE_URL"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedPostgresError(
            f"{path} is in the way: expected a folder for the embedded Postgres, found something else"
        )
    if found.st_uid != os.geteuid():
        raise EmbeddedPostgresError(
            f"the folder {path} for the embedded Postgres belongs to user {found.st_uid}, not to {os.geteuid()}: "
            "run as that user, choose another folder, or set SYNC_DATABASE_URL"
        )
    return path


def make_socket_folder(folder: Path, user: ServerUser) -> None:
    """Make the socket's folder for the server's user alone. Only whoever holds the server's lock may do so.

    Raises:
        EmbeddedPostgresError: somebody else has laid one in our way.
    """
    try:
        folder.mkdir(mode=0o700)
        user.own(folder)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user.uid or stat.S_IMODE(found.st_mode) & 0o077:
        raise EmbeddedPostgresError(
            f"{folder} is in the way: expected a private folder of user {user.uid} for the server's socket; remove it"
        )


def _socket_folder(home: Path) -> Path:
    beside = home / "socket"
    if len(os.fsencode(beside / ".s.PGSQL.5432")) <= _SOCKET_PATH_LIMIT and _PLAIN.fullmatch(str(beside)):
        return beside
    # Not the TMPDIR: it may be long, and differs between the processes that are to meet here.
    return Path(f"/tmp/sync-assets-{os.geteuid()}-{_short_hash(home)}")  # noqa: S108  # owner and mode are checked


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
