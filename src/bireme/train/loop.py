"""A trainer's loop: batch, gradient, push, pull, and once more.

For each round the gradient of every shard this trainer owns is computed at the same parameters,
summed along the job's fixed tree and pushed subtree by subtree. The loop owns no file and no
control connection: what it has to say goes to a `Listener`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DeterminismError, NumericError
from bireme.programs.program import Computation, Program, Sums
from bireme.ps.client import Exchange, Position
from bireme.ps.frames import Record
from bireme.ps.plan import Layout, aligned_zeros
from bireme.ps.tree import Span, fold
from bireme.train.reader import ShardReader

MAX_EVALS = 3
"""Evaluator sums that fit into a shard's record."""


@dataclass(slots=True)
class Counts:
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
        """Count one batch."""
        self.samples += sums.samples
        self.cost += sums.cost
        for name, value in sums.evals.items():
            self.evals[name] = self.evals.get(name, 0.0) + value


@dataclass(frozen=True, slots=True)
class PassResult:
    """What this trainer knows when a pass is over."""

    pass_id: int
    round: int
    batches: int
    ledger: Mapping[int, Counts]
    totals: Running
    test: Running | None


@dataclass(frozen=True, slots=True)
class _Work:
    """One subtree's part of one round."""

    at: Position
    span: Span
    batches: Mapping[int, int]
    """Batches that each of this trainer's shards has in the pass."""
    records: list[Record]


class Listener(Protocol):
    """Whoever wants to know how the loop is doing."""

    def round_done(self, pass_id: int, batch: int, batches: int, totals: Running) -> None:
        """A round of this trainer is over."""

    def pass_done(self, result: PassResult, values: NDArray[np.float32]) -> None:
        """A pass is over and `values` are the parameters that ended it; return before they may change."""


class Loop:
    """One trainer at work on its share of the shards."""

    def __init__(self, program: Program, readers: Sequence[ShardReader], tester: ShardReader | None) -> None:
        self._program = program
        self._readers = {reader.shard: reader for reader in readers}
        self._tester = tester
        self.share = Span(readers[0].shard, readers[-1].shard + 1)
        self.layout = Layout(program.parameters)
        self._bound: dict[tuple[int, Span], Computation] = {}
        self._ledger: dict[int, Counts] = {}
        self._totals = Running()
        self._is_checked = False

    def rehearse(self, pass_id: int) -> None:
        """Compute one batch and throw it away: kernels are compiled before anybody waits for them."""
        for reader in self._readers.values():
            if reader.batches(pass_id):
                values, grads = aligned_zeros(self.layout.size), aligned_zeros(self.layout.size)
                bound = self._program.bind(self.layout.views(values), self.layout.views(grads))
                bound.step(reader.batch(pass_id, 0))
                break
        if self._tester is not None:
            self._tester.open(pass_id)

    def run(self, exchange: Exchange, passes: int, listener: Listener) -> None:
        """Train for that many passes from wherever the lanes are."""
        self._exchange = exchange
        self._memory = exchange.memory
        at = exchange.pull_now()
        last = at.pass_id + passes
        while at.pass_id < last:
            at, result = self._run_pass(at, listener)
            listener.pass_done(result, self._memory.values(at.round))

    def _computation(self, round_: int, span: Span) -> Computation:
        """The program over the memory that holds a round's parameters and takes a subtree's gradient."""
        key = (self._memory.set_of(round_), span)
        if key not in self._bound:
            values, grads = self._memory.values(round_), self._memory.row(span)
            self._bound[key] = self._program.bind(self.layout.views(values), self.layout.views(grads))
        return self._bound[key]

    def _run_pass(self, at: Position, listener: Listener) -> tuple[Position, PassResult]:
        pass_id = at.pass_id
        batches = {shard: reader.batches(pass_id) for shard, reader in self._readers.items()}
        # An empty shard takes part in the first round to say that it is empty.
        rounds = max(max(batches.values()), 1)
        self._ledger = {s: Counts(read=reader.open(pass_id)) for s, reader in self._readers.items()}
        self._totals = Running()
        while at.batch < rounds:
            self._push_round(at, batches)
            listener.round_done(pass_id, at.batch, rounds, self._totals)
            if at.batch + 1 == rounds:
                break
            at = self._exchange.pull_round(at.round + 1)
        # Whoever is done waits here for those with longer shards.
        at = self._exchange.pull_pass(pass_id + 1)
        test = self._test(self._tester, at) if self._tester is not None else None
        return at, PassResult(pass_id, at.round, rounds, self._ledger, self._totals, test)

    def _push_round(self, at: Position, batches: Mapping[int, int]) -> None:
        for span in self._memory.spans:
            if not any(at.batch < max(batches[s], 1) for s in span.shards):
                continue
            records: list[Record] = []
            work = _Work(at, span, batches, records)
            total = fold(span, partial(self._gradient, work), _add)
            row = self._memory.row(span)
            if total is not None and total is not row:
                row[:] = total
            self._exchange.push(at.round, span, records, is_empty=total is None)

    def _gradient(self, work: _Work, shard: int) -> NDArray[np.float32] | None:
        """A shard's gradient for this round, or None where it has no batch; adds the shard's record."""
        at, batches = work.at, work.batches[shard]
        if at.batch >= max(batches, 1):
            return None
        if batches == 0:
            work.records.append(Record(shard, True, 0))
            return None
        batch = self._readers[shard].batch(at.pass_id, at.batch)
        computation, row = self._computation(at.round, work.span), self._memory.row(work.span)
        sums = computation.step(batch)
        self._check(at, shard, sums, row)
        if not self._is_checked:
            self._check_again(at, shard, partial(computation.step, batch), sums, row)
        evals = [*sums.evals.values(), 0.0, 0.0, 0.0][:MAX_EVALS]
        is_last = at.batch + 1 >= batches
        work.records.append(Record(shard, is_last, sums.samples, sums.cost, (evals[0], evals[1], evals[2])))
        self._ledger[shard].trained += sums.samples
        self._totals.add(sums)
        # With one shard to a subtree the gradient leaves from where it was computed.
        return row if len(work.span.shards) == 1 else row.copy()

    def _check(self, at: Position, shard: int, sums: Sums, row: NDArray[np.float32]) -> None:
        """Refuse a gradient that would poison the model. A sum is finite only if all its terms are."""
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(sums.cost) and math.isfinite(float(np.add.reduce(row))):
                return
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad) == 0 and math.isfinite(sums.cost):
            return  # finite terms, the sum itself overflowed
        name = self.layout.name_at(int(bad[0])) if len(bad) else "the cost"
        what = "a NaN or infinity in the gradient of parameter" if len(bad) else "a NaN or infinity in"
        raise NumericError(
            f"{what} {name}, round {at.round} (pass {at.pass_id}, batch {at.batch}), shard {shard}",
            why="applying it would destroy the model, so the round was not pushed",
            fix="lower the learning rate, set gradient_clipping_threshold, or look at that batch's data",
        )

    def _check_again(
        self, at: Position, shard: int, again: Callable[[], Sums], sums: Sums, row: NDArray[np.float32]
    ) -> None:
        """Compute the first batch twice: a program that gives two answers cannot be recovered."""
        self._is_checked = True
        first = row.copy()
        repeated = again()
        differs = np.flatnonzero(first.view(np.uint32) != row.view(np.uint32))
        if len(differs) or repeated.cost != sums.cost:
            name = self.layout.name_at(int(differs[0])) if len(differs) else "the cost"
            raise DeterminismError(
                f"the same batch gave two different results, first in {name} (shard {shard}, round {at.round})",
                why="recovery and equal results on every layout rest on equal bits",
                fix="remove unseeded randomness and multi-threaded sums from the program",
            )

    def _test(self, tester: ShardReader, at: Position) -> Running:
        totals = Running()
        computation = self._computation(at.round, self._memory.spans[0])
        for index in range(tester.batches(at.pass_id)):
            totals.add(computation.evaluate(tester.batch(at.pass_id, index)))
        return totals


def _add(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    left += right
    return left
