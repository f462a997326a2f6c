"""The loop against the real round machine, with an exchange in memory and a program of one small sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.core.errors import DeterminismError, NumericError
from bireme.programs.columns import Batch, InputType
from bireme.programs.program import Arrays, Computation, Role, Source, SourceFacts, Sums
from bireme.ps.client import Exchange, Position
from bireme.ps.frames import Flag, Head, Kind, Record
from bireme.ps.memory import TrainerMemory
from bireme.ps.plan import Layout
from bireme.ps.rounds import LaneRounds, Ready, Take, Totals
from bireme.ps.tree import Span, cover, share_out, spans_of
from bireme.spec.model import Optimizer, Parameter
from bireme.train.loop import Loop, PassResult, Running
from bireme.train.reader import ShardReader

INPUTS = (InputType(name="x", dim=4, kind="dense"),)
Floats = NDArray[np.float32]


class Rows:
    """A source of so many samples; sample i is a vector that nothing else has."""

    def __init__(self, shard: int, count: int) -> None:
        self.shard, self.count = shard, count

    def facts(self, workdir: Path) -> SourceFacts:
        return SourceFacts((), should_shuffle=True, is_cacheable=True, fingerprint="rows", inputs=INPUTS)

    def samples(self, workdir: Path, seed: int) -> Iterator[tuple[object, ...]]:
        for i in range(self.count):
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

    def __init__(self, spoil: Callable[[SumProgram], None] | None = None) -> None:
        self.steps = 0
        self.cost = 2.0
        self.seen: list[float] = []
        """The bias that each step was computed from."""
        self.grads: Arrays = {}
        """What the last step wrote to."""
        self.spoil = spoil

    def source(self, role: Role) -> Source | None:
        return None

    def bind(self, values: Arrays, grads: Arrays) -> Computation:
        return SumComputation(self, values, grads)


class SumComputation:
    """The program over one set of arrays; what it does is noted at the program."""

    def __init__(self, program: SumProgram, values: Arrays, grads: Arrays) -> None:
        self._program, self._values, self._grads = program, values, grads

    def step(self, batch: Batch) -> Sums:
        program = self._program
        program.steps += 1
        program.seen.append(float(self._values["b"][0]))
        values = batch.columns["x"].values
        assert values is not None
        self._grads["w"][...] = values.sum(axis=0)
        self._grads["b"][...] = len(batch)
        program.grads = self._grads
        if program.spoil is not None:
            program.spoil(program)
        return Sums(len(batch), program.cost * len(batch), {"error": 1.0})

    def evaluate(self, batch: Batch) -> Sums:
        self._program.seen.append(float(self._values["b"][0]))
        return Sums(len(batch), 3.0 * len(batch), {"error": 0.5})

    def predict(self, batch: Batch) -> Mapping[str, Floats]:
        return {}


class MemoryExchange:
    """One lane in memory: the real round machine, plain SGD in numpy, and the memory of the first trainer."""

    def __init__(
        self, shards: int, trainers: int = 1, *, shares: tuple[Span, ...] = (), is_shared: bool = False
    ) -> None:
        shares = shares or share_out(shards, trainers)
        spans = spans_of(shares, shards)
        layout = Layout(SumProgram.parameters)
        size = layout.size
        self.memory = TrainerMemory(layout, cover(shares[0], shards), is_shared=is_shared)
        self.memory.close()  # nobody is handed the descriptor here; what is mapped stays
        self.rounds = LaneRounds(shards, spans, 4 * size, job=1, view=1)
        self.inbox = np.zeros((len(spans), size), dtype=np.float32)
        self.values = np.zeros(size, dtype=np.float32)
        self.pushes: list[tuple[int, Span, list[Record], bool]] = []
        self.totals: list[dict[int, Totals]] = []

    def push(self, round_: int, span: Span, records: list[Record], *, is_empty: bool = False) -> None:
        self.give(round_, span, records, None if is_empty else self.memory.row(span))

    def give(self, round_: int, span: Span, records: list[Record], grads: Floats | None) -> None:
        self.pushes.append((round_, span, records, grads is not None))
        nbytes = 0 if grads is None else grads.nbytes
        head = Head(Kind.PUSH, job=1, view=1, round=round_, lo=span.lo, hi=span.hi, nbytes=nbytes)
        verdict = self.rounds.offer(head, records)
        assert isinstance(verdict, Take), verdict
        if grads is not None:
            self.inbox[verdict.row] = grads
        closing = self.rounds.landed(span)
        if closing is None:
            return
        for a, b in closing.steps:
            self.inbox[a] += self.inbox[b]
        if closing.root is not None:
            self.values = self.values - np.float32(0.5) * self.inbox[closing.root]
        done = self.rounds.close()
        if done is not None:
            self.totals.append(done)

    def _answer(self, head: Head) -> Position:
        verdict = self.rounds.look(head._replace(job=1, view=1))
        assert isinstance(verdict, Ready), f"the loop would wait for ever: {verdict}"
        self.memory.values(verdict.round)[:] = self.values
        return Position(verdict.round, verdict.pass_id, verdict.batch)

    def pull_now(self) -> Position:
        return self._answer(Head(Kind.PULL, Flag.NOW))

    def pull_round(self, round_: int) -> Position:
        return self._answer(Head(Kind.PULL, round=round_))

    def pull_pass(self, pass_id: int) -> Position:
        return self._answer(Head(Kind.PULL, Flag.AT_PASS, round=pass_id))


class Notes:
    """A listener that keeps what it was told."""

    def __init__(self, limit: int = 100) -> None:
        self.rounds: list[tuple[int, int, int]] = []
        self.results: list[PassResult] = []
        self.values: list[bytes] = []
        self._limit = limit

    def round_done(self, pass_id: int, batch: int, batches: int, totals: Running) -> None:
        self.rounds.append((pass_id, batch, batches))

    def pass_done(self, result: PassResult, values: Floats) -> None:
        self.results.append(result)
        self.values.append(values.tobytes())
        assert len(self.results) <= self._limit, "the loop does not end"


def readers_of(counts: list[int]) -> list[ShardReader]:
    rows = [Rows(shard, count) for shard, count in enumerate(counts)]
    return [ShardReader(r, Path(), r.shard, seed=1, batch_size=10, cache=None) for r in rows]


def run(loop: Loop, exchange: MemoryExchange, passes: int, notes: Notes) -> None:
    loop.run(cast(Exchange, exchange), passes, notes)


def train(counts: list[int], passes: int = 2, program: SumProgram | None = None) -> tuple[MemoryExchange, Notes]:
    exchange, notes = MemoryExchange(len(counts)), Notes()
    loop = Loop(program or SumProgram(), readers_of(counts), None)
    run(loop, exchange, passes, notes)
    return exchange, notes


def test_every_sample_is_trained_once_in_every_pass() -> None:
    exchange, notes = train([25, 10, 31])
    assert notes.rounds == [(p, b, 4) for p in range(2) for b in range(4)]
    for result, totals in zip(notes.results, exchange.totals, strict=True):
        assert {s: (c.read, c.trained) for s, c in result.ledger.items()} == {0: (25, 25), 1: (10, 10), 2: (31, 31)}
        assert {s: t.samples for s, t in totals.items()} == {0: 25, 1: 10, 2: 31}
        assert (result.totals.samples, result.totals.cost) == (66, 132.0)
    bias = exchange.values[16]
    assert bias == -0.5 * 66 * 2


def test_the_values_are_those_of_plain_descent_along_the_tree() -> None:
    exchange, _ = train([25, 10, 31], passes=1)
    readers = readers_of([25, 10, 31])
    wanted = np.zeros(4, dtype=np.float32)
    for index in range(4):
        sums: list[Floats | None] = []
        for reader in readers:
            if index < reader.batches(0):
                values = reader.batch(0, index).columns["x"].values
                assert values is not None
                sums.append(values.sum(axis=0))
            else:
                sums.append(None)
        left = sums[0] if sums[1] is None else sums[1] if sums[0] is None else sums[0] + sums[1]
        parts = [part for part in (left, sums[2]) if part is not None]
        wanted = wanted - np.float32(0.5) * (parts[0] if len(parts) == 1 else parts[0] + parts[1])
    assert exchange.values[:4].tobytes() == wanted.tobytes()


def test_an_empty_shard_says_so_once_and_holds_up_nobody() -> None:
    exchange, notes = train([0, 15], passes=1)
    first, second = exchange.pushes
    assert first[2] == [Record(0, True, 0), Record(1, False, 10, 20.0, (1.0, 0.0, 0.0))]
    assert [r.shard for r in second[2]] == [1]
    assert notes.results[0].ledger[0].read == 0


def test_a_trainer_with_nothing_but_empty_shards_ends_its_pass() -> None:
    exchange, notes = train([0, 0], passes=2)
    assert [push[3] for push in exchange.pushes] == [False, False]
    assert [result.totals.samples for result in notes.results] == [0, 0]
    assert not exchange.values.any()


def test_a_short_shard_ends_early_with_its_last_flag() -> None:
    exchange, _ = train([5, 35], passes=1)
    assert [[(r.shard, r.is_last, r.samples) for r in push[2]] for push in exchange.pushes] == [
        [(0, True, 5), (1, False, 10)],
        [(1, False, 10)],
        [(1, False, 10)],
        [(1, True, 5)],
    ]


def test_the_first_batch_alone_is_computed_twice() -> None:
    program = SumProgram()
    train([20, 10], passes=2, program=program)
    assert program.steps == 2 * 3 + 1


@pytest.mark.parametrize("counts", [[25, 10], [0, 10], [0, 0]])
def test_a_rehearsal_leaves_no_trace(counts: list[int]) -> None:
    wanted, _ = train(counts)
    exchange, notes, program = MemoryExchange(len(counts)), Notes(), SumProgram()
    loop = Loop(program, readers_of(counts), None)
    loop.rehearse(0)
    assert program.steps == (1 if any(counts) else 0)
    run(loop, exchange, 2, notes)
    assert exchange.values.tobytes() == wanted.values.tobytes()
    assert exchange.pushes == wanted.pushes


@pytest.mark.parametrize(("name", "bad"), [("w", np.nan), ("w", -np.inf), ("b", np.inf)])
def test_a_nan_in_a_gradient_is_told_by_parameter_and_round_and_not_pushed(name: str, bad: float) -> None:
    def spoil(program: SumProgram) -> None:
        if program.steps == 4:  # the first batch took two steps, so this is round 2
            program.grads[name][-1] = bad

    exchange = MemoryExchange(1)
    loop = Loop(SumProgram(spoil), readers_of([35]), None)
    with pytest.raises(NumericError) as caught:
        run(loop, exchange, 1, Notes())
    where = f"a NaN or infinity in the gradient of parameter {name}, round 2 (pass 0, batch 2), shard 0"
    assert caught.value.what == where
    assert "gradient_clipping_threshold" in caught.value.fix
    assert len(exchange.pushes) == 2


def test_a_nan_in_the_cost_is_told_as_such() -> None:
    program = SumProgram()
    program.cost = float("nan")
    with pytest.raises(NumericError, match="a NaN or infinity in the cost, round 0"):
        train([10], program=program)


def test_finite_gradients_whose_sum_overflows_are_fine() -> None:
    def spoil(program: SumProgram) -> None:
        program.grads["w"][...] = 3e38

    with np.errstate(over="ignore"):
        exchange, _ = train([10], passes=1, program=SumProgram(spoil))
    assert len(exchange.pushes) == 1


def test_a_program_that_gives_two_answers_is_refused_by_parameter() -> None:
    def spoil(program: SumProgram) -> None:
        program.grads["b"][0] += program.steps

    with pytest.raises(DeterminismError, match=r"two different results, first in b \(shard 0, round 0\)") as caught:
        train([10], program=SumProgram(spoil))
    assert "randomness" in caught.value.fix


def test_a_cost_that_changes_is_refused_too() -> None:
    def spoil(program: SumProgram) -> None:
        program.cost += 1.0

    with pytest.raises(DeterminismError, match="first in the cost"):
        train([10], program=SumProgram(spoil))


def test_a_zero_that_changes_its_sign_is_another_answer() -> None:
    def spoil(program: SumProgram) -> None:
        program.grads["b"][0] = -0.0 if program.steps == 1 else 0.0

    with pytest.raises(DeterminismError, match="first in b"):
        train([10], program=SumProgram(spoil))


def test_test_samples_are_evaluated_at_the_end_of_each_pass() -> None:
    exchange, notes = MemoryExchange(1), Notes()
    loop = Loop(SumProgram(), readers_of([10]), readers_of([25])[0])
    run(loop, exchange, 2, notes)
    tests = [result.test for result in notes.results]
    assert [(t.samples, t.cost, t.evals) for t in tests if t] == [(25, 75.0, {"error": 1.5})] * 2


def test_a_trainer_that_comes_when_its_own_shards_have_ended_waits_for_the_next_pass() -> None:
    exchange = MemoryExchange(2, trainers=2)
    rounds = exchange.rounds
    zeros = np.zeros_like(exchange.values)
    # Another trainer has shard 1, with three batches; of shard 0 the only batch is in already.
    exchange.give(0, Span(0, 1), [Record(0, True, 5)], zeros)
    exchange.give(0, Span(1, 2), [Record(1, False, 10)], zeros)
    exchange.give(1, Span(1, 2), [Record(1, False, 10)], zeros)
    notes = Notes(limit=3)

    def pull_pass(pass_id: int) -> Position:
        exchange.give(rounds.round, Span(1, 2), [Record(1, True, 10)], zeros)
        return MemoryExchange.pull_pass(exchange, pass_id)

    exchange.pull_pass = pull_pass  # type: ignore[method-assign]
    loop = Loop(SumProgram(), readers_of([5]), None)
    run(loop, exchange, 1, notes)
    assert [result.pass_id for result in notes.results] == [0]


@pytest.mark.parametrize("is_shared", [False, True], ids=["one set", "two sets"])
def test_every_step_and_test_is_computed_from_the_parameters_of_its_own_round(is_shared: bool) -> None:
    exchange, notes, program = MemoryExchange(1, is_shared=is_shared), Notes(), SumProgram()
    loop = Loop(program, readers_of([20]), readers_of([10])[0])
    run(loop, exchange, 2, notes)
    assert exchange.memory.set_of(1) == int(is_shared)
    # Ten samples a round at a rate of 0.5; the first batch is computed twice, and each pass ends with a test.
    assert program.seen == [0.0, 0.0, -5.0, -10.0, -10.0, -15.0, -20.0]
    assert notes.values[-1] == exchange.values.tobytes()


@pytest.mark.parametrize("is_shared", [False, True], ids=["one set", "two sets"])
def test_a_share_of_several_subtrees_gives_the_bits_of_one(is_shared: bool) -> None:
    counts = [25, 10, 31, 7]
    wanted, _ = train(counts)
    exchange = MemoryExchange(4, shares=(Span(0, 3), Span(3, 4)), is_shared=is_shared)
    assert exchange.memory.spans == (Span(0, 2), Span(2, 3))
    readers, program = readers_of(counts), SumProgram()
    loop, zeros, grads = Loop(program, readers[:3], None), np.zeros_like(wanted.values), np.zeros_like(wanted.values)
    other = program.bind(loop.layout.views(zeros), loop.layout.views(grads))

    def pull(ask: Callable[[int], Position], at: int) -> Position:
        """The other trainer has one batch a pass, in its first round."""
        rounds = exchange.rounds
        if 3 not in rounds.ended and rounds.round == rounds.pass_start:
            sums = other.step(readers[3].batch(rounds.pass_id, 0))
            exchange.give(rounds.round, Span(3, 4), [Record(3, True, sums.samples)], grads)
        return ask(at)

    ask_round, ask_pass = exchange.pull_round, exchange.pull_pass
    exchange.pull_round = partial(pull, ask_round)  # type: ignore[method-assign]
    exchange.pull_pass = partial(pull, ask_pass)  # type: ignore[method-assign]
    run(loop, exchange, 2, Notes())
    assert exchange.values.tobytes() == wanted.values.tobytes()


def test_a_loop_says_which_shards_it_owns() -> None:
    assert Loop(SumProgram(), readers_of([1, 2, 3])[1:], None).share == Span(1, 3)
