"""The modes `bounded` and `async` over real sockets: each shard goes by itself, and every push counts exactly once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from tests.integration.test_carriers import near
from tests.integration.test_server_and_client import ME, WAIT_S, Cluster, gradient, run_all, trained
from tests.integration.test_server_and_client import cluster as cluster  # a fixture
from tests.unit.train.stage import Notes, SumProgram, readers_of

from bireme.core import faults
from bireme.core.errors import RefusedError
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Link, Position
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.tree import Span, rows_of, share_out
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind, Record, pack_records
from bireme.spec.model import UpdateMode, Updates
from bireme.train.loop import ApartLoop
from bireme.train.worker import Running, Worker

Reach = Callable[[Cluster, int], socket.socket]
REACHES: dict[str, Reach] = {"unix": near, "tcp": Cluster.connect}
MODES: dict[str, Updates] = {
    "async": Updates(mode="async"),
    "bounded by 0": Updates(mode="bounded", staleness=0),
    "bounded by 2": Updates(mode="bounded", staleness=2),
}
ASYNC = MODES["async"]


def bounded(staleness: int) -> Updates:
    return Updates(mode="bounded", staleness=staleness)


def open_exchange(
    cluster: Cluster, share: Span, reach: Reach = Cluster.connect, lanes: Sequence[int] | None = None
) -> Exchange:
    """A trainer's exchange with all lanes, or with these only."""
    ports = [port for server in cluster.servers for port in server.ports]
    parts = cluster.layout.slices(len(ports))
    chosen = range(len(ports)) if lanes is None else lanes
    spans = rows_of(share, cluster.shards, is_apart=True)
    memory = TrainerMemory(cluster.layout, spans, is_shared=False)
    return Exchange([Link(reach(cluster, ports[i]), parts[i]) for i in chosen], memory, ME, is_streamed=True)


def machine(cluster: Cluster, lane: int = 0) -> LaneStream:
    found = cluster.servers[0].lanes[lane].rounds
    assert isinstance(found, LaneStream)
    return found


def push(
    exchange: Exchange, cluster: Cluster, shard: int, batch: int, *, pass_id: int = 0, is_last: bool = False
) -> None:
    """A shard's gradient of a batch: small whole numbers, whose sums are exact in any order."""
    span = Span(shard, shard + 1)
    exchange.memory.row(span)[:] = gradient(cluster, shard, 100 * pass_id + batch)
    exchange.push(batch, span, [Record(shard, is_last, 10, 1.0)], pass_id=pass_id)


def step(
    exchange: Exchange, cluster: Cluster, shard: int, batch: int, *, pass_id: int = 0, is_last: bool = False
) -> None:
    """Pull a batch's parameters and push its gradient."""
    exchange.ask_batch(shard, pass_id, batch)
    assert exchange.receive()[1:] == (pass_id, batch)
    push(exchange, cluster, shard, batch, pass_id=pass_id, is_last=is_last)


def values_now(exchange: Exchange, cluster: Cluster, shard: int = 0) -> list[float]:
    exchange.ask_now(shard=shard)
    exchange.receive()
    return [float(value) for value in trained(cluster, exchange.memory.values(0))]


def sum_of(cluster: Cluster, pushes: Sequence[tuple[int, int]]) -> list[float]:
    """Where these (shard, pass and batch) pushes lead, each applied once, from zero."""
    total = sum((gradient(cluster, shard, number) for shard, number in pushes), cluster.zeros())
    return [float(value) for value in trained(cluster, np.float32(-0.5) * total)]


@pytest.mark.parametrize("reach", REACHES.values(), ids=REACHES.keys())
@pytest.mark.parametrize("updates", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("pservers", [1, 2])
def test_whatever_the_order_no_gradient_is_lost_or_counted_twice(
    cluster: Cluster, pservers: int, updates: Updates, reach: Reach
) -> None:
    cluster.start(pservers, 2)
    cluster.set_up(updates=updates)
    batches, ends = [5, 1, 8], []

    def train(shard: int) -> None:
        exchange = open_exchange(cluster, Span(shard, shard + 1), reach)
        for pass_id in range(2):
            for batch in range(batches[shard]):
                is_last = batch + 1 == batches[shard]
                step(exchange, cluster, shard, batch, pass_id=pass_id, is_last=is_last)
            exchange.ask_pass(pass_id + 1, shard=shard)
            assert exchange.receive().pass_id == pass_id + 1
        ends.append(trained(cluster, exchange.memory.values(0)).tolist())
        exchange.close()

    run_all(*(partial(train, shard) for shard in range(3)))
    every = [(shard, 100 * p + b) for shard in range(3) for p in range(2) for b in range(batches[shard])]
    assert ends == [sum_of(cluster, every)] * 3
    assert [(closed.pass_id, closed.samples, sum(closed.staleness.values())) for closed in cluster.passes] == [
        (0, 140, 14),
        (1, 280, 14),
    ]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_shard_gets_further_ahead_than_the_bound(cluster: Cluster, staleness: int) -> None:
    cluster.start(lanes=2)
    cluster.set_up(updates=bounded(staleness))
    batches, sent, seen = [12, 4, 9], [0, 0, 0], []

    def train(shard: int) -> None:
        exchange = open_exchange(cluster, Span(shard, shard + 1))
        for batch in range(batches[shard]):
            exchange.ask_batch(shard, 0, batch)
            exchange.receive()
            # A push is counted before it is sent, so a lane can only have seen fewer of them than this.
            seen.append(batch - min((q for s, q in enumerate(sent) if q < batches[s]), default=batch))
            sent[shard] += 1
            push(exchange, cluster, shard, batch, is_last=batch + 1 == batches[shard])
        exchange.ask_pass(1, shard=shard)
        exchange.receive()

    run_all(*(partial(train, shard) for shard in range(3)))
    assert max(seen) <= staleness
    (closed,) = cluster.passes
    assert set(closed.staleness) <= set(range(staleness + 1))
    assert sum(closed.staleness.values()) == sum(batches)


def test_a_shard_at_the_bound_waits_for_the_slowest_push(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up(shards=2, updates=bounded(1))
    quick, slow = open_exchange(cluster, Span(0, 1)), open_exchange(cluster, Span(1, 2))
    for batch in range(2):
        step(quick, cluster, 0, batch)
    quick.ask_batch(0, 0, 2)
    step(slow, cluster, 1, 0)
    # The answer cannot be older than the push that it had to wait for.
    assert quick.receive().round == 3
    push(quick, cluster, 0, 2)
    assert values_now(quick, cluster) == sum_of(cluster, [(0, 0), (0, 1), (0, 2), (1, 0)])


def test_a_push_past_the_bound_that_was_never_pulled_is_refused(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up(shards=2, updates=bounded(1))
    hasty = open_exchange(cluster, Span(0, 1))
    for batch in range(3):
        push(hasty, cluster, 0, batch)
    with pytest.raises(RefusedError, match="shard 0 is 2 batches ahead, more than 1: pull first"):
        values_now(hasty, cluster)
    friend = open_exchange(cluster, Span(1, 2))
    assert values_now(friend, cluster, 1) == sum_of(cluster, [(0, 0), (0, 1)])


def test_a_shard_that_has_ended_delays_none(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up(shards=2, updates=bounded(0))
    exchange = open_exchange(cluster, Span(0, 2))
    step(exchange, cluster, 1, 0, is_last=True)
    for batch in range(5):
        step(exchange, cluster, 0, batch)
    assert values_now(exchange, cluster) == sum_of(cluster, [(1, 0), *((0, batch) for batch in range(5))])


@pytest.mark.parametrize("updates", MODES.values(), ids=MODES.keys())
def test_a_push_that_is_sent_again_counts_once(cluster: Cluster, updates: Updates) -> None:
    cluster.start(lanes=2)
    cluster.set_up(shards=1, updates=updates)
    first = open_exchange(cluster, Span(0, 1))
    step(first, cluster, 0, 0)
    push(first, cluster, 0, 0)
    assert values_now(first, cluster) == sum_of(cluster, [(0, 0)])  # so both have landed
    again = open_exchange(cluster, Span(0, 1), near)
    push(again, cluster, 0, 0)
    step(again, cluster, 0, 1)
    assert values_now(again, cluster) == sum_of(cluster, [(0, 0), (0, 1)])
    push(first, cluster, 0, 0)
    assert values_now(first, cluster) == sum_of(cluster, [(0, 0), (0, 1)])
    assert [machine(cluster, lane).round for lane in (0, 1)] == [2, 2]


def test_a_push_of_an_earlier_pass_counts_no_more(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up(shards=1, updates=ASYNC)
    exchange = open_exchange(cluster, Span(0, 1))
    step(exchange, cluster, 0, 0, is_last=True)
    step(exchange, cluster, 0, 0, pass_id=1)
    push(exchange, cluster, 0, 0, is_last=True)
    assert values_now(exchange, cluster) == sum_of(cluster, [(0, 0), (0, 100)])


def test_a_push_repeated_to_two_lanes_counts_once_on_each(cluster: Cluster) -> None:
    cluster.start(lanes=2)
    cluster.set_up(shards=1, updates=ASYNC)
    half = open_exchange(cluster, Span(0, 1), lanes=[0])
    step(half, cluster, 0, 0)
    half.ask_now()
    assert half.receive().round == 1
    half.close()
    whole = open_exchange(cluster, Span(0, 1))
    push(whole, cluster, 0, 0)
    step(whole, cluster, 0, 1)
    assert values_now(whole, cluster) == sum_of(cluster, [(0, 0), (0, 1)])


def test_a_push_that_was_cut_off_is_taken_when_it_comes_again(cluster: Cluster) -> None:
    cluster.start(lanes=1)
    cluster.set_up(shards=2, updates=ASYNC)
    dying, row = cluster.connect(), gradient(cluster, 0, 0)
    head = Head(Kind.PUSH, job=7, view=3, hi=1, nbytes=row.nbytes, records=1)
    frame_io.send(dying, head, pack_records([Record(0, False, 10)]), row[:50])
    dying.close()
    cluster.closed.get(timeout=WAIT_S)
    exchange = open_exchange(cluster, Span(0, 2))
    step(exchange, cluster, 1, 0)
    step(exchange, cluster, 0, 0)
    assert values_now(exchange, cluster) == sum_of(cluster, [(0, 0), (1, 0)])


@pytest.mark.parametrize(("batch", "pass_id"), [(1, 0), (7, 0), (0, 1), (0, 9)])
def test_a_push_that_is_ahead_of_its_shard_is_refused(cluster: Cluster, batch: int, pass_id: int) -> None:
    cluster.start(lanes=1)
    cluster.set_up(shards=2, updates=ASYNC)
    exchange = open_exchange(cluster, Span(0, 1))
    push(exchange, cluster, 0, batch, pass_id=pass_id)
    closed = f"batch {batch} of pass {pass_id} is ahead: the lane expects batch 0 of pass 0 from shard 0"
    with pytest.raises(RefusedError, match=closed):
        values_now(exchange, cluster)
    assert machine(cluster).round == 0


class Watch(Notes):
    """A listener that lets a test act when a round of the loop is over."""

    def __init__(self, act: Callable[[int], None]) -> None:
        super().__init__()
        self._act = act

    def round_done(self, at: Position, batches: int, totals: Running) -> None:
        super().round_done(at, batches, totals)
        self._act(at.pass_id)


def set_up_sums(cluster: Cluster, shares: Sequence[Span], updates: Updates, **changes: object) -> None:
    cluster.start(lanes=2)
    shards = shares[-1].hi
    cluster.set_up(parameters=SumProgram.parameters, shards=shards, shares=tuple(shares), updates=updates, **changes)


def loop_of(cluster: Cluster, share: Span, counts: Sequence[int], notes: Notes) -> ApartLoop:
    readers = readers_of(counts, is_whole=True)[share.lo : share.hi]
    tester = readers_of([10])[0] if share.lo == 0 else None
    return ApartLoop(Worker(SumProgram(), readers, tester), open_exchange(cluster, share), notes)


def sample_sums(counts: Sequence[int]) -> list[float]:
    """The weights and the bias after one pass over so many samples, starting from zero."""
    total = np.zeros(5, np.float32)
    for reader in readers_of(counts, is_whole=True):
        for index in range(reader.batches(0)):
            samples = reader.batch(0, index).columns["x"].values
            assert samples is not None
            total += [*samples.sum(axis=0), len(samples)]
    return [float(value) for value in np.float32(-0.5) * total]


@pytest.mark.parametrize("updates", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_loops_train_every_sample_once_in_every_pass(cluster: Cluster, updates: Updates, trainers: int) -> None:
    counts, shares = [45, 0, 12, 31], share_out(4, trainers)
    set_up_sums(cluster, shares, updates)
    notes = [Notes() for _ in shares]
    loops = [loop_of(cluster, share, counts, n) for share, n in zip(shares, notes, strict=True)]
    run_all(*(partial(loop.run, 3) for loop in loops))
    for note in notes:
        assert [result.pass_id for result in note.results] == [0, 1, 2]
    ledger = {s: (c.read, c.trained) for n in notes for s, c in n.results[-1].ledger.items()}
    assert ledger == {s: (count, count) for s, count in enumerate(counts)}
    assert [{s: t.samples for s, t in each.shards.items()} for each in cluster.passes] == [dict(enumerate(counts))] * 3
    exchange = open_exchange(cluster, Span(0, 1))
    assert values_now(exchange, cluster) == [3 * value for value in sample_sums(counts)]


class Places(Notes):
    """A listener that keeps where each batch began."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Position] = []

    def round_done(self, at: Position, batches: int, totals: Running) -> None:
        super().round_done(at, batches, totals)
        self.places.append(at)


@pytest.mark.parametrize("updates", MODES.values(), ids=MODES.keys())
def test_loops_count_the_updates_of_all_passes_so_far(cluster: Cluster, updates: Updates) -> None:
    set_up_sums(cluster, share_out(2, 1), updates)
    notes = Places()
    loop_of(cluster, Span(0, 2), [20, 30], notes).run(3)
    # One trainer takes turns between its shards, and a batch begins when the one before it is in.
    within = [(0, 1), (1, 3), (2, 4)]
    assert notes.places == [Position(5 * p + updates, p, batch) for p in range(3) for batch, updates in within]


def test_pushes_pass_fault_points_by_the_updates_of_all_passes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[int] = []
    monkeypatch.setattr(faults, "at", lambda point, round_=0: passed.append(round_) if "push" in point else None)
    set_up_sums(cluster, share_out(1, 1), ASYNC)
    loop_of(cluster, Span(0, 1), [20], Notes()).run(3)
    assert passed == [update for update in range(6) for _ in ("push.before", "push.after")]


@pytest.mark.parametrize("start_pass", [0, 4])
def test_a_loop_may_begin_when_others_are_at_work_already(cluster: Cluster, start_pass: int) -> None:
    set_up_sums(cluster, share_out(2, 2), ASYNC, start_pass=start_pass)
    other, notes = open_exchange(cluster, Span(1, 2)), Notes()
    for batch in range(5):
        step(other, cluster, 1, batch, pass_id=start_pass, is_last=batch == 4)
    values_now(other, cluster)  # so all of it has landed
    loop_of(cluster, Span(0, 1), [25], notes).run(start_pass + 1)
    assert [result.pass_id for result in notes.results] == [start_pass]
    assert notes.results[0].totals.samples == 25


def test_a_loops_training_does_not_depend_on_how_far_others_are(cluster: Cluster) -> None:
    set_up_sums(cluster, share_out(2, 2), ASYNC)
    other = open_exchange(cluster, Span(0, 1))

    def go_ahead(pass_id: int) -> None:
        """Be through with the other shard's next pass before the loop asks for it."""
        for batch in range(3):
            step(other, cluster, 0, batch, pass_id=pass_id + 1, is_last=batch == 2)
        values_now(other, cluster)

    go_ahead(-1)
    notes = Watch(go_ahead)
    loop_of(cluster, Span(1, 2), [30, 10], notes).run(2)
    assert [(result.pass_id, result.ledger[1].trained) for result in notes.results] == [(0, 10), (1, 10)]


def test_a_pass_may_end_while_one_lane_is_ahead_of_another(cluster: Cluster) -> None:
    set_up_sums(cluster, share_out(2, 2), ASYNC)
    other, half = open_exchange(cluster, Span(1, 2)), open_exchange(cluster, Span(1, 2), lanes=[1])
    step(other, cluster, 1, 0, is_last=True)

    def go_ahead(pass_id: int) -> None:
        """Push to one lane only, before the loop asks for the next pass, so that the lanes differ when it does."""
        step(half, cluster, 1, 0, pass_id=pass_id + 1)
        half.ask_now(shard=1)
        assert half.receive().batch == 1

    notes = Watch(go_ahead)
    loop_of(cluster, Span(0, 1), [10], notes).run(1)
    assert [(result.pass_id, result.round) for result in notes.results] == [(0, 2)]
    assert [machine(cluster, lane).round for lane in (0, 1)] == [2, 3]


@pytest.mark.parametrize("mode", ["bounded", "async"])
def test_a_mode_without_rounds_has_a_stream_with_its_bound(cluster: Cluster, mode: UpdateMode) -> None:
    cluster.start(lanes=1)
    cluster.set_up(updates=Updates(mode=mode, staleness=7))
    assert machine(cluster).staleness == (7 if mode == "bounded" else None)
