"""Appending to a JSONL file by the line, so that a kill loses at most one; and noticing one's own stalls."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from sync_assets.clock import monotonic

STALL_SECONDS = 0.15
_LOOK_SECONDS = 0.05


class EventLog:
    """A file of events; each is one write, at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **event: Any) -> None:
        os.write(self._file, json.dumps({"at": monotonic(), **event}).encode() + b"\n")

    async def watch_stalls(self, **event: Any) -> None:
        """Write down when this process did not get to run: a machine with too much to do freezes it like a SIGSTOP."""
        while True:
            since = monotonic()
            await asyncio.sleep(_LOOK_SECONDS)
            if monotonic() - since > _LOOK_SECONDS + STALL_SECONDS:
                self.write(since=since, **event)
