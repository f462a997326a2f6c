"""A trainer's loop: batch, gradient, push, pull, and once more.

In sync mode the gradient of every shard this trainer owns is computed at the same parameters, summed
along the job's fixed tree and pushed subtree by subtree; while the lanes work, the next batch is
prepared. In the modes `bounded` and `async` (`ApartLoop`) each shard goes by itself: it pulls
whatever is current, computes one batch and pushes it. A loop owns no file and no control
connection: it reports to a `Listener`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bireme.ps.client.push_pull import Exchange, Position
from bireme.ps.tree import Span, fold
from bireme.ps.wire.frames import Record
from bireme.ps.wire.row_frames import Block
from bireme.train.worker import Floats, Gradient, Prepared, Running, ShardCounts, Stopwatch, Worker, add_parts

Tables = Callable[[], list[Block]]  # fetches every row of every sparse parameter


@dataclass(frozen=True, slots=True)
class PassResult:
    """What this trainer knows when a pass is over."""

    pass_id: int
    round: int
    batches: int
    ledger: Mapping[int, ShardCounts]
    totals: Running
    test: Running | None
    wire_error: float = 0.0
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds of this trainer since the pass before, by what was done."""


class Listener(Protocol):
    """Receives the progress of a loop."""

    def round_done(self, at: Position, batches: int, totals: Running) -> None:
        """A round of this trainer is over, which began at `at`; where shards go apart, its `round` counts updates."""

    def pass_done(self, result: PassResult, values: Floats, tables: Tables) -> None:
        """A pass is over and `values` are the parameters that ended it; return before they may change."""


def unsaved_pass(at: Position, saved: int) -> int | None:
    """The pass before the one where a trainer begins, if it does not count yet: it must be reported once more.

    Where shards go apart, trainers do not wait for it to count; only trainer 0, which saves it, does.
    """
    return at.pass_id - 1 if at.pass_id - 1 > saved else None


def first_batches(at: Position, begins: Mapping[int, Position], rounds_of: Callable[[int], int]) -> dict[int, int]:
    """Where each shard begins if they go apart: where the last lane is, or at the end if all lanes are in a later pass.

    Lanes may have taken a different number of pushes from each shard: a lane that lacks one gets it again.
    """
    return {s: begin.batch if begin.pass_id == at.pass_id else rounds_of(s) for s, begin in begins.items()}


class Loop:
    """One trainer at work on its share of the shards, round by round with all the others."""

    def __init__(self, worker: Worker, exchange: Exchange, listener: Listener) -> None:
        self._worker = worker
        self._exchange = exchange
        self._memory = exchange.memory
        self._listener = listener
        self._watch = Stopwatch()

    def run(self, end: int, saved: int | None = None) -> None:
        """Train from wherever the lanes are until pass `end` would begin; models are on disk up to pass `saved`."""
        at = self._exchange.pull_now(is_needed=self._is_needed)
        self._watch.lap("begin")
        unsaved = None if saved is None else unsaved_pass(at, saved)
        if unsaved is not None:
            self._end_pass(unsaved, at, self._worker.open_pass(unsaved, is_over=True))
        while at.pass_id < end:
            pass_id = at.pass_id
            rounds = self._worker.open_pass(pass_id, at.batch)
            self._run_pass(at, rounds)
            # A trainer that is done waits here for those with longer shards.
            at = self._exchange.pull_pass(pass_id + 1)
            self._watch.lap("exchange")
            self._end_pass(pass_id, at, rounds)
            self._watch.lap("save")

    def _is_needed(self, at: Position) -> bool:
        """Whether a shard of ours has a batch in this round; in the first round of a pass all have, if an empty one."""
        return at.batch == 0 or at.batch < self._worker.open_pass(at.pass_id, at.batch)

    def _end_pass(self, pass_id: int, at: Position, rounds: int) -> None:
        worker, exchange = self._worker, self._exchange
        values = self._memory.values(at.round)
        test = worker.test(at.pass_id, values, partial(exchange.pull_rows, pass_id + 1))
        self._watch.lap("test")
        error, spent = exchange.wire_error, self._watch.take()
        result = PassResult(pass_id, at.round, rounds, worker.ledger, worker.totals, test, error, spent)
        self._listener.pass_done(result, values, lambda: exchange.pull_tables(pass_id + 1))

    def _run_pass(self, at: Position, rounds: int) -> None:
        worker, exchange = self._worker, self._exchange
        if at.batch >= rounds:
            return  # others have longer shards
        prepared = worker.prepare(at.pass_id, at.batch)
        self._watch.lap("read")
        if worker.tables:
            at = exchange.pull_round(at.round, worker.wanted(prepared), worker.targets(prepared))
        while True:
            for span in self._memory.spans:
                if any(at.batch < worker.rounds_of(s) for s in span.shards):
                    self._push_span(at, span, prepared)
            self._listener.round_done(at, rounds, worker.totals)
            self._watch.lap("tell")
            if at.batch + 1 >= rounds:
                return
            prepared, at = self._next(at)
            self._watch.lap("exchange")

    def _next(self, at: Position) -> tuple[Prepared, Position]:
        """Prepare the next batch while the lanes work, and take the parameters to compute it with."""
        worker, exchange = self._worker, self._exchange
        if not worker.tables:
            exchange.ask_round(at.round + 1)
            self._watch.lap("exchange")
            prepared = worker.prepare(at.pass_id, at.batch + 1)
            self._watch.lap("read")
            return prepared, exchange.receive()
        exchange.flush()
        self._watch.lap("exchange")
        prepared = worker.prepare(at.pass_id, at.batch + 1)
        self._watch.lap("read")
        exchange.ask_round(at.round + 1, worker.wanted(prepared))
        return prepared, exchange.receive(worker.targets(prepared))

    def _push_span(self, at: Position, span: Span, prepared: Prepared) -> None:
        worker, row = self._worker, self._memory.row(span)
        values = self._memory.values(at.round)
        records: list[Record] = []
        # The next shard overwrites the row, so parts are copied, except where a subtree has one shard.
        is_alone = len(span.shards) == 1

        def leaf(shard: int) -> Gradient | None:
            if at.batch >= worker.rounds_of(shard):
                return None
            part = None
            if shard in prepared.batches:
                part = worker.gradient(at, shard, prepared, (values, row))
                if not is_alone:
                    part = Gradient(row.copy(), [Block(b.ids, b.rows.copy()) for b in part.blocks])
            records.append(worker.record(shard, at.batch))
            return part

        total = fold(span, leaf, add_parts)
        if total is not None and total.dense is not row:
            row[:] = total.dense
        self._watch.lap("compute")
        self._exchange.push(at.round, span, records, None if total is None else total.blocks)
        self._watch.lap("exchange")


class ApartLoop(Loop):
    """One trainer whose shards go by themselves, each as far ahead of the others as the lanes let it."""

    def _run_pass(self, at: Position, rounds: int) -> None:
        """Take turns between the shards, so that none of ours has to wait for another of ours."""
        worker = self._worker
        begins = {shard: self._exchange.pull_now(shard) for shard in worker.share.shards}
        first = first_batches(at, begins, worker.rounds_of)
        worker.open_pass(at.pass_id, first)
        updates = at.round
        for batch in range(min(first.values()), rounds):
            for shard in worker.share.shards:
                if first[shard] <= batch < worker.rounds_of(shard):
                    updates = self._step(at.pass_id, shard, batch)
            self._listener.round_done(Position(updates, at.pass_id, batch), rounds, worker.totals)

    def _step(self, pass_id: int, shard: int, batch: int) -> int:
        """Train one batch of a shard; returns how many updates the lanes had made when it began."""
        worker, exchange = self._worker, self._exchange
        span, at = Span(shard, shard + 1), Position(batch, pass_id, batch)
        prepared = worker.prepare(pass_id, batch, [shard])
        self._watch.lap("read")
        exchange.ask_batch(shard, pass_id, batch, worker.wanted(prepared))
        updates = exchange.receive(worker.targets(prepared)).round
        self._watch.lap("exchange")
        blocks = None
        if shard in prepared.batches:
            memory = (self._memory.values(0), self._memory.row(span))
            blocks = worker.gradient(at, shard, prepared, memory).blocks
        self._watch.lap("compute")
        exchange.push(batch, span, [worker.record(shard, batch)], blocks, pass_id=pass_id)
        self._watch.lap("exchange")
        return updates
