"""The seam between what is trained and how it is trained.

A *program* has parameters, computes gradients and reads samples, independently of trainers, lanes and rounds. The loop
hands it memory (`bind`) and batches (`step`), so the arrays that the network is computed from are the very arrays that
pservers write fresh parameters into. Of a sparse parameter the program sees a table of the rows that a batch needs; see
`lookups`. What a batch holds is between a program's readers and its computation: the loop passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bireme.programs.columns import InputType
from bireme.programs.lookups import Lookup, RowIds
from bireme.spec.model import Optimizer, Parameter

ERROR_EVALUATOR = "classification_error_evaluator"
"""The original's name for the share of wrong answers."""
Arrays = Mapping[str, NDArray[np.float32]]
Role = Literal["train", "test", "predict"]


@dataclass(frozen=True, slots=True)
class Sums:
    """What a batch adds to the running totals: sums over samples, never means.

    `evals` has an entry for each of the program's `evaluators`, in that order.
    """

    samples: int
    cost: float
    evals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a reader must know about a source before it reads a sample."""

    files: tuple[str, ...]
    """Data files as the list file names them, relative to the working directory."""
    should_shuffle: bool
    is_cacheable: bool
    """The provider promises that every pass yields the same samples."""
    fingerprint: str
    """Hash of all but data files that decides what is yielded: scripts, arguments, types; '' if that is unknown."""
    inputs: tuple[InputType, ...]


class Batch(Protocol):
    """Some samples, as a program's reader makes them for its computation."""

    def compact(self, lookups: Sequence[Lookup]) -> CompactBatch:
        """Find the rows of sparse parameters that the samples need, and number ids by them."""


class CompactBatch(Protocol):
    """A batch whose ids number the rows that it needs."""

    @property
    def ids(self) -> tuple[RowIds, ...]:
        """These rows, one list per lookup."""

    @property
    def batch(self) -> Batch:
        """The batch, to be computed with tables of just these rows."""

    def renumber(self, tables: Sequence[RowIds]) -> Batch:
        """The batch, to be computed with tables of these rows, which contain its own."""


class Reader(Protocol):
    """One shard's samples for one role, seekable: (seed, shard, pass, batch) names the samples of a batch.

    Any trainer may be given a shard, in the middle of any pass, and must then compute the same batches.
    """

    @property
    def shard(self) -> int:
        """Which shard."""

    def open(self, pass_id: int) -> int:
        """Make a pass's samples ready and return how many there are."""

    def batches(self, pass_id: int) -> int:
        """How many batches the pass has; the last may be short, an empty shard has none."""

    def batch(self, pass_id: int, index: int) -> Batch:
        """The samples of one batch."""


class Source(Protocol):
    """Samples of one role, read in a working directory that looks like a shard's."""

    def facts(self, workdir: Path) -> SourceFacts:
        """Say which files would be read in `workdir`, and how; reads no sample."""

    def reader(self, workdir: Path, shard: int, *, seed: int, batch_size: int, cache: Path | None) -> Reader:
        """Read a shard; `seed` feeds shuffling and a provider's own randomness, packed samples may go to `cache`."""


B_contra = TypeVar("B_contra", contravariant=True)


class Computation(Protocol[B_contra]):
    """A program over given memory: parameters are read from `values`, gradients written to `grads`.

    Ids in a batch are row numbers of the tables that were bound, as in `Batch.compact`, or numbers of their own where
    a table was bound whole.
    """

    def step(self, batch: B_contra) -> Sums:
        """Forward and backward: overwrite every array of `grads` with the gradient summed over the batch."""

    def evaluate(self, batch: B_contra) -> Sums:
        """Forward only."""

    def predict(self, batch: B_contra) -> Arrays:
        """Forward only, one array per output, one row per sample."""


class Program(Protocol):
    """What the user wants trained."""

    name: str
    """Base name of the user's file, e.g. trainer_config.lr.py."""
    fingerprint: str
    """Hash of what is computed: equal programs give equal gradients."""
    parameters: tuple[Parameter, ...]
    optimizer: Optimizer
    batch_size: int
    evaluators: tuple[str, ...]
    """Names of what is measured besides the cost."""
    outputs: tuple[str, ...]
    """Names of what `predict` returns, in order."""
    lookups: tuple[Lookup, ...]
    """Which columns pick rows of which sparse parameters; empty without any."""
    wants_async: bool
    """The user asked for updates on arrival rather than in rounds."""

    def source(self, role: Role) -> Source | None:
        """Return the samples for this role, or None where the user defined none."""

    def bind(self, values: Arrays, grads: Arrays) -> Computation[Any]:
        """Make the program computable from these arrays; may be called for several sets of them.

        Arrays of sparse parameters may have any number of rows from 1; a batch must need no more.
        """
