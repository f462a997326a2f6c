"""Ids and rows of sparse parameters: what trainers and lanes both do with them.

Ids are uint64 and cover all 64 bits; rows are float32[n, width]. A contribution to a table is a
pair of them with strictly ascending ids. Contributions are summed in the order of the tree, id by
id: a row that only one side has passes through untouched, as adding zeros would turn -0.0 into +0.0.
Which lane an id lives on is a function of the id and the number of lanes alone.
Walks over memory in random order say ahead which lines they will need (`prefetch`); without that
the processor waits for nearly every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from bireme.core.errors import DataError
from bireme.ps.optim.kernels import jit

Ids = NDArray[np.uint64]
Floats = NDArray[np.float32]
Slots = NDArray[np.int32]

AHEAD = 24
"""How many rows before its turn a row is asked for: enough to hide memory's latency, few enough to stay in L1."""
LINE = 16  # floats in a cache line

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_ONE = np.uint64(1)
_DIGIT = 11  # bits that one turn of the radix sort looks at


def _prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of a flat array's element; changes nothing, whatever the index."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.gep(data, [context.cast(builder, args[1], signature.args[1], types.intp)])
        ir, byte, number = cgutils.ir, cgutils.voidptr_t, cgutils.int32_t
        shape = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0i8")
        for_reading, keep_close, is_data = (ir.Constant(number, k) for k in (0, 3, 1))
        builder.call(ask, [builder.bitcast(place, byte), for_reading, keep_close, is_data])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)


@jit
def mix64(z: np.uint64) -> np.uint64:
    """Scatter 64 bits over all 64 bits, one to one."""
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


def unique(ids: NDArray[Any]) -> tuple[Ids, Slots]:
    """Return the ids that occur, ascending, and for each given id its position among them."""
    flat = np.ascontiguousarray(ids).reshape(-1)
    if flat.dtype.kind == "i" and len(flat) and flat.min() < 0:
        raise DataError(f"a row id of {flat.min()}", why="rows are counted from 0", fix="correct the data provider")
    return _unique(flat.astype(np.uint64, copy=False))


@jit
def _unique(ids: Ids) -> tuple[Ids, Slots]:
    """Find distinct ids with a hash table, and sort only these: batches repeat the frequent ids a lot."""
    positions, distinct = np.empty(ids.size, np.int32), np.empty(ids.size, np.uint64)
    size = 16
    while size < 2 * ids.size:
        size *= 2
    slots, mask, count = np.full(size, -1, np.int32), np.uint64(size - 1), 0
    for i in range(ids.size):
        place = mix64(ids[i]) & mask
        while slots[place] >= 0 and distinct[slots[place]] != ids[i]:
            place = (place + _ONE) & mask
        if slots[place] < 0:
            slots[place] = count
            distinct[count] = ids[i]
            count += 1
        positions[i] = slots[place]
    order = _order_of(distinct[:count])
    ascending, rank = np.empty(count, np.uint64), np.empty(count, np.int32)
    for k in range(count):
        ascending[k] = distinct[order[k]]
        rank[order[k]] = k
    for i in range(ids.size):
        positions[i] = rank[positions[i]]
    return ascending, positions


@jit
def _order_of(ids: Ids) -> Slots:
    """Radix sort: the positions of ids in ascending order; digits that all ids share cost nothing."""
    order, other = np.arange(ids.size).astype(np.int32), np.empty(ids.size, np.int32)
    differ = np.uint64(0)
    for i in range(ids.size):
        differ |= ids[i] ^ ids[0]
    digit = np.uint64((1 << _DIGIT) - 1)
    for shift in range(0, 64, _DIGIT):
        by = np.uint64(shift)
        if (differ >> by) & digit == 0:
            continue
        starts = np.zeros((1 << _DIGIT) + 1, np.int64)
        for i in range(ids.size):
            starts[np.int64((ids[i] >> by) & digit) + 1] += 1
        for d in range(1, starts.size):
            starts[d] += starts[d - 1]
        for k in range(ids.size):
            bucket = np.int64((ids[order[k]] >> by) & digit)
            other[starts[bucket]] = order[k]
            starts[bucket] += 1
        order, other = other, order
    return order


def is_ascending(ids: Ids) -> bool:
    return bool(np.all(ids[1:] > ids[:-1]))


@jit
def lane_of(ids: Ids, lanes: int) -> Slots:
    """Say for each id which of the sparse lanes keeps its row."""
    out, count = np.empty(ids.size, np.int32), np.uint64(lanes)
    for i in range(ids.size):
        # The upper half decides: a lane's own index goes by the lower bits, which stay evenly spread.
        out[i] = np.int64(((mix64(ids[i]) >> _32) * count) >> _32)
    return out


@jit
def split(ids: Ids, lanes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order that groups ids by lane, each group in the order given, and the groups' sizes."""
    lane, counts = lane_of(ids, lanes), np.zeros(lanes, np.int64)
    for i in range(ids.size):
        counts[lane[i]] += 1
    starts, order = np.zeros(lanes, np.int64), np.empty(ids.size, np.int64)
    for k in range(1, lanes):
        starts[k] = starts[k - 1] + counts[k - 1]
    for i in range(ids.size):
        order[starts[lane[i]]] = i
        starts[lane[i]] += 1
    return order, counts


@jit
def gather(source: Floats, picks: NDArray[Any], out: Floats) -> None:
    """Copy row picks[i] of the source to row i of `out`; picks are not checked."""
    flat, width = source.reshape(-1), source.shape[1]
    for i in range(picks.size):
        if i + AHEAD < picks.size:
            for k in range(0, width, LINE):
                prefetch(flat, np.int64(picks[i + AHEAD]) * width + k)
        row = picks[i]
        for j in range(width):
            out[i, j] = source[row, j]


@jit
def scatter(source: Floats, picks: NDArray[Any], out: Floats) -> None:
    """Copy row i of the source to row picks[i] of `out`; picks are not checked."""
    flat, width = out.reshape(-1), source.shape[1]
    for i in range(picks.size):
        if i + AHEAD < picks.size:
            for k in range(0, width, LINE):
                prefetch(flat, np.int64(picks[i + AHEAD]) * width + k)
        row = picks[i]
        for j in range(width):
            out[row, j] = source[i, j]


Part = tuple[Ids, Floats]


def combine(parts: Sequence[Part], root: int, steps: Sequence[tuple[int, int]] | NDArray[np.int32]) -> Part:
    """Sum contributions to one table: for each step (a, b), part a += part b; the result is what `root` has then.

    Inputs stay as they are; where there is nothing to add, the result is one of them.
    """
    sums = dict(enumerate(parts))
    for a, b in steps:
        sums[int(a)] = _add(sums[int(a)], sums.pop(int(b)))
    return sums[root]


def _add(left: Part, right: Part) -> Part:
    if not len(left[0]) or not len(right[0]):
        return left if len(left[0]) else right
    ids = np.empty(len(left[0]) + len(right[0]), np.uint64)
    rows = np.empty((len(ids), left[1].shape[1]), np.float32)
    count = _merge(*left, *right, ids, rows)
    return ids[:count], rows[:count]


@jit
def _merge(ids_a: Ids, rows_a: Floats, ids_b: Ids, rows_b: Floats, ids: Ids, rows: Floats) -> int:
    """Walk both ascending lists at once; return how many ids the result has."""
    a, b, count, width = 0, 0, 0, rows.shape[1]
    while a < ids_a.size or b < ids_b.size:
        if b == ids_b.size or (a < ids_a.size and ids_a[a] < ids_b[b]):
            ids[count] = ids_a[a]
            for j in range(width):
                rows[count, j] = rows_a[a, j]
            a += 1
        elif a == ids_a.size or ids_b[b] < ids_a[a]:
            ids[count] = ids_b[b]
            for j in range(width):
                rows[count, j] = rows_b[b, j]
            b += 1
        else:
            ids[count] = ids_a[a]
            for j in range(width):
                rows[count, j] = rows_a[a, j] + rows_b[b, j]
            a += 1
            b += 1
        count += 1
    return count


def warm() -> None:
    """Compile all of this, or load it from Numba's cache, before the first round waits for it."""
    ids, _ = unique(np.arange(3, dtype=np.uint64))
    rows = np.zeros((3, 1), np.float32)
    order, _ = split(ids, 1)
    lane_of(ids, 1)
    gather(rows, order, rows.copy())
    scatter(rows, order, rows.copy())
    combine([(ids, rows), (ids[:2], rows[:2])], 0, [(0, 1)])
    is_ascending(ids)
