"""A trainer's loop: batch, gradient, push, pull, and once more.

For each round the gradient of every shard this trainer owns is computed at the same parameters,
summed along the job's fixed tree and pushed subtree by subtree. The loop owns no file and no
control connection: what it has to say goes to a `Listener`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DeterminismError, NumericError
from bireme.programs.columns import Batch
from bireme.programs.program import Program, Sums
from bireme.ps.client import Exchange, Position
from bireme.ps.frames import Record
from bireme.ps.plan import Layout, aligned_zeros
from bireme.ps.tree import Span, cover, fold
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
        self._share = Span(readers[0].shard, readers[-1].shard + 1)
        self.layout = Layout(program.parameters)
        self.values = aligned_zeros(self.layout.size)
        self._grads = aligned_zeros(self.layout.size)
        program.bind(self.layout.views(self.values), self.layout.views(self._grads))
        self._ledger: dict[int, Counts] = {}
        self._totals = Running()
        self._is_checked = False

    def rehearse(self, pass_id: int) -> None:
        """Compute one batch and throw it away: kernels are compiled before anybody waits for them."""
        for reader in self._readers.values():
            if reader.batches(pass_id):
                self._program.step(reader.batch(pass_id, 0))
                break
        if self._tester is not None:
            self._tester.open(pass_id)

    def run(self, exchange: Exchange, shards: int, passes: int, listener: Listener) -> None:
        """Train for that many passes from wherever the lanes are."""
        self._exchange = exchange
        self._spans = cover(self._share, shards)
        at = exchange.pull_now(self.values)
        last = at.pass_id + passes
        while at.pass_id < last:
            at, result = self._run_pass(at, listener)
            listener.pass_done(result, self.values)

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
            at = self._exchange.pull_round(at.round + 1, self.values)
        # Whoever is done waits here for those with longer shards.
        at = self._exchange.pull_pass(pass_id + 1, self.values)
        test = self._test(self._tester, pass_id) if self._tester is not None else None
        return at, PassResult(pass_id, at.round, rounds, self._ledger, self._totals, test)

    def _push_round(self, at: Position, batches: Mapping[int, int]) -> None:
        for span in self._spans:
            live = [s for s in span.shards if at.batch < max(batches[s], 1)]
            if not live:
                continue
            records: list[Record] = []
            total = fold(span, lambda shard: self._gradient(at, shard, batches, records), _add)  # noqa: B023
            self._exchange.push(at.round, span, records, total)

    def _gradient(
        self, at: Position, shard: int, batches: Mapping[int, int], records: list[Record]
    ) -> NDArray[np.float32] | None:
        """A shard's gradient for this round, or None where it has no batch; adds the shard's record."""
        if at.batch >= max(batches[shard], 1):
            return None
        is_last = at.batch + 1 >= batches[shard]
        if batches[shard] == 0:
            records.append(Record(shard, True, 0))
            return None
        batch = self._readers[shard].batch(at.pass_id, at.batch)
        sums = self._program.step(batch)
        self._check(at, shard, sums)
        if not self._is_checked:
            self._check_again(at, shard, batch, sums)
        evals = [*sums.evals.values(), 0.0, 0.0, 0.0][:MAX_EVALS]
        records.append(Record(shard, is_last, sums.samples, sums.cost, (evals[0], evals[1], evals[2])))
        self._ledger[shard].trained += sums.samples
        self._totals.add(sums)
        # With one shard to a subtree the gradient leaves from where it was computed.
        return self._grads if len(self._readers) == 1 else self._grads.copy()

    def _check(self, at: Position, shard: int, sums: Sums) -> None:
        """Refuse a gradient that would poison the model. A sum is finite only if all its terms are."""
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(sums.cost) and math.isfinite(float(np.add.reduce(self._grads))):
                return
        bad = np.flatnonzero(~np.isfinite(self._grads))
        if len(bad) == 0 and math.isfinite(sums.cost):
            return  # finite terms, the sum itself overflowed
        name = self.layout.name_at(int(bad[0])) if len(bad) else "the cost"
        what = "a NaN or infinity in the gradient of parameter" if len(bad) else "a NaN or infinity in"
        raise NumericError(
            f"{what} {name}, round {at.round} (pass {at.pass_id}, batch {at.batch}), shard {shard}",
            why="applying it would destroy the model, so the round was not pushed",
            fix="lower the learning rate, set gradient_clipping_threshold, or look at that batch's data",
        )

    def _check_again(self, at: Position, shard: int, batch: Batch, sums: Sums) -> None:
        """Compute the first batch twice: a program that gives two answers cannot be recovered."""
        self._is_checked = True
        first = self._grads.copy()
        again = self._program.step(batch)
        differs = np.flatnonzero(first.view(np.uint32) != self._grads.view(np.uint32))
        if len(differs) or again.cost != sums.cost:
            name = self.layout.name_at(int(differs[0])) if len(differs) else "the cost"
            raise DeterminismError(
                f"the same batch gave two different results, first in {name} (shard {shard}, round {at.round})",
                why="recovery and equal results on every layout rest on equal bits",
                fix="remove unseeded randomness and multi-threaded sums from the program",
            )

    def _test(self, tester: ShardReader, pass_id: int) -> Running:
        totals = Running()
        for index in range(tester.batches(pass_id)):
            totals.add(self._program.evaluate(tester.batch(pass_id, index)))
        return totals


def _add(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    left += right
    return left
