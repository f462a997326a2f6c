"""A job on the test cluster that is to be hurt: where its pods and processes are, and what its books say.

What a job does is read from its output directory on the host's side of the shared volume, so nothing of the job, the
product or the API server is between a fault and what is seen of it. Seconds are the machine's own clock: all nodes of
the test cluster share it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.errors import ProcessError

from .machine import wait_for
from .running import RunningCluster

RANK = "batch.kubernetes.io/job-completion-index"
PATIENCE_S = 240.0
"""For a job to be back at work, on a machine that may be busy."""
Pod = dict[str, Any]


@dataclass(frozen=True)
class Victim:
    """A job by its name and namespace."""

    cluster: RunningCluster
    namespace: str
    name: str

    # What it does

    @property
    def output(self) -> Path:
        """The job's output directory, seen from the host."""
        claim = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{self.name}")
        return self.cluster.volume / str(claim["spec"]["volumeName"]) / self.name / "output"

    def lines(self, event: str = "progress") -> list[dict[str, Any]]:
        """What its metrics say of one kind so far; half a line at the end is left out."""
        path = self.output / "metrics.jsonl"
        text = path.read_text() if path.is_file() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in found if line.get("event") == event]

    def view(self) -> int:
        """The view of the last reported round; 0 before the first."""
        return max((int(line["view"]) for line in self.lines()), default=0)

    def ending(self) -> dict[str, Any]:
        """How it has ended; nothing while it has not."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.output / "status.json").read_text()))
        return {}

    def await_rounds(self, *, after: float, view: int = -1, more: int = 1) -> float:
        """Wait until rounds were done after a moment, in a later view than this; returns when the first of them was."""
        found: list[float] = []

        def is_there() -> bool:
            found[:] = [row["unix"] for row in self.lines() if row["unix"] > after and row["view"] > view]
            if len(found) < more and (ending := self.ending()):
                raise ProcessError(f"{self.name} has ended too early: {ending['phase']} {ending.get('reason', '')}")
            return len(found) >= more

        wait_for(f"rounds of {self.name}", is_there, seconds=PATIENCE_S, every=0.05)
        return found[0]

    def survive(self, strike: Callable[[], object]) -> float:
        """Strike, and wait until it is at work again in a new view; returns how many seconds that took."""
        view, began = self.view(), time.time()
        strike()
        return self.await_rounds(after=began, view=view, more=3) - began

    # Where it is

    def pods(self) -> list[Pod]:
        """All its pods that there are, also those that have ended."""
        chosen = f"labelSelector=app.kubernetes.io/instance={self.name}"
        found: list[Pod] = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods?{chosen}")["items"]
        return [pod for pod in found if RANK in pod["metadata"].get("labels", {})]

    def pod(self, rank: int) -> Pod:
        """The pod that is this node of the job: it runs, and is not being deleted."""
        for pod in self.pods():
            is_its = pod["metadata"]["labels"][RANK] == str(rank) and "deletionTimestamp" not in pod["metadata"]
            if is_its and pod["status"]["phase"] == "Running":
                return pod
        raise ProcessError(f"node {rank} of {self.name} has no pod that runs")

    def name_of(self, rank: int) -> str:
        """The name of a node's pod."""
        return str(self.pod(rank)["metadata"]["name"])

    def machine_of(self, rank: int) -> str:
        """The machine that a node's pod runs on."""
        return str(self.pod(rank)["spec"]["nodeName"])

    def await_another(self, rank: int, before: str) -> Pod:
        """Wait until a node has another pod than that one, which runs."""

        def is_there() -> bool:
            with contextlib.suppress(ProcessError):
                return self.name_of(rank) != before
            return False

        wait_for(f"another pod for node {rank} than {before}", is_there, seconds=PATIENCE_S)
        return self.pod(rank)

    def processes(self, rank: int) -> dict[str, int]:
        """The host's numbers of the processes in a node's container: `entry`, `pserver` and `trainer`."""
        status = self.pod(rank)["status"]["containerStatuses"][0]
        return dict(_processes_in(str(status["containerID"]).rpartition("/")[2]))

    # What is done to it

    def kill_process(self, rank: int, role: str) -> None:
        """Kill one process in a pod."""
        os.kill(self.processes(rank)[role], signal.SIGKILL)

    def kill_container(self, rank: int) -> None:
        """Kill the first process of a pod's container, and with it all others."""
        self.kill_process(rank, "entry")

    def delete_pod(self, rank: int) -> None:
        """Have a pod deleted, with the grace that it asks for."""
        self.cluster.kubectl("delete", "pod", self.name_of(rank), "-n", self.namespace, "--wait=false")

    def evict(self, rank: int) -> None:
        """Ask for a pod's eviction, which the job's disruption budget must allow."""
        name = self.name_of(rank)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.namespace},
        }
        self.cluster.api.request("POST", f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction", body)

    def run_out_of_memory(self, rank: int) -> None:
        """Fill a pod's memory from inside, so that the kernel ends its container's first process."""
        name = self.name_of(rank)
        # Memory of no process, so that the kernel ends one after the other until the first one is gone: where
        # cgroups are of version 1 it ends single processes, and would end only the one that filled its own memory.
        fill = "import os; f = os.memfd_create('fill')\nwhile True: os.write(f, bytes(1 << 20))"
        blame = f'echo 1000 > /proc/1/oom_score_adj; exec python3 -c "{fill}"'
        with contextlib.suppress(ProcessError):  # the command dies with the container
            self.cluster.exec(name, "sh", "-c", blame, namespace=self.namespace)


def _processes_in(container: str) -> Iterator[tuple[str, int]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if container not in (entry / "cgroup").read_text():
                continue
            words = (entry / "cmdline").read_text().split("\0")
        except OSError:
            continue  # it has just ended
        for role, word in (("entry", "node"), ("pserver", "pserver"), ("trainer", "trainer")):
            if word in words[:5]:
                yield role, int(entry.name)
