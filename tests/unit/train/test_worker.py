"""A worker's checks and counts, seen through the gradients that it computes or refuses."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.train.stage import MemoryExchange, Notes, SumProgram, open_exchange, readers_of, worker_of

from bireme.core.errors import DeterminismError, NumericError
from bireme.ps.client.push_pull import Position
from bireme.ps.plan import aligned_zeros
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Record
from bireme.train.loop import Loop
from bireme.train.worker import Gradient, Worker, add_parts


def train(counts: list[int], program: SumProgram, passes: int = 2) -> MemoryExchange:
    exchange = open_exchange(len(counts))
    Loop(worker_of(counts, program), exchange.real, Notes()).run(passes)
    return exchange


def test_a_worker_says_which_shards_it_owns() -> None:
    assert Worker(SumProgram(), readers_of([1, 2, 3])[1:], None).share == Span(1, 3)


def test_a_pass_has_the_rounds_of_its_longest_shard_or_one() -> None:
    worker = worker_of([25, 0, 31])
    assert worker.open_pass(0) == 4
    assert [worker.rounds_of(shard) for shard in range(3)] == [3, 1, 4]
    assert {s: counts.read for s, counts in worker.ledger.items()} == {0: 25, 1: 0, 2: 31}
    assert worker_of([0, 0]).open_pass(0) == 1


def test_a_batch_is_prepared_for_its_shards_or_the_named_ones() -> None:
    worker = worker_of([25, 0, 31])
    worker.open_pass(0)
    assert [sorted(worker.prepare(0, index).batches) for index in range(5)] == [[0, 2], [0, 2], [0, 2], [2], []]
    assert sorted(worker.prepare(0, 0, [2]).batches) == [2]
    assert sorted(worker.prepare(0, 3, [0]).batches) == []


def test_a_record_is_of_the_batch_that_was_just_computed() -> None:
    worker = worker_of([15, 0])
    worker.open_pass(0)
    values, grads = aligned_zeros(worker.layout.size), aligned_zeros(worker.layout.size)
    for index, wanted in enumerate(
        [Record(0, False, 10, 20.0, (1.0, 0.0, 0.0)), Record(0, True, 5, 10.0, (1.0, 0, 0))]
    ):
        worker.gradient(Position(index, 0, index), 0, worker.prepare(0, index), (values, grads))
        assert worker.record(0, index) == wanted
    assert worker.record(1, 0) == Record(1, True, 0)
    assert (worker.ledger[0].trained, worker.totals.samples, worker.totals.evals) == (15, 15, {"error": 2.0})


def test_parts_are_added_in_the_memory_of_the_left_one() -> None:
    left, right = np.ones(4, np.float32), np.full(4, 2.0, np.float32)
    total = add_parts(Gradient(left, []), Gradient(right, []))
    assert total.dense is left
    assert left.tolist() == [3.0] * 4
    assert right.tolist() == [2.0] * 4


def test_the_first_batch_alone_is_computed_twice() -> None:
    program = SumProgram()
    train([20, 10], program)
    assert program.steps == 2 * 3 + 1


@pytest.mark.parametrize("counts", [[25, 10], [0, 10], [0, 0]])
def test_a_rehearsal_leaves_no_trace(counts: list[int]) -> None:
    wanted = train(counts, SumProgram())
    exchange, program = open_exchange(len(counts)), SumProgram()
    worker = worker_of(counts, program, test=5)
    worker.rehearse(0)
    assert program.steps == (1 if any(counts) else 0)
    Loop(worker, exchange.real, Notes()).run(2)
    assert exchange.lane.values.tobytes() == wanted.lane.values.tobytes()
    assert exchange.lane.pushes == wanted.lane.pushes


@pytest.mark.parametrize(("name", "bad"), [("w", np.nan), ("w", -np.inf), ("b", np.inf)])
def test_a_nan_is_named_by_parameter_and_round_and_not_pushed(name: str, bad: float) -> None:
    def spoil(program: SumProgram) -> None:
        if program.steps == 4:  # the first batch took two steps, so this is round 2
            program.grads[name][-1] = bad

    exchange = open_exchange(1)
    loop = Loop(worker_of([35], SumProgram(spoil)), exchange.real, Notes())
    with pytest.raises(NumericError) as caught:
        loop.run(1)
    where = f"a NaN or infinity in the gradient of parameter {name}, round 2 (pass 0, batch 2), shard 0"
    assert caught.value.what == where
    assert "gradient_clipping_threshold" in caught.value.fix
    assert len(exchange.lane.pushes) == 2


def test_a_nan_in_the_cost_is_reported_as_such() -> None:
    program = SumProgram()
    program.cost = float("nan")
    with pytest.raises(NumericError, match="a NaN or infinity in the cost, round 0"):
        train([10], program)


def test_finite_gradients_whose_sum_overflows_are_fine() -> None:
    def spoil(program: SumProgram) -> None:
        program.grads["w"][...] = 3e38

    with np.errstate(over="ignore"):
        exchange = train([10], SumProgram(spoil), passes=1)
    assert len(exchange.lane.pushes) == 1


def test_a_program_of_two_answers_is_refused_by_parameter() -> None:
    def spoil(program: SumProgram) -> None:
        program.grads["b"][0] += program.steps

    with pytest.raises(DeterminismError, match=r"two different results, first in b \(shard 0, round 0\)") as caught:
        train([10], SumProgram(spoil))
    assert "randomness" in caught.value.fix


def test_a_cost_that_changes_is_refused_too() -> None:
    def spoil(program: SumProgram) -> None:
        program.cost += 1.0

    with pytest.raises(DeterminismError, match="first in the cost"):
        train([10], SumProgram(spoil))


def test_a_zero_that_changes_its_sign_is_another_answer() -> None:
    def spoil(program: SumProgram) -> None:
        program.grads["b"][0] = -0.0 if program.steps == 1 else 0.0

    with pytest.raises(DeterminismError, match="first in b"):
        train([10], SumProgram(spoil))
