"""Starting and ending the test cluster: control plane and nodes, each a machine in namespaces of its own.

Order matters in three places: controllers and scheduler wait until the API server has made its own rules; a
control group must exist before its kubelet starts; and nothing is written that `down` would not find by itself,
so that it also clears up after a start that was killed half-way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from bireme.core.errors import ProcessError, SpecError

from . import build, cgroups, image, leftovers, network, objects, pki, settings
from .api import ApiError
from .build import Progress
from .machine import Machine, wait_for
from .running import CONTROL_NAME, Facts, Places, RunningCluster
from .settings import SHARED_PLACE, Node

FORWARD = Path(__file__).with_name("forward.py")
CLONE = Path(__file__).parents[2]
# A machine has its own of these, so a run directory inside of one would vanish from its sight.
HIDDEN = ("/var/lib", "/var/log", "/run", "/srv", "/proc", "/sys")


def quiet(line: str) -> None:
    """Discard a line of progress."""


class Cluster(RunningCluster):
    """A test cluster that can be started and ended; also a context manager that does both."""

    def __init__(
        self, places: Places, name: str = "bireme", *, nodes: int = 3, stock: bool = False, report: Progress = quiet
    ) -> None:
        super().__init__(places, name)
        if not name.isidentifier():
            raise SpecError(f"a cluster cannot be called '{name}'", fix="use letters, digits and _")
        if not 1 <= nodes <= 9:
            raise SpecError(f"a cluster of {nodes} nodes", fix="1 to 9 nodes fit on one machine")
        self._places, self._count, self._stock, self._report = places, nodes, stock, report

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        if left := self.down():
            raise ProcessError("the test cluster left something behind: " + "; ".join(left))

    def up(self) -> bool:
        """Start it and wait until it can be used; False where it was up before."""
        build.require_ground()
        if any(self.run.resolve().is_relative_to(place) for place in HIDDEN):
            raise SpecError(f"the run directory cannot be {self.run}", fix=f"not below {', '.join(HIDDEN)}")
        with self._alone():
            if self.is_up:
                return False
            self._remove()
            build.require_packages(self._report)
            binaries = build.binaries(self._places.cache, self._report)
            images = image.archives(binaries, self._report)
            try:
                self._start(binaries, images)
            except BaseException:
                self._report("clearing up …")
                self._remove(keep_logs=True)
                raise
        return True

    def down(self) -> list[str]:
        """End it and remove all of it; returns what could not be removed, which should be nothing."""
        with self._alone():
            return self._remove()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let only one process at a time start or end this cluster."""
        self.run.parent.mkdir(parents=True, exist_ok=True)
        path = self.run.with_suffix(".lock")
        while True:
            with path.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # The last holder may have removed the file: then others lock another one, and this lock excludes none.
                if not path.exists() or path.stat().st_ino != os.fstat(lock.fileno()).st_ino:
                    continue
                try:
                    yield
                finally:
                    path.unlink()
                return

    # Starting

    def _start(self, binaries: Path, images: list[Path]) -> None:
        begin = time.monotonic()
        before = leftovers.ground()
        with contextlib.ExitStack() as stack:
            doors = [stack.enter_context(_listen()) for _ in range(2)]
            ports = [door.getsockname()[1] for door in doors]
            facts = Facts(self._count, self._stock, str(binaries), *ports)
            self._furnish(facts, before)
            self._report("starting the control plane …")
            self._start_control([door.fileno() for door in doors])
        with ThreadPoolExecutor(self._count) as pool:
            self._report(f"starting {self._count} nodes …")
            booting = [pool.submit(self.start_node, n, images) for n in range(1, self._count + 1)]
            self._await("the API server to be ready", self.api.is_ready)
            commands = self.commands(CONTROL_NAME)
            for daemon in ("kube-controller-manager", "kube-scheduler"):
                self.control.start(daemon, commands[daemon])
            self.apply(*objects.all_objects())
            self.control.start("coredns", commands["coredns"])
            self.control.start("provisioner", self._provisioner())
            for node in booting:
                node.result()
        self._report("waiting for the nodes to be ready …")
        self._await("all nodes to be ready", self._nodes_are_ready)
        self._await("the default service account", self._has_account)
        self._await("CoreDNS to be ready", self._dns_is_ready)
        self._write_facts(replace(facts, seconds=round(time.monotonic() - begin, 1)))

    def _furnish(self, facts: Facts, before: list[str]) -> None:
        """Write every file that the daemons read."""
        nodes = [Node(n) for n in range(1, facts.nodes + 1)]
        for part in ("logs", "volume", CONTROL_NAME, *(n.name for n in nodes)):
            (self.run / part).mkdir(parents=True)
        self.run.chmod(0o700)
        self.volume.chmod(0o777)
        (self.run / "ground.json").write_text(json.dumps(before))
        self._write_facts(facts)
        leaves = pki.leaves({n.name: n.address for n in nodes})
        pki.write(self.run / "pki", leaves)
        for leaf in leaves:
            local = leaf.file in ("scheduler", "controller-manager", "dns")
            server = f"https://{'127.0.0.1' if local else network.CONTROL}:6443"
            (self.run / f"pki/{leaf.file}.kubeconfig").write_text(pki.kubeconfig(self.run / "pki", leaf.file, server))
        outside = pki.kubeconfig(self.run / "pki", "admin", f"https://127.0.0.1:{facts.api_port}")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(outside)
        (self.run / "Corefile").write_text(settings.corefile(self.run))
        for name, text in settings.mirrors().items():
            (self.run / "certs.d" / name).mkdir(parents=True)
            (self.run / "certs.d" / name / "hosts.toml").write_text(text)
        for node in nodes:
            self._furnish_node(node)

    def _furnish_node(self, node: Node) -> None:
        directory = self.run / node.name
        (directory / "net.d").mkdir()
        (directory / "net.d/10-podnet.conflist").write_text(settings.cni(node))
        (directory / "containerd.toml").write_text(settings.containerd(directory))
        group = f"{self.group}/{node.name}"
        (directory / "kubelet.json").write_text(settings.kubelet(node, directory, group, stock=self._stock))
        (directory / "proxy.json").write_text(settings.proxy(node, directory))
        (directory / "resolv.conf").write_text("# the machine has no names of its own to give to pods\n")

    def _write_facts(self, facts: Facts) -> None:
        partial = self.run / ".state.json"
        partial.write_text(json.dumps(asdict(facts)))
        partial.rename(self.run / "state.json")

    def _start_control(self, doors: list[int]) -> None:
        self.control.boot(binds={SHARED_PLACE: str(self.volume)}, fds=doors)
        network.wire_control(self.control)
        commands = self.commands(CONTROL_NAME)
        for daemon in ("etcd", "kube-apiserver"):
            self.control.start(daemon, commands[daemon])
        routes = [f"{doors[0]}=127.0.0.1:6443", f"{doors[1]}={settings.REGISTRY}"]
        self.control.start("forward", [sys.executable, "-I", "-S", str(FORWARD), *routes], fds=doors)

    def _provisioner(self) -> list[str]:
        module = [sys.executable, "-m", "tools.kube.provisioner", str(self.run / "pki"), str(self.volume)]
        return ["env", f"PYTHONPATH={CLONE}", *module]

    def _await(self, what: str, check: Callable[[], bool]) -> None:
        def holds() -> bool:
            for machine in self._machines():
                if machine.is_on():
                    machine.check()
            return check()

        wait_for(what, holds, seconds=120, every=0.25)

    def _nodes_are_ready(self) -> bool:
        found = self.readiness()
        return len(found) == self._count and all(found.values())

    def _has_account(self) -> bool:
        try:
            self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
        except ApiError:
            return False
        return True

    def _dns_is_ready(self) -> bool:
        ask = "import urllib.request as u; u.urlopen('http://127.0.0.1:8181/ready', timeout=2)"
        try:
            self.control.run(sys.executable, "-I", "-c", ask, only_net=True)
        except ProcessError:
            return False
        return True

    # Ending

    def _machines(self) -> list[Machine]:
        """Every machine that has a plan, whether it runs or not."""
        plans = sorted(self.run.glob("*/machine.json"))
        return [Machine(plan.parent.name, "", plan.parent) for plan in plans]

    def _remove(self, *, keep_logs: bool = False) -> list[str]:
        machines = self._machines()
        before_file = self.run / "ground.json"
        before = json.loads(before_file.read_text()) if before_file.exists() else leftovers.ground()
        with leftovers.watched([pid for m in machines if (pid := m.pid())]) as spaces:
            for machine in machines:
                machine.off()
            cgroups.clear(self.group)
            left = leftovers.find(self.run, self.group, spaces, before)
        if any(thing.startswith("mount") for thing in left):
            return left  # deleting through a mount would delete what is behind it
        for entry in sorted(self.run.iterdir()) if self.run.is_dir() else []:
            if keep_logs and entry.name == "logs":
                continue
            _delete(entry)
        if self.run.is_dir() and not keep_logs:
            self.run.rmdir()
        return left


def _listen() -> socket.socket:
    door = socket.create_server(("127.0.0.1", 0), backlog=128)
    door.setblocking(False)
    return door


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
