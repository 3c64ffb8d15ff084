"""What a mutant is, and the list of them in `mutants.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tomli

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A fault that somebody could make, in one place.

    Attributes:
        name: what was done.
        file: where, from the project's folder.
        edits: what stands there, once, and what the fault makes of it; several where the source says a rule twice.
        test: the test that must notice, as pytest names it.
    """

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    test: str

    def apply(self, project: Path) -> str:
        """The file's text with the fault in it.

        Raises:
            LookupError: the text to replace is not there, or more than once: the list must follow the source.
        """
        text = (project / self.file).read_text(encoding="utf-8")
        for old, new in self.edits:
            found = text.count(old)
            if found != 1:
                raise LookupError(f"mutant {self.name!r}: {old!r} is {found} times in {self.file}, not once")
            text = text.replace(old, new)
        return text


def load_mutants() -> tuple[Mutant, ...]:
    """All of them, in the order of the file."""
    listed = tomli.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))["mutant"]
    return tuple(
        Mutant(
            one["name"],
            one["file"],
            tuple((edit["old"], edit["new"]) for edit in one["edit"]),
            f"sync_assets_tests/{one['test']}",
        )
        for one in listed
    )
