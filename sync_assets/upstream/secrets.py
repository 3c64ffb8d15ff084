"""From a reference in the row to the secret, at the moment of sending, in the process that sends."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from sync_assets.upstream.errors import AuthFailed, SyncError
from sync_assets.upstream.redaction import register_secret

_LARGEST_FILE = 64 * 1024
_SENDABLE = re.compile(r"[\x21-\x7e]+( +[\x21-\x7e]+)*")


class SecretResolver:
    """Resolves the references that rows hold in place of secrets.

    * `env:NAME`: an environment variable of this process, if its name begins with `env_prefix`. Without the prefix
      whoever edits a row could have any variable of the process sent to an address of theirs.
    * `file:PATH`: a file under `directory`, symbolic links followed first. One line end at the end is not part of
      the secret.
    * anything else: `custom`, called in a thread.

    Args:
        env_prefix: what the name of a variable must begin with; empty allows every variable.
        directory: where `file:` references may lead; None: nowhere.
        custom: takes the reference and returns the secret. It may raise a `SyncError` to say what to do about it.
    """

    def __init__(
        self,
        *,
        env_prefix: str = "SYNC_SECRET_",
        directory: Path | None = None,
        custom: Callable[[str], str] | None = None,
    ) -> None:
        self._env_prefix = env_prefix
        self._directory = directory
        self._custom = custom

    def resolve(self, ref: str) -> str:
        """The secret a reference stands for.

        Raises:
            AuthFailed: there is none, or none that may be used. Names the reference, never a value.
        """
        scheme, separator, name = ref.partition(":")
        if separator and scheme == "env":
            secret = self._from_environment(name)
        elif separator and scheme == "file":
            secret = self._from_file(name)
        elif self._custom is not None:
            secret = self._from_custom(self._custom, ref)
        else:
            # Not shown: it is likely to be the secret itself, put where the reference belongs.
            raise AuthFailed(
                "the secret reference is neither env:NAME nor file:PATH (it is not shown, as it may be the secret "
                "itself); put the secret into an environment variable or a file and name that in secret_ref"
            )
        register_secret(secret)
        return secret

    async def fetch(self, ref: str) -> str:
        """`resolve` for an event loop: what a user's resolver waits for must not hold up other accounts."""
        if ref.startswith(("env:", "file:")):
            return self.resolve(ref)
        return await asyncio.to_thread(self.resolve, ref)

    def _from_environment(self, name: str) -> str:
        if not name.startswith(self._env_prefix):
            raise AuthFailed(
                f"secret_ref env:{name} is not allowed: only variables whose names begin with {self._env_prefix} are; "
                f"rename the variable to {self._env_prefix}{name}, or widen the resolver's env_prefix"
            )
        secret = os.environ.get(name)
        if secret is None:
            raise AuthFailed(
                f"secret_ref env:{name}: the process that syncs has no environment variable {name}; set it"
            )
        return _checked(secret, f"env:{name}")

    def _from_file(self, name: str) -> str:
        ref = f"file:{name}"
        if self._directory is None:
            raise AuthFailed(
                f"secret_ref {ref} is not allowed: no folder for secrets is set (the resolver's directory)"
            )
        try:
            folder = self._directory.resolve(strict=True)
            path = (folder / name).resolve(strict=True)
            if not path.is_relative_to(folder):
                raise AuthFailed(f"secret_ref {ref} is not allowed: it leads out of the folder for secrets, {folder}")
            found = path.stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_FILE:
                raise AuthFailed(f"secret_ref {ref}: not a regular file of at most {_LARGEST_FILE} bytes")
            secret = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise AuthFailed(f"secret_ref {ref}: the file is not UTF-8 text") from None
        except (OSError, ValueError, RuntimeError) as error:  # no such file, a NUL in the path, links in a circle
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise AuthFailed(f"secret_ref {ref} cannot be read in {self._directory}: {why}") from None
        return _checked(secret.removesuffix("\n").removesuffix("\r"), ref)

    @staticmethod
    def _from_custom(custom: Callable[[str], str], ref: str) -> str:
        shown = ref.partition(":")[0] + ":…" if ":" in ref else "of the row"
        try:
            secret = custom(ref)
        except SyncError:
            raise
        except Exception as error:  # noqa: BLE001 somebody else's code; its text may hold the secret
            raise AuthFailed(f"secret_ref {shown}: the resolver raised {type(error).__name__}") from None
        if not isinstance(secret, str):
            raise AuthFailed(f"secret_ref {shown}: the resolver returned {type(secret).__name__}, expected text")
        return _checked(secret, shown)


def _checked(secret: str, ref: str) -> str:
    if not secret:
        raise AuthFailed(f"secret_ref {ref}: the secret is empty")
    if not _SENDABLE.fullmatch(secret):
        # also what a header cannot carry: the error the HTTP library would raise quotes the value
        raise AuthFailed(
            f"secret_ref {ref}: the secret holds a line end, a blank at an end, or a character outside ASCII; "
            "none of these can be sent in a header"
        )
    return secret
