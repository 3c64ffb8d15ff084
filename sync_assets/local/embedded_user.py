"""Who runs the server: we ourselves, or `nobody` when we are root, as which Postgres refuses to run."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sync_assets.local.embedded_errors import EmbeddedPostgresError


@dataclass(frozen=True)
class ServerUser:
    """The user the server runs as.

    Attributes:
        uid: its number.
        gid: the number of its group.
    """

    uid: int
    gid: int

    @classmethod
    def for_this_process(cls) -> ServerUser:
        """This process's user; `nobody` for root.

        Raises:
            EmbeddedPostgresError: we are root, and there is no such user.
        """
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise EmbeddedPostgresError(
                "Postgres does not run as root, and this machine has no user `nobody` to run it as: run as an ordinary "
                "user, or set SYNC_DATABASE_URL to the URL of a server that runs"
            ) from None
        return cls(nobody.pw_uid, nobody.pw_gid)

    @property
    def other(self) -> bool:
        """Whether it is somebody else than this process."""
        return self.uid != os.geteuid()

    def popen(self) -> dict[str, Any]:
        """The arguments by which `subprocess` starts a program as this user, and as nothing more."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other else {}

    def own(self, path: Path) -> None:
        """Give `path`, which we have made, to this user."""
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def can_enter(self, folder: Path) -> bool:
        """Whether this user can enter the folder and everything above it, by their modes.

        Nothing is started to find out: that can fail for reasons of its own, and the answer must always be the same.
        """
        return not self.other or all(self._may_pass(each.stat()) for each in (folder, *folder.parents))

    def _may_pass(self, found: os.stat_result) -> bool:
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == self.gid else stat.S_IXOTH))

    def can_run(self, program: Path) -> bool:
        """Whether this user can run the program (asked for its version)."""
        return not self.other or self._does([os.fspath(program), "--version"])

    def _does(self, command: Sequence[str]) -> bool:
        try:
            return (
                subprocess.run(
                    command, capture_output=True, cwd="/", timeout=30, check=False, **self.popen()
                ).returncode
                == 0
            )
        except PermissionError:
            return False
