"""One pserver's part of a cut: its lanes' state at one moment, copied aside and written during training.

When a lane comes to a cut's round it does not stop to copy. It hands in a `Capture`: pieces of memory, a spare set to
copy them into, and which round will overwrite each. A thread copies them while trainers compute; a
lane that is about to overwrite a piece copies what is left of it first. Optimizer state is due one round before
parameters, of which a lane keeps two sets anyway, so two rounds share the price. Another thread,
of low priority and with rests, writes the spare set to a file. There is one spare set: a cut that comes while it is in
use is left out, and only the end of a pass waits for it; the writer does not rest then, as the pass is reported only
once its cut is settled. A disk error is logged and ends that cut; the coordinator decides what follows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import sleep, thread_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import StorageError
from bireme.ps.lanes.progress import COUNTS, pack_counts
from bireme.ps.lanes.rounds import LaneCounts
from bireme.ps.setup import Setup
from bireme.ps.snapshot.snapshot_files import Written, part_path, write_part

log = logging.getLogger(__name__)
Arrays = dict[str, NDArray[Any]]
PIECE_NBYTES = 1 << 20
"""What is copied at once: small, as a lane may have to wait for the one that is under way."""
NICENESS = 10  # by how much a writer yields to rounds where there are not enough cores for both
REST = 4.0
"""How many times as long as it works a writer rests after each block: it takes a fifth of a core at most."""
NO_CUT = -1
MOST_DELTAS = 8
"""After so many cuts that hold only what changed, all lanes write everything again: a load reads them all."""


class CopyBeforeUpdate(NamedTuple):
    """Work that must be done before a lane applies this round."""

    due: int
    copy: Callable[[], object]


def copy_pieces(due: int, source: NDArray[Any], target: NDArray[Any]) -> Iterator[CopyBeforeUpdate]:
    step = max(PIECE_NBYTES // source.itemsize, 1)
    for begin in range(0, len(source), step):
        yield CopyBeforeUpdate(due, partial(np.copyto, target[begin : begin + step], source[begin : begin + step]))


class Capture:
    """What one lane keeps at a cut, on its way into spare arrays. Several threads may copy at once."""

    def __init__(self, arrays: Arrays, pieces: Sequence[CopyBeforeUpdate], *, is_delta: bool = False) -> None:
        """Take arrays that hold the lane's state once all pieces are copied, in the order in which they are due."""
        self.arrays = arrays
        self.is_delta = is_delta  # whether it holds only what has changed since the last cut that counts
        self._pieces = list(pieces)
        self._turn = threading.Condition()
        self._next = 0
        self._busy = 0

    @property
    def is_made(self) -> bool:
        with self._turn:
            return self._next == len(self._pieces) and not self._busy

    def make(self, before: int | None = None) -> None:
        """Copy what is not copied yet of all pieces, or of those that are due before this round is applied."""
        while (piece := self._take(before)) is not None:
            try:
                piece.copy()
            finally:
                with self._turn:
                    self._busy -= 1
                    self._turn.notify_all()
        with self._turn:
            # Another thread may be copying one: the caller is about to overwrite what it reads.
            self._turn.wait_for(lambda: not self._busy)

    def _take(self, before: int | None) -> CopyBeforeUpdate | None:
        with self._turn:
            if self._next == len(self._pieces) or (before is not None and self._pieces[self._next].due > before):
                return None
            # Taken in order of `due`, so a lane that needs only the early ones never waits for the late.
            self._next += 1
            self._busy += 1
            return self._pieces[self._next - 1]


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A pserver's part of a cut is on disk."""

    counts: LaneCounts
    ends_pass: bool
    path: Path
    written: Written | None  # None where the disk refused
    is_delta: bool = False  # whether it needs the last snapshot that counted when it was cut
    failure: str = ""  # why it was not written


@dataclass(slots=True)
class Cut:
    """A cut that this pserver takes part in, from its first lane's coming until its part is written."""

    counts: LaneCounts
    ends_pass: bool
    base: int
    """The newest cut of this history that is known to count; NO_CUT where everything is to be written."""
    captures: list[Capture] = field(default_factory=list)
    copied: int = 0


class _Pace:
    """Spreads a thread's work over time, so that no round meets much of it."""

    def __init__(self, is_urgent: Callable[[], bool]) -> None:
        self._is_urgent = is_urgent
        self._worked_s = thread_time()

    def rest(self) -> None:
        worked_s = thread_time()
        if not self._is_urgent():
            sleep(REST * (worked_s - self._worked_s))
        self._worked_s = thread_time()


class SnapshotWriter:
    """Collects and writes the parts of one pserver."""

    def __init__(self, setup: Setup, lanes: int, on_done: Callable[[FileWritten], None]) -> None:
        self._setup = setup
        self._lanes = lanes
        self._on_done = on_done
        self._turn = threading.Condition()
        self._cut: Cut | None = None
        self._left_out = NO_CUT
        self._committed = NO_CUT
        self._is_over = False
        self._is_hurried = False
        self._copies: queue.SimpleQueue[tuple[Cut, Capture] | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Cut | None] = queue.SimpleQueue()
        # Two threads: copying must keep ahead of the lanes, which else copy themselves, and writing waits for the disk.
        threading.Thread(target=self._copy_all, name="copies", daemon=True).start()
        threading.Thread(target=self._write_all, name="cuts", daemon=True).start()

    def open(self, counts: LaneCounts, *, ends_pass: bool) -> Cut | None:
        """A lane has come to a cut; returns None where it is left out, by all lanes alike."""
        with self._turn:
            if self._left_out == counts.round:
                return None
            self._drop_unless_whole(counts.round)
            if ends_pass and not self._is_free_for(counts.round):
                self.hurry()
                # The lane's thread waits here with its lane's lock, so no round closes: worth it at a pass's end only.
                self._turn.wait_for(lambda: self._is_over or self._is_free_for(counts.round))
            if self._is_over:
                return None
            if not self._is_free_for(counts.round):
                log.warning("skipped cut round=%d cause=previous-cut-unwritten", counts.round)
                self._left_out = counts.round
                return None
            self._cut = self._cut or Cut(counts, ends_pass, self._committed)
            return self._cut

    def _is_free_for(self, round_: int) -> bool:
        return self._cut is None or self._cut.counts.round == round_

    def _drop_unless_whole(self, round_: int) -> None:
        """Drop an older cut that lanes are missing from: the lane that comes to this round is past that one."""
        old = self._cut
        if old is not None and old.counts.round < round_ and len(old.captures) < self._lanes:
            for capture in old.captures:
                capture.make()  # so that no copy is under way into the spare set, which the next cut uses
            self._cut = None

    def give(self, cut: Cut, capture: Capture) -> None:
        """A lane's state at a cut that it has opened; called on lanes' threads."""
        with self._turn:
            cut.captures.append(capture)
        self._copies.put((cut, capture))

    def committed(self, round_: int, chain: int) -> None:
        """A cut counts: from now on it is enough to write what has changed since, unless its chain is long."""
        with self._turn:
            self._committed = max(self._committed, round_) if chain < MOST_DELTAS else NO_CUT

    def hurry(self) -> None:
        """Write the next cut, or the one that is being written, without rests."""
        # No lock: the writer reads it between blocks, and a late look costs one rest.
        self._is_hurried = True

    def stop(self) -> None:
        """Write no more: what lanes still hand in belongs to a history that is over."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()
        self._copies.put(None)
        self._full.put(None)

    def _copy_all(self) -> None:
        while (item := self._copies.get()) is not None:
            cut, capture = item
            capture.make()
            # No lock: only this thread counts.
            cut.copied += 1
            if cut.copied == self._lanes:
                self._full.put(cut)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError):  # without it the thread only competes with the rounds
            own = os.getpriority(os.PRIO_PROCESS, 0)
            # Linux keeps nice values by thread, so this leaves the lanes' threads alone.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(own + NICENESS, 19))
        while (cut := self._full.get()) is not None and not self._is_over:
            done = self._write(cut)
            with self._turn:
                self._cut = None
                self._is_hurried = False
                self._turn.notify_all()
            # Without the lock, the spare set being free: the report goes through a socket, and a lane may wait for it.
            self._on_done(done)

    def _write(self, cut: Cut) -> FileWritten:
        setup, round_ = self._setup, cut.counts.round
        arrays = {name: array for capture in cut.captures for name, array in capture.arrays.items()}
        pace = _Pace(lambda: cut.ends_pass or self._is_hurried)  # people wait for the end of a pass
        is_delta = any(capture.is_delta for capture in cut.captures)
        path, written, failure = Path(), None, ""
        try:
            path = part_path(Path(setup.facts.snapshots.path), round_, setup.view, setup.pserver)
            written = write_part(path, arrays, {COUNTS: pack_counts(cut.counts)}, pace.rest)
        except StorageError as e:
            log.error("failed cut round=%d cause=%r", round_, e.what)
            failure = e.what
        except Exception as e:
            # The error would end this thread silently, but the coordinator must learn that a pass has no cut.
            log.exception("failed cut round=%d cause=bug", round_)
            failure = f"a bug, {type(e).__name__}: {e}"
        return FileWritten(cut.counts, cut.ends_pass, path, written, is_delta, failure)
