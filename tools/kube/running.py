"""A test cluster that is up, and what a test may do with it: ask, apply, wait, and break things on purpose.

Everything is found from the run directory, so any process may attach to a cluster that another one started.
Faults are the real ones: a lost node is switched off, a cut is a firewall rule, a killed container gets a signal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.errors import DataError, ProcessError, UsageError

from . import cgroups, network
from .api import Api
from .machine import Machine, wait_for
from .network import node_address, pod_range
from .settings import SHARED_PLACE, Node, control_daemons, node_daemons

CONTROL_NAME = "cp"


@dataclass(frozen=True)
class Places:
    """Where things are kept between runs (`cache`) and while a cluster is up (`state`)."""

    cache: Path
    state: Path

    @staticmethod
    def of(environment: Mapping[str, str]) -> Places:
        """The usual places of a user's caches and state."""
        home = Path(environment.get("HOME", "/root"))
        cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
        state = Path(environment.get("XDG_STATE_HOME") or home / ".local/state")
        return Places(cache / "bireme/kube", state / "bireme/kube")


@dataclass(frozen=True)
class Facts:
    """What is fixed when a cluster starts; `seconds` is how long that took, and 0 until it is done."""

    nodes: int
    stock: bool
    binaries: str
    api_port: int
    registry_port: int
    seconds: float = 0.0


class RunningCluster:
    """A cluster by its name; most methods need it to be up."""

    def __init__(self, places: Places, name: str = "bireme") -> None:
        self.name = name
        self.run = places.state / name
        self.group = f"bireme-kube-{name}"
        self.control = Machine(CONTROL_NAME, network.CONTROL, self.run / CONTROL_NAME)

    # What it is

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it works from the host."""
        return self.run / "kubeconfig"

    @property
    def volume(self) -> Path:
        """The host's side of what every node sees at /srv/bireme."""
        return self.run / "volume"

    @property
    def facts(self) -> Facts:
        """What was written when it started."""
        try:
            return Facts(**json.loads((self.run / "state.json").read_text()))
        except FileNotFoundError:
            raise ProcessError(f"the test cluster '{self.name}' is not up", fix="./dev kube up") from None

    @property
    def is_up(self) -> bool:
        """Whether it was started to the end and its control plane still runs."""
        return (self.run / "state.json").exists() and self.facts.seconds > 0 and self.control.is_on()

    @property
    def api(self) -> Api:
        """Requests to its API server, as the administrator."""
        return Api(self.run / "pki", self.facts.api_port)

    @property
    def kubectl_path(self) -> Path:
        """The kubectl of the cluster's own version."""
        return Path(self.facts.binaries) / "kubectl"

    def node(self, name: str) -> Machine:
        """A node's machine by its name."""
        names = [Node(n).name for n in range(1, self.facts.nodes + 1)]
        if name not in names:
            raise UsageError(f"there is no node '{name}'", fix=f"the nodes are: {' '.join(names)}")
        return Machine(name, node_address(names.index(name) + 1), self.run / name)

    def machine(self, name: str) -> Machine:
        """A node's machine, or the control plane's (`cp`)."""
        return self.control if name == CONTROL_NAME else self.node(name)

    @property
    def nodes(self) -> list[Machine]:
        """All nodes, without the control plane."""
        return [self.node(Node(n).name) for n in range(1, self.facts.nodes + 1)]

    def readiness(self) -> dict[str, bool]:
        """Which registered nodes are Ready, as the API server knows it."""
        found = {}
        for item in self.api.get("/api/v1/nodes")["items"]:
            conditions = {c["type"]: c["status"] for c in item["status"].get("conditions", [])}
            found[item["metadata"]["name"]] = conditions.get("Ready") == "True"
        return found

    # What one does with it

    def kubectl(self, *arguments: str, stdin: str = "", seconds: float = 120) -> str:
        """Run kubectl to its end and return what it printed; a failure is an error with its words."""
        done = subprocess.run(
            [self.kubectl_path, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )
        if done.returncode:
            raise ProcessError(f"kubectl {' '.join(arguments)[:200]}: {(done.stderr or done.stdout).strip()[-1500:]}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get …` as plain values."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: object) -> None:
        """Apply plain values."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def exec(self, pod: str, *argv: str, namespace: str = "default") -> str:
        """Run a command in a pod."""
        return self.kubectl("exec", "-n", namespace, pod, "--", *argv)

    def wait_job(self, job: str, *, namespace: str = "default", seconds: float = 120) -> None:
        """Wait until a Job is complete; a failed one is an error at once."""

        def is_complete() -> bool:
            found = self.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")["status"]
            states = {c["type"]: c for c in found.get("conditions", []) if c["status"] == "True"}
            if "Failed" in states:
                raise ProcessError(f"job {job} failed: {states['Failed'].get('message', '')}")
            return "Complete" in states

        wait_for(f"job {job} to complete", is_complete, seconds=seconds, every=0.3)

    def load(self, archive: Path, nodes: list[Machine] | None = None) -> list[str]:
        """Import an image archive (OCI or docker) into the nodes; returns the images' names."""
        if not archive.is_file():
            raise DataError(f"there is no file {archive}", fix="name an image archive (.tar)")

        def one(node: Machine) -> str:
            return node.run("ctr", "-n", "k8s.io", "images", "import", str(archive.resolve()))

        wanted = self.nodes if nodes is None else nodes
        with ThreadPoolExecutor(len(wanted)) as pool:
            printed, *_ = pool.map(one, wanted)
        return [line.split()[1] for line in printed.splitlines() if line.startswith("unpacking ")]

    # What one breaks

    def kill_container(
        self, pod: str, number: int = signal.SIGKILL, *, namespace: str = "default", container: str = ""
    ) -> int:
        """Send a signal to the first process of a pod's container; returns its number on the host."""
        statuses = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"].get("containerStatuses", [])
        for status in statuses:
            if container in ("", status["name"]) and status.get("containerID"):
                pid = _first_process(status["containerID"].rpartition("/")[2])
                os.kill(pid, number)
                return pid
        raise ProcessError(f"pod {pod} has no container {container} with a process")

    def lose_node(self, name: str) -> None:
        """Switch a node off: its kubelet, containers and network are gone at once, its disk stays."""
        self.node(name).off()

    def restart_node(self, name: str) -> None:
        """Switch a lost (or running) node on again, with the disk it had."""
        node = self.node(name)
        node.off()
        self.start_node(int(name.removeprefix("n")))

    def start_node(self, number: int, images: list[Path] | None = None) -> None:
        """Boot a node whose directory is furnished, plug it in and start its daemons."""
        name = Node(number).name
        machine = self.node(name)
        # A kubelet spends seconds on every group that dead pods left behind.
        cgroups.clear(f"{self.group}/{name}")
        cgroups.make(f"{self.group}/{name}")
        machine.boot(binds={SHARED_PLACE: str(self.volume)})
        network.wire_node(self.control, machine, number, self.facts.nodes)
        commands = self.commands(name)
        machine.start("containerd", commands.pop("containerd"))
        self._await_containerd(machine)
        for archive in images or []:
            self.load(archive, [machine])
        for daemon, argv in commands.items():
            machine.start(daemon, argv)

    def _await_containerd(self, machine: Machine) -> None:
        def answers() -> bool:
            machine.check()
            try:
                machine.run("ctr", "version")
            except ProcessError:
                return False
            return True

        wait_for(f"containerd of {machine.name}", answers, seconds=30)

    def commands(self, machine: str) -> dict[str, list[str]]:
        """The command lines of a machine's daemons."""
        binaries = Path(self.facts.binaries)
        if machine == CONTROL_NAME:
            return control_daemons(self.run, binaries, stock=self.facts.stock)
        return node_daemons(Node(int(machine.removeprefix("n"))), self.run / machine, binaries)

    def stop_kubelet(self, name: str) -> None:
        """Kill a node's kubelet; its containers run on, and the cluster takes the node for lost."""
        self.node(name).stop("kubelet")

    def start_kubelet(self, name: str) -> None:
        """Start a stopped kubelet again."""
        self.node(name).start("kubelet", self.commands(name)["kubelet"])

    def restart_apiserver(self, number: int = signal.SIGKILL) -> None:
        """Kill the API server and start it again; returns when it is ready."""
        self.control.stop("kube-apiserver", number)
        self.control.start("kube-apiserver", self.commands(CONTROL_NAME)["kube-apiserver"])
        wait_for("the API server to be ready", self.api.is_ready, seconds=60)

    def cut(self, one: str, other: str) -> None:
        """Drop every packet between two machines, pods included, without a rejection."""
        here, peer = (other, one) if one == CONTROL_NAME else (one, other)
        addresses = [self.machine(peer).address]
        if peer != CONTROL_NAME:
            addresses.append(pod_range(int(peer.removeprefix("n"))))
        network.cut(self.node(here), addresses)

    def heal(self) -> None:
        """Undo every cut."""
        for node in self.nodes:
            if node.is_on():
                network.heal(node)


def _first_process(container: str) -> int:
    """The host's number of a container's first process, found by the group that it is in."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if container not in (entry / "cgroup").read_text():
                continue
            numbers = next(x for x in (entry / "status").read_text().splitlines() if x.startswith("NSpid:"))
        except (OSError, StopIteration):
            continue
        if numbers.split()[-1] == "1":
            return int(entry.name)
    raise ProcessError(f"container {container[:12]} has no process")
