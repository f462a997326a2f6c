"""Machine code of a table: finding rows by id, drawing their first values, moving them to and from compact buffers.

The index is an open-addressing table of (id, arena row + 1) pairs with linear probing; 0 means empty,
so no id is reserved. The id lies beside the row's number: a hit costs one cache line.
An arena row is [values, state 0, state 1, …] end to end. Buffers that the update formulas work on are
[rows * width] for the values and [states, rows * width] for the state.
First values repeat `core.draws` operation by operation, so that the bits are the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core import draws
from bireme.ps.optim.kernels import CHUNK, Floats, jit
from bireme.ps.sparse.row_sums import AHEAD, GAMMA, LINE, Ids, Slots, mix64, prefetch

Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]

_1, _12 = np.uint64(1), np.uint64(12)
_MID_NUM, _MID_DEN, _TAIL_NUM, _TAIL_DEN = draws._MID_NUM, draws._MID_DEN, draws._TAIL_NUM, draws._TAIL_DEN
_TAIL = draws._TAIL
_LOG_TERMS = tuple(1.0 / k for k in range(41, 0, -2))


class Draw(NamedTuple):
    """How first values are made: the table's stream, and mean and spread of what is drawn from it."""

    key: np.uint64
    is_normal: bool
    mean: float
    spread: float


@jit
def _home(id_: np.uint64, index: Ids) -> np.int64:
    return np.int64(mix64(id_) & np.uint64(index.shape[0] - 1))


@jit
def _probe(index: Ids, id_: np.uint64) -> np.int64:
    mask, place = index.shape[0] - 1, _home(id_, index)
    while index[place, 1] != 0 and index[place, 0] != id_:
        place = (place + 1) & mask
    return place


@jit
def find(index: Ids, ids: Ids, rows: Slots) -> int:
    """Write each id's arena row, or -1; return how many are missing."""
    flat, missing = index.reshape(-1), 0
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            prefetch(flat, 2 * _home(ids[i + AHEAD], index))
        rows[i] = np.int64(index[_probe(index, ids[i]), 1]) - 1
        missing += rows[i] < 0
    return missing


@jit
def enter(index: Ids, ids: Ids, rows: Slots) -> None:
    """Note where ids live that the index does not have yet; it must have room."""
    flat = index.reshape(-1)
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            prefetch(flat, 2 * _home(ids[i + AHEAD], index))
        place = _probe(index, ids[i])
        index[place, 0] = ids[i]
        index[place, 1] = np.uint64(rows[i] + 1)


@jit
def leave(index: Ids, ids: Ids) -> None:
    """Remove ids that are there; what stood behind them moves up, so that no tombstones are needed."""
    mask = index.shape[0] - 1
    for i in range(ids.size):
        hole = _probe(index, ids[i])
        place = hole
        while True:
            place = (place + 1) & mask
            if index[place, 1] == 0:
                break
            # Movable if its home is not between the hole and its place, going round.
            if (place - _home(index[place, 0], index)) & mask >= (place - hole) & mask:
                index[hole, 0], index[hole, 1] = index[place, 0], index[place, 1]
                hole = place
        index[hole, 1] = np.uint64(0)


@jit
def _tail(u: float) -> float:
    """The inverse normal where the middle's formula does not hold: exact operations only, as in `core.draws`."""
    mantissa, exponent = math.frexp(min(u, 1.0 - u))
    s = (mantissa - 1.0) / (mantissa + 1.0)
    s2, total = s * s, 0.0
    for term in _LOG_TERMS:
        total = total * s2 + term
    t = math.sqrt(-2.0 * (2.0 * s * total + exponent * 0.6931471805599453))
    num, den = _TAIL_NUM[0], _TAIL_DEN[0]
    for c in _TAIL_NUM[1:]:
        num = num * t + c
    for c in _TAIL_DEN[1:]:
        den = den * t + c
    return num / den if u < 0.5 else -(num / den)


@jit
def _middle(q: float) -> float:
    # Written out: a loop over the coefficients would keep the compiler from doing several elements at once.
    r, n, d = q * q, _MID_NUM, _MID_DEN
    num = ((((n[0] * r + n[1]) * r + n[2]) * r + n[3]) * r + n[4]) * r + n[5]
    den = ((((d[0] * r + d[1]) * r + d[2]) * r + d[3]) * r + d[4]) * r + d[5]
    return num * q / den


@jit
def _draw_row(id_: np.uint64, draw: Draw, work: Doubles, out: Floats) -> None:
    """A row's first values: element `id` of the table's stream is the key of the row's own stream."""
    if draw.spread == 0.0:
        out[:] = np.float32(draw.mean)
        return
    key = mix64(draw.key + (id_ + _1) * GAMMA)
    for j in range(out.size):
        work[0, j] = (np.float64(np.int64(mix64(key + (np.uint64(j) + _1) * GAMMA) >> _12)) + 0.5) * 2.0**-52
    if draw.is_normal:
        # One loop without branches for all, then the one in twenty that it does not hold for.
        for j in range(out.size):
            work[1, j] = _middle(work[0, j] - 0.5)
        for j in range(out.size):
            if min(work[0, j], 1.0 - work[0, j]) < _TAIL:
                work[1, j] = _tail(work[0, j])
    else:
        for j in range(out.size):
            work[1, j] = 2.0 * work[0, j] - 1.0
    for j in range(out.size):
        out[j] = np.float32(draw.mean + draw.spread * work[1, j])


@jit
def read(arena: Floats, rows: Slots, ids: Ids, draw: Draw, out: Floats) -> None:
    """Copy the values of these arena rows; a row of -1 gets its first values."""
    flat, stride, width = arena.reshape(-1), arena.shape[1], out.shape[1]
    work = np.empty((2, width), np.float64)
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            for k in range(0, width, LINE):
                prefetch(flat, np.int64(rows[i + AHEAD]) * stride + k)
        row = rows[i]
        if row < 0:
            _draw_row(ids[i], draw, work, out[i])
        else:
            for j in range(width):
                out[i, j] = arena[row, j]


@jit
def load(arena: Floats, rows: Slots, w: Floats, state: Floats) -> None:
    flat, stride = arena.reshape(-1), arena.shape[1]
    width = stride // (1 + state.shape[0])
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            for k in range(0, stride, LINE):
                prefetch(flat, np.int64(rows[i + AHEAD]) * stride + k)
        row, begin = np.int64(rows[i]), i * width
        for j in range(width):
            w[begin + j] = arena[row, j]
        for s in range(state.shape[0]):
            for j in range(width):
                state[s, begin + j] = arena[row, (s + 1) * width + j]


@jit
def store(arena: Floats, rows: Slots, w: Floats, state: Floats) -> None:
    flat, stride = arena.reshape(-1), arena.shape[1]
    width = stride // (1 + state.shape[0])
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            for k in range(0, stride, LINE):
                prefetch(flat, np.int64(rows[i + AHEAD]) * stride + k)
        row, begin = np.int64(rows[i]), i * width
        for j in range(width):
            arena[row, j] = w[begin + j]
        for s in range(state.shape[0]):
            for j in range(width):
                arena[row, (s + 1) * width + j] = state[s, begin + j]


@jit
def mark(marks: Numbers, rows: Slots, round_: int, touched: Numbers, pushes: Numbers) -> None:
    """Count a push to each row; `touched` and `pushes` get what was marked until now."""
    flat = marks.reshape(-1)
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch(flat, np.int64(rows[i + AHEAD]) * 2)
        touched[i], pushes[i] = marks[rows[i], 0], marks[rows[i], 1]
        marks[rows[i], 0] = round_
        marks[rows[i], 1] += 1


@jit
def fold(state: Floats, is_due: Flags) -> None:
    """Move the recent sum (state 1) of due rows into the old one (state 0)."""
    width = state.shape[1] // max(1, is_due.size)
    for i in range(is_due.size):
        if is_due[i]:
            for j in range(i * width, (i + 1) * width):
                state[0, j] += state[1, j]
                state[1, j] = 0.0


@jit
def powers(base: float, exponents: Numbers) -> Floats:
    """Raise to whole powers by multiplication alone, as libm's `pow` differs between machines."""
    out = np.empty(exponents.size, np.float32)
    for i in range(exponents.size):
        square, total, left = base, 1.0, exponents[i]
        while left > 0:
            if left & 1:
                total *= square
            square *= square
            left >>= 1
        out[i] = np.float32(total)
    return out


@jit
def rebase(arena: Floats, width: int, alpha: float, u_factor: float, v_factor: float) -> None:
    """Restart lazy momentum in every row: u loses its factor, v becomes what the values are by now."""
    for row in range(arena.shape[0]):
        u, v = arena[row, width : 2 * width], arena[row, 2 * width : 3 * width]
        for j in range(width):
            v[j] = u_factor * u[j] + v_factor * v[j]
            u[j] = u[j] / alpha


@jit
def fade(state: Floats, keep: Floats) -> None:
    width = state.shape[1] // max(1, keep.size)
    for s in range(state.shape[0]):
        for i in range(keep.size):
            for j in range(i * width, (i + 1) * width):
                state[s, j] = keep[i] * state[s, j]


@jit
def divide(values: Floats, divisors: Floats) -> None:
    width = values.size // max(1, divisors.size)
    for i in range(divisors.size):
        for j in range(i * width, (i + 1) * width):
            values[j] = values[j] / divisors[i]


@jit
def cut(lines: Numbers, width: int) -> Numbers:
    """Cut rows into chunks for an update kernel, (begin, end, line): each of rows that go by the same line."""
    chunks = np.empty((lines.size * (1 + (width - 1) // CHUNK), 3), np.int64)
    count, first = 0, 0
    while first < lines.size:
        last = first + 1
        while last < lines.size and lines[last] == lines[first]:
            last += 1
        for begin in range(first * width, last * width, CHUNK):
            chunks[count, 0], chunks[count, 1] = begin, min(begin + CHUNK, last * width)
            chunks[count, 2] = lines[first]
            count += 1
        first = last
    return chunks[:count]
