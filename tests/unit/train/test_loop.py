"""The loop against the real round machine, with an exchange in memory and a program of one small sum."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.train.stage import (
    Floats,
    MemoryExchange,
    MemoryLane,
    Notes,
    SumProgram,
    open_exchange,
    readers_of,
    run_all,
    worker_of,
)

from bireme.ps.client.push_pull import Position
from bireme.ps.tree import Span, share_out
from bireme.ps.wire.frames import Record
from bireme.train.loop import Loop
from bireme.train.worker import Worker


def train(counts: list[int], passes: int = 2, program: SumProgram | None = None) -> tuple[MemoryLane, Notes]:
    exchange, notes = open_exchange(len(counts)), Notes()
    Loop(worker_of(counts, program), exchange.real, notes).run(passes)
    return exchange.lane, notes


def test_every_sample_is_trained_once_in_every_pass() -> None:
    lane, notes = train([25, 10, 31])
    assert notes.rounds == [(p, b, 4) for p in range(2) for b in range(4)]
    for result, totals in zip(notes.results, lane.totals, strict=True):
        assert {s: (c.read, c.trained) for s, c in result.ledger.items()} == {0: (25, 25), 1: (10, 10), 2: (31, 31)}
        assert {s: t.samples for s, t in totals.items()} == {0: 25, 1: 10, 2: 31}
        assert (result.totals.samples, result.totals.cost) == (66, 132.0)
    bias = lane.values[16]
    assert bias == -0.5 * 66 * 2


def test_the_values_are_those_of_plain_descent_along_the_tree() -> None:
    lane, _ = train([25, 10, 31], passes=1)
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
    assert lane.values[:4].tobytes() == wanted.tobytes()


def test_an_empty_shard_says_so_once_and_delays_none() -> None:
    lane, notes = train([0, 15], passes=1)
    first, second = lane.pushes
    assert first[2] == [Record(0, True, 0), Record(1, False, 10, 20.0, (1.0, 0.0, 0.0))]
    assert [r.shard for r in second[2]] == [1]
    assert notes.results[0].ledger[0].read == 0


def test_a_trainer_with_nothing_but_empty_shards_ends_its_pass() -> None:
    lane, notes = train([0, 0], passes=2)
    assert [push[3] for push in lane.pushes] == [False, False]
    assert [result.totals.samples for result in notes.results] == [0, 0]
    assert not lane.values.any()


def test_a_short_shard_ends_early_with_its_last_flag() -> None:
    lane, _ = train([5, 35], passes=1)
    assert [[(r.shard, r.is_last, r.samples) for r in push[2]] for push in lane.pushes] == [
        [(0, True, 5), (1, False, 10)],
        [(1, False, 10)],
        [(1, False, 10)],
        [(1, True, 5)],
    ]


def test_test_samples_are_evaluated_at_the_end_of_each_pass() -> None:
    exchange, notes = open_exchange(1), Notes()
    Loop(worker_of([10], test=25), exchange.real, notes).run(2)
    tests = [result.test for result in notes.results]
    assert [(t.samples, t.cost, t.evals) for t in tests if t] == [(25, 75.0, {"error": 1.5})] * 2


def test_a_trainer_after_its_shards_end_waits_for_the_next_pass() -> None:
    lane = MemoryLane(2, share_out(2, 2))
    exchange, zeros = MemoryExchange(lane), np.zeros_like(lane.values)
    # Another trainer has shard 1, with three batches; of shard 0 the only batch is in already.
    lane.give(0, Span(0, 1), [Record(0, True, 5)], zeros)
    lane.give(0, Span(1, 2), [Record(1, False, 10)], zeros)
    lane.give(1, Span(1, 2), [Record(1, False, 10)], zeros)
    notes = Notes(limit=3)

    def pull_pass(pass_id: int) -> Position:
        lane.give(lane.rounds.round, Span(1, 2), [Record(1, True, 10)], zeros)
        return MemoryExchange.pull_pass(exchange, pass_id)

    exchange.pull_pass = pull_pass  # type: ignore[method-assign]
    Loop(worker_of([5]), exchange.real, notes).run(1)
    assert [result.pass_id for result in notes.results] == [0]
    assert [push[1] for push in lane.pushes[3:]] == [Span(1, 2)]


@pytest.mark.parametrize("is_shared", [False, True], ids=["one set", "two sets"])
def test_every_step_uses_the_parameters_of_its_own_round(is_shared: bool) -> None:
    exchange, notes, program = open_exchange(1, is_shared=is_shared), Notes(), SumProgram()
    Loop(worker_of([20], program, test=10), exchange.real, notes).run(2)
    assert (exchange.memory.values(1) is not exchange.memory.values(0)) == is_shared
    # Ten samples a round at a rate of 0.5; the first batch is computed twice, and each pass ends with a test.
    assert program.seen == [0.0, 0.0, -5.0, -10.0, -10.0, -15.0, -20.0]
    assert notes.values[-1] == exchange.lane.values.tobytes()


SHARES = {
    "two trainers, one of two spans": (Span(0, 3), Span(3, 4)),
    "two trainers": share_out(4, 2),
    "three trainers": share_out(4, 3),
    "four trainers": share_out(4, 4),
}


@pytest.mark.parametrize("is_shared", [False, True], ids=["one set", "two sets"])
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
def test_any_number_of_trainers_gives_the_bits_of_one(shares: tuple[Span, ...], is_shared: bool) -> None:
    counts = [25, 0, 31, 7]
    wanted, expected = train(counts, program=SumProgram(pull=0.3))
    lane, notes = MemoryLane(4, shares), [Notes() for _ in shares]

    def one(rank: int) -> None:
        exchange = MemoryExchange(lane, rank, is_shared=is_shared)
        own = readers_of(counts)[shares[rank].lo : shares[rank].hi]
        Loop(Worker(SumProgram(pull=0.3), own, None), exchange.real, notes[rank]).run(2)

    run_all(*(lambda rank=rank: one(rank) for rank in range(len(shares))))
    assert lane.values.tobytes() == wanted.values.tobytes()
    assert [n.values for n in notes] == [expected.values] * len(shares)
    assert lane.totals == wanted.totals
