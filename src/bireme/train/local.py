"""Local SGD: each shard trains a copy of the parameters by itself and meets the others every few batches.

A shard has its own parameters and optimizer state. After `every` batches it sends how far it has come
from the common parameters, c - w, and the lanes move these by `rate` times the mean of all: c -= rate/S * sum.
Plainly averaged, a shard then continues from the common parameters; elastically, it keeps its own
and moves `rate` of the way towards where the common ones were. Copies belong to shards, not to
trainers, so the result does not depend on how many trainers there are; they begin anew with each pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bireme.ps.client.push_pull import Exchange, Position
from bireme.ps.optim.optimizers import Segment, SliceOptimizer
from bireme.ps.optim.schedules import learning_rate
from bireme.ps.plan import aligned_zeros
from bireme.ps.tree import fold
from bireme.ps.wire.frames import Record
from bireme.spec.model import Optimizer, Updates
from bireme.train.loop import Listener, Loop
from bireme.train.worker import Floats, Gradient, Worker, add_parts


class LocalRule(NamedTuple):
    """How shards train by themselves."""

    updates: Updates
    optimizer: Optimizer
    shards: int
    start_pass: int = 0
    start_samples: int = 0  # trained before `start_pass`


class _Copy:
    """One shard's own parameters."""

    def __init__(self, worker: Worker, rule: Optimizer, samples: int) -> None:
        layout = worker.layout
        self.values = aligned_zeros(layout.size)
        self._spare = aligned_zeros(layout.size)
        self._rule = rule
        offsets = layout.offsets
        segments = [Segment(p, offsets[p.name], offsets[p.name] + p.size) for p in layout.parameters]
        self._optimizer = SliceOptimizer(rule, segments)
        self.samples = samples
        """What this shard's schedule counts: its own samples, as if all shards were alike."""

    def step(self, gradient: Floats, samples: int, pass_id: int) -> None:
        self.samples += samples
        rate = learning_rate(self._rule, self.samples, pass_id)
        rows = gradient.reshape(1, -1)
        self._optimizer.apply(rows, 0, np.empty((0, 2), np.int32), self.values, self._spare, rate)
        self.values[:] = self._spare


class LocalLoop(Loop):
    """One trainer whose shards train by themselves between exchanges."""

    def __init__(self, worker: Worker, exchange: Exchange, listener: Listener, rule: LocalRule) -> None:
        super().__init__(worker, exchange, listener)
        self._updates = rule.updates
        self._rule = rule
        self._copies: dict[int, _Copy] = {}
        self._gradient = aligned_zeros(worker.layout.size)

    def _run_pass(self, at: Position, rounds: int) -> None:
        every = self._updates.every
        # Copies do not outlive a pass, so that a job can be resumed where one begins.
        self._copies = {}
        meetings = -(-rounds // every)
        self._adopt(at)
        while True:
            self._push_meeting(at)
            done = min((at.batch + 1) * every, rounds)
            self._listener.round_done(Position(at.round, at.pass_id, done - 1), rounds, self._worker.totals)
            if at.batch + 1 >= meetings:
                return
            at = self._exchange.pull_round(at.round + 1)
            self._watch.lap("exchange")
            self._adopt(at)

    def _adopt(self, at: Position) -> None:
        """Start from the common parameters, the first time or, plainly averaged, every time."""
        common = self._memory.values(at.round)
        for shard in self._worker.share.shards:
            if shard not in self._copies:
                rule, passes = self._rule, at.pass_id - self._rule.start_pass
                before = rule.start_samples + rule.shards * passes * self._worker.ledger[shard].read
                self._copies[shard] = _Copy(self._worker, self._rule.optimizer, before)
            elif self._updates.is_elastic:
                continue
            self._copies[shard].values[:] = common

    def _push_meeting(self, at: Position) -> None:
        begin = at.batch * self._updates.every
        for span in self._memory.spans:
            if not any(begin < self._worker.rounds_of(s) for s in span.shards):
                continue
            records: list[Record] = []

            def leaf(shard: int, records: list[Record] = records) -> Gradient | None:
                return self._train(at, shard, records)

            total = fold(span, leaf, add_parts)
            if total is not None:
                self._memory.row(span)[:] = total.dense
            self._watch.lap("compute")
            self._exchange.push(at.round, span, records, None if total is None else [])
            self._watch.lap("exchange")

    def _train(self, at: Position, shard: int, records: list[Record]) -> Gradient | None:
        """Train a shard up to the next meeting; returns how far its copy is from the common parameters."""
        worker, copy = self._worker, self._copies[shard]
        begin = at.batch * self._updates.every
        if begin >= worker.rounds_of(shard):
            return None
        if not worker.batches[shard]:
            records.append(worker.record(shard, 0))
            return None
        trained: list[Record] = []
        for index in range(begin, min(begin + self._updates.every, worker.batches[shard])):
            prepared = worker.prepare(at.pass_id, index, [shard])
            part = worker.gradient(at._replace(batch=index), shard, prepared, (copy.values, self._gradient))
            trained.append(worker.record(shard, index))
            copy.step(part.dense, trained[-1].samples * self._rule.shards, at.pass_id)
        records.append(_sum(trained))
        common = self._memory.values(at.round)
        apart = common - copy.values
        if self._updates.is_elastic:
            copy.values += np.float32(self._updates.rate) * apart
        return Gradient(apart, [])


def _sum(records: list[Record]) -> Record:
    evals = np.sum([r.evals for r in records], axis=0).tolist()
    return Record(
        records[0].shard,
        records[-1].is_last,
        sum(r.samples for r in records),
        sum(r.cost for r in records),
        (evals[0], evals[1], evals[2]),
    )
