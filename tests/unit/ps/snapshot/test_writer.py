"""Cuts of one pserver: copies that are made in time, one at a time, and a disk that may refuse."""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.setups import make_setup

from bireme.core import faults
from bireme.ps.lanes.rounds import LaneCounts
from bireme.ps.snapshot import snapshot_files, writer
from bireme.ps.snapshot.snapshot_files import Written, read_part
from bireme.ps.snapshot.writer import (
    MOST_DELTAS,
    NO_CUT,
    Arrays,
    Capture,
    CopyBeforeUpdate,
    Cut,
    FileWritten,
    SnapshotWriter,
    copy_pieces,
)
from bireme.ps.tree import share_out
from bireme.spec.model import Optimizer, Parameter, Snapshots

WAIT_S = 10.0


def counts(round_: int) -> LaneCounts:
    return LaneCounts(round_, 0, 0, 10 * round_, frozenset(), {})


def capture_of(lane: int, value: float, due: int = 0) -> Capture:
    target = np.zeros(8, np.float32)
    return Capture({f"lane{lane}.w": target}, [*copy_pieces(due, np.full(8, value, np.float32), target)])


class Stage:
    """A writer for two lanes, and the parts that it reported."""

    def __init__(self, place: Path) -> None:
        setup = make_setup(
            job=7, view=3, pserver=1, pservers=2, ports_num=2, parameters=(Parameter(name="w", shape=(4,)),), seed=1,
            optimizer=Optimizer(), shards=1, shares=share_out(1, 1), snapshots=Snapshots(path=str(place)),
        )  # fmt: skip
        self.done: queue.Queue[FileWritten] = queue.Queue()
        self.cutter = SnapshotWriter(setup, 2, self.done.put)

    def open(self, round_: int, *, ends_pass: bool = False) -> Cut | None:
        return self.cutter.open(counts(round_), ends_pass=ends_pass)

    def take(self, round_: int, lane: int, *, ends_pass: bool = False) -> None:
        cut = self.open(round_, ends_pass=ends_pass)
        assert cut is not None
        self.cutter.give(cut, capture_of(lane, round_))

    def cut(self, round_: int, *, ends_pass: bool = False) -> None:
        for lane in range(2):
            self.take(round_, lane, ends_pass=ends_pass)

    def part(self) -> FileWritten:
        return self.done.get(timeout=WAIT_S)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    before = set(threading.enumerate())
    made = Stage(tmp_path / "snapshots")
    yield made
    made.cutter.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive(), f"{thread.name} is left over"


class Gate:
    """A place that a thread does not pass before it is let through."""

    def __init__(self) -> None:
        self.reached, self._is_open = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.reached.set()
        assert self._is_open.wait(WAIT_S)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Holds a thread that is about to sync a part."""
    made = Gate()
    monkeypatch.setattr(faults, "_armed", lambda point, *_: made() if point == "part.sync" else None)
    return made


def test_only_what_is_due_is_copied() -> None:
    made: list[str] = []
    pieces = [CopyBeforeUpdate(5, lambda: made.append("state")), CopyBeforeUpdate(6, lambda: made.append("values"))]
    capture = Capture({}, pieces)
    capture.make(4)
    assert made == []
    capture.make(5)
    assert (made, capture.is_made) == (["state"], False)
    capture.make()
    capture.make()
    assert (made, capture.is_made) == (["state", "values"], True)


@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_pieces_cover_an_array_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(writer, "PIECE_NBYTES", 28)
    source, target = np.arange(size, dtype=np.float32), np.full(size, -1, np.float32)
    pieces = list(copy_pieces(0, source, target))
    assert len(pieces) == -(-size // 7)
    Capture({}, pieces).make()
    assert target.tolist() == source.tolist()


def test_a_lane_waits_for_one_piece_and_copies_the_rest() -> None:
    gate, rest = Gate(), threading.Event()
    capture = Capture({}, [CopyBeforeUpdate(1, gate), CopyBeforeUpdate(1, rest.set)])
    copier = threading.Thread(target=capture.make)
    copier.start()
    assert gate.reached.wait(WAIT_S)
    lane = threading.Thread(target=capture.make, args=(1,))
    lane.start()
    assert rest.wait(WAIT_S), "the lane did not help"
    assert lane.is_alive(), "the lane continued before all was copied"
    made = [capture.is_made]
    gate.open()
    copier.join(WAIT_S)
    lane.join(WAIT_S)
    made.append(capture.is_made)
    assert made == [False, True]
    assert not lane.is_alive(), "the lane waits although all was copied"


def test_a_part_holds_what_every_lane_gave(stage: Stage) -> None:
    stage.cut(5)
    done = stage.part()
    assert done.written is not None and (done.counts.round, done.is_delta) == (5, False)
    part = read_part(done.path, sha256=done.written.sha256)
    assert {name: set(array.tolist()) for name, array in part.arrays.items()} == {"lane0.w": {5.0}, "lane1.w": {5.0}}


def test_all_lanes_skip_a_cut_while_another_is_written(
    stage: Stage, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    stage.cut(5)
    assert gate.reached.wait(WAIT_S)
    assert stage.open(7) is None
    gate.open()
    assert stage.part().counts.round == 5
    assert stage.open(7) is None, "the writer is free, but the first lane has left it out"
    assert "skipped cut round=7" in caplog.text
    stage.cut(9)
    assert stage.part().counts.round == 9


def test_the_end_of_a_pass_waits_for_the_cut_before_it(stage: Stage, gate: Gate) -> None:
    stage.cut(5)
    assert gate.reached.wait(WAIT_S)
    lanes = [threading.Thread(target=stage.take, args=(7, lane), kwargs={"ends_pass": True}) for lane in range(2)]
    for lane in lanes:
        lane.start()
    assert stage.done.empty() and all(lane.is_alive() for lane in lanes)
    gate.open()
    assert [stage.part().counts.round, stage.part().counts.round] == [5, 7]
    for lane in lanes:
        lane.join(WAIT_S)


def test_the_end_of_a_pass_hurries_the_writer_of_the_last_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    blocks, moment, real = 1000, threading.Event(), snapshot_files.write_part

    def rest(seconds: float) -> None:
        rests.append(seconds)
        moment.wait(0.001)

    def write(path: Path, arrays: Arrays, meta: dict[str, object], between: Callable[[], None]) -> Written:
        """Write a part of many blocks, or what is left of it once there are no more rests."""
        for rested in range(blocks):
            between()
            if len(rests) == rested:
                break
        return real(path, arrays, meta)

    monkeypatch.setattr(writer, "write_part", write)
    monkeypatch.setattr(writer, "sleep", rest)
    stage.cut(5)
    stage.cut(7, ends_pass=True)
    assert [stage.part().counts.round, stage.part().counts.round] == [5, 7]
    assert len(rests) < blocks, "the writer rested after every block, though a lane waited for it"


def test_waits_at_the_end_of_a_pass_end_with_the_job(stage: Stage, gate: Gate) -> None:
    stage.cut(5)
    assert gate.reached.wait(WAIT_S)
    found: queue.Queue[Cut | None] = queue.Queue()
    lane = threading.Thread(target=lambda: found.put(stage.open(7, ends_pass=True)))
    lane.start()
    stage.cutter.stop()
    assert found.get(timeout=WAIT_S) is None
    lane.join(WAIT_S)
    gate.open()


def test_a_cut_that_lacks_a_lane_makes_room_for_the_next(stage: Stage) -> None:
    stage.take(5, lane=0)
    stage.cut(9, ends_pass=True)
    assert stage.part().counts.round == 9


def test_a_cut_builds_on_the_newest_one_that_counts(stage: Stage) -> None:
    bases = []
    for round_, commits in ((5, ()), (7, (5,)), (9, ()), (11, (9, 7))):
        for old in commits:
            stage.cutter.committed(old, chain=0)
        bases.append(base_at(stage, round_))
    assert bases == [NO_CUT, 5, 5, 9]


def test_after_a_long_chain_cuts_are_whole_until_one_counts(stage: Stage) -> None:
    bases = []
    for round_, committed, chain in ((5, 3, MOST_DELTAS - 1), (7, 5, MOST_DELTAS), (9, 5, MOST_DELTAS), (11, 9, 0)):
        stage.cutter.committed(committed, chain)
        bases.append(base_at(stage, round_))
    assert bases == [3, NO_CUT, NO_CUT, 9]


def base_at(stage: Stage, round_: int) -> int:
    """Take a cut; returns what it builds on."""
    cut = stage.open(round_)
    assert cut is not None
    for lane in range(2):
        stage.cutter.give(cut, capture_of(lane, round_))
    stage.part()
    return cut.base


@pytest.mark.parametrize("point", ["part.sync", "part.rename"])
def test_a_full_disk_ends_that_cut_loudly_and_nothing_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, point: str
) -> None:
    def refuse(at: str, *_: object) -> None:
        if at == point:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stage.cut(5)
    kept = stage.part()
    monkeypatch.setattr(faults, "_armed", refuse)
    stage.cut(7)
    lost = stage.part()
    assert lost.written is None and lost.failure.startswith("the disk is full: cannot write ")
    assert [(r.levelno, "the disk is full" in r.message) for r in caplog.records] == [(logging.ERROR, True)]
    monkeypatch.setattr(faults, "_armed", None)
    stage.cut(9)
    done = stage.part()
    assert done.written is not None and kept.written is not None
    read_part(kept.path, sha256=kept.written.sha256)
    assert sorted(p.name for p in done.path.parents[1].rglob("*.bin")) == ["part-1.bin", "part-1.bin"]
    assert not list(done.path.parents[1].rglob("*.tmp"))


def test_a_bug_in_the_writer_is_logged_and_the_next_cut_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("never thought of that")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_part", fail)
        stage.cut(5, ends_pass=True)
        assert stage.part().written is None
    assert "failed cut round=5 cause=bug" in caplog.text
    stage.cut(7)
    assert stage.part().written is not None


def test_the_writer_stands_back_behind_rounds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    found: queue.Queue[int] = queue.Queue()

    def note(point: str, round_: int) -> None:
        if point == "part.sync":  # which only the writer comes by
            found.put(os.getpriority(os.PRIO_PROCESS, 0))

    monkeypatch.setattr(faults, "_armed", note)
    stage.cut(5)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert found.get(timeout=WAIT_S) == min(own + writer.NICENESS, 19)
    stage.part()


def test_a_writer_that_is_waited_for_takes_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(writer, "sleep", rests.append)
    is_urgent = False
    pace = writer._Pace(lambda: is_urgent)
    pace.rest()
    assert len(rests) == 1
    is_urgent = True
    pace.rest()
    assert len(rests) == 1
