"""Memory of a table: rows that stay where they are, and an index that finds them by id.

An arena row holds a parameter row's values and its optimizer state end to end, so that an update
reads neighbouring cache lines. The arena doubles when it is full; only the index is rehashed, when it
is half full. Rows of forgotten ids are used again. Nothing here depends on the order of insertion but
the place of a row, which is not visible outside.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import StorageError
from bireme.ps.plan import aligned_zeros
from bireme.ps.sparse import table_kernels as kernels
from bireme.ps.sparse.row_sums import Floats, Ids, Slots
from bireme.ps.sparse.table_kernels import Draw, Numbers

TOUCHED, PUSHES = 0, 1  # columns of `_marks`: the round of a row's last push, and how many pushes it had
_FREE = -(2**62)
_SMALLEST = 64


class RowCopies(NamedTuple):
    """Room for copies of arena rows, their ids and marks."""

    block: Floats
    ids: Ids
    touched: Numbers
    pushes: NDArray[np.uint32]

    @classmethod
    def of_size(cls, rows: int, stride: int) -> RowCopies:
        block, ids = np.empty((rows, stride), np.float32), np.empty(rows, np.uint64)
        return cls(block, ids, np.empty(rows, np.int64), np.empty(rows, np.uint32))

    def part(self, rows: slice) -> RowCopies:
        return RowCopies(self.block[rows], self.ids[rows], self.touched[rows], self.pushes[rows])


class Arena:
    """Rows by id, without any rule about when they change."""

    def __init__(self, width: int, states: int, draw: Draw) -> None:
        self.width = width
        self._draw = draw
        self._states = states
        self._used = 0
        self._free = np.empty(0, np.int32)
        self._index = np.zeros((2 * _SMALLEST, 2), np.uint64)
        self._ids = np.empty(0, np.uint64)
        self._marks: Numbers = np.empty((0, 2), np.int64)
        self._block: Floats = np.empty((0, width * (1 + states)), np.float32)
        self._grow(_SMALLEST)

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def block(self) -> Floats:
        """All arena rows that ever held something."""
        return self._block[: self._used]

    def taken(self) -> Slots:
        """The arena rows in use, by ascending id."""
        rows = np.flatnonzero(self._marks[: self._used, TOUCHED] != _FREE).astype(np.int32)
        return rows[np.argsort(self._ids[rows])]

    def pushed_since(self, round_: int | None) -> Slots:
        """The arena rows whose last push came after this round (None: all in use), in the order in which they lie."""
        touched = self._marks[: self._used, TOUCHED]
        return np.flatnonzero(touched > (_FREE if round_ is None else round_)).astype(np.int32)

    def copy_into(self, rows: Slots, room: RowCopies) -> None:
        """Copy these arena rows, their ids and marks, as they lie."""
        # "clip" only because numpy goes through a second copy where it may have to raise.
        np.take(self._block, rows, axis=0, out=room.block, mode="clip")
        np.take(self._ids, rows, out=room.ids, mode="clip")
        room.touched[:], pushes = self.marks_of(rows)
        room.pushes[:] = pushes.clip(max=2**32 - 1)

    def ids_of(self, rows: Slots) -> Ids:
        return self._ids[rows]

    def find(self, ids: Ids) -> tuple[Slots, int]:
        """Each id's arena row, or -1, and how many are missing."""
        rows = np.empty(len(ids), np.int32)
        return rows, kernels.find(self._index, ids, rows)

    def find_or_add(self, ids: Ids, round_: int) -> Slots:
        """Each id's arena row; missing ones are made with their first values, marked with this round and no push."""
        rows, missing = self.find(ids)
        if missing:
            is_new = rows < 0
            rows[is_new] = self._add(ids[is_new], round_)
        return rows

    def read(self, ids: Ids) -> Floats:
        """Values, or what they would start with."""
        rows, _ = self.find(ids)
        out = np.empty((len(ids), self.width), np.float32)
        kernels.read(self._block, rows, ids, self._draw, out)
        return out

    def values(self, rows: Slots) -> Floats:
        out = np.empty((len(rows), self.width), np.float32)
        kernels.read(self._block, rows, self._ids[rows], self._draw, out)
        return out

    def load(self, rows: Slots, w: Floats, state: Floats) -> None:
        kernels.load(self._block, rows, w, state)

    def store(self, rows: Slots, w: Floats, state: Floats) -> None:
        kernels.store(self._block, rows, w, state)

    def mark(self, rows: Slots, round_: int) -> tuple[Numbers, Numbers]:
        """Count a push to each row; return the rounds of their last pushes, and how many they had, from before it."""
        touched, pushes = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        kernels.mark(self._marks, rows, round_, touched, pushes)
        return touched, pushes

    def marks_of(self, rows: Slots) -> tuple[Numbers, Numbers]:
        marks = self._marks[rows]
        return marks[:, TOUCHED].copy(), marks[:, PUSHES].copy()

    def set_marks(self, rows: Slots, touched: Numbers | int, pushes: Numbers | int) -> None:
        self._marks[rows, TOUCHED], self._marks[rows, PUSHES] = touched, pushes

    def older_than(self, round_: int) -> Slots:
        """Arena rows whose last push came in this round or earlier, by ascending id."""
        touched = self._marks[: self._used, TOUCHED]
        rows = np.flatnonzero((touched != _FREE) & (touched <= round_)).astype(np.int32)
        return rows[np.argsort(self._ids[rows])]

    def remove(self, rows: Slots) -> None:
        kernels.leave(self._index, self._ids[rows])
        self._marks[rows, TOUCHED] = _FREE
        # Reused rather than compacted: the index would have to be changed for every row that moves.
        self._free = np.concatenate([self._free, rows])

    def _add(self, ids: Ids, round_: int) -> Slots:
        reused = min(len(self._free), len(ids))
        kept = len(self._free) - reused
        fresh = np.arange(self._used, self._used + len(ids) - reused, dtype=np.int32)
        rows = np.concatenate([self._free[kept:], fresh])
        self._free = self._free[:kept]
        self._used += len(fresh)
        if self._used > len(self._ids):
            self._grow(self._used)
        self._ids[rows] = ids
        self._marks[rows] = (round_, 0)
        if 2 * len(self) > len(self._index):
            self._rehash()
        else:
            kernels.enter(self._index, ids, rows)
        first = np.empty((len(ids), self.width), np.float32)
        kernels.read(self._block, np.full(len(ids), -1, np.int32), ids, self._draw, first)
        blank = np.zeros((self._states, len(ids) * self.width), np.float32)
        kernels.store(self._block, rows, first.reshape(-1), blank)
        return rows

    def _grow(self, needed: int) -> None:
        """Double until the rows fit; the new half costs no memory before it is written."""
        have, want = len(self._ids), max(_SMALLEST, len(self._ids))
        while want < needed:
            want *= 2
        if want >= 2**31:
            raise StorageError(f"{needed:,} rows are too many for one lane", fix="give pservers more sparse lanes")
        stride = self._block.shape[1]
        block = aligned_zeros(want * stride).reshape(want, stride)
        ids, marks = np.empty(want, np.uint64), np.full((want, 2), _FREE, np.int64)
        block[:have], ids[:have], marks[:have] = self._block, self._ids, self._marks
        self._block, self._ids, self._marks = block, ids, marks

    def _rehash(self) -> None:
        size = len(self._index)
        while size < 2 * len(self):
            size *= 2
        self._index = np.zeros((size, 2), np.uint64)
        rows = np.flatnonzero(self._marks[: self._used, TOUCHED] != _FREE).astype(np.int32)
        kernels.enter(self._index, self._ids[rows], rows)
