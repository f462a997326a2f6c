"""How long a job on a cluster takes to begin, and to continue after a fault: `./dev bench kube [--reps N] [--json]`.

On the test cluster (`./dev kube`; started for this where it is not up) with images present and short timings: a lost
machine is noticed after 8 s, and its pods are given up 5 s later. First a job per repetition that is only submitted,
then one in which a process of each pod is killed, then a container, a pod and a machine, each another node's, because
Kubernetes waits longer each time that a pod of the same node fails; the next of these finds a machine that was off
shortly before. The job's rounds are paced so that it leaves the processors alone. Moments are read afterwards: pods'
from the API server, to the second; the job's from its own logs and metrics. At last a job of 500 pods is made, none of
them scheduled, and `bireme status` asked about it.
"""

from __future__ import annotations

import argparse
import calendar
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import RESULTS, machine_facts, summarise

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.kube import crowd
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.running import Places
from tools.kube.victim import RANK, Pod, Victim

from bireme.demo.prepare import prepare

NAMESPACE = f"bench-{os.getpid()}"
TARGETS_S = {
    "submitted": 15.0, "submitted after a loss": 15.0,
    "process killed": 5.0, "container killed": 15.0, "pod deleted": 30.0, "machine lost": 40.0,
}  # fmt: skip
STAGES = (
    "pod created", "pod scheduled", "container started", "entry runs", "processes started", "view begun",
    "first round",
)  # fmt: skip
JOB = """\
name: {name}
program: {{config: quick_start/trainer_config.lr.py}}
passes: 4096
snapshots: {{every_s: 2, keep: 2}}
kubernetes:
  image: {image}
  resources: {{requests: {{cpu: 100m, memory: 200Mi}}}}
  lost_node_s: 5
"""
SLOW_START_S = 6.0
"""A container that starts later than this was not only started."""
CROWD = 500
STATUS_TARGET_S = 1.0
PACE = "delay:seed=1,max_ms=20"


@dataclass(frozen=True)
class Bench:
    """Where it happens."""

    cluster: Cluster
    folder: Path
    image: str

    def bireme(self, *words: object) -> None:
        """Run a command in the namespace."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "BIREME_FAULTS": PACE,
        }
        command = [sys.executable, "-m", "bireme", *map(str, words), "--namespace", NAMESPACE]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=self.folder)

    def quiet(self, number: int) -> dict[str, list[dict[str, float]]]:
        """One job that nothing happens to; seconds of each stage since it was submitted."""
        victim, stages_s = self._begin(f"quiet-{number}")
        self.bireme("delete", victim.name, "--volume")
        return {"submitted": [stages_s]}

    def disturbed(self, number: int) -> dict[str, list[dict[str, float]]]:
        """One job through every fault; seconds of each stage since, by what happened."""
        victim, stages_s = self._begin(f"job-{number}")
        found = ({"submitted after a loss": [stages_s]} if number > 1 else {}) | self._hurt(victim)
        self.bireme("delete", victim.name, "--volume")
        return found

    def _begin(self, name: str) -> tuple[Victim, dict[str, float]]:
        """Submit a job and let it begin."""
        (self.folder / "job" / "job.yaml").write_text(JOB.format(name=name, image=self.image), encoding="utf-8")
        self.bireme("data", "push", "job/job.yaml")
        victim = Victim(self.cluster, NAMESPACE, name)
        began = time.time()
        self.bireme("submit", "job/job.yaml")
        victim.await_rounds(after=began)
        found = last_of([stages(victim, rank, began, -1) for rank in range(3)])
        if found["container started"] > SLOW_START_S:
            events = self.cluster.kubectl("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp")
            print(f"what the cluster says of this slow start:\n{events}", file=sys.stderr, flush=True)
        return victim, found

    def status_s(self, reps: int) -> list[float]:
        """Seconds of `bireme status` about a job of many pods."""
        crowd.gather_crowd(self.cluster, NAMESPACE, CROWD)
        taken = []
        for _ in range(reps):
            began = time.monotonic()
            self.bireme("status", crowd.NAME)
            taken.append(time.monotonic() - began)
        crowd.dismiss_crowd(self.cluster, NAMESPACE)
        return taken

    def _hurt(self, victim: Victim) -> dict[str, list[dict[str, float]]]:
        def strike(rank: int, fault: Callable[[], object]) -> dict[str, float]:
            self._settle(victim)
            view, began = victim.view(), time.time()
            fault()
            victim.await_rounds(after=began, view=view)
            return stages(victim, rank, began, view)

        kills = [(1, "trainer"), (2, "pserver"), (0, "pserver")]
        processes = [strike(rank, lambda rank=rank, role=role: victim.kill_process(rank, role)) for rank, role in kills]  # type: ignore[misc]
        machine = victim.machine_of(0)
        found = {
            "process killed": processes,
            "container killed": [strike(1, lambda: victim.kill_container(1))],
            "pod deleted": [strike(2, lambda: victim.delete_pod(2))],
            "machine lost": [strike(0, lambda: self.cluster.lose_node(machine))],
        }
        self.cluster.restart_node(machine)
        wait_for("the machine to be ready", lambda: self.cluster.readiness()[machine], seconds=120)
        self._warm(machine)
        return found

    def _warm(self, machine: str) -> None:
        """Run a container on a machine that has just been started, which takes longer than all later ones."""
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "warm", "namespace": NAMESPACE},
                "spec": {
                    "nodeName": machine,
                    "restartPolicy": "Never",
                    "containers": [{"name": "warm", "image": self.image, "args": ["--version"]}],
                },
            }
        )
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/warm"
        wait_for("a first container", lambda: self.cluster.api.get(pod)["status"]["phase"] == "Succeeded", seconds=120)
        self.cluster.kubectl("delete", "pod", "warm", "-n", NAMESPACE)

    def _settle(self, victim: Victim) -> None:
        """Let a job work for two seconds, so that there is a snapshot and a quiet moment."""
        victim.await_rounds(after=time.time() + 2.0)


def stages(victim: Victim, rank: int, began: float, view: int) -> dict[str, float]:
    """Seconds from a moment to each stage of a node's way back to work; stages that did not happen are left out."""
    moments: dict[str, float] = {}
    pod = newest_pod(victim.pods(), rank)
    created = unix_of(pod["metadata"]["creationTimestamp"])
    if created >= began - 1.0:  # else the pod was there before
        moments["pod created"] = created
        conditions = {c["type"]: c["lastTransitionTime"] for c in pod["status"]["conditions"]}
        moments["pod scheduled"] = unix_of(conditions["PodScheduled"])
        moments["container started"] = unix_of(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    log = (victim.output / f"node_{rank}/node.log").read_text(encoding="utf-8")
    for stage, words in (("entry runs", f"starting node {rank} "), ("processes started", "started ")):
        times = [when for when, line in log_lines(log) if when >= began and line.startswith(words)]
        if times:
            moments[stage] = times[-1 if stage == "processes started" else 0]
    views = [row["unix"] for row in victim.lines("view") if row["unix"] > began and row["view"] > view]
    moments["view begun"] = views[-1]
    rounds = [row["unix"] for row in victim.lines() if row["unix"] > began and row["view"] > view]
    moments["first round"] = rounds[0]
    return {stage: round(max(moment - began, 0.0), 2) for stage, moment in moments.items()}


def newest_pod(pods: Sequence[Pod], rank: int) -> Pod:
    """A node's latest pod."""
    own = [pod for pod in pods if pod["metadata"]["labels"][RANK] == str(rank)]
    return max(own, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def unix_of(stamp: str) -> float:
    """A moment as the API server writes it."""
    return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))


def log_lines(text: str) -> list[tuple[float, str]]:
    """The lines of a pod's log with their moments; pods live in UTC, and their lines know no year."""
    year, found = time.gmtime().tm_year, []
    for line in re.finditer(r"^[A-Z](\d\d\d\d \d\d:\d\d:\d\d)(\.\d+) +\d+ \S+\] (.*)$", text, re.MULTILINE):
        moment = calendar.timegm(time.strptime(f"{year}{line[1]}", "%Y%m%d %H:%M:%S"))
        found.append((moment + float(line[2]), line[3]))
    return found


def last_of(nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several nodes, when the last one reached each stage."""
    return {stage: max(node[stage] for node in nodes if stage in node) for stage in STAGES}


def figures_of(taken: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """By what happened: how long until the next round, and the median of each stage."""
    found = {}
    for what, samples in taken.items():
        medians = {}
        for stage in STAGES:
            there = [sample[stage] for sample in samples if stage in sample]
            if there:
                medians[stage] = round(statistics.median(there), 2)
        figure = summarise([sample["first round"] for sample in samples])
        found[what] = {**figure, "target_s": TARGETS_S[what], "stages_median_s": medians}
    return found


def table_of(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures for people: one line for each thing that happened, stages from left to right."""
    heads = ["", "median", "min", "max", "target", *STAGES]
    rows = [heads]
    for what, figure in figures.items():
        stages_s = [f"{figure['stages_median_s'][s]:.1f}" if s in figure["stages_median_s"] else "–" for s in STAGES]
        numbers = [f"{figure[k]:.1f}" for k in ("median", "min", "max")]
        rows.append([what, *numbers, f"≤ {figure['target_s']:g}", *stages_s])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def load_image(cluster: Cluster, folder: Path) -> str:
    """Build an image of this tree and load it into every node."""
    tag, archive = "localhost/bireme:bench", folder / "image.tar"
    command = [sys.executable, "-m", "bireme", "image", "build", "--tag", tag, "--output", str(archive)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    cluster.load(archive)
    archive.unlink()
    return tag


def measure(cluster: Cluster, reps: int, image: str, folder: Path) -> tuple[dict[str, dict[str, Any]], list[float]]:
    """Every figure; the first job is thrown away, as it reads files into memory."""
    prepare(folder / "job", reviews=6000)
    bench = Bench(cluster, folder, image or load_image(cluster, folder))
    cluster.kubectl("create", "namespace", NAMESPACE)
    taken: dict[str, list[dict[str, float]]] = {}
    try:
        bench.quiet(0)
        for run in (bench.quiet, bench.disturbed):
            for number in range(1, reps + 1):
                for what, samples in run(number).items():
                    print(f"repetition {number}: {what}: {samples}", file=sys.stderr, flush=True)
                    taken.setdefault(what, []).extend(samples)
        asked = bench.status_s(5)
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    return figures_of(taken), asked


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="Times of a job on the test cluster: to begin, and to recover.")
    parser.add_argument("--reps", type=int, default=3, help="jobs that are measured, after one that is not (default 3)")
    parser.add_argument("--name", default="bireme", help="which test cluster (default bireme)")
    parser.add_argument("--image", default="", help="an image that all nodes have; left out: one is built and loaded")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    facts = machine_facts()
    cluster = Cluster(Places.of(os.environ), given.name, report=lambda line: print(f"kube: {line}", file=sys.stderr))
    was_made = cluster.up()
    try:
        with tempfile.TemporaryDirectory(prefix="bireme-bench-") as folder:
            figures, asked = measure(cluster, max(given.reps, 1), given.image, Path(folder))
    finally:
        if was_made:
            cluster.down()
    status = {"pods": CROWD, **summarise(asked), "target_s": STATUS_TARGET_S}
    result = {"bench": "kube", "machine": facts, "load_after": os.getloadavg()[0], "figures": figures, "status": status}
    (RESULTS / "kube.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps(result))
        return
    print(f"load before: {facts['load_before'][0]}, after: {result['load_after']:.1f}; seconds since it happened\n")
    print(table_of(figures))
    print(f"\n`bireme status` among {CROWD} pods: {status['median']:.2f} s ({status['min']:.2f} … {status['max']:.2f})")
    print("\nwritten to bench/results/kube.json")


if __name__ == "__main__":
    main()
