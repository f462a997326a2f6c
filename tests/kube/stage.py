"""The command line against the test cluster, with an image of what is in this tree, and small jobs to send there."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tools.kube.running import RunningCluster

from bireme.data.split import split_lines
from bireme.demo.reviews import write_reviews
from bireme.kube.api.client import Cluster
from bireme.kube.api.kubeconfig import KubeTarget
from bireme.kube.jobs.lifecycle import view_of
from bireme.kube.jobs.listing import JobView, is_ended
from tests.e2e.conftest import Cli, Done, edit, lay_out

TAG = "localhost/bireme:test"
HOPE_S = 420.0
"""For a small job to end on a machine that has much else to do."""
WAS_MADE = pytest.StashKey[bool]()
"""Whether this run has started the cluster."""


def load_image(cluster: RunningCluster) -> str:
    """Build an image of this tree and load it into every node, unless it is there; BIREME_TEST_IMAGE names another."""
    if named := os.environ.get("BIREME_TEST_IMAGE"):
        return named
    run = cluster.kubeconfig.parent
    archive, stamp = run / "bireme-test.tar", run / "bireme-test.digest"
    with (run / "bireme-test.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "bireme", "image", "build", "--tag", TAG, "--output", str(archive), "--json"]
        built = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
        digest = json.loads(built.stdout)["digest"]
        if not stamp.is_file() or stamp.read_text() != digest:
            cluster.load(archive)
            stamp.write_text(digest)
        archive.unlink()
    return TAG


@dataclass(frozen=True)
class There(Cli):
    """`bireme`, logged in to a namespace of the cluster."""

    cluster: RunningCluster
    namespace: str
    image: str

    def environment(self, **extra: str) -> dict[str, str]:
        return {**super().environment(), "KUBECONFIG": str(self.cluster.kubeconfig), **extra}

    def do(self, *args: object, timeout_s: float = HOPE_S, code: int = 0, **env: Any) -> Done:
        """Run a command in the namespace; it must end with this code."""
        done = self.run(*args, "--namespace", self.namespace, timeout_s=timeout_s, **env)
        assert done.code == code, f"{args} ended with {done.code}\n{done.out}\n{done.err}"
        return done

    def ask(self, *args: object, timeout_s: float = HOPE_S, code: int = 0) -> Any:
        """Run a command that answers in JSON."""
        return self.do(*args, "--json", timeout_s=timeout_s, code=code).json

    def view(self, job: str) -> JobView:
        """How a job is doing, without a process of its own."""
        with Cluster(KubeTarget([self.cluster.kubeconfig], None, self.namespace)) as client:
            return view_of(client, job)

    def state(self, job: str) -> str:
        """How a job is doing, in one word."""
        return self.view(job).state

    def wait(self, claim: Callable[[], object], what: str, seconds: float = HOPE_S) -> None:
        """Look again and again, but not too often, whether a claim has become true."""
        deadline = time.monotonic() + seconds
        while not claim():
            assert time.monotonic() < deadline, f"waited {seconds:g} s until {what}"
            time.sleep(0.5)

    def wait_for_end(self, job: str, state: str = "finished") -> None:
        """Wait until a job has ended; it must be in this way."""
        self.wait(lambda: is_ended(self.state(job)), f"{job} has ended")
        seen = self.view(job)
        assert seen.state == state, f"{job} is {seen.state}: {seen.reason}"

    def pods(self, selector: str = "") -> list[Any]:
        """Pods in the namespace."""
        chosen = ["-l", selector] if selector else []
        return list(self.cluster.get("pods", "-n", self.namespace, *chosen)["items"])


def make_reviews(factory: pytest.TempPathFactory) -> Path:
    """601 reviews, so that one of three shards has a last batch of its own."""
    directory = factory.mktemp("reviews") / "reviews"
    write_reviews(directory, train=602, test=120, words=1500)
    lines = (directory / "train.txt").read_bytes().splitlines(keepends=True)
    (directory / "train.txt").write_bytes(b"".join(lines[:601]))
    return directory


def small_job(there: There, reviews: Path, name: str = "small", more: str = "") -> Path:
    """A small job in three shards whose pods ask for little."""
    path = lay_out(there.home / name, layout="")
    split_lines(reviews, path.parent, 3)
    edit(path, ("name: small", f"name: {name}"))
    section = f"image: {there.image}\n  resources: {{requests: {{cpu: 100m, memory: 200Mi}}}}\n{more}"
    path.write_text(path.read_text() + f"kubernetes:\n  {section}")
    return path


def local_hash(there: There, job: Path) -> str:
    """What the same file comes to on this machine."""
    done = there.run("train", job, "--output", there.home / "here", "--json")
    assert done.code == 0, done.out + done.err
    return str(done.json["hash"])


def hash_there(there: There, name: str, passes: int) -> str:
    """The hash of a job's last model, brought here."""
    there.do("fetch", name, there.home / "brought", "--model")
    done = there.run("model", "hash", there.home / "brought" / f"pass-{passes - 1:05d}", "--json")
    return str(done.json["hash"])


def restrict(cluster: RunningCluster, namespace: str) -> None:
    """Let only pods of the restricted profile into a namespace."""
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
