"""A job on the cluster while it runs: its pods by `bireme status`, their lines by `bireme logs`.

And what they said once they are gone, from the volume.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tools.kube.victim import Victim

from tests.e2e.conftest import edit
from tests.kube.ordeal import at_work, disturbed
from tests.kube.stage import There, small_job

ALL = {0, 1, 2}
PASSES = 4


class Said(NamedTuple):
    """A line of a log."""

    log: str
    line: str

    @property
    def node(self) -> int:
        """The node that wrote it."""
        return int(re.match(r"node_(\d+)/", self.log)[1])  # type: ignore[index]

    @property
    def at(self) -> float:
        """When it was said, by its own words; 0 for a line that belongs to the one before."""
        return moment_of(self.line)


def moment_of(line: str) -> float:
    """The time at the beginning of a line, as pods write it; 0 if there is none."""
    found = re.match(r"[A-Z](\d{4} \d\d:\d\d:\d\d\.\d{6}) ", line)
    if found is None:
        return 0.0
    now = datetime.now(UTC)
    return datetime.strptime(f"{now.year}{found[1]}+0000", "%Y%m%d %H:%M:%S.%f%z").timestamp()


def parsed(lines: str) -> list[Said]:
    return [Said(**json.loads(line)) for line in lines.splitlines()]


def logs(there: There, *options: str) -> list[Said]:
    """What `bireme logs` prints."""
    return parsed(there.do("logs", "small", "--json", *options).out)


def assert_in_order(lines: list[Said]) -> None:
    times = [said.at for said in lines if said.at]
    assert times == sorted(times) and len(times) > 20


class Following:
    """`bireme logs -f` in the background, and what it has printed so far."""

    def __init__(self, there: There, *options: str) -> None:
        self.process = there.start("logs", "small", "-f", "--json", *options, "--namespace", there.namespace)
        self.heard: list[Said] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard += parsed(line)

    def since(self, moment: float) -> list[Said]:
        """What was said after a moment and is here."""
        return [said for said in list(self.heard) if said.at > moment]

    def end(self) -> tuple[int, str]:
        """Wait until it ends by itself; how it did."""
        code = self.process.wait(60)
        self._thread.join(10)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        self._thread.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def talker(there: There, reviews: Path) -> Victim:
    """A job at work whose trainers say something every second or so."""
    path = disturbed(small_job(there, reviews), PASSES)
    edit(path, ("connect_timeout_s", "log_period: 5\nconnect_timeout_s"))
    return at_work(there, path)


def pods_of(there: There, restarts: list[int]) -> list[dict[str, Any]]:
    """What the status says of each pod, once all take part and have been replaced so often."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        status = there.ask("status", "small")
        assert status["state"] in ("running", "starting"), status
        found[:] = status["pod_list"]
        are_at_work = all(pod["is_ready"] and "pass" in pod["trains"] for pod in found)
        return are_at_work and [pod["restarts"] for pod in found] == restarts

    there.wait(are_there, f"all pods are ready, after {restarts} restarts", 90)
    return found


def check_pods(there: There, talker: Victim, restarts: list[int]) -> None:
    """The status has each pod: its rank and machine, and how far it is."""
    pods = pods_of(there, restarts)  # which may wait for passes
    now = talker.lines()[-1]["pass"]
    for rank, pod in enumerate(pods):
        assert (pod["rank"], pod["role"], pod["phase"], pod["name"]) == (rank, "node", "Running", talker.name_of(rank))
        assert pod["machine"] == talker.machine_of(rank)
        trains = pod["trains"]
        assert abs(trains["pass"] - now) <= 1 and 1 <= trains["batch"] <= trains["batches"] <= 51, trains
        assert 0 < trains["rate"] < 4000, f"a round takes some hundredths of a second: {trains}"


def check_choices(there: There) -> None:
    """Of a job that runs: the lines of one node, and those of the last seconds, in the order of time."""
    only = logs(there, "--node", "1", "-n", "1000")
    assert {said.log for said in only} == {"node_1/train.log", "node_1/server.log", "node_1/node.log"}
    first = min(said.at for said in only if said.at)
    there.wait(lambda: time.time() > first + 15, "some of it is old")

    def all_speak() -> bool:
        asked = time.time()
        recent = [said for said in logs(there, "--since", "4s") if said.at]
        # The container's clock counts, and the entry copies five times a second: later where the machine is busy.
        assert not recent or min(said.at for said in recent) > asked - 9
        return {said.node for said in recent} == ALL

    # On a busy machine a node may say nothing for four seconds.
    there.wait(all_speak, "all nodes have said something lately", 60)
    everything = logs(there, "-n", "1000")
    assert_in_order(everything)
    assert min(said.at for said in everything if said.at) <= first


def test_a_running_jobs_logs_are_followed_chosen_and_kept(talker: Victim, there: There) -> None:
    started = time.time()
    with Following(there) as every, Following(there, "--node", "2", "--since", "1s") as one:
        there.wait(lambda: every.heard and one.heard, "both have begun")
        began = time.time()
        there.wait(lambda: {said.node for said in every.since(began)} == ALL, "all are heard of as they speak", 60)
        there.wait(lambda: one.since(began), "node 2 is heard of as it speaks", 60)
        check_choices(there)
        check_pods(there, talker, [0, 0, 0])
        killed = time.time()
        talker.survive(lambda: talker.kill_container(1))
        check_pods(there, talker, [0, 1, 0])
        assert talker.ending() == {}, "all this was to be shown while it ran"
        there.wait_for_end("small")
        assert every.end() == one.end() == (0, "")
        check_followed(talker, every.heard, ALL, began)
        check_followed(talker, one.heard, {2}, began)
        assert min(said.at for said in one.heard if said.at) > started - 4, "it was asked for what was recent"
    check_volume(there, killed)


def check_followed(talker: Victim, heard: list[Said], nodes: set[int], began: float) -> None:
    """Each line of these nodes came once, and none was left out, but what a killed pod did not come to repeat."""
    assert {said.node for said in heard} == nodes
    assert max(Counter(said for said in heard if said.at).values()) == 1
    last = Counter(said.log for said in heard if f" Pass={PASSES - 1} " in said.line)
    assert last == {f"node_{node}/train.log": 1 for node in nodes}
    known = set(heard)
    for node in nodes - {1}:
        for log in (f"node_{node}/train.log", f"node_{node}/server.log"):
            lines = (talker.output / log).read_text().splitlines()
            missing = [line for line in lines if moment_of(line) > began and Said(log, line) not in known]
            assert missing == []


def check_volume(there: There, killed: float) -> None:
    """When the pods are gone, the same lines come from the volume, those of pods that were replaced too."""
    there.cluster.kubectl("delete", "pods", "--all", "-n", there.namespace)
    everything = logs(there, "-n", "1000")
    assert_in_order(everything)
    assert {said.node for said in everything} == ALL
    entries = Counter(said.node for said in everything if re.search(r"starting node \d job=small pod=", said.line))
    assert entries == {0: 1, 1: 2, 2: 1}
    late = logs(there, "--node", "1", "--since", f"{time.time() - killed:.0f}s")
    assert {said.node for said in late} == {1}
    assert 0 < len(late) < sum(said.node == 1 for said in everything)
    assert min(said.at for said in late if said.at) > killed - 2
