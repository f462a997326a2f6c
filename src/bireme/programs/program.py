"""The seam between what is trained and how it is trained.

A *program* knows its parameters, computes gradients and yields samples; it knows nothing of
trainers, lanes or rounds. The loop hands it memory (`bind`) and batches (`step`), so the arrays
that the network is computed from are the very arrays that pservers write fresh parameters into.
Of a sparse parameter the program sees a table of the rows that a batch needs; see `lookups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bireme.programs.columns import Batch, InputType
from bireme.programs.lookups import Lookup
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
    """Hash of all but data files that decides what is yielded: scripts, arguments, types; '' if that cannot be told."""
    inputs: tuple[InputType, ...]


class Source(Protocol):
    """Samples of one role, read in a working directory that looks like a shard's."""

    def facts(self, workdir: Path) -> SourceFacts:
        """Say which files would be read in `workdir`, and how; reads no sample."""

    def samples(self, workdir: Path, seed: int) -> Iterator[tuple[object, ...]]:
        """Yield samples in the order of `facts().inputs`; `seed` feeds the provider's own randomness."""


class Computation(Protocol):
    """A program over given memory: parameters are read from `values`, gradients written to `grads`.

    Looked-up columns of a batch hold row numbers of the tables that were bound, as in `lookups.compact`;
    ids are such numbers themselves where a table was bound whole.
    """

    def step(self, batch: Batch) -> Sums:
        """Forward and backward: overwrite every array of `grads` with the gradient summed over the batch."""

    def evaluate(self, batch: Batch) -> Sums:
        """Forward only."""

    def predict(self, batch: Batch) -> Arrays:
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

    def bind(self, values: Arrays, grads: Arrays) -> Computation:
        """Make the program computable from these arrays; may be called for several sets of them.

        Arrays of sparse parameters may have any number of rows from 1; a batch must need no more.
        """
