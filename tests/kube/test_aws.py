"""`bireme cluster` from a file to a trained model and back to nothing, as a user types it.

AWS is the test double, over HTTP. The Kubernetes behind its EKS is the real test cluster: its nodes play the machines
of the node groups, its registry plays ECR, and `tests.aws.endpoint` plays EKS' endpoint and the EFS driver. The user
has the rights of the printed policy and no others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.settings import REGISTRY, SHARED_PLACE

from bireme.aws.access import read_kubeconfig
from bireme.aws.policy import execution_policy, operator_policy
from bireme.data.split import split_lines
from tests.aws.double import DoubleServer, ScaledClock, World
from tests.aws.endpoint import LASTS, EfsStandIn, Endpoint
from tests.e2e.conftest import Cli, Done, lay_out
from tests.kube.test_images import need

ROOT = Path(__file__).parents[2]
NAME, REGION = "paddle", "us-west-2"
CONTEXT = f"bireme-{NAME}.{REGION}"
KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ACCOUNT = "arn:aws:iam::123456789012"
GROUPS = {"servers": ["n1"], "trainers": ["n2", "n3"]}
"""The nodes that play each group's machines."""
ROLES = {"pserver": {"n1"}, "trainer": {"n2", "n3"}}
"""Where each role's pods must run."""
RATE = 300.0
"""Seconds of AWS in one real second: a control plane that takes ten minutes is there in two seconds."""
JOB_S = 300.0


class Machines:
    """Gives nodes of the test cluster to the double's instances: labelled as EKS labels them, or cordoned."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._cluster, self._world = cluster, world
        self._given: dict[str, str | None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[Exception] = []

    def __enter__(self) -> Machines:
        self._give({})
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        for node in self._given:
            self._cluster.kubectl("label", "node", node, "bireme.dev/group-")
            self._cluster.kubectl("uncordon", node)

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            try:
                self._give(self._counts())
            except Exception as e:  # the thread's only reader is the test, at its end
                self.errors.append(e)

    def _counts(self) -> Counter[str]:
        """How many machines each group has, by the label that EKS would give to their nodes."""
        with self._world._lock:
            self._world.settle()
            here = self._world.region(REGION)
            groups = {thing.id: thing.props["Labels"]["bireme.dev/group"] for thing in here.of("AWS::EKS::Nodegroup")}
            owners = [thing.props["Owner"] for thing in here.of("AWS::EC2::Instance")]
        return Counter(groups[owner] for owner in owners if owner in groups)

    def _give(self, counts: Counter[str] | dict[str, int]) -> None:
        for group, nodes in GROUPS.items():
            for number, node in enumerate(nodes):
                wanted = group if number < counts.get(group, 0) else None
                if node in self._given and self._given[node] == wanted:
                    continue
                label = f"bireme.dev/group={wanted}" if wanted else "bireme.dev/group-"
                self._cluster.kubectl("label", "node", node, label, "--overwrite")
                self._cluster.kubectl("uncordon" if wanted else "cordon", node)
                self._given[node] = wanted


@dataclass(frozen=True)
class User(Cli):
    """`bireme` as an operator runs it who has AWS credentials and nothing else."""

    url: str
    session: list[str] = field(default_factory=list)
    """What a reader of docs/aws.md sees: commands, and what they print on standard output."""

    def environment(self, **extra: str) -> dict[str, str]:
        inherited = super().environment()
        own = {
            "HOME": str(self.home),
            "KUBECONFIG": str(self.kubeconfig),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return {k: v for k, v in inherited.items() if not k.startswith("AWS_")} | own | extra

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    def do(self, *args: object, code: int = 0, timeout_s: float = JOB_S, **env: Any) -> Done:
        done = self.run(*args, timeout_s=timeout_s, **env)
        assert done.code == code, f"{args} ended with {done.code}\n{done.out}\n{done.err}"
        return done

    def show(self, *args: object, hidden: tuple[object, ...] = ()) -> Done:
        """As `do`, and keep it for the docs; `hidden` are arguments that only a test needs."""
        done = self.do(*args, *hidden)
        typed = " ".join(str(arg) for arg in args).replace(f"{self.home}/", "")
        out = done.out.replace(str(self.kubeconfig), "~/.kube/config").replace(f"{self.home}/", "")
        # The resources of each stack are many rows, and the same every time.
        rows = [line for line in out.splitlines() if not re.match(r" +\d+ [A-Z]\w+::", line)]
        self.session.append("\n".join([f"$ bireme {typed}", *rows]))
        return done

    def ask(self, *args: object) -> Any:
        return self.do(*args, "--json").json


def remove_ours(cluster: Cluster) -> None:
    """Remove what `cluster up` leaves in a Kubernetes: on EKS it goes with the cluster."""
    here = ("--ignore-not-found", "--wait=true")
    cluster.kubectl("delete", "namespace", "bireme", *here)
    cluster.kubectl("delete", "pvc", "efsvol", "-n", "default", *here)
    for name in ("bireme", "default"):
        cluster.kubectl("delete", "pv", f"bireme-{NAME}-{name}", *here)
    cluster.kubectl("delete", "storageclass", "bireme-efs", *here)
    for directory in cluster.volume.glob("efs-*"):
        shutil.rmtree(directory)


@pytest.fixture
def registry(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The test cluster's registry, under a name that both this machine and the nodes reach it by."""
    program, folder = need("docker-registry", "docker-registry"), tmp_path / "registry"
    folder.mkdir()
    config = {"version": 0.1, "log": {"level": "warn"}, "http": {"addr": REGISTRY}}
    config["storage"] = {"filesystem": {"rootdirectory": str(folder / "data")}}
    (folder / "config.yml").write_text(json.dumps(config))
    name = f"127.0.0.1:{cluster.facts.registry_port}"
    # containerd reads this at every pull.
    mirror = cluster.run / "certs.d" / name
    mirror.mkdir(exist_ok=True)
    shutil.copy(cluster.run / "certs.d" / REGISTRY / "hosts.toml", mirror / "hosts.toml")
    cluster.control.start("registry", [program, "serve", str(folder / "config.yml")])
    try:
        yield name
    finally:
        cluster.control.stop("registry")
        shutil.rmtree(mirror)
        shutil.rmtree(folder)


@pytest.fixture
def world(registry: str) -> World:
    """An account in which an administrator has made CloudFormation's role and one operator."""
    world = World(REGION, clock=ScaledClock(RATE))
    world.registry = registry
    role, operator = "bireme-cloudformation", f"{ACCOUNT}:user/operator"
    world.plant("AWS::IAM::Role", id=role, RoleName=role, Path="/")
    world.principals[KEY] = operator
    world.policies = {operator: [operator_policy()], f"{ACCOUNT}:role/{role}": [execution_policy()]}
    return world


@pytest.fixture
def endpoint(cluster: Cluster, world: World) -> Iterator[Endpoint]:
    remove_ours(cluster)
    driver = EfsStandIn(world, cluster.volume, SHARED_PLACE)
    with Endpoint(world, NAME, {KEY: SECRET}, cluster.facts.api_port, cluster.run / "pki", driver) as endpoint:
        yield endpoint
    remove_ours(cluster)


@pytest.fixture
def user(world: World, endpoint: Endpoint, tmp_path: Path) -> Iterator[User]:
    home = tmp_path / "home"
    home.mkdir()
    with DoubleServer(world) as server:
        yield User(home, server.url)


@pytest.fixture
def machines(cluster: Cluster, world: World) -> Iterator[Machines]:
    with Machines(cluster, world) as machines:
        yield machines
    assert machines.errors == []


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """An image of this tree, made from the layers in the user's own cache."""
    path = tmp_path / "bireme.tar"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "bireme",
        "image",
        "build",
        "--tag",
        "localhost/bireme:test",
        "--output",
        path,
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    yield path
    path.unlink()


@pytest.fixture
def job(user: User, reviews: Path) -> Path:
    """A small job in three shards that says nothing about the cluster but how little its pods need."""
    path = lay_out(user.home / "first-job", layout="")
    split_lines(reviews, path.parent, 3)
    path.write_text(path.read_text() + "kubernetes: {resources: {requests: {cpu: 100m, memory: 200Mi}}}\n")
    return path


def local_hash(user: User, job: Path) -> str:
    return str(user.ask("train", job, "--output", user.home / "here")["hash"])


def pods_of(cluster: Cluster, role: str) -> set[tuple[str, str]]:
    """The nodes and images of the job's pods of a role."""
    pods = cluster.get("pods", "-n", "bireme", "-l", f"app.kubernetes.io/component={role}")["items"]
    return {(pod["spec"]["nodeName"], pod["spec"]["containers"][0]["image"]) for pod in pods}


@pytest.mark.alone
def test_from_nothing_to_a_trained_model_and_back_to_nothing(
    cluster: Cluster, world: World, endpoint: Endpoint, user: User, machines: Machines, archive: Path, job: Path
) -> None:
    make_cluster(user)
    pushed = user.do("image", "push", archive, "--plain-http").out
    assert f"`bireme submit` uses it on the cluster of context {CONTEXT}" in pushed
    user.do("data", "push", job)
    assert endpoint.refused == []
    train(cluster, endpoint, user, job)
    look(cluster, endpoint, user)
    shrink(cluster, user)
    take_down(world, user)
    assert world.contract_violations == []
    assert world.foreign_deleted == []
    check_docs("\n".join(user.session))


def check_docs(session: str) -> None:
    """The session in docs/aws.md is this one, but for numbers; BIREME_WRITE_DOCS=1 writes it there."""
    page = ROOT / "docs" / "aws.md"
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- session -->\n```console\n", "```\n<!-- /session -->"
    before, _, rest = text.partition(begin)
    written, _, after = rest.partition(end)
    if os.environ.get("BIREME_WRITE_DOCS"):
        page.write_text(f"{before}{begin}{session}\n{end}{after}", encoding="utf-8")
        return
    assert without_numbers(written) == without_numbers(session), "write it anew with BIREME_WRITE_DOCS=1"


def without_numbers(text: str) -> list[str]:
    """What stays the same from run to run: ids, ports, times and prices do not."""
    plain = (re.sub(r"\b[0-9a-f]{8,}\b|\d+", "#", own_jobs(line)).rstrip() for line in text.splitlines())
    return [line for line in plain if line]


def own_jobs(line: str) -> str:
    """The line of `status` that lists jobs, without those of earlier tests: their namespaces go slowly."""
    head, mark, jobs = line.partition(" machines Ready; ")
    own = [job for job in jobs.split(", ") if job.startswith("bireme/")]
    return f"{head}{mark}{', '.join(own) or 'no jobs'}" if mark else line


def make_cluster(user: User) -> None:
    counts = ("--workers", 2, "--servers", 1)
    user.show("cluster", "init", NAME, "--region", REGION, "--api-cidr", "203.0.113.7/32", *counts)
    plan = user.show("cluster", "plan")
    assert "✗" not in plan.out and "an hour" in plan.out
    assert f"{ACCOUNT}:user/operator" in plan.err
    up = user.show("cluster", "up", "--yes", "--max-hourly", 5)
    assert f"{NAME} is up: 3 machines are Ready" in up.out
    assert read_kubeconfig(user.kubeconfig)["current-context"] == CONTEXT


def train(cluster: Cluster, endpoint: Endpoint, user: User, job: Path) -> None:
    """The model is the one that the same file gives on this machine, and each role ran on its group's nodes."""
    endpoint.lasts = timedelta(seconds=2)  # less than pods need to start
    user.show("submit", job)
    ended = user.ask("submit", job, "--wait")
    assert endpoint.refused and all("signed at" in why for why in endpoint.refused), "its token was renewed"
    endpoint.lasts = LASTS
    endpoint.refused.clear()
    assert (ended["state"], len(ended["passes_done"]), len(ended["trainers"])) == ("finished", 2, 3)
    repository = f"127.0.0.1:{cluster.facts.registry_port}/bireme-{NAME}"
    assert all(image.startswith(f"{repository}@sha256:") for role in ROLES for _, image in pods_of(cluster, role))
    assert {role: {node for node, _ in pods_of(cluster, role)} for role in ROLES} == ROLES
    assert len(list(cluster.volume.glob("efs-fs-*/small"))) == 1, "the job's directory is on the shared volume"
    user.do("fetch", "small", user.home / "brought", "--model")
    there = user.ask("model", "hash", user.home / "brought" / "pass-00001")["hash"]
    assert there == local_hash(user, job)


def look(cluster: Cluster, endpoint: Endpoint, user: User) -> None:
    status = user.show("cluster", "status").out
    assert f"{NAME} in {REGION}: up" in status
    assert "3 of 3 machines Ready" in status
    assert "bireme/small-trainer" in status
    # kubectl accepts the same kubeconfig; an access key that EKS does not know is refused.
    command = [str(cluster.kubectl_path), "get", "nodes", "--output", "name"]
    listed = subprocess.run(command, env=user.environment(), capture_output=True, text=True, timeout=60, check=True)
    assert listed.stdout.split() == ["node/n1", "node/n2", "node/n3"]
    assert endpoint.refused == []
    status = user.do("cluster", "status", AWS_ACCESS_KEY_ID="AKIAI44QH8DHBEXAMPLE").out
    assert "inside         unreachable: the cluster does not accept your login" in status
    assert set(endpoint.refused) == {"unknown access key AKIAI44QH8DHBEXAMPLE"}


def shrink(cluster: Cluster, user: User) -> None:
    assert "machines are Ready" in user.do("cluster", "scale", 1, "--yes").out
    wait_for("n3 to be taken away", lambda: node(cluster, "n3")["spec"].get("unschedulable"), seconds=10)
    status = user.ask("cluster", "status")
    assert (status["state"], status["inside"]["ready"], status["inside"]["nodes"]) == ("up", 2, 3)
    assert [group["wanted"] for _, group in sorted(status["groups"].items())] == [1, 1]
    assert node(cluster, "n2")["metadata"]["labels"]["bireme.dev/group"] == "trainers"


def node(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("node", name)
    return found


def take_down(world: World, user: User) -> None:
    down = user.show("cluster", "down", "--delete-data", NAME, "--yes")
    assert down.out.splitlines()[-1] == f"{NAME} is gone: nothing left, nothing billed"
    assert "deleting Job bireme/small" in down.err
    assert [thing for thing in world.inventory() if thing.made_by != "planted"] == []
    config = read_kubeconfig(user.kubeconfig)
    assert (config["contexts"], config["users"], config["clusters"], config["current-context"]) == ([], [], [], "")
