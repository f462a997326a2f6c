"""A walk along a stream of draws: `core.draws` names element i, here each call takes the next ones.

Nothing but integer arithmetic is used, so no libm, no hash seed and no library's choice of
distribution can change a drawn word.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bireme.core.draws import draw_bits, stream_key

_LARGEST = np.uint64(2**64 - 1)


class Draws:
    """One stream of draws, named by a seed and a string; streams are independent."""

    def __init__(self, seed: int, stream: str) -> None:
        self._key = stream_key(seed, "reviews", stream)
        self._next = 0

    def bits(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` draws of 64 bits each."""
        self._next += count
        return draw_bits(self._key, self._next - count, count)

    def below(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one draw for each bound b, from 0 to b - 1."""
        high = self.bits(len(bounds)) >> np.uint64(32)
        return ((high * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)

    def below_each(self, bound: int, count: int) -> NDArray[np.int64]:
        """Return `count` draws from 0 to bound - 1."""
        return self.below(np.full(count, bound, dtype=np.int64))

    def zipf(self, size: int, shift: int, count: int) -> NDArray[np.int64]:
        """Return `count` draws of a rank below `size`, rank r weighing 1 / (r + shift)."""
        weights = np.uint64(1 << 40) // np.arange(shift, size + shift, dtype=np.uint64)
        ends = np.cumsum(weights)
        ranks: NDArray[np.int64] = np.searchsorted(ends, self.bits(count) % ends[-1], side="right")
        return ranks.astype(np.int64)

    def order(self, count: int) -> NDArray[np.int64]:
        """Return the numbers 0 to count - 1 in random order."""
        return np.argsort(self.bits(count), kind="stable").astype(np.int64)

    def ranks(self, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return for each row a random order of its valid cells; the others come after these."""
        keys = (self.bits(valid.size) >> np.uint64(1)).reshape(valid.shape)
        keys[~valid] = _LARGEST
        return np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable").astype(np.int64)
