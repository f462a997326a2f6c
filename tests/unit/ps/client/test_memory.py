"""Memory that trainers and a lane share: the lane is called directly, over socket pairs and with real memfds."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.setups import make_setup

from bireme.core.errors import BiremeError, FrameError, StorageError
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.lanes.dense import DenseStore
from bireme.ps.lanes.lane import Lane
from bireme.ps.lanes.memory import LaneMemory
from bireme.ps.plan import Layout, Slice
from bireme.ps.tree import Span, share_out
from bireme.ps.wire import frame_io, shared_memory
from bireme.ps.wire.frames import Flag, Head, Kind, Record, pack_records
from bireme.spec.model import Optimizer, Parameter

Floats = NDArray[np.float32]
PARAMETERS = (Parameter(name="w", shape=(2000,)), Parameter(name="b", shape=(3,)))
LAYOUT = Layout(PARAMETERS)
SIZE = LAYOUT.size
SPANS = tuple(Span(shard, shard + 1) for shard in range(3))


def new_lane(**changes: object) -> Lane:
    plain: dict[str, object] = {
        "job": 7, "view": 3, "pserver": 0, "pservers": 1, "ports_num": 1, "parameters": PARAMETERS, "seed": 1,
        "optimizer": Optimizer(learning_rate=1.0, schedule="constant"), "shards": 3, "shares": share_out(3, 3),
    }  # fmt: skip
    made = make_setup(**{**plain, **changes})
    return Lane(made, DenseStore(made, 0), lambda done: None)


class Trainer:
    """A trainer with memory to share, at the other end of a socket pair."""

    def __init__(self, lane: Lane, *spans: Span) -> None:
        self.lane = lane
        self.here, self.there = socket.socketpair()
        self.memory = TrainerMemory(LAYOUT, spans or SPANS, is_shared=True)
        self.is_attached = False

    def close(self) -> None:
        self.here.close()
        self.lane.detach(self.there)
        self.there.close()
        self.memory.close()

    def attach(self, *, fds: list[int] | None = None, body: bytes | None = None, job: int = 7, view: int = 3) -> None:
        rows = msgspec.json.encode(shared_memory.Offer(self.memory.spans, 4 * SIZE)) if body is None else body
        head = Head(Kind.ATTACH, job=job, view=view, nbytes=len(rows))
        frame_io.send_with(self.here, [self.memory.fd] if fds is None else fds, head, rows)
        received, came = frame_io.receive_with(self.there)
        try:
            self.lane.attach(self.there, received, came)
        finally:
            for fd in came:
                os.close(fd)
        _, given = frame_io.receive_with(self.here)
        for fd in given:
            self.memory.adopt(Slice(0, SIZE), fd)
            os.close(fd)
        self.is_attached = bool(given)

    def push(
        self, shard: int, value: float, round_: int = 0, *, in_place: bool | None = None, is_last: bool = False
    ) -> None:
        self.memory.row(Span(shard, shard + 1))[:] = value
        is_shared = self.is_attached if in_place is None else in_place
        head = Head(Kind.PUSH, Flag.IN_PLACE if is_shared else Flag.NONE, job=7, view=3, round=round_,
                    lo=shard, hi=shard + 1, nbytes=4 * SIZE, records=1)  # fmt: skip
        payload = [] if is_shared else [self.memory.row(Span(shard, shard + 1))]
        frame_io.send(self.here, head, pack_records([Record(shard, is_last, 5, 1.0)]), *payload)
        received = frame_io.receive_head(self.there)
        assert received is not None
        self.lane.push(self.there, received)

    def pull(self, round_: int) -> float:
        """The bias after this many rounds, from where this trainer finds it."""
        frame_io.send(self.here, Head(Kind.PULL, job=7, view=3, round=round_))
        received = frame_io.receive_head(self.there)
        assert received is not None
        self.lane.pull(self.there, received)
        reply = frame_io.expect(self.here, Kind.SLICE)
        assert bool(reply.flags & Flag.IN_PLACE) == self.is_attached
        if not self.is_attached:
            frame_io.receive_into(self.here, self.memory.values(round_))
        return float(LAYOUT.views(self.memory.values(round_))["b"][0])


class Stage:
    def __init__(self, stack: ExitStack, **changes: object) -> None:
        self.lane = new_lane(**changes)
        self._stack = stack

    def trainer(self, *spans: Span) -> Trainer:
        made = Trainer(self.lane, *spans)
        self._stack.callback(made.close)
        return made

    def sharer(self, *spans: Span) -> Trainer:
        made = self.trainer(*spans)
        made.attach()
        assert made.is_attached
        return made


@pytest.fixture
def stage() -> Iterator[Stage]:
    with ExitStack() as opened:
        yield Stage(opened)


def refuse_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)


@pytest.mark.parametrize("is_shared", [False, True])
def test_memory_that_is_shared_has_a_set_for_every_other_round(is_shared: bool) -> None:
    memory = TrainerMemory(LAYOUT, SPANS, is_shared=is_shared)
    assert memory.is_shared == is_shared
    assert memory.values(0) is memory.values(2)
    assert (memory.values(0) is memory.values(1)) != is_shared
    memory.values(0)[:] = 1.0
    assert memory.values(1).any() != is_shared
    memory.close()
    memory.close()
    memory.row(SPANS[0])[:] = 1.0


@pytest.mark.parametrize("is_shared", [False, True])
def test_rows_lie_apart_and_start_on_page_borders(is_shared: bool) -> None:
    memory = TrainerMemory(LAYOUT, SPANS, is_shared=is_shared)
    for number, span in enumerate(SPANS, start=1):
        assert memory.row(span).ctypes.data % shared_memory.PAGE == 0
        memory.row(span)[:] = number
    assert [set(memory.row(span).tolist()) for span in SPANS] == [{1.0}, {2.0}, {3.0}]
    memory.close()


def test_without_shared_memory_a_trainer_keeps_its_own_set(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_memory(monkeypatch)
    memory = TrainerMemory(LAYOUT, SPANS, is_shared=True)
    assert (memory.is_shared, memory.values(1) is memory.values(0)) == (False, True)
    memory.row(SPANS[2])[:] = 1.0


def test_without_shared_memory_a_lane_has_its_own_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_memory(monkeypatch)
    memory = LaneMemory(Slice(0, SIZE), 2)
    memory.buffers[0][:], memory.buffers[1][:], memory.inbox[:] = 1.0, 2.0, 3.0
    assert (memory.fd, memory.buffers[0][-1], memory.buffers[1][0]) == (-1, 1.0, 2.0)


def test_a_lane_out_of_use_gives_its_descriptor_back() -> None:
    gc.collect()  # of what other tests left
    before = len(list(Path("/proc/self/fd").iterdir()))
    lane = new_lane()
    lane.stop()
    del lane
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_parameters_of_a_sharing_lane_appear_without_a_payload(stage: Stage) -> None:
    trainer = stage.sharer()
    before = trainer.pull(0)
    for shard in range(3):
        trainer.push(shard, 2.0**shard)
    assert trainer.pull(1) == before - 7.0
    assert trainer.pull(0) == before
    trainer.there.setblocking(False)
    trainer.here.setblocking(False)
    for sock in (trainer.here, trainer.there):
        with pytest.raises(BlockingIOError):
            sock.recv(1)


def test_a_trainer_without_memory_is_answered_without_any(stage: Stage) -> None:
    trainer = stage.trainer()
    trainer.attach(fds=[])
    assert not trainer.is_attached
    before = trainer.pull(0)
    for shard in range(3):
        trainer.push(shard, 1.0)
    assert trainer.pull(1) == before - 3.0


def test_rows_that_are_taken_cannot_be_attached_again(stage: Stage) -> None:
    first, second = stage.sharer(*SPANS[:2]), stage.trainer(*SPANS[1:])
    before = first.pull(0)
    with pytest.raises(FrameError, match="are not free in this view"):
        second.attach()
    first.push(0, 1.0)
    first.push(1, 1.0)
    stage.trainer().push(2, 1.0)
    assert first.pull(1) == before - 3.0


def test_an_unshared_push_in_place_is_refused(stage: Stage) -> None:
    sharer, other = stage.sharer(*SPANS[:1]), stage.trainer()
    for shard in (0, 1):
        with pytest.raises(FrameError, match="is not shared by this connection, but by another or none"):
            other.push(shard, 1.0, in_place=True)
    with pytest.raises(FrameError, match="gradient is not shared by this connection"):
        frame_io.send(sharer.here, Head(Kind.PUSH, Flag.IN_PLACE, job=7, view=3, lo=5, hi=6, nbytes=4 * SIZE))
        head = frame_io.receive_head(sharer.there)
        assert head is not None
        sharer.lane.push(sharer.there, head)
    assert stage.lane.rounds.round == 0


def test_a_shared_push_by_payload_is_refused(stage: Stage) -> None:
    sharer, other = stage.sharer(*SPANS[:1]), stage.trainer()
    before = sharer.pull(0)
    with pytest.raises(FrameError, match="is not shared by this connection, but by another or none"):
        other.push(0, 9.0, in_place=False)
    sharer.push(0, 1.0)
    for shard in (1, 2):
        stage.trainer().push(shard, 1.0)
    assert sharer.pull(1) == before - 3.0
    with pytest.raises(FrameError, match="is not shared by this connection"):
        sharer.push(0, 9.0, round_=1, in_place=False)


WRONG = {
    "another job": (None, 8, 3),
    "an older view": (None, 7, 2),
    "rows too short": (msgspec.json.encode(shared_memory.Offer(SPANS, 4 * SIZE - 4096)), 7, 3),
    "rows too long": (msgspec.json.encode(shared_memory.Offer(SPANS, 4 * SIZE + 4096)), 7, 3),
    "an unknown span": (msgspec.json.encode(shared_memory.Offer((SPANS[0], Span(1, 3)), 4 * SIZE)), 7, 3),
    "no JSON": (b"\xff\xfe", 7, 3),
    "no spans": (b'{"row_nbytes": 8192}', 7, 3),
    "nothing": (b"", 7, 3),
}  # fmt: skip


@pytest.mark.parametrize(("body", "job", "view"), WRONG.values(), ids=WRONG.keys())
def test_a_misfit_attach_is_refused_and_changes_nothing(stage: Stage, body: bytes | None, job: int, view: int) -> None:
    with pytest.raises(FrameError):
        stage.trainer().attach(body=body, job=job, view=view)
    friend = stage.sharer()
    before = friend.pull(0)
    for shard in range(3):
        friend.push(shard, 1.0)
    assert friend.pull(1) == before - 3.0


@pytest.mark.parametrize("what", ["too small", "unsealed", "no segment"])
def test_memory_that_cannot_be_trusted_is_refused_with_a_reason(stage: Stage, what: str) -> None:
    trainer = stage.trainer()
    fd = {
        "too small": lambda: shared_memory.make_segment("small", 4 * SIZE),
        "unsealed": lambda: os.memfd_create("loose", os.MFD_ALLOW_SEALING),
        "no segment": lambda: os.open("/dev/zero", os.O_RDWR),
    }[what]()
    if what == "unsealed":
        os.ftruncate(fd, 3 * 4 * SIZE)
    try:
        with pytest.raises(FrameError):
            trainer.attach(fds=[fd])
    finally:
        os.close(fd)
    stage.sharer().push(0, 1.0)


def test_rows_are_free_again_when_mapping_one_of_them_fails(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, adopt = stage.trainer(), LaneMemory.adopt

    def fail_late(self: LaneMemory, row: int, fd: int, fd_offset: int) -> None:
        if row == 1:
            raise StorageError("cannot map")
        adopt(self, row, fd, fd_offset)

    monkeypatch.setattr(LaneMemory, "adopt", fail_late)
    with pytest.raises(BiremeError, match="cannot map"):
        trainer.attach()
    stage.lane.detach(trainer.there)
    other = stage.trainer()
    before = other.pull(0)
    for shard in range(3):
        other.push(shard, 1.0)
    assert other.pull(1) == before - 3.0


def test_a_gone_trainers_push_counts_and_its_inbox_is_closed(stage: Stage) -> None:
    going, staying = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    before = staying.pull(0)
    going.push(0, 4.0)
    stage.lane.detach(going.there)
    going.memory.row(SPANS[0])[:] = 1000.0
    staying.push(1, 1.0)
    staying.push(2, 1.0)
    assert staying.pull(1) == before - 6.0


def test_a_row_given_back_can_be_shared_or_sent_by_another(stage: Stage) -> None:
    first, staying = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    before = staying.pull(0)
    stage.lane.detach(first.there)
    second = stage.sharer(*SPANS[:1])
    for round_, pusher in enumerate([second, stage.trainer(*SPANS[:1])]):
        pusher.push(0, 1.0, round_)
        staying.push(1, 1.0, round_)
        staying.push(2, 1.0, round_)
        stage.lane.detach(second.there)
    assert staying.pull(2) == before - 6.0


def test_an_attaching_replacement_keeps_its_predecessors_push(stage: Stage) -> None:
    first, staying = stage.sharer(*SPANS[:1]), stage.sharer(*SPANS[1:])
    before = staying.pull(0)
    first.push(0, 4.0)
    stage.lane.detach(first.there)
    stage.trainer(*SPANS[:1]).attach()  # its memory is still zero: it has yet to compute the round again
    staying.push(1, 1.0)
    staying.push(2, 1.0)
    assert staying.pull(1) == before - 6.0


def test_a_lane_cannot_write_to_the_gradients_that_it_reads() -> None:
    script = f"""
import faulthandler
from bireme.ps.lanes.memory import LaneMemory
from bireme.ps.plan import Slice
from bireme.ps.wire.shared_memory import make_segment
faulthandler.disable()
memory = LaneMemory(Slice(0, {SIZE}), 1)
memory.adopt(0, make_segment("gradients", {4 * SIZE}), 0)
print(memory.inbox.sum(), flush=True)
memory.inbox[0, 0] = 1.0
print("wrote")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "0.0\n"), done.stderr


def test_a_row_is_the_same_array_whenever_it_is_asked_for() -> None:
    # The loop computes into it and then asks whether the sum is there already: another array would mean a copy a round.
    memory = TrainerMemory(Layout([Parameter(name="w", shape=(5,))]), [Span(0, 1)], is_shared=True)
    assert memory.row(Span(0, 1)) is memory.row(Span(0, 1))
    assert memory.values(3) is memory.values(5)
    memory.close()
