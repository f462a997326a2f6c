"""Faults as people write them: which make sense, what becomes of them, and which of them happened."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bireme.core import faults as points
from bireme.core.errors import UsageError
from bireme.job.status import JobStatus
from bireme.local.drill import Drill
from bireme.local.faults import Action, Fault, at_random, check_recoveries, parse, plan_of
from bireme.spec.job import Job

JOB = cast(Job, SimpleNamespace(trainers=3, pservers=3, nodes=3))
TRAINING = JobStatus(phase="training", round=7)


class World:
    """A clock and processes that a drill sees instead of the machine's."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pids: list[int] = [4711]
        self.signals: list[str] = []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(time, "time", lambda: made.now)
    monkeypatch.setattr(os, "kill", lambda pid, number: made.signals.append(f"{number.name} {pid}"))
    monkeypatch.setattr(Drill, "_pids", lambda self, who: made.pids)
    yield made
    points.arm("")
    points.on_cut(None)


def faults_of(*written: str) -> list[Fault]:
    return [parse(cast(Action, one.split()[0]), one.split()[1], JOB) for one in written]


@pytest.mark.parametrize(
    "who",
    [
        "all-pserver:1",
        "pserver:1-trainer:0",
        "trainer:0-trainer:2",
        "trainer:0-pserver",
        "node:0-pserver:1",
        "trainer:0",
    ],
)
def test_a_cut_is_between_a_trainer_and_a_pserver(who: str) -> None:
    with pytest.raises(UsageError, match="is not understood") as caught:
        parse("cut", f"{who}@round=5", JOB)
    assert "a cut is trainer:0-pserver:1@WHEN" in caught.value.fix


def test_a_cut_from_a_pserver_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no pserver 3"):
        parse("cut", "trainer:0-pserver:3@round=5", JOB)


@pytest.mark.parametrize("who", ["node:1", "all"])
def test_only_trainers_and_pservers_are_struck_at_a_point(who: str) -> None:
    with pytest.raises(UsageError, match=f"{who} cannot be struck at a recovery"):
        parse("kill", f"{who}@recovery", JOB)
    for when in ("point=push.after", "round=5,point=push.after", "recovery,point=view.enter"):
        with pytest.raises(UsageError, match=f"{who} cannot be struck at a point") as caught:
            parse("kill", f"{who}@{when}", JOB)
        assert "round=N or after=SECONDS" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("trainer:1@point=lane.landed", "only pserver does"),
        ("pserver:1@round=5,point=push.after", "only trainer does"),
        ("pserver:1@point=snapshot.commit", "only the coordinator does"),
        ("trainer:1@point=model.saved", "only trainer:0 does"),
    ],
)
def test_a_fault_at_a_point_never_passed_is_refused(text: str, who: str) -> None:
    with pytest.raises(UsageError, match=who):
        parse("kill", text, JOB)
    assert parse("kill", "coordinator@point=snapshot.commit", JOB).who == "pserver:0"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("trainer:0@after=5s,point=push.after", "names several moments"),
        ("trainer:0@after=5s,round=9", "names several moments"),
        ("trainer:0@recovery,round=9", "names several moments"),
        ("trainer:0@round=soon,point=push.after", "is not understood"),
        ("trainer:0@round=9,twice", "is not understood"),
        ("trainer:0@round=9,5s", "is not understood"),
        ("trainer:0@after=soon", "'soon' is no duration"),
        ("trainer:0@", "does not say when"),
    ],
)
def test_no_part_of_a_moment_is_forgotten(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse("kill", text, JOB)


def test_a_recovery_needs_a_fault_before_it() -> None:
    with pytest.raises(UsageError, match="kill pserver:0 @recovery: there is no fault before it to recover from"):
        check_recoveries(faults_of("kill pserver:0@recovery", "kill trainer:1@round=5"))
    check_recoveries(faults_of("kill trainer:1@round=5", "kill pserver:0@recovery"))


def test_a_cut_after_seconds_is_its_trainers_and_stops_no_other(world: World, tmp_path: Path) -> None:
    faults = faults_of("kill pserver:2@round=100", "cut trainer:0-pserver:1@after=5s")
    drill, cut = Drill(faults, tmp_path), list[str]()
    points.arm(plan_of(faults), "trainer:0", tmp_path)
    points.on_cut(cut.append)
    for now in (1000.0, 1004.9):
        world.now = now
        drill.look(TRAINING, tmp_path)
        points.at("push.before", 7)
    assert cut == []
    world.now = 1005.0
    drill.look(TRAINING, tmp_path)
    for round_ in (8, 9):
        points.at("push.before", round_)
    drill.look(TRAINING, tmp_path)
    assert cut == ["pserver:1"]
    assert world.signals == []
    assert [(struck.fault, struck.round) for struck in drill.struck] == [(faults[1], 8)]
    assert drill.never == [faults[0]]


def test_a_fault_in_a_recovery_waits_for_outside_faults_too(world: World, tmp_path: Path) -> None:
    faults = faults_of("kill all@after=3s", "kill pserver:1@recovery")
    drill = Drill(faults, tmp_path)
    points.arm(plan_of(faults), "pserver:1", tmp_path)
    drill.look(TRAINING, tmp_path)
    points.at("view.set-up")
    assert world.signals == []
    world.now += 3
    drill.look(TRAINING, tmp_path)
    points.at("view.set-up")
    assert [said.split()[0] for said in world.signals] == ["SIGKILL", "SIGKILL"]
    drill.look(TRAINING, tmp_path)
    assert [struck.fault for struck in drill.struck] == faults


def test_a_pause_is_ended_when_its_time_is_over(world: World, tmp_path: Path) -> None:
    drill = Drill(faults_of("pause trainer:0@after=1s,4s"), tmp_path)
    for _ in range(7):
        drill.look(TRAINING, tmp_path)
        world.now += 1
    assert world.signals == ["SIGSTOP 4711", "SIGCONT 4711"]


def test_a_node_stands_still_with_its_processes(world: World, tmp_path: Path) -> None:
    drill = Drill(faults_of("pause node:1@after=1s,4s"), tmp_path)
    for _ in range(7):
        drill.look(TRAINING, tmp_path)
        world.now += 1
    assert world.signals == ["SIGSTOP 4711"] * 3 + ["SIGCONT 4711"] * 3, "its entry, its pserver and its trainer"


def test_faults_that_were_asked_for_and_never_happened_are_named(world: World, tmp_path: Path) -> None:
    faults = faults_of("kill trainer:0@after=9999s", "kill all@round=9999", "cut trainer:0-pserver:1@after=2s")
    drill = Drill(faults, tmp_path)
    for _ in range(4):
        drill.look(TRAINING, tmp_path)
        world.now += 1
    assert drill.never == faults


def test_of_drawn_faults_only_those_that_were_due_are_missed(world: World, tmp_path: Path) -> None:
    drawn = [Fault("kill", "trainer:0", f"@after={s}s", after_s=float(s), is_drawn=True) for s in (1, 2, 9)]
    drill = Drill(drawn, tmp_path)
    for pids in ([4711], [4711], []):
        world.pids = pids
        drill.look(TRAINING, tmp_path)
        world.now += 1
    assert [struck.fault for struck in drill.struck] == drawn[:1]
    assert drill.never == drawn[1:2], "no process was there to be killed; the last one was for after the end"


def test_the_same_seed_draws_the_same_faults() -> None:
    first = at_random(JOB, 7, 5.0, 200)
    assert first == at_random(JOB, 7, 5.0, 200)
    assert first != at_random(JOB, 8, 5.0, 200)
    assert at_random(JOB, 7, 5.0, 20) == first[:20]


def test_faults_are_drawn_of_every_kind_and_in_the_order_of_time() -> None:
    drawn = at_random(JOB, 7, 5.0, 200)
    moments: list[Any] = [fault.after_s for fault in drawn]
    assert moments == sorted(moments)
    assert 3.0 < moments[-1] / 200 < 7.0
    assert {fault.role for fault in drawn} == {"trainer", "pserver", "node", "all"}
    assert {fault.action for fault in drawn} == {"kill", "pause"}
    assert all(fault.is_drawn and (fault.seconds > 0) == (fault.action == "pause") for fault in drawn)
