"""Packs samples into columns, one after the other; every value is checked once: type, length, range."""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError
from bireme.programs.columns import Column, Columns, InputType
from bireme.programs.lookups import Ids


def pack(samples: Iterable[tuple[object, ...]], inputs: Sequence[InputType]) -> Columns:
    """Pack all samples; where the iterable says which file it reads (`where`), errors name it."""
    packer = Packer(inputs, getattr(samples, "where", ""))
    for sample in samples:
        packer.where = getattr(samples, "where", "")
        packer.add(sample)
    return packer.finish()


class Packer:
    """Turns checked samples into a `Columns`, one `add` each.

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

    def finish(self) -> Columns:
        """Return what was added since the last time; nothing added gives a batch of size 0."""
        done = Columns({slot.type.name: slot.column() for slot in self._slots}, self._size)
        self._slots, self._size = tuple(_slot(type_) for type_ in self._inputs), 0
        return done

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
        raw = np.asarray(value) if len(value) else np.zeros(0, dtype=np.float32)
    except ValueError:
        raise _Unfit(f"expected {wanted}, got {_show(value)}") from None
    if raw.dtype.kind not in "fiub":
        # Text would convert, and would hide a provider that forgot float().
        raise _Unfit(f"expected {wanted}, got {_show(value)}")
    with np.errstate(over="ignore", invalid="ignore"):
        row = np.array(raw, dtype=np.float32)
        total = row.sum(dtype=np.float64)
    if not math.isfinite(total):
        raise _Unfit(f"expected finite numbers, got {_show(raw[~np.isfinite(row)][0])}")
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
