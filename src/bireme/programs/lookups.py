"""The compact form of a batch: which rows of sparse parameters it needs, and ids that number these rows.

A *lookup* is a group of columns and sparse parameters that belong together: its columns pick rows of
its parameters and of nothing else. All ids of its columns in a batch, each once and ascending, are
the rows that the batch needs; the compact batch holds their positions in that list instead. So every
parameter of the group can be computed with from a small table whose row i is the row of the i-th id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bireme.programs.columns import Batch, Column, Ids

RowIds = NDArray[np.uint64]
"""Ascending, each once."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Columns and sparse parameters whose rows are numbered alike.

    Every sparse parameter of a program is in exactly one; one that no output needs has no columns.
    """

    columns: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compact:
    """A batch whose looked-up columns hold positions in `ids`, which has one list per lookup."""

    ids: tuple[RowIds, ...]
    batch: Batch


def compact(batch: Batch, lookups: Sequence[Lookup]) -> Compact:
    """Find the rows that a batch needs and renumber its ids by them, in one walk; columns it lacks are skipped."""
    columns = dict(batch.columns)
    lists = []
    for lookup in lookups:
        found = [name for name in lookup.columns if name in columns]
        ids, positions = _unique([_ids_of(columns[name]) for name in found])
        lists.append(ids)
        begin = 0
        for name in found:
            end = begin + len(_ids_of(columns[name]))
            columns[name] = replace(columns[name], ids=positions[begin:end])
            begin = end
    return Compact(tuple(lists), Batch(columns, batch.size))


def unite(parts: Sequence[Compact]) -> tuple[RowIds, ...]:
    """The rows that any of these batches needs, one list per lookup."""
    return tuple(
        _unique(lists)[0] if len(lists) > 1 else lists[0] for lists in zip(*(p.ids for p in parts), strict=True)
    )


def renumber(part: Compact, lookups: Sequence[Lookup], tables: Sequence[RowIds]) -> Batch:
    """The batch with positions in these lists instead of its own; each must contain the batch's ids."""
    columns = dict(part.batch.columns)
    for lookup, own, table in zip(lookups, part.ids, tables, strict=True):
        if np.array_equal(own, table):
            continue
        # Only the rows are searched for, not every occurrence of them in the batch.
        place = np.searchsorted(table, own).astype(np.int32)
        assert np.array_equal(table.take(place, mode="clip"), own), "rows of the batch are missing: this is a bug"
        for name in lookup.columns:
            if name in columns:
                columns[name] = replace(columns[name], ids=place[_ids_of(columns[name])])
    return Batch(columns, part.batch.size)


def narrow_ids(column: Column) -> NDArray[np.int32]:
    """Ids to compute with: row numbers of the tables at hand."""
    ids = _ids_of(column)
    assert ids.dtype == np.int32, f"slot {column.type.name!r} was not made compact: this is a bug"
    return ids  # type: ignore[return-value]  # the line above checked it


def _ids_of(column: Column) -> Ids:
    assert column.ids is not None, "looked-up columns have ids: this is a bug"
    return column.ids


def _unique(lists: Sequence[Ids]) -> tuple[RowIds, NDArray[np.int32]]:
    """All ids once and ascending, and where in that each of the given ones stands."""
    # Brings compiled kernels with it, which programs without sparse parameters do not need.
    from bireme.ps.sparse.row_sums import unique

    if len(lists) == 1:
        return unique(lists[0])
    return unique(np.concatenate([np.zeros(0, dtype=np.uint64), *(ids.astype(np.uint64) for ids in lists)]))
