"""Packs samples into columns, one after the other; every value is checked once: type, length, range."""

from __future__ import annotations

import itertools
import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError
from bireme.programs.columns import Column, Columns, InputType
from bireme.programs.lookups import Ids


def pack(samples: Iterable[tuple[object, ...]], inputs: Sequence[InputType]) -> Columns:
    return Packer(inputs).pack(samples)


class Packer:
    """Packs samples into `Columns`; for errors, samples are counted from 1 in each file.

    After an error the packer is of no further use.
    """

    def __init__(self, inputs: Sequence[InputType]) -> None:
        self._inputs = tuple(inputs)
        self._where = ""
        self._in_file = 0
        self._has_packed = False

    def pack(self, samples: Iterable[tuple[object, ...]], count: int | None = None) -> Columns:
        """Pack the next `count` samples, or all; without any, a batch of size 0.

        Where the iterable has a `where`, the file that it reads, and a `last_line`, errors name them.
        """
        slots, size = tuple(_slot(type_) for type_ in self._inputs), 0
        for sample in itertools.islice(samples, count):
            where = getattr(samples, "where", "")
            if where != self._where:
                self._where, self._in_file = where, 0
            self._in_file += 1
            if len(sample) != len(slots):
                raise self._refusal(samples, f"expected {len(slots)} values, got {len(sample)}")
            for slot, value in zip(slots, sample, strict=True):
                try:
                    slot.add(value)
                except _Unfit as unfit:
                    # Wrong from the first sample on: so are all others, and no search for a wrong line helps.
                    is_always = isinstance(unfit, _WrongType) and not size and not self._has_packed
                    fix = "correct the provider, or its input_types" if is_always else ""
                    raise self._refusal(samples, f"slot {slot.type.name!r}: {unfit}", fix) from None
            size += 1
        self._has_packed = self._has_packed or size > 0
        return Columns({slot.type.name: slot.column() for slot in slots}, size)

    def _refusal(self, samples: object, what: str, fix: str = "") -> DataError:
        number = f"{self._in_file}{getattr(samples, 'last_line', '')}"
        return DataError(f"{self._where or 'data'}: sample {number}: {what}", fix=fix)


class _Unfit(Exception):  # noqa: N818 - never leaves this module
    """A value that does not fit its slot; the text goes into the DataError."""


class _WrongType(_Unfit):
    """The same because of its type, which the provider's code decides rather than the data."""


@dataclass(slots=True)
class _DenseSlot:
    type: InputType
    rows: list[NDArray[np.float32]]

    def add(self, value: Any) -> None:
        row = _floats(value, f"{self.type.dim} numbers")
        if row.shape != (self.type.dim,):
            came = f"{row.size}" if row.ndim == 1 else f"an array of shape {row.shape}"
            raise _Unfit(f"expected {self.type.dim} numbers, got {came}")
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
            raise _WrongType(f"expected an integer below {self.type.dim}, got {_show(value)}") from None
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
        except (OverflowError, TypeError) as error:
            bad = ids[len(self.ids) - before]
            if isinstance(error, TypeError):
                raise _WrongType(f"expected a list of ids below {self.type.dim}, got {_show(bad)} in it") from None
            _check_range(bad, bad, self.type.dim)
        if ids:
            _check_range(min(ids), max(ids), self.type.dim)
        self.offsets.append(len(self.ids))

    def column(self) -> Column:
        return Column(self.type, ids=_as_ids(self.ids, self.type), offsets=np.array(self.offsets, dtype=np.int64))


@dataclass(slots=True)
class _PairsSlot(_RaggedSlot):
    chunks: list[NDArray[np.float32]]

    def add(self, value: Any) -> None:
        wanted = f"a list of (id below {self.type.dim}, number) pairs"
        pairs = _listed(value, wanted)
        try:
            ids, numbers = zip(*pairs, strict=True) if pairs else ((), ())
        except (TypeError, ValueError):
            raise _WrongType(f"expected {wanted}, got {_show(value)}") from None
        self._extend(ids)
        self.chunks.append(_floats(numbers, wanted))

    def column(self) -> Column:
        values = np.concatenate(self.chunks) if self.chunks else np.zeros(0, dtype=np.float32)
        return replace(_RaggedSlot.column(self), values=values)


def _slot(type_: InputType) -> _DenseSlot | _IndexSlot | _RaggedSlot:
    if type_.is_sequence and type_.kind != "index":
        what = f"slot {type_.name!r} is a sequence of {type_.kind} vectors, which is not supported yet"
        raise DataError(what, fix="only integer_value_sequence can be read as a sequence")
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
    raise _WrongType(f"expected {wanted}, got {_show(value)}")


def _floats(value: Any, wanted: str) -> NDArray[np.float32]:
    if not isinstance(value, list | tuple | np.ndarray):
        raise _WrongType(f"expected {wanted}, got {_show(value)}")
    try:
        raw = np.asarray(value) if len(value) else np.zeros(0, dtype=np.float32)
    except ValueError:
        raise _WrongType(f"expected {wanted}, got {_show(value)}") from None
    if raw.dtype.kind not in "fiub":
        # Text would convert, and would hide a provider that forgot float().
        raise _WrongType(f"expected {wanted}, got {_show(value)}")
    with np.errstate(over="ignore", invalid="ignore"):
        row = np.array(raw, dtype=np.float32)
        total = row.sum(dtype=np.float64)
    if not math.isfinite(total):
        raise _Unfit(f"expected finite numbers, got {_show(raw[~np.isfinite(row)][0])}")
    return row


def _check_range(low: int, high: int, dim: int) -> None:
    if low < 0 or high >= dim:
        raise _Unfit(f"expected ids from 0 to {dim - 1}, got {low if low < 0 else high}")


def _show(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
