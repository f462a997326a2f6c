"""A trainer's shards, its program and its memory: turns batches into gradients, checked and counted.

Sparse parameters are computed from compact tables: the rows that the round's batches need, numbered
by their ids' order. Which rows a batch needs is determined when it is prepared, so that the rows can be asked
for while lanes are still busy with the round before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DeterminismError, NumericError
from bireme.programs.lookups import RowIds, unite
from bireme.programs.program import Batch, CompactBatch, Computation, Program, Reader, Sums
from bireme.ps.client.push_pull import Position
from bireme.ps.plan import Layout, aligned_zeros
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Record
from bireme.ps.wire.row_frames import Block

MAX_EVALS = 3  # evaluator sums that fit into a shard's record
Floats = NDArray[np.float32]
FetchRows = Callable[[Sequence[RowIds], Sequence[Floats]], None]
"""Fills the first rows of one array per table with the values of these ids."""


@dataclass(slots=True)
class ShardCounts:
    """A shard's part of the ledger for one pass."""

    read: int = 0
    trained: int = 0


@dataclass(slots=True)
class Running:
    """Totals of this trainer's samples."""

    samples: int = 0
    cost: float = 0.0
    evals: dict[str, float] = field(default_factory=dict)

    def add(self, sums: Sums) -> None:
        self.samples += sums.samples
        self.cost += sums.cost
        for name, value in sums.evals.items():
            self.evals[name] = self.evals.get(name, 0.0) + value


@dataclass(frozen=True, slots=True)
class Prepared:
    """Batches of some shards, ready to be computed once their rows are there."""

    batches: Mapping[int, Batch]
    own: Mapping[int, CompactBatch]
    rows: tuple[RowIds, ...]  # what any of them needs, one list per lookup


class Gradient(NamedTuple):
    """A gradient: the flat vector of dense parameters, and touched rows of each sparse one."""

    dense: Floats
    blocks: list[Block]


def add_parts(left: Gradient, right: Gradient) -> Gradient:
    """The sum, in the memory of the left one."""
    dense = left.dense
    dense += right.dense
    if not left.blocks and not right.blocks:
        return Gradient(dense, [])
    from bireme.ps.sparse.row_sums import combine

    pairs = zip(left.blocks, right.blocks, strict=True)
    return Gradient(dense, [Block(*combine([a, b], 0, [(0, 1)])) for a, b in pairs])


class Stopwatch:
    """Where a trainer's time goes: seconds by what was done."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        counted, self.seconds = self.seconds, {}
        return counted


class Worker:
    """Computes one trainer's gradients and tests."""

    def __init__(self, program: Program, readers: Sequence[Reader], tester: Reader | None) -> None:
        self._program = program
        self._readers = {reader.shard: reader for reader in readers}
        self._tester = tester
        self.share = Span(readers[0].shard, readers[-1].shard + 1)
        self.layout = Layout([p for p in program.parameters if not p.is_sparse])
        self.tables = tuple(p for p in program.parameters if p.is_sparse)
        lookup_of = {name: i for i, lookup in enumerate(program.lookups) for name in lookup.parameters}
        self._lookup_of = [lookup_of[p.name] for p in self.tables]
        self._values = [np.zeros((0, p.shape[1]), np.float32) for p in self.tables]
        self._grads = [np.zeros((0, p.shape[1]), np.float32) for p in self.tables]
        self._bound: dict[tuple[int, int], Computation[Batch]] = {}
        self.batches: dict[int, int] = {}  # how many batches each shard has in the open pass
        self.ledger: dict[int, ShardCounts] = {}
        self.totals = Running()
        self._is_checked = False
        self._last = Sums(0, 0.0)
        self._unused: Floats | None = None  # room for gradients where the program is only evaluated

    def forget(self) -> None:
        """Let go of memory that was lent for a view."""
        self._bound.clear()

    def open_pass(self, pass_id: int, done: int | Mapping[int, int] = 0, *, is_over: bool = False) -> int:
        """Begin to count a pass of which so many rounds are done; returns how many this trainer takes part in."""
        self.batches = {shard: reader.batches(pass_id) for shard, reader in self._readers.items()}
        self.ledger = {}
        for shard, reader in self._readers.items():
            read = reader.open(pass_id)
            rounds = done if isinstance(done, int) else done[shard]
            trained = read if is_over else min(rounds * self._program.batch_size, read)
            self.ledger[shard] = ShardCounts(read, trained)
        self.totals = Running()
        # An empty shard takes part in the first round to report that it is empty.
        return max(max(self.batches.values()), 1)

    def rounds_of(self, shard: int) -> int:
        return max(self.batches[shard], 1)

    def prepare(self, pass_id: int, index: int, shards: Sequence[int] | None = None) -> Prepared:
        """Read the batches of this number, of all shards that have one or of those named."""
        chosen = [s for s in (self._readers if shards is None else shards) if index < self.batches[s]]
        batches = {shard: self._readers[shard].batch(pass_id, index) for shard in chosen}
        return self._compact(batches)

    def _compact(self, batches: dict[int, Batch]) -> Prepared:
        lookups = self._program.lookups
        if not lookups or not batches:
            return Prepared(batches, {}, tuple(np.empty(0, np.uint64) for _ in lookups))
        own = {shard: batch.compact(lookups) for shard, batch in batches.items()}
        rows = unite([part.ids for part in own.values()])
        return Prepared({s: part.renumber(rows) for s, part in own.items()}, own, rows)

    def wanted(self, prepared: Prepared) -> list[RowIds]:
        return [prepared.rows[i] for i in self._lookup_of]

    def targets(self, prepared: Prepared) -> list[Floats]:
        """Where the rows belong that were asked for; tables grow to hold them."""
        for number, ids in enumerate(self.wanted(prepared)):
            if len(ids) > len(self._values[number]) or not len(self._values[number]):
                shape = (max(2 * len(self._values[number]), len(ids), 64), self.tables[number].shape[1])
                self._values[number], self._grads[number] = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
                self._bound.clear()
        return self._values

    def _computation(self, values: Floats, grads: Floats) -> Computation[Batch]:
        key = (values.ctypes.data, grads.ctypes.data)
        if key not in self._bound:
            names = [p.name for p in self.tables]
            self._bound[key] = self._program.bind(
                {**self.layout.views(values), **dict(zip(names, self._values, strict=True))},
                {**self.layout.views(grads), **dict(zip(names, self._grads, strict=True))},
            )
        return self._bound[key]

    def gradient(self, at: Position, shard: int, prepared: Prepared, memory: tuple[Floats, Floats]) -> Gradient:
        """A shard's gradient, into the second of these vectors from the values in the first; counts its samples.

        Rows are views into the compact tables: good until the next gradient is computed.
        """
        values, grads = memory
        computation, batch = self._computation(values, grads), prepared.batches[shard]
        sums = computation.step(batch)
        part = Gradient(grads, self._blocks(shard, prepared))
        self._check(at, shard, sums, part)
        if not self._is_checked:
            self._is_checked = True
            first = Gradient(grads.copy(), [Block(b.ids, b.rows.copy()) for b in part.blocks])
            again = computation.step(batch)
            self._check_same(at, shard, (first, sums), (Gradient(grads, self._blocks(shard, prepared)), again))
        self._last = sums
        self.ledger[shard].trained += sums.samples
        self.totals.add(sums)
        return part

    def _blocks(self, shard: int, prepared: Prepared) -> list[Block]:
        blocks = []
        for number, lookup in enumerate(self._lookup_of):
            own, rows = prepared.own[shard].ids[lookup], prepared.rows[lookup]
            grads = self._grads[number]
            is_all = len(own) == len(rows)
            blocks.append(Block(own, grads[: len(own)] if is_all else grads[np.searchsorted(rows, own)]))
        return blocks

    def record(self, shard: int, index: int) -> Record:
        """The record of the batch that was just computed, or of an empty shard."""
        if not self.batches[shard]:
            return Record(shard, True, 0)
        sums = self._last
        evals = [*sums.evals.values(), 0.0, 0.0, 0.0][:MAX_EVALS]
        is_last = index + 1 >= self.batches[shard]
        return Record(shard, is_last, sums.samples, sums.cost, (evals[0], evals[1], evals[2]))

    def _check(self, at: Position, shard: int, sums: Sums, part: Gradient) -> None:
        """Refuse a gradient that would poison the model. A sum is finite only if all its terms are."""
        arrays = [part.dense, *(block.rows for block in part.blocks)]
        with np.errstate(over="ignore", invalid="ignore"):
            total = sum(float(np.add.reduce(array.reshape(-1))) for array in arrays)
        if math.isfinite(sums.cost) and math.isfinite(total):
            return
        bad = [i for i, array in enumerate(arrays) if not np.isfinite(array).all()]
        if not bad and math.isfinite(sums.cost):
            return  # finite terms, the sum itself overflowed
        name = self._name_in(bad[0], ~np.isfinite(arrays[bad[0]])) if bad else "the cost"
        what = "a NaN or infinity in the gradient of parameter" if bad else "a NaN or infinity in"
        raise NumericError(
            f"{what} {name}, round {at.round} (pass {at.pass_id}, batch {at.batch}), shard {shard}",
            why="applying it would destroy the model, so the round was not pushed",
            fix="lower the learning rate, set gradient_clipping_threshold, or look at that batch's data",
        )

    def _name_in(self, number: int, is_wrong: NDArray[np.bool_]) -> str:
        if number:
            return self.tables[number - 1].name
        return self.layout.name_at(int(np.flatnonzero(is_wrong)[0]))

    def _check_same(self, at: Position, shard: int, first: tuple[Gradient, Sums], again: tuple[Gradient, Sums]) -> None:
        """Compare the first batch, computed twice: a program that gives two answers cannot be recovered."""
        pairs = [(first[0].dense, again[0].dense)]
        pairs += [(a.rows, b.rows) for a, b in zip(first[0].blocks, again[0].blocks, strict=True)]
        different = [a.view(np.uint32) != b.view(np.uint32) for a, b in pairs]
        names = [self._name_in(number, differs) for number, differs in enumerate(different) if differs.any()]
        if names or first[1].cost != again[1].cost:
            name = names[0] if names else "the cost"
            raise DeterminismError(
                f"the same batch gave two different results, first in {name} (shard {shard}, round {at.round})",
                why="recovery and equal results on every layout rest on equal bits",
                fix="remove unseeded randomness and multi-threaded sums from the program",
            )

    def rehearse(self, pass_id: int) -> None:
        """Compute one batch and throw it away: kernels are compiled before a round waits for them."""
        for shard, reader in self._readers.items():
            if reader.batches(pass_id):
                prepared = self._compact({shard: reader.batch(pass_id, 0)})
                self.targets(prepared)
                values, grads = aligned_zeros(self.layout.size), aligned_zeros(self.layout.size)
                self._computation(values, grads).step(prepared.batches[shard])
                self._bound.clear()
                break
        if self._tester is not None:
            self._tester.open(pass_id)

    def test(self, pass_id: int, values: Floats, fetch: FetchRows) -> Running | None:
        """Sums over the test data, if there is any; rows of sparse parameters are fetched batch by batch."""
        if self._tester is None:
            return None
        if self._unused is None:
            self._unused = aligned_zeros(self.layout.size)
        totals = Running()
        for index in range(self._tester.batches(pass_id)):
            prepared = self._compact({0: self._tester.batch(pass_id, index)})
            targets = self.targets(prepared)
            if self.tables:
                fetch(self.wanted(prepared), targets)
            totals.add(self._computation(values, self._unused).evaluate(prepared.batches[0]))
        return totals
