"""The keeper: parent of one Postgres server, which it keeps up for its users and stops when the last one is gone.

Whoever uses the server holds a shared lock on a file. The keeper waits for the exclusive one: the kernel grants it when
the last user has ended, however that came about. Run as a script with nothing but the standard library, so that it
starts at once.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_POLL_SECONDS = 0.1
_RESTART_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


class Keeper:
    """Runs the server's command until nobody uses it any more.

    Args:
        users: the file the users lock.
        held: descriptor of the server's lock, which the server's processes inherit: while one lives, none is started.
        user: uid and gid the server runs as.
        data: the server's data.
        command: what starts the server.
    """

    def __init__(self, users: Path, held: int, user: tuple[int, int], data: Path, command: list[str]) -> None:
        self._users = os.open(users, os.O_RDWR)
        self._held = held
        self._user = user
        self._data = data
        self._command = command
        self._told_to_stop = False

    def run(self) -> int:
        """Start the server, again when it crashes or somebody stops it, stop it in the end; the exit status."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        give_up = 0.0
        while True:
            server = self._start()
            try:
                while server.poll() is None and not self._unused():
                    time.sleep(_POLL_SECONDS)
            finally:
                _stop(server)
            if self._unused():
                return 0
            # 0: somebody has stopped it (`pg_ctl stop`, in whichever mode), and it has taken its file along.
            if server.returncode == 0 or self._was_ready(server.pid):
                give_up = time.monotonic() + _RESTART_SECONDS
            elif time.monotonic() >= give_up:
                return server.returncode or 1
            # After a crash its other processes may take a moment to notice, and keep a new one from starting.
            time.sleep(_POLL_SECONDS)

    def _on_sigterm(self, *_: object) -> None:
        self._told_to_stop = True

    def _unused(self) -> bool:
        """Whether the last user is gone; from then on newcomers wait until this process has ended."""
        if self._told_to_stop:
            return True
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _was_ready(self, server: int) -> bool:
        """Whether the server that has just crashed had let clients in: else it would only fail again."""
        recorded = self._recorded()
        return recorded[:1] == [str(server)] and "ready" in recorded[-1]

    def _recorded(self) -> list[str]:
        """What the last server wrote about itself and a crash has left: its number first, its state last."""
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _start(self) -> subprocess.Popen[bytes]:
        uid, gid = self._user
        as_user = {} if uid == os.geteuid() else {"user": uid, "group": gid, "extra_groups": ()}
        keeper = os.getpid()

        def end_with_keeper() -> None:
            # Without it, a server whose keeper was killed would have nobody left to stop it. Linux only.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
            if os.getppid() != keeper:
                os._exit(1)

        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            self._command,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=self._environment(),
            pass_fds=(self._held,),
            preexec_fn=end_with_keeper if sys.platform == "linux" else None,  # noqa: PLW1509  # this process has one thread
            **as_user,
        )

    def _environment(self) -> dict[str, str]:
        """Nothing of ours: neither secrets nor the PG… variables a person has set."""
        environment = {"PATH": os.defpath, "LC_ALL": "C"}
        # A server that was killed leaves its number in a file; where that number now belongs to somebody else, Postgres
        # would refuse to start. We hold the lock that all its processes inherit, so it is gone, and so we tell Postgres
        # "not that one". It still looks whether somebody uses the shared memory named in the file.
        number = self._recorded()[:1]
        if number and number[0].isdigit():
            environment["PG_GRANDPARENT_PID"] = number[0]
        return environment


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Fast shutdown; harder when it does not end. Our own child, not yet waited for: its number is nobody else's."""
    for number, seconds in ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return


def main() -> None:
    """Detach, and keep the server of the command line."""
    users, held, uid, gid, data, socket, *command = sys.argv[1:]
    if os.fork():
        os._exit(0)  # the starter waits for this one, and shall have no child it must look after
    status = Keeper(Path(users), int(held), (int(uid), int(gid)), Path(data), command).run()
    with suppress(OSError):
        Path(socket).rmdir()
    sys.exit(status)


if __name__ == "__main__":
    main()
