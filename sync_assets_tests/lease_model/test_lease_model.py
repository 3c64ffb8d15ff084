"""The protocol in every state, by SPIN, and each thing it rests on taken away. Needs `make test-system`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

MODEL = Path(__file__).with_name("lease.pml")
P1 = r"working|claim_seq==mine"
P4 = r"claim_seq==settle"
WITHOUT = {
    "NO_DEADLINE": P1,
    "NO_FENCE": P4,
    "TWO_STATEMENTS": P1,
    "SLOW_CLOCK": P1,
    "CLOCK_READ_AFTER": P1,
    "FROZEN_BEFORE_SEND": P1,
    "UPSTREAM_DOES_NOT_LOOK": r"request\[me\]>=newest",
}
"""What is taken away, and which promise breaks."""

REACHED = ("REACH_TAKEOVER", "REACH_FENCED_OUT", "REACH_REFUSED", "REACH_WOKEN_TOO_LATE")


def verdict(folder: Path, *switches: str) -> str:
    """What SPIN's exhaustive search says of the model with these switches."""
    for tool in ("spin", "gcc"):
        assert shutil.which(tool), f"{tool} is not installed; make test-system installs it on Debian and Ubuntu"
    for command in (
        ["spin", *(f"-D{switch}" for switch in switches), "-a", str(MODEL)],
        ["gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"],
        ["./pan", "-m1000000"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert "max search depth too small" not in done.stdout
    return done.stdout


def test_every_switch_of_the_model_is_tried() -> None:
    switches = set(re.findall(r"^#ifn?def (\w+)$", MODEL.read_text(encoding="utf-8"), re.MULTILINE))
    assert switches == {*WITHOUT, *REACHED, "CLAIMS"}


def test_p1_p4_hold_in_every_state(tmp_path: Path) -> None:
    said = verdict(tmp_path)
    assert "errors: 0" in said, said
    assert "Search not completed" not in said, said
    # every line of the model was reached: nothing holds because it cannot happen
    unreached = re.findall(r"^\t\S*lease\.pml:\d+, .*", said, re.MULTILINE)
    assert all('"-end-"' in line for line in unreached), unreached


@pytest.mark.parametrize(("switch", "broken"), WITHOUT.items(), ids=WITHOUT)
def test_without_it_there_is_a_way_to_the_fault(tmp_path: Path, switch: str, broken: str) -> None:
    said = verdict(tmp_path, switch)
    assert re.search(rf"assertion violated .*({broken})", said), said


@pytest.mark.parametrize("switch", REACHED)
def test_it_can_happen(tmp_path: Path, switch: str) -> None:
    said = verdict(tmp_path, switch)
    assert "assertion violated" in said, said
