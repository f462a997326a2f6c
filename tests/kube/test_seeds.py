"""The original tutorial's own files, applied with kubectl as they stand, on a cluster that does not know bireme.

Its images come from a registry that the nodes use as a mirror of docker.io. Its volume is what the cluster gives for
the claim: the machine has no NFS, so the file for it is accepted and its server never asked. Its account may not list
pods, so they meet on the volume; where it may, they ask the API server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for

from bireme.job.output.model import model_hash
from bireme.job.output.verify import verify
from tests.kube.test_images import bireme, need

TUTORIAL = Path(__file__).parent / "tutorial"
NAME, SPACE = "paddle-cluster-job", "default"
IMAGES = {
    ("paddlepaddle/paddle-tutorial:k8s_train", "drinkcode/paddle:k8s-job"): ("--user", "0"),
    ("paddlepaddle/paddle-tutorial:k8s_data",): ("--user", "0", "--role", "data"),
}
"""By what the tutorial's versions call them: how they are built."""
OLDEST = Path("/home/admin/efs")
"""The directory of the machines that the oldest version mounts; here all machines see the host's."""


@pytest.fixture(scope="module")
def registry(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tutorial's images, served to the nodes under the tutorial's names."""
    program, folder = need("docker-registry", "docker-registry"), tmp_path_factory.mktemp("registry")
    config = {"version": 0.1, "log": {"level": "warn"}, "http": {"addr": "10.250.0.1:5000"}}
    config["storage"] = {"filesystem": {"rootdirectory": str(folder / "data")}}
    (folder / "config.yml").write_text(json.dumps(config))
    cluster.control.start("registry", [program, "serve", str(folder / "config.yml")])
    try:
        for names, options in IMAGES.items():
            archive = str(folder / "image.tar")
            bireme("image", "build", *options, "--tag", f"docker.io/{names[0]}", "--output", archive)
            for name in names:
                for node in cluster.nodes:  # which may have pulled it in an earlier run
                    node.run("ctr", "--namespace", "k8s.io", "images", "rm", f"docker.io/{name}")
                bireme("image", "push", archive, f"127.0.0.1:{cluster.facts.registry_port}/{name}", "--plain-http")
            Path(archive).unlink()
        yield
    finally:
        cluster.control.stop("registry")


class Tutorial:
    """The tutorial's steps, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(self, file: str) -> None:
        """What the tutorial says: kubectl create -f FILE."""
        self._cluster.kubectl("create", "-f", str(TUTORIAL / file))

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._cluster.get("job", name, "-n", SPACE)
        return found

    def wait_for_job(self, name: str, seconds: float) -> None:
        """Until all pods of a Job have succeeded; says what they said otherwise."""

        def is_over() -> bool:
            conditions = {each["type"] for each in self.job(name)["status"].get("conditions", ()) if each["status"]}
            assert not conditions & {"Failed", "FailureTarget"}, self.said(name)
            return "Complete" in conditions

        wait_for(f"the job {name}", is_over, seconds=seconds, every=0.5)

    def pods(self, name: str = NAME) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._cluster.get("pods", "-n", SPACE, "-l", f"job-name={name}")["items"]
        return found

    def said(self, name: str = NAME) -> str:
        return "\n".join(self._cluster.kubectl("logs", "-n", SPACE, pod["metadata"]["name"]) for pod in self.pods(name))

    @property
    def place(self) -> Path:
        """The job's directory on the volume, as the host sees it."""
        claim = self._cluster.get("pvc", "efsvol", "-n", SPACE)
        return self._cluster.volume / str(claim["spec"]["volumeName"]) / NAME

    def clean(self) -> None:
        """Leave nothing in the namespace that others use too."""
        for kind, name in (("job", NAME), ("job", "paddle-data"), ("pvc", "efsvol"), ("pv", "efsvol")):
            self._cluster.kubectl("delete", kind, name, "-n", SPACE, "--ignore-not-found", "--wait=true")
        for kind, name in (("rolebinding", "see-pods"), ("role", "see-pods")):
            self._cluster.kubectl("delete", kind, name, "-n", SPACE, "--ignore-not-found")


@pytest.fixture(scope="module")
def prepared(cluster: Cluster, registry: None) -> Iterator[Tutorial]:
    """The tutorial up to its training job: volume, claim and data."""
    tutorial = Tutorial(cluster)
    tutorial.clean()
    try:
        for file in ("pv.yaml", "pvc.yaml", "paddle-data-job.yaml"):
            tutorial.create(file)
        tutorial.wait_for_job("paddle-data", seconds=600)
        yield tutorial
    finally:
        tutorial.clean()


@pytest.fixture
def tutorial(prepared: Tutorial, cluster: Cluster) -> Iterator[Tutorial]:
    """The same, before the training job."""
    yield prepared
    cluster.kubectl("delete", "job", NAME, "-n", SPACE, "--ignore-not-found", "--wait=true", "--cascade=foreground")
    shutil.rmtree(prepared.place / "output", ignore_errors=True)


@pytest.fixture(scope="module")
def trained_here(prepared: Tutorial, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of what the same program makes of the same data on this machine."""
    folder = tmp_path_factory.mktemp("here")
    job = "name: here\nprogram: {config: quick_start/trainer_config.lr.py}\npasses: 10\nnodes: 3\n"
    shutil.copytree(prepared.place, folder / "job", ignore=shutil.ignore_patterns("output"))
    (folder / "job" / "job.yaml").write_text(job)
    command = [sys.executable, "-m", "bireme", "train", str(folder / "job" / "job.yaml"), "--json"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["hash"])


def test_the_files_as_they_stand_train_the_model_of_a_local_run(tutorial: Tutorial, trained_here: str) -> None:
    tutorial.create("paddle-cluster-job.yaml")
    tutorial.wait_for_job(NAME, seconds=600)
    output = tutorial.place / "output"
    assert model_hash(output / "pass-00009") == trained_here
    assert {p.name for p in (output / "pass-00000").iterdir()} >= {
        "___fc_layer_0__.w0", "___fc_layer_0__.wbias", "done", "path.txt", "trainer_config.lr.py",
    }  # fmt: skip
    for rank in range(3):
        assert (output / f"node_{rank}" / "server.log").is_file() and (output / f"node_{rank}" / "train.log").is_file()
    assert verify(output).problems == []
    said = tutorial.said()
    assert "failed to list pods" in said, "the default account may not list them"
    assert "trainer 0 | " in said or "trainer 1 | " in said


@pytest.mark.slow  # tests/e2e/test_pods.py does the same without a cluster
def test_a_deleted_pods_replacement_takes_its_rank(tutorial: Tutorial, cluster: Cluster, trained_here: str) -> None:
    tutorial.create("paddle-cluster-job.yaml")
    output = tutorial.place / "output"
    wait_for("the first pass", lambda: (output / "pass-00000" / "done").is_file(), seconds=400)
    first = json.loads((output / "run" / "ranks" / "first.json").read_text())
    cluster.kubectl("delete", "pod", "-n", SPACE, first[1], "--wait=false")
    tutorial.wait_for_job(NAME, seconds=600)
    assert model_hash(output / "pass-00009") == trained_here
    new = (output / "run" / "ranks" / "rank-1.1").read_text()
    assert new not in first and new in {pod["metadata"]["name"] for pod in tutorial.pods()}


def test_an_account_that_may_list_pods_ranks_them_by_address(
    tutorial: Tutorial, cluster: Cluster, trained_here: str
) -> None:
    cluster.kubectl("create", "role", "see-pods", "-n", SPACE, "--verb=get,list,watch", "--resource=pods")
    cluster.kubectl(
        "create", "rolebinding", "see-pods", "-n", SPACE, "--role=see-pods", f"--serviceaccount={SPACE}:default"
    )
    tutorial.create("paddle-cluster-job.yaml")
    output = tutorial.place / "output"
    wait_for("the ranks", lambda: (output / "run" / "ranks" / "first.json").is_file(), seconds=400)
    by_name = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in tutorial.pods()}
    ranked = [by_name[name] for name in json.loads((output / "run" / "ranks" / "first.json").read_text())]
    assert ranked == sorted(ranked, key=lambda ip: tuple(map(int, ip.split("."))))
    tutorial.wait_for_job(NAME, seconds=600)
    assert "failed to list pods" not in tutorial.said()
    assert model_hash(output / "pass-00009") == trained_here


@pytest.fixture
def oldest(prepared: Tutorial, cluster: Cluster) -> Iterator[Path]:
    """The job's directory as the oldest version of the tutorial lays it out, on the machines themselves."""
    if OLDEST.exists():
        pytest.fail(f"{OLDEST} is there already, and not of this test: move it away")
    is_new = not OLDEST.parent.exists()
    place = OLDEST / NAME
    for shard in range(3):
        shutil.copytree(prepared.place / str(shard) / "data", place / "data" / str(shard))
    shutil.copytree(prepared.place / "quick_start", place / "recommendation")
    (place / "recommendation" / "trainer_config.lr.py").rename(place / "recommendation" / "trainer_config.py")
    yield place
    cluster.kubectl("delete", "job", NAME, "-n", SPACE, "--ignore-not-found", "--wait=true", "--cascade=foreground")
    shutil.rmtree(OLDEST.parent if is_new else OLDEST)


def test_the_oldest_job_file_trains_on_a_host_directory(tutorial: Tutorial, oldest: Path, trained_here: str) -> None:
    tutorial.create("oldest-cluster-job.yaml")
    tutorial.wait_for_job(NAME, seconds=600)
    assert model_hash(oldest / "output" / "pass-00009") == trained_here
    assert verify(oldest / "output").problems == []
