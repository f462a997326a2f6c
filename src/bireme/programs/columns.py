"""Samples as arrays: a shard, or a batch of it, held column by column.

A packed shard and a mini-batch are the same thing, `Columns`; `take` picks rows. Packing (packing.py) checks every
value once (type, length, range), so nothing after it needs to.

A ragged column keeps all ids end to end; sample i owns `ids[offsets[i]:offsets[i + 1]]`.
Ids are int32, or uint64 where a slot has more of them than int32 can count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError
from bireme.programs.lookups import Ids, Lookup, RowIds, unique_rows

Kind = Literal["dense", "sparse_binary", "sparse_float", "index"]
Rows = NDArray[np.int64]
MAX_NARROW_DIM = 2**31 - 1
"""The largest dimension whose ids are int32."""
MAX_DIM = 2**64 - 1
"""The largest dimension there is, so that the largest uint64 is never an id."""
_PARTS = ("values", "ids", "offsets")


class InputType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one slot of a sample holds: `dim` is the width, or the number of ids."""

    name: str
    dim: int
    kind: Kind
    is_sequence: bool = False

    @property
    def is_ragged(self) -> bool:
        """Whether samples differ in length, so that the column needs offsets."""
        return self.kind in ("sparse_binary", "sparse_float") or self.is_sequence

    @property
    def is_wide(self) -> bool:
        """Ids are uint64."""
        return self.kind != "dense" and self.dim > MAX_NARROW_DIM


@dataclass(frozen=True, slots=True)
class Column:
    """One slot of many samples; which arrays are present follows from the type.

    dense: values[n, dim]; index: ids[n]; sparse_binary and index sequences: ids and offsets; sparse_float: ids, offsets
    and one value per id. A compact column (see `lookups`) has int32 positions in place of ids, whatever its type.
    """

    type: InputType
    values: NDArray[np.float32] | None = None
    ids: Ids | None = None
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        if self.offsets is not None:
            return len(self.offsets) - 1
        rows = self.values if self.ids is None else self.ids
        assert rows is not None, "a column without arrays: this is a bug"
        return len(rows)

    def take(self, rows: Rows) -> Column:
        """Copy the chosen samples, in the order asked for, without a Python loop."""
        picked, offsets = rows, None
        if self.offsets is not None:
            starts = self.offsets[rows]
            lengths = self.offsets[rows + 1] - starts
            offsets = np.zeros(len(rows) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
            picked = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        values = None if self.values is None else self.values[picked]
        ids = None if self.ids is None else self.ids[picked]
        return Column(self.type, values, ids, offsets)


@dataclass(frozen=True, slots=True)
class Columns:
    """Samples side by side: every column has `size` rows. A `Batch` of programs that compute from arrays."""

    columns: Mapping[str, Column]
    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def inputs(self) -> tuple[InputType, ...]:
        return tuple(column.type for column in self.columns.values())

    def take(self, rows: Rows) -> Columns:
        """Copy these samples into a batch of their own; a row may be taken more than once."""
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            # A negative row would silently pair the wrong ends of a ragged sample.
            raise IndexError(f"rows {rows.min()}..{rows.max()} of a batch of {self.size}")
        return Columns({name: column.take(rows) for name, column in self.columns.items()}, len(rows))

    def compact(self, lookups: Sequence[Lookup]) -> CompactColumns:
        """Find the rows that these samples need and renumber ids by them, in one walk; lacking columns are skipped."""
        columns = dict(self.columns)
        lists = []
        for lookup in lookups:
            names = [name for name in lookup.columns if name in columns]
            ids, positions = unique_rows([_ids_of(columns[name]) for name in names])
            lists.append(ids)
            begin = 0
            for name in names:
                end = begin + len(_ids_of(columns[name]))
                columns[name] = replace(columns[name], ids=positions[begin:end])
                begin = end
        return CompactColumns(tuple(lists), Columns(columns, self.size), tuple(lookups))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Name every array, for a file; `from_arrays` is the way back."""
        parts = {f"{name}.{part}": getattr(column, part) for name, column in self.columns.items() for part in _PARTS}
        return {name: array for name, array in parts.items() if array is not None}

    @classmethod
    def from_arrays(cls, inputs: Sequence[InputType], arrays: Mapping[str, NDArray[Any]]) -> Columns:
        """Rebuild what `to_arrays` named; raises DataError when these are not its arrays."""
        columns = {}
        for slot in inputs:
            wanted, ids_type = _parts_of(slot), np.uint64 if slot.is_wide else np.int32
            parts = {part: arrays[key] for part in wanted if (key := f"{slot.name}.{part}") in arrays}
            if len(parts) != len(wanted) or ("ids" in parts and parts["ids"].dtype != ids_type):
                raise DataError(
                    f"packed samples lack an array of slot {slot.name!r}",
                    why="they were packed for another program, or the file is damaged",
                    fix="remove the packed file; it is made again from the data",
                )
            columns[slot.name] = Column(slot, **parts)
        sizes = {len(column) for column in columns.values()}
        if len(sizes) != 1:
            raise DataError(f"packed samples have columns of different lengths: {sorted(sizes)}")
        return cls(columns, sizes.pop())


@dataclass(frozen=True, slots=True)
class CompactColumns:
    """Samples whose looked-up columns hold positions in `ids`, which has one list per lookup."""

    ids: tuple[RowIds, ...]
    batch: Columns
    lookups: tuple[Lookup, ...]

    def renumber(self, tables: Sequence[RowIds]) -> Columns:
        """The samples with positions in these lists instead of their own; each must contain the batch's ids."""
        columns = dict(self.batch.columns)
        for lookup, own, table in zip(self.lookups, self.ids, tables, strict=True):
            if np.array_equal(own, table):
                continue
            # Only the rows are searched for, not every occurrence of them in the batch.
            place = np.searchsorted(table, own).astype(np.int32)
            assert np.array_equal(table.take(place, mode="clip"), own), "rows of the batch are missing: this is a bug"
            for name in lookup.columns:
                if name in columns:
                    columns[name] = replace(columns[name], ids=place[_ids_of(columns[name])])
        return Columns(columns, self.batch.size)


def narrow_ids(column: Column) -> NDArray[np.int32]:
    """Ids to compute with: row numbers of the tables at hand."""
    ids = _ids_of(column)
    assert ids.dtype == np.int32, f"slot {column.type.name!r} was not made compact: this is a bug"
    return ids  # type: ignore[return-value]  # the line above checked it


def _ids_of(column: Column) -> Ids:
    assert column.ids is not None, "looked-up columns have ids: this is a bug"
    return column.ids


def _parts_of(type_: InputType) -> tuple[str, ...]:
    if type_.kind == "dense":
        return ("values",)
    if type_.kind == "sparse_float":
        return _PARTS
    return ("ids", "offsets") if type_.is_ragged else ("ids",)
