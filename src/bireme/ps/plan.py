"""Which part of which parameter lives on which lane: a pure function that every process computes alike.

Dense parameters are laid end to end in one flat vector, each starting on a 64-byte border, and
the vector is cut on page borders into one contiguous slice per lane, equal within a page. So a round
moves one message per lane, and a slice can be received straight into the model's memory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import SpecError
from bireme.spec.model import Parameter

UNIT = 16
"""Floats in 64 bytes: a cache line, and what the widest vector instruction wants. Parameters start on such borders."""
BORDER = 1024
"""Floats in 4096 bytes: slices are cut on page borders, so that memory can be shared slice by slice."""


IDS = ".ids"
"""Beside a table that cannot be written in full, a file with this ending says which rows are there."""
RESERVED_NAMES = frozenset({"done", "path.txt", "model.safetensors", "metrics.json"})
"""What else lies in a model's directory."""
_FILE_NAME = re.compile(r"[^./\0][^/\0]{0,200}")


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements begin … end - 1 of a slice hold elements offset … of a parameter."""

    parameter: Parameter
    begin: int
    end: int
    offset: int


@dataclass(frozen=True, slots=True)
class Slice:
    """What one dense lane keeps: elements begin … end - 1 of the flat vector."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


class Layout:
    """Where each parameter lies in the flat vector of all dense parameters."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        check_names(parameters)
        self.offsets: dict[str, int] = {}
        end = 0
        for p in parameters:
            self.offsets[p.name] = end
            end += -(-p.size // UNIT) * UNIT
        self.size = -(-end // BORDER) * BORDER

    def slices(self, lanes: int) -> list[Slice]:
        """Cut the flat vector for that many lanes; with fewer pages than lanes some slices are empty."""
        pages = self.size // BORDER
        cuts = [pages * i // lanes * BORDER for i in range(lanes + 1)]
        return [Slice(a, b) for a, b in itertools.pairwise(cuts)]

    def pieces(self, part: Slice) -> list[Piece]:
        """What a slice holds, parameter by parameter; what is between the pieces is padding."""
        pieces = []
        for p in self.parameters:
            start = self.offsets[p.name]
            lo, hi = max(start, part.begin), min(start + p.size, part.end)
            if lo < hi:
                pieces.append(Piece(p, lo - part.begin, hi - part.begin, lo - start))
        return pieces

    def views(self, flat: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        return {
            p.name: flat[self.offsets[p.name] : self.offsets[p.name] + p.size].reshape(p.shape) for p in self.parameters
        }

    def name_at(self, position: int) -> str:
        holder = [p.name for p in self.parameters if self.offsets[p.name] <= position]
        return holder[-1]


def check_names(parameters: Sequence[Parameter]) -> None:
    """Refuse parameters whose names cannot be those of files in one directory, or that have no elements."""
    names = [p.name for p in parameters]
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise SpecError(f"parameter {twice[0]!r} is defined twice", fix="give each parameter its own name")
    for p in parameters:
        if not _FILE_NAME.fullmatch(p.name) or p.name in RESERVED_NAMES:
            raise SpecError(
                f"a parameter cannot be called {p.name!r}",
                why="it is also the name of its file in a saved model",
                fix="name the layer or the parameter with letters, digits, dots, dashes and underscores",
            )
        if min(p.shape, default=1) < 1:
            raise SpecError(f"parameter {p.name!r} has shape {list(p.shape)}: every side must be at least 1")
        if p.is_unbounded and p.name + IDS in names:
            raise SpecError(
                f"parameter {p.name + IDS} and the ids of {p.name} would be one file",
                fix="give one of them another name",
            )


def aligned_zeros(count: int) -> NDArray[np.float32]:
    """A zeroed float32 vector that starts on a 64-byte border, which numpy alone does not promise."""
    raw = np.zeros(count + UNIT, dtype=np.float32)
    skip = (-raw.ctypes.data % 64) // 4
    return raw[skip : skip + count]
