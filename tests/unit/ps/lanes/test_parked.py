"""Pulls by trainers that share a lane's memory: no thread waits; the one that makes an answer possible sends it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from tests.unit.ps.client.test_memory import LAYOUT, SIZE, SPANS, Floats, Stage, Trainer
from tests.unit.ps.client.test_memory import stage as stage  # a fixture

from bireme.core.errors import FrameError, ProcessError, RefusedError
from bireme.ps.lanes.dense import DenseStore
from bireme.ps.lanes.rounds import Closing
from bireme.ps.tree import share_out
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head, Kind
from bireme.spec.model import Coding, UpdateMode, Updates, Wire


def ask(trainer: Trainer, round_: int, flags: Flag = Flag.NONE) -> None:
    """Pull, and come back whether or not there is an answer yet."""
    frame_io.send(trainer.here, Head(Kind.PULL, flags, job=7, view=3, round=round_))
    head = frame_io.receive_head(trainer.there)
    assert head is not None
    trainer.lane.pull(trainer.there, head)


def is_answered(trainer: Trainer) -> bool:
    try:
        return bool(trainer.here.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def answer(trainer: Trainer) -> Head:
    assert is_answered(trainer)
    reply = frame_io.expect(trainer.here, Kind.SLICE)
    assert reply.flags & Flag.IN_PLACE
    return reply


def give(trainer: Trainer, values: Floats, nbytes: int = 4 * SIZE) -> None:
    """Set first values."""
    frame_io.send(trainer.here, Head(Kind.SET, job=7, view=3, nbytes=nbytes), values)
    head = frame_io.receive_head(trainer.there)
    assert head is not None
    trainer.lane.set(trainer.there, head)


@pytest.fixture
def unset() -> Iterator[Stage]:
    """A lane that waits for a saved model."""
    with ExitStack() as opened:
        yield Stage(opened, is_set_by_trainer=True)


def test_the_push_that_closes_a_round_answers_all_its_pulls(stage: Stage) -> None:
    first, second = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    before = first.pull(0)
    for trainer in (first, second):
        ask(trainer, 1)
    first.push(0, 1.0)
    second.push(1, 1.0)
    assert not is_answered(first) and not is_answered(second)
    second.push(2, 1.0)
    assert [answer(trainer).round for trainer in (first, second)] == [1, 1]
    assert float(LAYOUT.views(first.memory.values(1))["b"][0]) == before - 3.0
    assert stage.lane._parked == {}


def test_only_what_has_come_is_answered(stage: Stage) -> None:
    early, late = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    ask(early, 1)
    ask(late, 1, Flag.AT_PASS)
    for round_ in range(2):
        early.push(0, 1.0, round_, is_last=round_ == 1)
        for shard in (1, 2):
            assert not is_answered(late)
            late.push(shard, 1.0, round_, is_last=round_ == 1)
        if round_ == 0:
            assert answer(early).round == 1
    reply = answer(late)
    assert (reply.round, reply.extra, reply.lo) == (2, 1, 0)
    assert not is_answered(early)


def test_setting_first_values_answers_those_who_wait_for_them(unset: Stage) -> None:
    waiting, setter = unset.sharer(*SPANS[:1]), unset.trainer(*SPANS[1:])
    ask(waiting, 0, Flag.NOW)
    with pytest.raises(FrameError, match="bytes for a slice of"):
        give(setter, np.ones(8, np.float32), nbytes=32)
    assert not is_answered(waiting)
    give(unset.trainer(*SPANS[1:]), np.full(SIZE, 2.0, np.float32))
    assert answer(waiting).round == 0
    assert (waiting.memory.values(0) == 2.0).all()


def test_a_lane_that_stops_sends_waiting_trainers_the_reason(stage: Stage) -> None:
    trainer = stage.sharer()
    ask(trainer, 1)
    stage.lane.stop(ProcessError("no room", why="the machine is full", fix="make room"))
    with pytest.raises(RefusedError, match="refused: no room") as caught:
        frame_io.expect(trainer.here, Kind.SLICE)
    assert (caught.value.why, caught.value.fix) == ("the machine is full", "make room")
    with pytest.raises(ProcessError, match="no room"):
        ask(trainer, 1)


def test_a_lane_that_stops_without_a_failure_says_nothing(stage: Stage) -> None:
    trainer = stage.sharer()
    ask(trainer, 1)
    stage.lane.stop()
    assert not is_answered(trainer)
    assert stage.lane._parked == {}


def test_a_pull_is_forgotten_with_the_connection_that_it_came_on(stage: Stage) -> None:
    going, staying = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    for trainer in (going, staying):
        ask(trainer, 1)
    going.push(0, 1.0)
    stage.lane.detach(going.there)
    for shard in (1, 2):
        staying.push(shard, 1.0)
    assert not is_answered(going)
    assert answer(staying).round == 1


def test_a_dead_trainer_delays_no_answer_to_the_others(stage: Stage) -> None:
    dead, living = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    for trainer in (dead, living):
        ask(trainer, 1)
    dead.push(0, 1.0)
    dead.here.close()
    for shard in (1, 2):
        living.push(shard, 1.0)
    assert answer(living).round == 1
    assert stage.lane._parked == {}


def test_a_second_pull_before_the_first_was_answered_is_refused(stage: Stage) -> None:
    trainer = stage.sharer()
    ask(trainer, 1)
    with pytest.raises(FrameError, match="a second PULL before the first was answered"):
        ask(trainer, 1)
    for shard in range(3):
        trainer.push(shard, 1.0)
    assert answer(trainer).round == 1
    assert not is_answered(trainer)


def test_a_round_that_could_not_be_applied_answers_no_pull(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: DenseStore, closing: Closing, rate: float) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(DenseStore, "apply", fail)
    trainer = stage.sharer()
    ask(trainer, 1)
    for shard in range(2):
        trainer.push(shard, 1.0)
    with pytest.raises(MemoryError):
        trainer.push(2, 1.0)
    assert stage.lane.rounds.round == 0
    assert not is_answered(trainer)
    stage.lane.stop(ProcessError("no room"))
    with pytest.raises(RefusedError, match="no room"):
        frame_io.expect(trainer.here, Kind.SLICE)


@pytest.mark.parametrize("mode", ["bounded", "async"])
def test_memory_is_not_shared_where_it_may_change_at_any_moment(mode: UpdateMode) -> None:
    with ExitStack() as opened:
        trainer = Stage(opened, updates=Updates(mode=mode, staleness=2)).trainer()
        trainer.attach()
        assert not trainer.is_attached
        with pytest.raises(FrameError, match="is not shared by this connection"):
            trainer.push(0, 1.0, in_place=True)
        trainer.push(0, 1.0)  # applied at once, from a payload
        assert trainer.lane.rounds.round == 1


@pytest.mark.parametrize("gradients", ["float16", "bfloat16", "top_k"])
def test_memory_is_not_shared_where_gradients_must_be_decoded(gradients: Coding) -> None:
    with ExitStack() as opened:
        trainer = Stage(opened, wire=Wire(gradients=gradients)).trainer()
        trainer.attach()
        assert not trainer.is_attached
        with pytest.raises(FrameError, match="is not shared by this connection"):
            trainer.push(0, 1.0, in_place=True)
        assert trainer.pull(0) == 0.0


def test_local_sgd_shares_memory_as_sync_does() -> None:
    with ExitStack() as opened:
        trainer = Stage(opened, updates=Updates(mode="local"), shares=share_out(3, 3)).sharer()
        for shard in range(3):
            trainer.push(shard, 3.0)
        assert trainer.pull(1) == -3.0
