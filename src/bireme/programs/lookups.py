"""Which columns of a batch pick rows of which sparse parameters, and the lists of rows that batches need.

A *lookup* is a group of columns and sparse parameters that belong together: its columns pick rows of
its parameters and of nothing else. All ids of its columns in a batch, each once and ascending, are
the rows that the batch needs; the compact batch holds their positions in that list instead. So every
parameter of the group can be computed with from a small table whose row i is the row of the i-th id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32] | NDArray[np.uint64]
RowIds = NDArray[np.uint64]
"""Ascending, each once."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Columns and sparse parameters whose rows are numbered alike.

    Every sparse parameter of a program is in exactly one; one that no output needs has no columns.
    """

    columns: tuple[str, ...]
    parameters: tuple[str, ...]


def unite(parts: Sequence[tuple[RowIds, ...]]) -> tuple[RowIds, ...]:
    """The rows that any of these batches needs, one list per lookup."""
    return tuple(unique_rows(lists)[0] if len(lists) > 1 else lists[0] for lists in zip(*parts, strict=True))


def unique_rows(lists: Sequence[Ids]) -> tuple[RowIds, NDArray[np.int32]]:
    """All ids once and ascending, and each given one's position in that."""
    # Brings compiled kernels with it, which programs without sparse parameters do not need.
    from bireme.ps.sparse.row_sums import unique

    if len(lists) == 1:
        return unique(lists[0])
    return unique(np.concatenate([np.zeros(0, dtype=np.uint64), *(ids.astype(np.uint64) for ids in lists)]))
