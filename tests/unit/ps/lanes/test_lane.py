"""One lane, called directly over socket pairs: small payloads fit into the kernel's buffers, so no threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.setups import make_setup

from bireme.core import faults
from bireme.core.errors import BiremeError, DeterminismError, FrameError, NetworkError
from bireme.ps.lanes.dense import DenseStore
from bireme.ps.lanes.lane import Lane
from bireme.ps.lanes.rounds import Closing, PassTotals, Totals
from bireme.ps.lanes.slow_trainers import Awaited
from bireme.ps.setup import Setup
from bireme.ps.tree import Span, share_out
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head, Kind, Record, pack_records
from bireme.spec.model import Init, Optimizer, Parameter, UpdateMode, Updates, Wire

Floats = NDArray[np.float32]
PARAMETERS = (
    Parameter(name="w", shape=(5, 7), init=Init(mean=0.5, spread=2.0)),
    Parameter(name="u", shape=(40,), init=Init(kind="uniform", spread=0.1)),
    Parameter(name="b", shape=(3,), init=Init(mean=0.25)),
)
SIZE = 1024
"""One page: 48 + 48 + 16 floats, and padding."""


def setup(**changes: object) -> Setup:
    plain: dict[str, object] = {
        "job": 7, "view": 3, "pserver": 0, "pservers": 1, "ports_num": 1, "parameters": PARAMETERS, "seed": 1,
        "optimizer": Optimizer(learning_rate=0.5, schedule="constant"), "shards": 2, "shares": share_out(2, 2),
    }  # fmt: skip
    return make_setup(**{**plain, **changes})


class Peer:
    """A trainer at the other end of a socket pair."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.here, self.there = socket.socketpair()

    def close(self) -> None:
        self.here.close()
        self.there.close()

    def push(self, shard: int, values: Floats, round_: int = 0, *, is_last: bool = False) -> None:
        records = pack_records([Record(shard, is_last, 5, 1.0)])
        head = Head(Kind.PUSH, job=7, view=3, round=round_, lo=shard, hi=shard + 1, nbytes=values.nbytes, records=1)
        frame_io.send(self.here, head, records, values)
        self._handle()

    def pull(self, round_: int = 0, flags: Flag = Flag.NONE) -> tuple[Head, Floats]:
        frame_io.send(self.here, Head(Kind.PULL, flags, job=7, view=3, round=round_))
        self._handle()
        return self.answer()

    def answer(self) -> tuple[Head, Floats]:
        head = frame_io.expect(self.here, Kind.SLICE)
        values = np.empty(head.nbytes // 4, dtype=np.float32)
        frame_io.receive_into(self.here, values)
        return head, values

    def set(self, values: Floats, *, job: int = 7, view: int = 3, nbytes: int = 4 * SIZE) -> None:
        head = Head(Kind.SET, job=job, view=view, nbytes=nbytes)
        frame_io.send(self.here, head, values)
        self._handle()

    def _handle(self) -> None:
        head = frame_io.receive_head(self.there)
        assert head is not None
        {Kind.PUSH: self.lane.push, Kind.PULL: self.lane.pull, Kind.SET: self.lane.set}[head.kind](self.there, head)


class Stage:
    """A lane, its peers, and the passes it reported."""

    def __init__(self, made: Setup, stack: ExitStack) -> None:
        self.passes: list[PassTotals] = []
        self.lane = Lane(made, DenseStore(made, 0), self.passes.append)
        self._stack = stack

    def peer(self) -> Peer:
        peer = Peer(self.lane)
        self._stack.callback(peer.close)
        return peer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def stage(stack: ExitStack) -> Stage:
    return Stage(setup(), stack)


def ones(value: float) -> Floats:
    return np.full(SIZE, value, dtype=np.float32)


def parts_of(values: Floats) -> Floats:
    """What is not padding."""
    return np.concatenate([values[:35], values[48:88], values[96:99]])


def test_a_round_subtracts_the_rate_times_the_sum(stage: Stage) -> None:
    peer = stage.peer()
    _, before = peer.pull()
    peer.push(1, ones(3.0))
    peer.push(0, ones(1.0))
    head, after = peer.pull(1)
    assert (head.round, head.extra, head.lo) == (1, 0, 1)
    wanted = before - np.float32(0.5) * np.float32(4.0)
    assert parts_of(after).tobytes() == parts_of(wanted).tobytes()


def test_first_values_are_the_same_bits_on_every_layout(stack: ExitStack) -> None:
    wide = (
        *PARAMETERS,
        Parameter(name="wide", shape=(9, 700), init=Init(spread=1.0)),
        Parameter(name="v", shape=(1500,), init=Init(kind="uniform", spread=0.5)),
    )
    _, whole = Stage(setup(parameters=wide), stack).peer().pull()
    assert len(whole) == 8 * 1024
    for pservers, lanes in [(2, 1), (1, 3), (3, 2), (7, 2)]:
        parts = []
        for rank in range(pservers):
            made = setup(parameters=wide, pserver=rank, pservers=pservers, ports_num=lanes)
            parts += [DenseStore(made, i)._buffer(0) for i in range(lanes)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_first_values_follow_the_rule_of_each_parameter(stage: Stage) -> None:
    _, values = stage.peer().pull()
    assert 1.0 < values[:35].std() < 3.0
    assert 0.05 < np.abs(values[48:88]).max() <= 0.1
    assert (values[96:99] == 0.25).all()


def test_the_end_of_a_pass_reports_every_shards_totals(stage: Stage) -> None:
    peer = stage.peer()
    peer.push(0, ones(1.0), is_last=True)
    peer.push(1, ones(1.0), is_last=True)
    assert stage.passes == [PassTotals(0, 10, {0: Totals(5, 1.0), 1: Totals(5, 1.0)}, {})]


def test_a_repeat_with_the_same_bytes_changes_nothing(stage: Stage) -> None:
    peer, other = stage.peer(), stage.peer()
    peer.push(0, ones(1.0))
    other.push(0, ones(1.0))
    peer.push(1, ones(3.0))
    _, values = peer.pull(1)
    assert values[96] == np.float32(0.25 - 2.0)


@pytest.mark.parametrize(("at", "name"), [(0, "w"), (34, "w"), (48, "u"), (98, "b")])
@pytest.mark.parametrize("value", [1.0, -0.0])
def test_a_repeat_with_other_bytes_is_named_by_parameter(stage: Stage, at: int, name: str, value: float) -> None:
    peer = stage.peer()
    peer.push(0, ones(0.0))
    other = ones(0.0)
    other[at] = value
    with pytest.raises(DeterminismError, match=f"two different gradients for round 0, first in {name}\n"):
        peer.push(0, other)


def test_a_late_push_is_read_and_counts_nothing(stage: Stage) -> None:
    peer = stage.peer()
    for shard in (0, 1):
        peer.push(shard, ones(1.0))
    peer.push(0, ones(9.0), round_=0)
    head, values = peer.pull(1)
    assert head.round == 1
    assert values[96] == np.float32(0.25 - 1.0)


def test_a_connection_lost_in_mid_payload_frees_its_row(stage: Stage) -> None:
    dying, other = stage.peer(), stage.peer()
    head = Head(Kind.PUSH, job=7, view=3, lo=0, hi=1, nbytes=4 * SIZE, records=1)
    frame_io.send(dying.here, head, pack_records([Record(0, False, 5, 1.0)]), ones(8.0)[:10])
    dying.here.close()
    with pytest.raises(NetworkError, match="in the middle of a frame"):
        dying._handle()
    other.push(0, ones(1.0))
    other.push(1, ones(1.0))
    assert other.pull(1)[1][96] == np.float32(0.25 - 1.0)


def test_a_pull_of_a_gone_round_is_refused(stage: Stage) -> None:
    peer = stage.peer()
    for round_ in range(2):
        for shard in (0, 1):
            peer.push(shard, ones(1.0), round_)
    assert peer.pull(1)[0].round == 1
    with pytest.raises(FrameError, match="round 0 is gone"):
        peer.pull(0)


def test_a_waiting_pull_is_answered_when_the_round_closes(stage: Stage) -> None:
    peer, waiting = stage.peer(), stage.peer()
    frame_io.send(waiting.here, Head(Kind.PULL, job=7, view=3, round=1))
    thread = threading.Thread(target=waiting._handle)
    thread.start()
    for shard in (0, 1):
        peer.push(shard, ones(1.0))
    thread.join()
    assert waiting.answer()[0].round == 1


def test_a_stopped_lane_lets_waiting_pulls_go_with_the_reason(stage: Stage) -> None:
    waiting = stage.peer()
    caught: list[BiremeError] = []

    def wait() -> None:
        try:
            waiting._handle()
        except BiremeError as e:
            caught.append(e)

    frame_io.send(waiting.here, Head(Kind.PULL, job=7, view=3, round=1))
    thread = threading.Thread(target=wait)
    thread.start()
    stage.lane.stop(NetworkError("the end"))
    thread.join()
    assert [e.what for e in caught] == ["the end"]
    with pytest.raises(NetworkError, match="the end"):
        stage.peer().pull()


def test_values_set_by_a_trainer_are_what_training_starts_from(stack: ExitStack) -> None:
    peer = Stage(setup(is_set_by_trainer=True, start_pass=4, start_samples=100), stack).peer()
    peer.set(ones(2.0))
    head, values = peer.pull(flags=Flag.NOW)
    assert (head.round, head.extra) == (0, 4)
    assert values.tobytes() == ones(2.0).tobytes()


@pytest.mark.parametrize("changes", [{"job": 8}, {"view": 2}, {"nbytes": 4 * SIZE - 4}, {"nbytes": 1 << 40}])
def test_a_set_that_does_not_fit_is_refused_and_changes_nothing(stack: ExitStack, changes: dict[str, int]) -> None:
    stage = Stage(setup(is_set_by_trainer=True), stack)
    with pytest.raises(FrameError):
        stage.peer().set(ones(9.0), **changes)
    peer = stage.peer()
    peer.set(ones(2.0))
    assert (peer.pull()[1] == 2.0).all()


@pytest.mark.parametrize("is_set_by_trainer", [True, False], ids=["by a trainer", "by the generator"])
def test_values_for_a_lane_that_has_some_change_nothing(stack: ExitStack, is_set_by_trainer: bool) -> None:
    stage = Stage(setup(is_set_by_trainer=is_set_by_trainer), stack)
    if is_set_by_trainer:
        stage.peer().set(ones(2.0))
    peer = stage.peer()
    _, before = peer.pull()
    peer.set(ones(3.0))
    _, after = peer.pull()
    assert after.tobytes() == before.tobytes()


def test_of_two_sets_at_once_exactly_one_is_taken(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(setup(is_set_by_trainer=True), stack)
    slow, quick = stage.peer(), stage.peer()
    taken: list[float] = []
    is_checked, may_continue = threading.Event(), threading.Event()

    def offer(peer: Peer, value: float) -> None:
        try:
            peer.set(ones(value))
        except FrameError:
            return
        taken.append(value)

    def hold(point: str, round_: int) -> None:
        if point == "wire.receive" and threading.current_thread() is thread:
            is_checked.set()
            may_continue.wait(5)

    monkeypatch.setattr(faults, "_armed", hold)
    thread = threading.Thread(target=offer, args=(slow, 9.0))
    thread.start()
    assert is_checked.wait(5)
    offer(quick, 2.0)
    may_continue.set()
    thread.join()
    assert len(taken) == 1
    assert set(stage.peer().pull()[1].tolist()) == set(taken)


def test_a_share_of_two_shards_is_one_row(stack: ExitStack) -> None:
    stage = Stage(setup(shares=(Span(0, 2),)), stack)
    with pytest.raises(FrameError, match="are no contribution of this view"):
        stage.peer().push(0, ones(1.0))


@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_a_round_whose_update_fails_stays_open_and_ends_no_pass(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, mode: UpdateMode
) -> None:
    def fail(self: DenseStore, closing: Closing, rate: float) -> None:
        assert closing.ends_pass
        raise MemoryError("no room")

    stage = Stage(setup(updates=Updates(mode=mode, staleness=1)), stack)
    peer = stage.peer()
    peer.push(0, ones(1.0), is_last=True)
    monkeypatch.setattr(DenseStore, "apply", fail)
    before = stage.lane.rounds.round
    with pytest.raises(MemoryError, match="no room"):
        peer.push(1, ones(1.0), is_last=True)
    assert (stage.lane.rounds.round, stage.lane.rounds.pass_id, stage.passes) == (before, 0, [])


def test_a_coded_gradient_longer_than_any_is_refused_unread(stack: ExitStack) -> None:
    peer = Stage(setup(wire=Wire(gradients="top_k")), stack).peer()
    with pytest.raises(FrameError, match=f"{8 * SIZE + 4} bytes of gradient for a slice of {SIZE} values"):
        peer.push(0, np.zeros(2 * SIZE + 1, np.float32))


class Hands:
    """A clock that tests move."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    found = Hands()
    monkeypatch.setattr("bireme.ps.lanes.lane.time", found)
    return found


def test_a_lane_names_the_missing_and_the_slow_trainers(stage: Stage, hands: Hands) -> None:
    peer = stage.peer()
    assert stage.lane.awaited() == Awaited([], 0.0)
    for round_ in range(20):
        peer.push(0, ones(1.0), round_)
        hands.now_s += 0.4
        peer.push(1, ones(1.0), round_)
        hands.now_s += 0.1
    found = stage.lane.awaited()
    assert found is not None and found.slowest is not None
    assert (found.missing, found.seconds) == ([], 0.0)
    # The first round counts for no trainer; the last one closed 0.1 s ago.
    assert (found.slowest.rank, round(found.slowest.share, 2), round(found.slowest.of_s, 1)) == (1, 0.79, 9.6)
    peer.push(0, ones(1.0), 20)
    hands.now_s += 5.0
    found = stage.lane.awaited()
    assert found is not None and (found.missing, round(found.seconds, 1)) == ([1], 5.0)
    stage.lane.enter(4)
    assert stage.lane.awaited() == Awaited([], 0.0)


def test_a_lane_without_rounds_says_who_is_far_behind(stack: ExitStack, hands: Hands) -> None:
    peer = Stage(setup(updates=Updates(mode="async")), stack).peer()
    for batch in range(30):
        peer.push(0, ones(1.0), batch)
        if batch % 10 == 9:
            peer.push(1, ones(1.0), batch // 10)
        hands.now_s += 0.3
    found = peer.lane.awaited()
    assert found is not None and found.slowest is not None
    assert (found.missing, found.behind, found.seconds) == ([1], 27, 0.0)
    assert (found.slowest.rank, found.slowest.share > 0.8) == (1, True)
