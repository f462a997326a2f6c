"""Local SGD over a lane in memory: what shards that train by themselves send, and where they and the lane end up."""

from __future__ import annotations

from collections.abc import Sequence

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
)

from bireme.core.errors import NumericError
from bireme.ps.tree import share_out
from bireme.spec.model import Optimizer, Updates
from bireme.train.local import LocalLoop, LocalRule
from bireme.train.loop import Loop
from bireme.train.worker import Worker

RATE = np.float32(0.5)
RULE = Optimizer(learning_rate=0.5, schedule="constant")


class Stage:
    """A job in mode `local`: its lane takes `rate` of the mean difference, as Setup.dense_rule says."""

    def __init__(
        self, counts: Sequence[int], trainers: int, updates: Updates, *, is_whole: bool = True, start_samples: int = 0
    ) -> None:
        self.counts, self.updates, self.is_whole, self.start_samples = counts, updates, is_whole, start_samples
        shards = len(counts)
        self.lane = MemoryLane(shards, share_out(shards, trainers), rate=updates.rate / shards)
        self.notes = [Notes() for _ in range(trainers)]
        self.loops = [self._loop(rank, SumProgram(pull=0.5)) for rank in range(trainers)]

    def _loop(self, rank: int, program: SumProgram) -> LocalLoop:
        share = self.lane.shares[rank]
        readers = readers_of(self.counts, is_whole=self.is_whole)[share.lo : share.hi]
        exchange = MemoryExchange(self.lane, rank)
        how = LocalRule(self.updates, RULE, self.lane.shards, start_samples=self.start_samples)
        return LocalLoop(Worker(program, readers, None), exchange.real, self.notes[rank], how)

    def run(self, passes: int = 1) -> Floats:
        run_all(*(lambda loop=loop: loop.run(passes) for loop in self.loops))
        return self.lane.values


def averaged(every: int) -> Updates:
    return Updates(mode="local", every=every)


def elastic(every: int, rate: float = 0.5) -> Updates:
    return Updates(mode="local", every=every, is_elastic=True, rate=rate)


@pytest.mark.parametrize("trainers", [1, 2, 4])
@pytest.mark.parametrize("counts", [[30, 30, 30, 30], [30, 10, 0, 17], [0, 0, 0, 10]], ids=str)
def test_meeting_after_every_batch_is_sync_sgd_with_the_mean(counts: list[int], trainers: int) -> None:
    sync = MemoryExchange(MemoryLane(4, share_out(4, 1), rate=0.5 / 4))
    worker = Worker(SumProgram(pull=0.5), readers_of(counts, is_whole=True), None)
    Loop(worker, sync.real, Notes()).run(1)
    stage = Stage(counts, trainers, averaged(1))
    assert stage.run().tobytes() == sync.lane.values.tobytes()
    assert stage.lane.totals == sync.lane.totals
    assert stage.lane.values.any()


@pytest.mark.parametrize("updates", [averaged(1), averaged(2), averaged(7), elastic(2), elastic(3, 0.3)], ids=str)
@pytest.mark.parametrize("counts", [[25, 10, 31, 7], [50, 0, 5, 1]], ids=str)
def test_any_number_of_trainers_gives_the_same_bits(counts: list[int], updates: Updates) -> None:
    one = Stage(counts, 1, updates, is_whole=False)
    one.run(2)
    for trainers in (2, 3, 4):
        several = Stage(counts, trainers, updates, is_whole=False)
        assert several.run(2).tobytes() == one.lane.values.tobytes()
        assert several.lane.totals == one.lane.totals
        assert {s: c.trained for n in several.notes for s, c in n.results[-1].ledger.items()} == dict(enumerate(counts))


def descend(shard: int, count: int, batches: range, w: Floats) -> Floats:
    """What plain SGD makes of the weights in these batches of a shard."""
    reader = readers_of([*[0] * shard, count], is_whole=True)[shard]
    for index in batches:
        samples = reader.batch(0, index).columns["x"].values
        assert samples is not None
        w = w - RATE * (samples.sum(axis=0) + np.float32(0.5) * w)
    return w


def test_averaged_shards_continue_from_the_mean_of_all() -> None:
    counts = [30, 30]
    common = np.zeros(4, np.float32)
    for batches in (range(2), range(2, 3)):
        common = (descend(0, 30, batches, common) + descend(1, 30, batches, common)) / np.float32(2)
    assert Stage(counts, 2, averaged(2)).run()[:4].tolist() == common.tolist()


def test_elastic_shards_keep_their_own_and_both_sides_move() -> None:
    stage = Stage([30, 20], 1, elastic(2))
    common = np.zeros(4, np.float32)
    own = [common, common]
    for number, batches in enumerate((range(2), range(2, 3))):
        live = [0, 1] if number == 0 else [0]  # the second shard has ended by then
        for shard in live:
            own[shard] = descend(shard, [30, 20][shard], batches, own[shard])
        apart = {shard: common - own[shard] for shard in live}
        for shard in live:
            own[shard] = own[shard] + np.float32(0.5) * apart[shard]
        common = common - np.float32(0.25) * sum(apart.values())
    assert stage.run()[:4].tolist() == common.tolist()
    copies = stage.loops[0]._copies
    assert [copies[shard].values[:4].tolist() for shard in (0, 1)] == [w.tolist() for w in own]
    assert own[0].tolist() != common.tolist()


def test_elastic_shards_keep_their_own_values_averaged_ones_not() -> None:
    for updates in (elastic(8, 0.25), averaged(8)):
        stage = Stage([10], 1, updates)
        loop = stage.loops[0]
        stage.run()
        copy, common = loop._copies[0].values.copy(), stage.lane.values
        loop._adopt(loop._exchange.pull_now())
        kept = copy if updates.is_elastic else common
        assert loop._copies[0].values.tobytes() == kept.tobytes()
        assert copy.tobytes() != common.tobytes() or not updates.is_elastic


@pytest.mark.parametrize("updates", [averaged(2), elastic(2)], ids=["average", "elastic"])
def test_a_pass_can_be_trained_by_new_trainers(updates: Updates) -> None:
    rule = Optimizer(method="adam", learning_rate=0.5, schedule="poly", decay_a=1e-2, decay_b=0.5)
    ends = []
    for parts in ([3], [1, 3], [1, 2, 3]):
        lane = MemoryLane(2, share_out(2, 1), rate=updates.rate / 2)
        for end in parts:
            worker = Worker(SumProgram(pull=0.5), readers_of([25, 31], is_whole=True), None)
            LocalLoop(worker, MemoryExchange(lane).real, Notes(), LocalRule(updates, rule, 2)).run(end)
        ends.append(lane.values.tobytes())
    assert ends == [ends[0]] * 3


@pytest.mark.parametrize(("every", "meetings"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (3, [2, 3]), (9, [3])])
def test_a_shard_syncs_every_few_batches_and_at_the_end(every: int, meetings: list[int]) -> None:
    stage = Stage([31, 5], 1, averaged(every))
    stage.run(2)
    assert stage.notes[0].rounds == [(p, batch, 4) for p in range(2) for batch in meetings]
    assert len(stage.lane.pushes) == 2 * len(meetings)


def test_a_record_sums_up_the_batches_since_the_last_meeting() -> None:
    stage = Stage([25, 0], 1, averaged(2))
    stage.run()
    records = [[(r.shard, r.is_last, r.samples, r.cost, r.evals[0]) for r in push[2]] for push in stage.lane.pushes]
    assert records == [[(0, False, 20, 40.0, 2.0), (1, True, 0, 0.0, 0.0)], [(0, True, 5, 10.0, 1.0)]]


def test_each_shards_schedule_counts_as_if_all_were_alike() -> None:
    stage = Stage([25, 0, 31], 1, averaged(2))
    stage.run(2)
    assert {shard: copy.samples for shard, copy in stage.loops[0]._copies.items()} == {0: 150, 1: 0, 2: 186}


def test_each_shards_schedule_continues_an_earlier_runs() -> None:
    stage = Stage([25, 0, 31], 2, averaged(2), start_samples=1000)
    stage.run()
    copies = {shard: copy.samples for loop in stage.loops for shard, copy in loop._copies.items()}
    assert copies == {0: 1075, 1: 1000, 2: 1093}


def test_each_copy_has_an_optimizer_of_its_own() -> None:
    rule = Optimizer(method="adam", learning_rate=0.5, schedule="constant")
    ends = []
    for counts in ([10, 10], [10, 10, 10]):
        exchange = open_exchange(len(counts))
        worker = Worker(SumProgram(), readers_of([10, *[0] * (len(counts) - 1)], is_whole=True), None)
        loop = LocalLoop(worker, exchange.real, Notes(), LocalRule(averaged(4), rule, len(counts)))
        loop.run(1)
        ends.append(loop._copies[0].values.tobytes())
    assert ends[0] == ends[1], "what a shard does by itself depends on how many there are"


def test_a_nan_is_named_by_the_batch_it_came_from_and_not_pushed() -> None:
    def spoil(program: SumProgram) -> None:
        if program.steps == 4:  # the first batch took two steps
            program.grads["w"][0] = np.nan

    stage = Stage([50], 1, averaged(4))
    with pytest.raises(NumericError, match=r"parameter w, round 0 \(pass 0, batch 2\), shard 0"):
        stage._loop(0, SumProgram(spoil)).run(1)
    assert stage.lane.pushes == []
