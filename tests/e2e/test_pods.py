"""Real processes that act like pods: `bireme node` with a pod's environment, an address each, and a shared directory.

No cluster is needed for what only the entry decides: which pod settles the job, which waits for which, the fate of a
pod that runs on beside its replacement, and what is saved when pods are asked to end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.job.output.model import model_hash
from bireme.job.output.snapshots import candidates
from bireme.job.output.verify import verify
from bireme.spec.job import Job
from bireme.spec.load import load_job
from tests.e2e.conftest import PAIR, Cli, Undisturbed, assert_ledger_is_exact, edit, lines_of, save_often, wait_until

PASSES = 8
NODES = 3


@pytest.fixture
def job(job: Path) -> Path:
    """The small job with a pod for each shard."""
    edit(job, (PAIR, ""))
    return job


def free_port() -> int:
    """A port that is free on all addresses, with a few more after it, most likely."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return min(int(sock.getsockname()[1]), 65000)


def children_of(pid: int) -> list[int]:
    """Processes that this one has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Pods:
    """A job on a volume, and processes that think that they are its pods."""

    def __init__(self, cli: Cli, job_file: Path) -> None:
        self.home = cli.home
        self._environment = cli.environment()
        self.job = load_job(job_file, {}, {})
        self.output = Path(self.job.output)
        self.started: list[subprocess.Popen[bytes]] = []
        self.change(port=free_port(), hosts=tuple(f"127.0.1.{rank + 1}" for rank in range(NODES)))

    def change(self, **changes: Any) -> None:
        """Give pods another job from now on."""
        self.job = msgspec.structs.replace(self.job, **changes)
        (self.home / "given.json").write_bytes(msgspec.json.encode(self.job))

    def start(self, rank: int, *, life: int = 1, **more: str) -> subprocess.Popen[bytes]:
        """Start a pod; each life has an address and a /tmp of its own."""
        own = self.home / f"pod-{rank}-{life}-{len(self.started)}"
        own.mkdir()
        environment = {
            **self._environment,
            "BIREME_JOB": str(self.home / "given.json"),
            "JOB_COMPLETION_INDEX": str(rank),
            "POD_NAME": own.name,
            "POD_IP": f"127.0.{life}.{rank + 1}",
            "BIREME_PROBES": str(own / "probes"),
            "BIREME_SCRATCH": str(own / "scratch"),
            "BIREME_GRACE_S": "15",
            **more,
        }
        with (own / "out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "bireme", "node"], env=environment, stdout=out, stderr=out
            )
        self.started.append(process)
        return process

    def start_all(self) -> list[subprocess.Popen[bytes]]:
        return [self.start(rank) for rank in range(NODES)]

    def said(self) -> str:
        """What all pods have printed."""
        return "\n".join(f"{path}\n{path.read_text()}" for path in sorted(self.home.glob("pod-*/out")))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in lines_of(self.output / "metrics.jsonl") if line["event"] == name]

    def wait_for_pass(self) -> None:
        """Most of the work is still to be done."""
        wait_until(lambda: self.events("pass") or self._has_ended(), "the first pass is saved")
        assert not self._has_ended(), self.said()

    def _has_ended(self) -> bool:
        return any(process.poll() is not None for process in self.started)

    def end_as(self, undisturbed: Undisturbed, pods: list[subprocess.Popen[bytes]]) -> None:
        """These pods end well, and so does the job."""
        for pod in pods:
            assert pod.wait(120) == 0, self.said()
        assert model_hash(self.output / f"pass-{PASSES - 1:05d}") == undisturbed(PASSES)
        assert_ledger_is_exact(self.output, PASSES)
        assert verify(self.output).problems == []

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def pods(cli: Cli, job: Path) -> Iterator[Pods]:
    found = Pods(cli, save_often(job, passes=PASSES))
    yield found
    found.close()


def test_pods_train_the_model_of_one_machine_and_stay_finished(pods: Pods, undisturbed: Undisturbed) -> None:
    started = pods.start_all()
    pods.end_as(undisturbed, started)
    settled = msgspec.json.decode((pods.output / "job.json").read_bytes(), type=Job)
    assert settled.data_fingerprint and settled.run_incarnation
    assert list((pods.output / "snapshots").glob("inputs-*.json"))
    assert "trainer 1 | I" in (pods.home / "pod-1-1-1" / "out").read_text()
    assert "Pass=0" in (pods.output / "node_1" / "train.log").read_text()
    assert "started trainer=1" in (pods.output / "node_1" / "node.log").read_text()
    leave_at_once(pods)
    refuse_another_job(pods)


def leave_at_once(pods: Pods) -> None:
    """A pod that comes back after the end has nothing to do."""
    assert pods.start(1).wait(30) == 0
    assert pods.start(0).wait(30) == 0
    assert pods.said().count("already finished") == 2


def refuse_another_job(pods: Pods) -> None:
    """Another job would mix two runs."""
    pods.change(seed=2)
    assert pods.start(0).wait(30) == 7
    said = pods.said()
    assert "already holds a run" in said and "of another job" in said
    assert "seed 1 → 2" in said and "set another `output`" in said


SLOWLY = "delay:seed=1,max_ms=10"
"""So that a job is not over before a pod has left; delays change no bits."""


def snapshot_rounds(pods: Pods) -> list[int]:
    return [manifest.round for manifest in candidates(pods.output / "snapshots")[0]]


def test_pods_that_are_all_ended_save_first_and_resume(pods: Pods, undisturbed: Undisturbed) -> None:
    pods.change(snapshots=msgspec.structs.replace(pods.job.snapshots, every_s=3600.0), faults=SLOWLY)
    first = pods.start_all()
    pods.wait_for_pass()
    for pod in first:
        pod.terminate()
    assert [pod.wait(30) for pod in first] == [143] * NODES, pods.said()
    saved = max(snapshot_rounds(pods))
    assert "snapshot committed" in pods.said()
    reached = max(event["round"] for event in pods.events("progress"))
    assert reached - saved <= 60, "a tenth of a second's work at most"
    zero, two = pods.start(0), pods.start(2)
    waiting = "waiting members='node 1 (its pod gives no sign of life)"
    wait_until(lambda: waiting in pods.said(), "they wait for the third")
    pods.end_as(undisturbed, [zero, pods.start(1), two])
    assert [event["round"] for event in pods.events("view") if event["kind"] == "rewind"][:1] == [saved]


def test_a_pod_ended_alone_saves_first_for_its_replacement(pods: Pods, undisturbed: Undisturbed) -> None:
    pods.change(snapshots=msgspec.structs.replace(pods.job.snapshots, every_s=3600.0), faults=SLOWLY)
    zero, one, two = pods.start_all()
    pods.wait_for_pass()
    one.terminate()
    assert one.wait(30) == 143, pods.said()
    saved = max(snapshot_rounds(pods))
    pods.end_as(undisturbed, [zero, pods.start(1), two])
    rewinds = [event["round"] for event in pods.events("view") if event["kind"] == "rewind"]
    assert rewinds and min(rewinds) == saved


def test_a_pod_leaves_when_its_replacement_works(pods: Pods, undisturbed: Undisturbed) -> None:
    pods.change(hosts=())  # a replacement has another address, and there is no name service here
    zero, old, two = pods.start_all()
    pods.wait_for_pass()
    family = [old.pid, *children_of(old.pid)]
    assert len(family) == 3
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    new = pods.start(1, life=2)
    wait_until(lambda: len(pods.events("recovered")) > 0, "the replacement trains")
    for pid in family:
        with suppress(ProcessLookupError):  # the entry ends the others as soon as it continues
            os.kill(pid, signal.SIGCONT)
    assert old.wait(20) == 143, pods.said()
    assert not any(is_running(pid) for pid in family[1:])
    pods.end_as(undisturbed, [zero, new, two])


def test_a_stopped_entrys_children_work_until_it_is_replaced(pods: Pods, undisturbed: Undisturbed) -> None:
    pods.change(hosts=())
    zero, old, two = pods.start_all()
    pods.wait_for_pass()
    rounds_stop = children_of(two.pid)
    for pid in (old.pid, *rounds_stop):
        os.kill(pid, signal.SIGSTOP)
    new = pods.start(1, life=2)
    wait_until(lambda: "trainer 1 was replaced" in str(pods.events("lost")), "the replacement has joined")
    for pid in (*rounds_stop, old.pid):
        os.kill(pid, signal.SIGCONT)
    assert old.wait(20) == 143, pods.said()
    pods.end_as(undisturbed, [zero, new, two])


def test_children_do_not_outlive_their_entry(pods: Pods) -> None:
    started = pods.start_all()
    pods.wait_for_pass()
    children = children_of(started[1].pid)
    assert len(children) == 2
    started[1].kill()
    wait_until(lambda: not any(is_running(pid) for pid in children), "its children are gone")


def test_a_job_waits_for_all_pods_and_names_the_missing(pods: Pods) -> None:
    pods.change(connect_timeout_s=1.0)  # five times as long in pods
    zero, two = pods.start(0), pods.start(2)
    assert (zero.wait(60), two.wait(60)) == (9, 9), pods.said()
    said = pods.said()
    assert "s for node 1 (its pod gives no sign of life)" in said
    assert "waiting members='node 1 (its pod gives no sign of life)" in said
    assert "started trainer" not in said and "started pserver" not in said


def test_pods_wait_for_the_one_that_settles_the_job(pods: Pods) -> None:
    pods.change(connect_timeout_s=1.0)
    assert pods.start(1).wait(60) == 9
    assert "s for node 0 (it has not begun the job)" in pods.said()


def test_a_shard_that_is_missing_is_named_before_anything_begins(pods: Pods) -> None:
    pods.change(shards=4)
    assert pods.start(0).wait(30) == 5
    assert f"shard 3 of 4 is missing: there is no directory {pods.job.data}/3/data" in pods.said()


def test_probes_report_what_a_pod_does(pods: Pods) -> None:
    pods.change(connect_timeout_s=60.0, faults=SLOWLY)
    pod = pods.start(1)
    probes = pods.home / "pod-1-1-0" / "probes"
    wait_until(lambda: (probes / "alive").exists(), "it waits, and is alive")
    assert (probes / "started").exists() and not (probes / "ready").exists()
    others = [pods.start(0), pods.start(2)]
    wait_until(lambda: (probes / "ready").exists(), "it takes part")
    before = (probes / "alive").stat().st_mtime_ns
    wait_until(lambda: (probes / "alive").stat().st_mtime_ns > before, "its main loop turns")
    for each in (pod, *others):
        each.terminate()
    assert pod.wait(30) == 143
    assert not (probes / "ready").exists()


def test_a_run_that_failed_is_begun_again_by_the_next_pods(pods: Pods, undisturbed: Undisturbed) -> None:
    config = pods.home / "job" / "quick_start" / "trainer_config.lr.py"
    good = config.read_text()
    config.write_text("raise ValueError('not today')\n" + good)
    assert {pod.wait(60) for pod in pods.start_all()} <= {4, 13}
    assert "not today" in pods.said()
    config.write_text(good)
    pods.end_as(undisturbed, pods.start_all())


@pytest.mark.parametrize("pservers", [1, 3])
def test_with_roles_pservers_and_trainers_have_their_own_pods(
    pods: Pods, undisturbed: Undisturbed, pservers: int
) -> None:
    pods.change(pservers=pservers, hosts=tuple(f"127.0.1.{rank + 1}" for rank in range(pservers)))
    roles = [*(("pserver", rank) for rank in range(pservers)), *(("trainer", rank) for rank in range(3))]
    lives = {"pserver": 1, "trainer": 2}  # pservers are at the addresses in `hosts`
    started = [pods.start(rank, life=lives[role], BIREME_ROLE=role) for role, rank in roles]
    pods.end_as(undisturbed, started)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"BIREME_JOB": ""}, "neither BIREME_JOB nor JOB_NAME and JOB_PATH are set"),
        ({"JOB_COMPLETION_INDEX": ""}, "JOB_COMPLETION_INDEX is not set"),
        ({"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX is 'x', which is not a number"),
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX is 3, but the job has only 3 nodes"),
        ({"BIREME_ROLE": "boss"}, "BIREME_ROLE is 'boss', which is neither pserver nor trainer"),
    ],
)
def test_an_environment_that_makes_no_sense_is_reported(pods: Pods, variables: dict[str, Any], words: str) -> None:
    assert pods.start(0, **variables).wait(30) == 2
    assert words in pods.said()


def seeds_environment(pods: Pods, name: str) -> dict[str, Any]:
    """The variables that the tutorial's Job gives its pods, which have no index and no API server here."""
    place = pods.home / "volume" / "paddle-cluster-job"
    if not place.exists():
        place.parent.mkdir()
        (pods.home / "job").rename(place)
    return {
        "BIREME_JOB": "", "JOB_COMPLETION_INDEX": "", "POD_NAME": name,
        "JOB_NAME": place.name, "JOB_PATH": str(place.parent), "JOB_NAMESPACE": "default",
        "TRAIN_CONFIG_DIR": "quick_start", "CONF_PADDLE_NIC": "eth7", "CONF_PADDLE_PORT": str(pods.job.port),
        "CONF_PADDLE_PORTS_NUM": "2", "CONF_PADDLE_PORTS_NUM_SPARSE": "2", "CONF_PADDLE_GRADIENT_NUM": "3",
        "TRAINER_COUNT": "3", "BIREME_PASSES": str(PASSES),
    }  # fmt: skip


def test_pods_of_a_plain_job_meet_on_the_volume(pods: Pods, undisturbed: Undisturbed) -> None:
    names = ("tutorial-zz", "tutorial-aa", "tutorial-mm")
    started = [pods.start(rank, **seeds_environment(pods, name)) for rank, name in enumerate(names)]
    pods.output = pods.home / "volume" / "paddle-cluster-job" / "output"
    pods.wait_for_pass()
    first = msgspec.json.decode((pods.output / "run" / "ranks" / "first.json").read_bytes(), type=list[str])
    assert first == list(names), "by address, not by name"
    started[1].kill()
    started[1].wait()
    replacement = pods.start(1, life=2, **seeds_environment(pods, "tutorial-new"))
    pods.end_as(undisturbed, [started[0], replacement, started[2]])
    assert (pods.output / "run" / "ranks" / "rank-1.1").read_text() == "tutorial-new"
