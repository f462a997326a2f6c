"""What a bench's pserver does about cuts: it lets its own parts count, as there is no coordinator that would."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

from bireme.ps.lanes.server import PServer
from bireme.ps.snapshot.writer import FileWritten

PART_S = 60.0
"""How long a part may take until it is on disk."""


class PartsOf:
    """A pserver's parts of cuts: reported, and removed when the next one is there."""

    def __init__(self, server: PServer, history: int) -> None:
        self._server, self._history = server, history
        self._written: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._begun = 0.0
        self._chain = 0
        self._last: Path | None = None

    def answer(self, what: str, *, is_first: bool) -> dict[str, Any]:
        """Do what the bench asks: `cut`, which is answered before any round is cut, `part`, or `cpu`."""
        if what == "cpu":
            return {"seconds": time.process_time()}
        if what == "part":
            return self._written.get(timeout=PART_S)
        self._begun = time.perf_counter()
        if is_first:  # at a round that lane 0 names when it closes the next one
            self._server.lanes[0].cut_every(0.0)
        return {}

    def done(self, part: FileWritten) -> None:
        """Be the coordinator that commits what was written, as far as this pserver sees it."""
        self._chain = self._chain + 1 if part.is_delta else 0
        self._server.committed(self._history, part.counts.round, self._chain)
        nbytes = part.written.nbytes if part.written else 0
        self._written.put({"nbytes": nbytes, "seconds": time.perf_counter() - self._begun})
        if self._last is not None:
            self._last.unlink()
        self._last = part.path
