"""What the tests of workers and loops share: a program of one small sum, and a lane in memory.

The lane decides with the real round machine and applies plain SGD in numpy; each trainer has an exchange of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bireme.programs.columns import Columns, InputType
from bireme.programs.lookups import Lookup
from bireme.programs.program import Arrays, Computation, Role, Source, SourceFacts, Sums
from bireme.programs.readers import PackedReader
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Position
from bireme.ps.lanes.rounds import AnswerAt, LaneRounds, Refuse, Take, Totals
from bireme.ps.plan import Layout
from bireme.ps.tree import Span, cover, share_out, spans_of
from bireme.ps.wire.frames import Flag, Head, Kind, Record
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Optimizer, Parameter
from bireme.train.loop import PassResult, Tables
from bireme.train.worker import Running, Worker

INPUTS = (InputType(name="x", dim=4, kind="dense"),)
WAIT_S = 10.0
Floats = NDArray[np.float32]


class Rows:
    """A source of so many samples; sample i is a vector that nothing else has."""

    def __init__(self, shard: int, count: int, *, is_whole: bool = False) -> None:
        self.shard, self.count, self.is_whole = shard, count, is_whole

    def facts(self, workdir: Path) -> SourceFacts:
        return SourceFacts((), should_shuffle=True, is_cacheable=True, fingerprint="rows", inputs=INPUTS)

    def samples(self, workdir: Path, seed: int) -> Iterator[tuple[object, ...]]:
        for i in range(self.count):
            if self.is_whole:  # small whole numbers: their sums are exact in any order
                yield ([float(self.shard % 3 - 1), float(i % 5 - 2), float((i + self.shard) % 4), 1.0],)
            else:
                yield ([self.shard + 1.0, i + 0.1, 1e-3 * i, 1.0],)


class SumProgram:
    """The gradient of `w` is the sum of the samples, that of `b` their number."""

    name = "sum.py"
    fingerprint = "sum"
    parameters: tuple[Parameter, ...] = (Parameter(name="w", shape=(4,)), Parameter(name="b", shape=(1,)))
    optimizer = Optimizer(learning_rate=0.5, schedule="constant")
    batch_size = 10
    evaluators: tuple[str, ...] = ("error",)
    outputs: tuple[str, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    wants_async = False

    def __init__(self, spoil: Callable[[SumProgram], None] | None = None, *, pull: float = 0.0) -> None:
        self.steps = 0
        self.cost = 2.0
        self.pull = pull
        """How much of the parameters themselves is in their gradient."""
        self.seen: list[float] = []
        """The bias that each step was computed from."""
        self.grads: Arrays = {}
        """What the last step wrote to."""
        self.spoil = spoil

    def source(self, role: Role) -> Source | None:
        return None

    def bind(self, values: Arrays, grads: Arrays) -> Computation[Columns]:
        return SumComputation(self, values, grads)


class SumComputation:
    """The program over one set of arrays; what it does is noted at the program."""

    def __init__(self, program: SumProgram, values: Arrays, grads: Arrays) -> None:
        self._program, self._values, self._grads = program, values, grads

    def step(self, batch: Columns) -> Sums:
        program = self._program
        program.steps += 1
        program.seen.append(float(self._values["b"][0]))
        values = batch.columns["x"].values
        assert values is not None
        self._grads["w"][...] = values.sum(axis=0) + np.float32(program.pull) * self._values["w"]
        self._grads["b"][...] = len(batch)
        program.grads = self._grads
        if program.spoil is not None:
            program.spoil(program)
        return Sums(len(batch), program.cost * len(batch), {"error": 1.0})

    def evaluate(self, batch: Columns) -> Sums:
        self._program.seen.append(float(self._values["b"][0]))
        return Sums(len(batch), 3.0 * len(batch), {"error": 0.5})

    def predict(self, batch: Columns) -> Mapping[str, Floats]:
        return {}


class MemoryLane:
    """One lane in memory: the real round machine, and plain SGD at one rate."""

    def __init__(self, shards: int, shares: tuple[Span, ...], *, rate: float = 0.5) -> None:
        spans = spans_of(shares, shards)
        self.shards, self.shares, self._rate = shards, shares, np.float32(rate)
        self.layout = Layout(SumProgram.parameters)
        self.rounds = LaneRounds(shards, spans, 4 * self.layout.size, job=1, view=1)
        self.inbox = np.zeros((len(spans), self.layout.size), dtype=np.float32)
        self.values = np.zeros(self.layout.size, dtype=np.float32)
        self._kept = {0: self.values}
        self.pushes: list[tuple[int, Span, list[Record], bool]] = []
        self.totals: list[dict[int, Totals]] = []
        self._turn = threading.Condition()

    def give(self, round_: int, span: Span, records: list[Record], grads: Floats | None) -> None:
        with self._turn:
            self.pushes.append((round_, span, records, grads is not None))
            nbytes = 0 if grads is None else grads.nbytes
            head = Head(Kind.PUSH, job=1, view=1, round=round_, lo=span.lo, hi=span.hi, nbytes=nbytes)
            verdict = self.rounds.offer(head, records)
            assert isinstance(verdict, Take), verdict
            if grads is not None:
                self.inbox[verdict.row] = grads
            self._close(span)

    def _close(self, span: Span) -> None:
        closing = self.rounds.landed(span)
        if closing is None:
            return
        for a, b in closing.steps:
            self.inbox[a] += self.inbox[b]
        if closing.root is not None:
            self.values = self.values - self._rate * self.inbox[closing.root]
        self._kept = {closing.round: self._kept[closing.round], closing.round + 1: self.values}
        done = self.rounds.close()
        if done is not None:
            self.totals.append(done)
        self._turn.notify_all()

    def answer(self, head: Head, memory: TrainerMemory) -> Position:
        """A pull; without another trainer that could push, it must not have to wait."""

        def is_decided() -> bool:
            return isinstance(self.rounds.look(head._replace(job=1, view=1)), AnswerAt | Refuse)

        with self._turn:
            self._turn.wait_for(is_decided, WAIT_S if len(self.shares) > 1 else 0.0)
            verdict = self.rounds.look(head._replace(job=1, view=1))
            assert isinstance(verdict, AnswerAt), f"the loop would wait for ever: {verdict}"
            memory.values(verdict.round)[:] = self._kept[verdict.round]
        return Position(verdict.round, verdict.pass_id, verdict.batch)


class MemoryExchange:
    """One trainer's way to a lane in memory, with the methods of the real exchange that loops use."""

    wire_error = 0.0

    def __init__(self, lane: MemoryLane, rank: int = 0, *, is_shared: bool = False) -> None:
        self.lane = lane
        self.memory = TrainerMemory(lane.layout, cover(lane.shares[rank], lane.shards), is_shared=is_shared)
        self.memory.close()  # the descriptor is not passed on here; what is mapped stays
        self._asked: Head | None = None

    def push(self, round_: int, span: Span, records: list[Record], blocks: Sequence[Block] | None = ()) -> None:
        assert not blocks
        self.lane.give(round_, span, records, None if blocks is None else self.memory.row(span))

    def ask_round(self, round_: int, wanted: Sequence[object] = ()) -> None:
        assert not wanted
        self._asked = Head(Kind.PULL, round=round_)

    def receive(self, targets: Sequence[object] = ()) -> Position:
        assert self._asked is not None, "nothing was asked for"
        asked, self._asked = self._asked, None
        return self.lane.answer(asked, self.memory)

    def pull_now(self, *, is_needed: Callable[[Position], bool] | None = None) -> Position:
        return self.lane.answer(Head(Kind.PULL, Flag.NOW), self.memory)

    def pull_round(self, round_: int) -> Position:
        self.ask_round(round_)
        return self.receive()

    def pull_pass(self, pass_id: int) -> Position:
        return self.lane.answer(Head(Kind.PULL, Flag.AT_PASS, round=pass_id), self.memory)

    def pull_rows(self, pass_id: int, wanted: Sequence[object], targets: Sequence[object]) -> None:
        assert not wanted and not targets

    @property
    def real(self) -> Exchange:
        """This, as what loops take."""
        return cast(Exchange, self)


def open_exchange(shards: int, *, is_shared: bool = False) -> MemoryExchange:
    """The exchange of one trainer that owns everything."""
    return MemoryExchange(MemoryLane(shards, share_out(shards, 1)), is_shared=is_shared)


class Notes:
    """A listener that keeps all that it received."""

    def __init__(self, limit: int = 100) -> None:
        self.rounds: list[tuple[int, int, int]] = []
        self.results: list[PassResult] = []
        self.values: list[bytes] = []
        self._limit = limit

    def round_done(self, at: Position, batches: int, totals: Running) -> None:
        self.rounds.append((at.pass_id, at.batch, batches))

    def pass_done(self, result: PassResult, values: Floats, tables: Tables) -> None:
        self.results.append(result)
        self.values.append(values.tobytes())
        assert len(self.results) <= self._limit, "the loop does not end"


def readers_of(counts: Sequence[int], *, is_whole: bool = False) -> list[PackedReader]:
    rows = [Rows(shard, count, is_whole=is_whole) for shard, count in enumerate(counts)]
    return [PackedReader(r, r.facts(Path()), Path(), r.shard, seed=1, batch_size=10, cache=None) for r in rows]


def worker_of(counts: Sequence[int], program: SumProgram | None = None, test: int | None = None) -> Worker:
    """A worker that owns shards of so many samples, and perhaps so many test samples."""
    tester = None if test is None else readers_of([test])[0]
    return Worker(program or SumProgram(), readers_of(counts), tester)


def run_all(*jobs: Callable[[], None]) -> None:
    """Run each in a thread of its own; the first failure is raised here."""
    errors: list[BaseException] = []

    def guard(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guard, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
