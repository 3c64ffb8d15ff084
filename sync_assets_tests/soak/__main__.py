"""`python -m sync_assets_tests.soak --seconds 900 --seed 7 --report docs/soak.txt`: break things, check, and tell.

A seed repeats what is drawn (what is broken, edited and answered, and when), not how the processes then run.

Exit status: 0 all promises held; 1 one did not; 3 nothing was proven, because too little was met.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import sys
from pathlib import Path

from sync_assets_tests.postgres import make_server_folder, remove_server_folder
from sync_assets_tests.soak.checker import check
from sync_assets_tests.soak.driver import Soak
from sync_assets_tests.soak.fleet import FAKETIME
from sync_assets_tests.soak.history import History, read_history
from sync_assets_tests.soak.report import Needed, report_of


def main() -> int:
    """Run a soak; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m sync_assets_tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="how long things are broken")
    parser.add_argument("--seed", type=int, default=None, help="of all that is drawn; without it, any")
    parser.add_argument("--report", type=Path, default=None, help="where the report is written")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder, for what everybody wrote down")
    parser.add_argument("--again", type=Path, default=None, help="only check what is in such a folder")
    parser.add_argument("--min-hits", type=int, default=20, help="kills and pauses of a run while it held rows")
    parser.add_argument("--min-takeovers", type=int, default=20)
    parser.add_argument("--min-fenced", type=int, default=20, help="writes refused to a run that had lost its lease")
    parser.add_argument("--min-ambiguous", type=int, default=20, help="sends that were accepted and never answered")
    parser.add_argument(
        "--min-jumps",
        type=int,
        default=1 if FAKETIME else 0,
        help="of the database's clock, forward and back each; takes libfaketime",
    )
    options = parser.parse_args()
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    if options.again:
        history = read_history(options.again)
    else:
        sys.stdout.write(f"seed {seed}, {options.seconds:g} s\n")
        sys.stdout.flush()
        history = _soak(seed, options.seconds, options.keep)
    verdict = check(history)
    needed = Needed(
        hits=options.min_hits,
        takeovers=options.min_takeovers,
        fenced=options.min_fenced,
        ambiguous=options.min_ambiguous,
        jumps=options.min_jumps,
    )
    moved_by = "libfaketime, of the runs and of Postgres"
    if not FAKETIME:
        moved_by = "shifting time.time of the runs (libfaketime is not installed, so Postgres' stays)"
    about = {
        "command": f"python -m sync_assets_tests.soak --seconds {options.seconds:g} --seed {seed}",
        "python": platform.python_version(),
        "postgres": history.server,
        "wall clocks moved by": moved_by,
    }
    text, status = report_of(verdict, needed, about)
    sys.stdout.write(text)
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    return status


def _soak(seed: int, seconds: float, keep: Path | None) -> History:
    server = make_server_folder()
    try:
        Soak(server.parent, seed).run(seconds)
        return read_history(server.parent)
    finally:
        if keep:
            shutil.copytree(server.parent, keep, ignore=shutil.ignore_patterns("postgres"))
        remove_server_folder(server)


if __name__ == "__main__":
    sys.exit(main())
