"""One pserver's part of a cut: its lanes' copies of one moment, written to a file while training goes on.

Lanes hand in copies when they come to the cut's round; when the last one has, a thread of its own
writes them. A cut that comes while the one before is still being written is left out, so that training does
not wait for a disk; only the end of a pass does, as its cut is waited for anyway before people see the
pass. A disk that refuses ends that cut, loudly, and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bireme.core.errors import StorageError
from bireme.ps.counts import COUNTS, pack_counts
from bireme.ps.parts import Written, part_path, write_part
from bireme.ps.rounds import Counts
from bireme.ps.setup import Setup

log = logging.getLogger(__name__)
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PartDone:
    """A pserver's part of a cut is on disk."""

    counts: Counts
    ends_pass: bool
    path: Path
    written: Written | None
    """None where the disk refused."""


@dataclass(slots=True)
class _Open:
    counts: Counts
    ends_pass: bool
    arrays: Arrays
    lanes: int


class Cutter:
    """Collects and writes the parts of one pserver."""

    def __init__(self, setup: Setup, lanes: int, on_done: Callable[[PartDone], None]) -> None:
        """Expect copies of so many lanes for each cut."""
        self._setup = setup
        self._lanes = lanes
        self._on_done = on_done
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._full: queue.Queue[_Open] = queue.Queue(maxsize=1)
        threading.Thread(target=self._write_all, name="cuts", daemon=True).start()

    def give(self, counts: Counts, arrays: Arrays, *, ends_pass: bool) -> None:
        """A lane's copy of its state at a cut; called on lanes' threads."""
        with self._lock:
            cut = self._open.setdefault(counts.round, _Open(counts, ends_pass, {}, 0))
            cut.arrays.update(arrays)
            cut.lanes += 1
            if cut.lanes < self._lanes:
                return
            del self._open[counts.round]
            # Whatever is older will never be whole: its other lanes have passed it.
            self._open = {round_: cut for round_, cut in self._open.items() if round_ > counts.round}
        try:
            self._full.put(cut, block=ends_pass)
        except queue.Full:
            log.warning("the cut at round %d is left out: the one before is still being written", counts.round)

    def _write_all(self) -> None:
        setup = self._setup
        while True:
            cut = self._full.get()
            path, written = Path(), None
            try:
                path = part_path(Path(setup.snapshots), cut.counts.round, setup.view, setup.pserver)
                written = write_part(path, cut.arrays, {COUNTS: pack_counts(cut.counts)})
            except StorageError as e:
                log.error("no snapshot of round %d: %s", cut.counts.round, e)
            self._on_done(PartDone(cut.counts, cut.ends_pass, path, written))
