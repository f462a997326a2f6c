"""Samples as arrays: a shard, or a batch of it, held column by column.

A packed shard and a mini-batch are the same thing, a `Batch`; `take` picks rows. Packing checks
every value once (type, length, range), so nothing after it needs to.

A ragged column keeps all ids end to end; sample i owns `ids[offsets[i]:offsets[i + 1]]`.
Ids are int32, or uint64 where a slot has more of them than int32 can count.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError

Kind = Literal["dense", "sparse_binary", "sparse_float", "index"]
Rows = NDArray[np.int64]
Ids = NDArray[np.int32] | NDArray[np.uint64]
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
        """Whether ids are uint64."""
        return self.kind != "dense" and self.dim > MAX_NARROW_DIM


@dataclass(frozen=True, slots=True)
class Column:
    """One slot of many samples; which arrays are present follows from the type.

    dense: values[n, dim]; index: ids[n]; sparse_binary and index sequences: ids and offsets;
    sparse_float: ids, offsets and one value per id. A compact column (see `lookups`) has int32
    positions in place of ids, whatever its type says.
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
        if self.offsets is None:
            return Column(
                self.type,
                values=None if self.values is None else self.values[rows],
                ids=None if self.ids is None else self.ids[rows],
            )
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        picked = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        assert self.ids is not None, "a ragged column without ids: this is a bug"
        values = None if self.values is None else self.values[picked]
        return Column(self.type, values=values, ids=self.ids[picked], offsets=offsets)


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples side by side: every column has `size` rows."""

    columns: Mapping[str, Column]
    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def inputs(self) -> tuple[InputType, ...]:
        """The types of the columns, in order."""
        return tuple(column.type for column in self.columns.values())

    def take(self, rows: Rows) -> Batch:
        """Copy these samples into a batch of their own; a row may be taken more than once."""
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            # A negative row would silently pair the wrong ends of a ragged sample.
            raise IndexError(f"rows {rows.min()}..{rows.max()} of a batch of {self.size}")
        return Batch({name: column.take(rows) for name, column in self.columns.items()}, len(rows))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Name every array, for a file; `from_arrays` is the way back."""
        found = {}
        for name, column in self.columns.items():
            for part in _PARTS:
                if (data := getattr(column, part)) is not None:
                    found[f"{name}.{part}"] = data
        return found

    @classmethod
    def from_arrays(cls, inputs: Sequence[InputType], arrays: Mapping[str, NDArray[Any]]) -> Batch:
        """Rebuild what `to_arrays` named; raises DataError when these are not its arrays."""
        columns = {}
        for slot in inputs:
            parts = {part: arrays[f"{slot.name}.{part}"] for part in _parts_of(slot) if f"{slot.name}.{part}" in arrays}
            if len(parts) != len(_parts_of(slot)) or not _has_ids_of(slot, parts):
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


def pack(samples: Iterable[tuple[object, ...]], inputs: Sequence[InputType]) -> Batch:
    """Pack all samples; where the iterable says which file it reads (`where`), errors name it."""
    packer = Packer(inputs, getattr(samples, "where", ""))
    for sample in samples:
        packer.where = getattr(samples, "where", "")
        packer.add(sample)
    return packer.finish()


class Packer:
    """Turns checked samples into a `Batch`, one `add` each.

    `where` names the file being read; setting it to another name starts counting samples anew.
    After an error the packer is of no further use.
    """

    def __init__(self, inputs: Sequence[InputType], where: str) -> None:
        self._inputs = tuple(inputs)
        self._slots = tuple(_slot(type_) for type_ in self._inputs)
        self._where = where
        self._in_file = 0
        self._size = 0

    @property
    def where(self) -> str:
        """The file that samples come from now."""
        return self._where

    @where.setter
    def where(self, name: str) -> None:
        if name != self._where:
            self._where = name
            self._in_file = 0

    def add(self, sample: tuple[object, ...]) -> None:
        """Check one sample and append it; raises DataError that says what was expected and what came."""
        self._in_file += 1
        if len(sample) != len(self._slots):
            raise self._refusal(f"expected {len(self._slots)} values, got {len(sample)}")
        for slot, value in zip(self._slots, sample, strict=True):
            try:
                slot.add(value)
            except _Unfit as unfit:
                raise self._refusal(f"slot {slot.type.name!r}: {unfit}") from None
        self._size += 1

    def finish(self) -> Batch:
        """Return everything added; nothing added gives a batch of size 0."""
        return Batch({slot.type.name: slot.column() for slot in self._slots}, self._size)

    def _refusal(self, what: str) -> DataError:
        return DataError(f"{self._where or 'data'}: sample {self._in_file}: {what}")


class _Unfit(Exception):  # noqa: N818 - never leaves this module
    """A value that does not fit its slot; the text goes into the DataError."""


class _Slot(Protocol):
    """Collects one slot's values."""

    @property
    def type(self) -> InputType: ...

    def add(self, value: Any) -> None: ...

    def column(self) -> Column: ...


@dataclass(slots=True)
class _DenseSlot:
    type: InputType
    rows: list[NDArray[np.float32]]

    def add(self, value: Any) -> None:
        row = _floats(value, f"{self.type.dim} numbers")
        if row.shape != (self.type.dim,):
            raise _Unfit(f"expected {self.type.dim} numbers, got {_shape(row)}")
        self.rows.append(row)

    def column(self) -> Column:
        values = np.stack(self.rows) if self.rows else np.zeros((0, self.type.dim), dtype=np.float32)
        return Column(self.type, values=values)


@dataclass(slots=True)
class _IndexSlot:
    type: InputType
    ids: array[int]

    def add(self, value: Any) -> None:
        try:
            index = operator.index(value)
        except TypeError:
            raise _Unfit(f"expected an integer below {self.type.dim}, got {_show(value)}") from None
        _check_range(index, index, self.type.dim)
        self.ids.append(index)

    def column(self) -> Column:
        return Column(self.type, ids=_as_ids(self.ids, self.type))


@dataclass(slots=True)
class _RaggedSlot:
    type: InputType
    ids: array[int]
    offsets: array[int]

    def add(self, value: Any) -> None:
        self._extend(_listed(value, f"a list of ids below {self.type.dim}"))

    def _extend(self, ids: Sequence[Any]) -> None:
        # `extend` checks every id's type at C speed and min/max its range: no Python loop per id.
        before = len(self.ids)
        try:
            self.ids.extend(ids)
        except OverflowError:
            bad = ids[len(self.ids) - before]
            _check_range(bad, bad, self.type.dim)
        except TypeError:
            bad = ids[len(self.ids) - before]
            raise _Unfit(f"expected a list of ids below {self.type.dim}, got {_show(bad)} in it") from None
        if ids:
            _check_range(min(ids), max(ids), self.type.dim)
        self.offsets.append(len(self.ids))

    def column(self) -> Column:
        offsets = np.array(self.offsets, dtype=np.int64)
        return Column(self.type, ids=_as_ids(self.ids, self.type), offsets=offsets)


@dataclass(slots=True)
class _PairsSlot(_RaggedSlot):
    chunks: list[NDArray[np.float32]]

    def add(self, value: Any) -> None:
        wanted = f"a list of (id below {self.type.dim}, number) pairs"
        pairs = _listed(value, wanted)
        try:
            ids, numbers = zip(*pairs, strict=True) if pairs else ((), ())
        except (TypeError, ValueError):
            raise _Unfit(f"expected {wanted}, got {_show(value)}") from None
        self._extend(ids)
        self.chunks.append(_floats(numbers, wanted))

    def column(self) -> Column:
        plain = _RaggedSlot.column(self)
        values = np.concatenate(self.chunks) if self.chunks else np.zeros(0, dtype=np.float32)
        return Column(self.type, values=values, ids=plain.ids, offsets=plain.offsets)


def _slot(type_: InputType) -> _Slot:
    if type_.is_sequence and type_.kind != "index":
        raise DataError(
            f"slot {type_.name!r} is a sequence of {type_.kind} vectors, which is not supported yet",
            fix="only integer_value_sequence can be read as a sequence",
        )
    if type_.kind == "dense":
        return _DenseSlot(type_, [])
    ids: array[int] = array("Q" if type_.is_wide else "i")
    if type_.kind == "sparse_float":
        return _PairsSlot(type_, ids, array("q", [0]), [])
    if type_.is_ragged:
        return _RaggedSlot(type_, ids, array("q", [0]))
    return _IndexSlot(type_, ids)


def _as_ids(ids: array[int], type_: InputType) -> Ids:
    return np.array(ids, dtype=np.uint64) if type_.is_wide else np.array(ids, dtype=np.int32)


def _parts_of(type_: InputType) -> tuple[str, ...]:
    """Which arrays a column of this type has."""
    if type_.kind == "dense":
        return ("values",)
    if type_.kind == "sparse_float":
        return _PARTS
    return ("ids", "offsets") if type_.is_ragged else ("ids",)


def _has_ids_of(type_: InputType, parts: Mapping[str, NDArray[Any]]) -> bool:
    return "ids" not in parts or parts["ids"].dtype == (np.uint64 if type_.is_wide else np.int32)


def _listed(value: Any, wanted: str) -> Sequence[Any]:
    """Accept lists, tuples and one-dimensional arrays of integers; text and sets are mistakes."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        listed: list[Any] = value.tolist()
        return listed
    raise _Unfit(f"expected {wanted}, got {_show(value)}")


def _floats(value: Any, wanted: str) -> NDArray[np.float32]:
    if not isinstance(value, list | tuple | np.ndarray):
        raise _Unfit(f"expected {wanted}, got {_show(value)}")
    try:
        found = np.asarray(value) if len(value) else np.zeros(0, dtype=np.float32)
    except ValueError:
        raise _Unfit(f"expected {wanted}, got {_show(value)}") from None
    if found.dtype.kind not in "fiub":
        # Text would convert, and would hide a provider that forgot float().
        raise _Unfit(f"expected {wanted}, got {_show(value)}")
    with np.errstate(over="ignore", invalid="ignore"):
        row = np.array(found, dtype=np.float32)
        total = row.sum(dtype=np.float64)
    if not math.isfinite(total):
        raise _Unfit(f"expected finite numbers, got {_show(found[~np.isfinite(row)][0])}")
    return row


def _check_range(low: int, high: int, dim: int) -> None:
    if low < 0 or high >= dim:
        raise _Unfit(f"expected ids from 0 to {dim - 1}, got {low if low < 0 else high}")


def _shape(row: NDArray[np.float32]) -> str:
    return f"{row.size}" if row.ndim == 1 else f"an array of shape {row.shape}"


def _show(value: object) -> str:
    """Show what came, short enough for one line."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
