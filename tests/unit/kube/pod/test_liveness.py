"""What a pod looks after: probes, its lease, and a snapshot before it leaves."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bireme.job.node.incarnations import Lease
from bireme.job.node.log_budget import Copier
from bireme.job.status import JobStatus
from bireme.kube.pod import liveness
from bireme.kube.pod.liveness import PodWatch, PreStopSnapshot, Probes


class Coordinator:
    """Answers with what it is given, one after the other, and then always with the last."""

    def __init__(self, *answers: JobStatus | None) -> None:
        self._answers = list(answers)
        self.wishes: list[bool] = []

    def __call__(self, is_wish: bool) -> JobStatus | None:
        self.wishes.append(is_wish)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def training(*, wanted: bool = False) -> JobStatus:
    return JobStatus(phase="training", snapshot=7, snapshot_wanted=wanted)


def until_over(coordinator: Coordinator, grace_s: float = 25.0) -> float:
    """How long the pre-stop snapshot takes on a clock that ticks."""
    pre_stop, now_s = PreStopSnapshot(coordinator, grace_s), 100.0
    while not pre_stop.is_over(now_s):
        now_s += 0.05
    return now_s - 100.0


def test_a_node_requests_one_snapshot_and_leaves_after_it() -> None:
    coordinator = Coordinator(training(wanted=True), training(wanted=True), training())
    assert until_over(coordinator) < 1.0
    assert coordinator.wishes == [True, False, False]


def test_a_node_waits_no_longer_than_it_is_given() -> None:
    assert 25.0 <= until_over(Coordinator(training(wanted=True))) < 25.2


@pytest.mark.parametrize("phase", ["gathering", "setting-up", "finished", "failed"])
def test_without_rounds_there_is_nothing_to_wait_for(phase: str) -> None:
    assert until_over(Coordinator(JobStatus(phase=phase))) == 0.0


def test_a_job_that_cannot_cut_within_a_pass_is_not_waited_for() -> None:
    assert until_over(Coordinator(training())) == 0.0


def test_a_coordinator_that_left_has_seconds_to_come_back() -> None:
    assert liveness.GONE_S - 0.1 <= until_over(Coordinator(None)) < liveness.GONE_S + 1
    coordinator = Coordinator(None, None, training(wanted=True), training())
    assert until_over(coordinator) < 1.5
    assert coordinator.wishes == [True, True, True, False]


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    return Lease.take(tmp_path / "lease", "pod-a")


@pytest.fixture
def watch(tmp_path: Path, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> PodWatch:
    monkeypatch.setattr(liveness, "LOOK_EVERY_S", 0.0)
    copier = Copier({}, io.BytesIO())
    return PodWatch(lease, Probes(tmp_path / "probes"), copier, PreStopSnapshot(Coordinator(None), 0.0))


def test_probes_begin_with_no_claim_at_all(tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    Probes(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_node_is_ready_while_all_its_processes_take_part(watch: PodWatch, tmp_path: Path) -> None:
    marks = [tmp_path / "pserver.mark", tmp_path / "trainer.mark"]
    watch.marks = marks
    ready = tmp_path / "probes" / "ready"
    for present, is_ready in ((0, False), (1, False), (2, True)):
        for mark in marks[:present]:
            mark.touch()
        assert watch.may_continue()
        assert ready.exists() is is_ready
    marks[0].unlink()
    assert watch.may_continue() and not ready.exists()
    assert (tmp_path / "probes" / "started").exists() and (tmp_path / "probes" / "alive").exists()


def test_a_node_whose_place_was_taken_must_stop(watch: PodWatch, tmp_path: Path, lease: Lease) -> None:
    assert watch.may_continue()
    later = Lease.take(tmp_path / "lease", "pod-b")
    assert not watch.may_continue()
    assert not later.is_lost()


def test_what_must_be_done_each_second_is_done(watch: PodWatch) -> None:
    done: list[int] = []
    watch.each_second.append(lambda: done.append(1))
    assert watch.may_continue() and done == [1]


def test_probes_survive_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    probes = Probes(tmp_path / "file" / "below")
    probes.set("alive", is_so=True)
