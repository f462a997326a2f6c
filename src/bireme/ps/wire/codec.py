"""How gradients may be written on the wire: float32 as it is, half the bytes, or only the largest values.

Codings are applied to one shard's gradient, never to sums: a sum's bits would depend on the order of addition.
float16 and bfloat16 round to the nearest, ties to even, by integer arithmetic that is the same on
every processor; NaN stays NaN, and finite values that become infinite are counted for the caller.
top_k sends the largest values only and keeps the rest in a `Residual` for the next time. The k-th
largest is found by counting bit patterns instead of sorting: for floats without their sign, the order
of the bits is the order of the values. That is three walks over memory, and ties go to lower positions.
Importing this module loads Numba: do it where it is used.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError
from bireme.ps.optim.kernels import CHUNK, jit
from bireme.spec.model import Coding

Half = Literal["float16", "bfloat16"]
Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Bits = NDArray[np.uint32]
Positions = NDArray[np.int64]
Counts = NDArray[np.int64]

PICK_NBYTES = 8  # a position and a value
SAMPLE = 1 << 16  # elements to look at before the first walk

U32 = np.uint32
"""Wrapped around every step of bit arithmetic: Numba would continue in 64 bits, at less than half the speed."""
SIZE, INFINITY = U32(0x7FFFFFFF), U32(0x7F800000)
LOW_HALF, HALF_WORD, ONE = U32(0xFFFF), U32(16), U32(1)


def payload_nbytes(coding: Coding, floats: int) -> int | None:
    """Bytes on the wire for that many floats; None for top_k, where it depends on what was picked."""
    if coding == "top_k":
        return None
    return floats * (4 if coding == "float32" else 2)


def encode(coding: Half, values: Floats, out: Halves) -> int:
    """Write `values` as halves; return how many finite ones became infinite, which the caller should not send."""
    _check_lengths(values, out)
    return int(_to_float16(values, out) if coding == "float16" else _to_bfloat16(values, out))


def decode(coding: Half, coded: Halves, target: Floats) -> None:
    _check_lengths(coded, target)
    if coding == "float16":
        _from_float16(coded, target)
    else:
        _from_bfloat16(coded, target)


def error_of(original: Floats, decoded: Floats) -> float:
    """The relative error |original - decoded| / |original|; 0 where both are zero."""
    _check_lengths(original, decoded)
    lost, whole = _squares(original, decoded)
    return _ratio(lost, whole)


def warm(coding: Coding) -> None:
    """Compile what this coding needs, or load it from Numba's cache, before the first round waits for it."""
    some = np.ones(2, np.float32)
    if coding == "top_k":
        residual = Residual(2)
        residual.error(residual.pick(some, 1))
    elif coding != "float32":
        halves = np.empty(2, np.uint16)
        encode(coding, some, halves)
        decode(coding, halves, some)
        error_of(some, some)


class Picks(NamedTuple):
    """Some values of the flat vector, by ascending position."""

    positions: Positions
    values: Floats


class Residual:
    """What one shard has not sent yet of its gradients: error feedback over the whole flat vector.

    This lives only in a trainer, so its loss is a rewind to the end of a pass, where nothing is held back. Not for use
    by two threads at once.
    """

    def __init__(self, size: int) -> None:
        self._left = np.zeros(size, np.float32)
        self._bins = np.zeros(1 << 16, np.int64)

    def pick(self, gradient: Floats, count: int) -> Picks:
        """Add a gradient, then take out the `count` largest sums; among equals the lower positions go first.

        NaN and infinities count as largest, so that they are sent and noticed, not kept.
        """
        _check_lengths(gradient, self._left)
        count = min(max(count, 0), self._left.size)
        picks = Picks(np.empty(count, np.int64), np.empty(count, np.float32))
        floor = _guess_floor(self._left, gradient, count)
        self._bins[:] = 0
        if _add_and_count(self._left, gradient, floor, self._bins) < count:  # the guess was too high
            self._bins[:] = 0
            _add_and_count(self._left, gradient[:0], 0, self._bins)
        if count == 0:
            return picks
        upper, above = _bin_of(self._bins, count)
        self._bins[:] = 0
        _count_lower(self._left, upper, self._bins)
        lower, further = _bin_of(self._bins, count - above)
        _take_out(self._left, (upper << 16) | lower, count - above - further, picks.positions, picks.values)
        return picks

    def error(self, sent: Picks) -> float:
        """The share of the last sum's norm that stayed behind, `sent` being what was picked."""
        left, _ = _squares(self._left, np.zeros(0, np.float32))
        gone, _ = _squares(sent.values, np.zeros(0, np.float32))
        return _ratio(left, left + gone)


def encode_picks(picks: Picks, begin: int, end: int) -> NDArray[np.uint8]:
    """The payload for the lane that keeps elements begin … end - 1: positions from `begin` on, then values."""
    lo, hi = np.searchsorted(picks.positions, (begin, end))
    positions = (picks.positions[lo:hi] - begin).astype("<u4")
    values = picks.values[lo:hi].astype("<f4")
    return np.concatenate((positions.view(np.uint8), values.view(np.uint8)))


def decode_picks(payload: NDArray[np.uint8], target: Floats) -> None:
    """Fill a lane's row with zeros and the payload's values; a malformed payload changes nothing."""
    count, rest = divmod(payload.size, PICK_NBYTES)
    if rest:
        raise FrameError(f"a top_k payload of {payload.size} bytes: it must be a multiple of {PICK_NBYTES}")
    positions = payload[: 4 * count].view("<u4")
    if np.any(positions[1:] <= positions[:-1]):
        raise FrameError("a top_k payload whose positions do not ascend")
    if count and positions[-1] >= target.size:
        raise FrameError(f"a top_k payload with position {positions[-1]} for a slice of {target.size} floats")
    target[:] = 0.0
    target[positions] = payload[4 * count :].view("<f4")


def _check_lengths(a: NDArray[np.generic], b: NDArray[np.generic]) -> None:
    if a.shape != b.shape or a.ndim != 1:
        raise AssertionError(f"arrays of shapes {a.shape} and {b.shape} where one length is needed; this is a bug")


def _ratio(part: float, whole: float) -> float:
    if whole == 0.0:
        return 0.0 if part == 0.0 else float("inf")
    return float(np.sqrt(part / whole))


def _guess_floor(left: Floats, gradient: Floats, count: int) -> int:
    """A bit pattern that about twice `count` sums reach, from a sample: counting only those is much cheaper."""
    stride = max(1, -(-left.size // SAMPLE))
    with np.errstate(all="ignore"):  # the receiver reports NaN and infinities
        sample = np.abs(left[::stride] + gradient[::stride]).view(np.uint32)
    rank = sample.size - 2 * count // stride - SAMPLE // 1024
    return int(np.partition(sample, rank)[rank]) & 0x7FFF0000 if rank >= 0 else 0


def _bin_of(bins: Counts, count: int) -> tuple[int, int]:
    """The bin that holds the count-th largest, and how many are in the bins above it."""
    from_above = np.cumsum(bins[::-1])
    steps = int(np.searchsorted(from_above, count))
    return bins.size - 1 - steps, int(from_above[steps] - bins[bins.size - 1 - steps])


H_SIZE, H_SIGN = U32(0x7FFF), U32(0x8000)
F16_FROM_INFINITY = U32(0x477FF000)  # 65520: this and all above round to infinity
F16_NORMAL = U32((127 - 14) << 23)  # 2^-14: below are float16's subnormals
F16_REBIAS = U32((127 - 15) << 23)
F16_ROUND = U32(2**32 - ((127 - 15) << 23) + 0x0FFF)  # takes the bias off and adds just less than a half
F16_CUT = U32(13)  # bits of the mantissa that float16 does not have
F16_INFINITY, F16_NAN, F16_LEAST = U32(0x7C00), U32(0x7E00), U32(0x0400)
F16_STEP = np.float32(2.0**-24)  # between two subnormals, and the last bit of 0.5 as a float32:
POINT_5, POINT_5_BITS = np.float32(0.5), U32(126 << 23)  # so adding that rounds to whole steps
BF16_FROM_INFINITY, BF16_ROUND, BF16_NAN = U32(0x7F7F8000), U32(0x7FFF), U32(0x0040)


@jit
def _count_finite(bits: Bits, begin: np.uint32) -> int:
    count = 0
    for i in range(bits.size):
        size = U32(bits[i] & SIZE)
        if begin <= size < INFINITY:
            count += 1
    return count


@jit
def _to_float16(values: Floats, out: Halves) -> int:
    overflows = 0
    for begin in range(0, values.size, CHUNK):
        x, halves = values[begin : begin + CHUNK], out[begin : begin + CHUNK]
        bits, largest = x.view(np.uint32), U32(0)
        for i in range(x.size):
            u = U32(bits[i] & SIZE)
            largest = max(largest, u)
            half = U32(U32(u + F16_ROUND + U32(U32(u >> F16_CUT) & ONE)) >> F16_CUT)
            small = np.float32(np.abs(x[i]) + POINT_5)
            half = U32(np.float32(small).view(np.uint32) - POINT_5_BITS) if u < F16_NORMAL else half
            half = F16_INFINITY if u >= F16_FROM_INFINITY else half
            half = F16_NAN if u > INFINITY else half
            halves[i] = np.uint16(half | U32(U32(bits[i] >> HALF_WORD) & H_SIGN))
        if largest >= F16_FROM_INFINITY:
            overflows += _count_finite(bits, F16_FROM_INFINITY)
    return overflows


@jit
def _from_float16(coded: Halves, target: Floats) -> None:
    bits = target.view(np.uint32)
    for i in range(coded.size):
        size = U32(coded[i] & H_SIZE)
        u = U32(U32(size << F16_CUT) + F16_REBIAS)
        u = U32(u + F16_REBIAS) if size >= F16_INFINITY else u
        # Not by scaling a float32 subnormal: a thread may be set to flush those to zero.
        small = np.float32(np.int32(size)) * F16_STEP
        u = np.float32(small).view(np.uint32) if size < F16_LEAST else u
        bits[i] = u | U32(U32(coded[i] & H_SIGN) << HALF_WORD)


@jit
def _to_bfloat16(values: Floats, out: Halves) -> int:
    overflows = 0
    for begin in range(0, values.size, CHUNK):
        bits, halves = values[begin : begin + CHUNK].view(np.uint32), out[begin : begin + CHUNK]
        largest = U32(0)
        for i in range(bits.size):
            u, size = bits[i], U32(bits[i] & SIZE)
            largest = max(largest, size)
            half = U32(U32(u + BF16_ROUND + U32(U32(u >> HALF_WORD) & ONE)) >> HALF_WORD)
            half = U32(U32(u >> HALF_WORD) | BF16_NAN) if size > INFINITY else half
            halves[i] = np.uint16(half)
        if largest >= BF16_FROM_INFINITY:
            overflows += _count_finite(bits, BF16_FROM_INFINITY)
    return overflows


@jit
def _from_bfloat16(coded: Halves, target: Floats) -> None:
    bits = target.view(np.uint32)
    for i in range(coded.size):
        bits[i] = U32(U32(coded[i]) << HALF_WORD)


@jit
def _add_and_count(left: Floats, gradient: Floats, floor: int, bins: Counts) -> int:
    """Add a gradient, if there is one, and count the upper halves of all from `floor` on; return how many."""
    least, count = U32(floor), 0
    for begin in range(0, left.size, CHUNK):
        x, g = left[begin : begin + CHUNK], gradient[begin : begin + CHUNK]
        for i in range(g.size):
            x[i] += g[i]
        bits = x.view(np.uint32)
        for i in range(bits.size):
            size = U32(bits[i] & SIZE)
            if size >= least:
                bins[size >> HALF_WORD] += 1
                count += 1
    return count


@jit
def _count_lower(left: Floats, upper: int, bins: Counts) -> None:
    bits = left.view(np.uint32)
    wanted = U32(upper)
    for i in range(bits.size):
        if U32(bits[i] & SIZE) >> HALF_WORD == wanted:
            bins[bits[i] & LOW_HALF] += 1


@jit
def _take_out(left: Floats, threshold: int, ties: int, positions: Positions, values: Floats) -> None:
    """Move all above the threshold and the first `ties` at it from `left` to the picks."""
    bits, limit = left.view(np.uint32), U32(threshold)
    taken = 0
    for i in range(left.size):
        size = U32(bits[i] & SIZE)
        if size >= limit:
            if size == limit:
                if ties == 0:
                    continue
                ties -= 1
            positions[taken], values[taken] = i, left[i]
            left[i] = np.float32(0.0)
            taken += 1


@jit
def _squares(a: Floats, b: Floats) -> tuple[float, float]:
    """The sums of squares of a - b and of a, in float64; an empty b is all zeros."""
    lost, whole = 0.0, 0.0
    for i in range(a.size):
        x = np.float64(a[i])
        d = x - np.float64(b[i]) if b.size else x
        lost += d * d
        whole += x * x
    return lost, whole
