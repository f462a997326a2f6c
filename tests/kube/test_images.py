"""Images as they are used: built twice, pushed to a real registry, loaded into a real containerd, run in pods."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for

from bireme.images.archive import read_archive
from bireme.images.contents import requirements
from bireme.images.layers import Cache
from bireme.spec.load import places as user_places

TAG = "localhost/bireme-test:1"
ROOT = Path(__file__).parents[2]


def bireme(*arguments: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bireme", *arguments, "--json"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def need(program: str, package: str) -> str:
    """Find a program, or install the Debian package that it comes with."""
    if shutil.which(program) is None:
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
            subprocess.run(["apt-get", *command], check=True, capture_output=True)
    found = shutil.which(program)
    assert found is not None
    return found


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A directory for gigabytes: not kept for later looks, as others are."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def module_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("images")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def built(places: object, module_room: Path) -> dict[str, Any]:
    """An image with a program in it, from the user's own cache of layers; `places` says whether we may."""
    folder = module_room
    program = folder / "program"
    program.mkdir()
    (program / "mine.py").write_text("print('a program of my own')\n")
    (program / "old.py").write_text("print 'for another Python'\n")
    target = folder / "image.tar"
    return bireme("image", "build", "--with", str(program), "--tag", TAG, "--output", str(target))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def registry(places: object, module_room: Path) -> Iterator[str]:
    """Debian's docker-registry on a port of its own; yields its address."""
    program, folder = need("docker-registry", "docker-registry"), module_room / "registry"
    folder.mkdir()
    address = f"127.0.0.1:{free_port()}"
    config = {"version": 0.1, "log": {"level": "warn"}, "http": {"addr": address}}
    config["storage"] = {"filesystem": {"rootdirectory": str(folder / "data")}}
    (folder / "config.yml").write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)

    def answers() -> bool:
        assert running.poll() is None, (folder / "log").read_text()
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0

    try:
        wait_for("the registry", answers, seconds=30)
        yield address
    finally:
        running.kill()
        running.wait()


def fetch(address: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path, headers={"Accept": "application/vnd.oci.image.manifest.v1+json"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()
    finally:
        connection.close()


@pytest.mark.slow  # every kernel is compiled again
def test_the_same_inputs_give_one_digest_with_all_layers_anew(built: dict[str, Any], room: Path) -> None:
    mine, other = Cache(user_places().cache / "images"), Cache(room / "cache" / "bireme" / "images")
    # Only what comes from outside is taken over: Debian's files, and pip's downloads.
    other.root.mkdir(parents=True)
    for folder in mine.root.glob("debian-*"):
        subprocess.run(["cp", "-a", "--reflink=auto", str(folder), str(other.root)], check=True)
    downloads = os.environ.get("PIP_CACHE_DIR") or str(user_places().cache.parent / "pip")
    program, target = Path(built["file"]).parent / "program", room / "again.tar"
    command = ["image", "build", "--with", str(program), "--tag", TAG, "--output", str(target)]
    again = bireme(*command, XDG_CACHE_HOME=str(room / "cache"), PIP_CACHE_DIR=downloads)
    assert not any(layer["is_cached"] for layer in again["layers"])
    digests = [layer["digest"] for layer in again["layers"]]
    assert digests == [layer["digest"] for layer in built["layers"]]
    assert again["digest"] == built["digest"]


def test_a_second_build_makes_nothing(built: dict[str, Any], room: Path) -> None:
    program = Path(built["file"]).parent / "program"
    again = bireme("image", "build", "--with", str(program), "--tag", TAG, "--output", str(room / "again.tar"))
    assert all(layer["is_cached"] for layer in again["layers"])
    assert (again["digest"], again["nbytes"]) == (built["digest"], built["nbytes"])


def test_what_was_pushed_is_read_back_by_its_digest(built: dict[str, Any], registry: str) -> None:
    first = bireme("image", "push", built["file"], f"{registry}/ml/bireme:1", "--plain-http")
    again = bireme("image", "push", built["file"], f"{registry}/ml/bireme:2", "--plain-http")
    assert first["digest"] == again["digest"] == built["digest"]
    assert (first["skipped"], again["sent"]) == (0, 0)
    manifest = fetch(registry, f"/v2/ml/bireme/manifests/{built['digest']}")
    assert manifest == read_archive(Path(built["file"])).manifest
    content = json.loads(manifest)
    for blob in (content["config"], *content["layers"]):
        data = fetch(registry, f"/v2/ml/bireme/blobs/{blob['digest']}")
        assert blob["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def containerd(room: Path) -> Iterator[str]:
    """A containerd of our own; yields its socket."""
    address = str(room / "containerd.sock")
    config = (
        f'version = 2\nroot = "{room}/root"\nstate = "{room}/state"\noom_score = 0\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{address}"\n'
        f'[plugins."io.containerd.internal.v1.opt"]\npath = "{room}/opt"\n'
    )
    (room / "config.toml").write_text(config)
    with (room / "log").open("wb") as log:
        running = subprocess.Popen(["containerd", "-c", str(room / "config.toml")], stdout=log, stderr=log)
    try:
        ask = ["ctr", "-a", address, "version"]
        wait_for("containerd", lambda: subprocess.run(ask, capture_output=True).returncode == 0, seconds=30)
        yield address
    finally:
        running.terminate()
        running.wait()


def test_containerd_takes_it_under_its_name_and_digest(
    cluster: Cluster, built: dict[str, Any], containerd: str
) -> None:
    outcome = bireme("image", "load", built["file"], "--address", containerd)
    assert outcome["digest"] == built["digest"]
    listed = subprocess.run(
        ["ctr", "-a", containerd, "-n", "k8s.io", "images", "ls"], capture_output=True, text=True, check=True
    ).stdout
    assert TAG in listed
    assert built["digest"] in listed


def strict_pod(name: str, namespace: str, command: str) -> dict[str, Any]:
    """A pod that the strictest of Kubernetes' own rules lets in."""
    container = {
        "name": "main",
        "image": TAG,
        "command": ["bin/bash", "-c", command],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@pytest.fixture(scope="module")
def loaded(cluster: Cluster, built: dict[str, Any]) -> Cluster:
    cluster.load(Path(built["file"]))
    return cluster


def run_pod(cluster: Cluster, namespace: str, command: str) -> str:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    cluster.apply(strict_pod("strict", namespace, command))

    def phase() -> str:
        return str(cluster.get("pod", "strict", "-n", namespace)["status"]["phase"])

    wait_for("the pod to end", lambda: phase() in ("Succeeded", "Failed"), seconds=900, every=0.5)
    said = cluster.kubectl("logs", "-n", namespace, "strict")
    assert phase() == "Succeeded", said
    return said


def test_under_strict_rules_it_has_the_bits_and_compiles_nothing(
    loaded: Cluster, namespace: str, tmp_path: Path
) -> None:
    # What Numba compiles it writes down: a copy that is still like the original means that nothing was missing.
    command = (
        "bireme demo --dir /tmp/demo --passes 1 --json && diff -r /opt/bireme/numba-cache /tmp/numba-cache && id -u"
    )
    *_, result, user = run_pod(loaded, namespace, command).splitlines()
    assert user == "1000"
    assert json.loads(result)["hash"] == bireme("demo", "--dir", str(tmp_path / "demo"), "--passes", "1")["hash"]


def test_program_and_start_script_are_where_jobs_look(loaded: Cluster, namespace: str) -> None:
    command = "bireme --version && python /opt/program/mine.py && ls /opt/program/__pycache__ && head -1 /root/start.sh"
    said = run_pod(loaded, namespace, command)
    for expected in ("bireme, version", "a program of my own", "mine.cpython-3", "#!/bin/bash"):
        assert expected in said
    assert "old.cpython" not in said


def test_the_data_job_s_script_fills_a_directory_once(loaded: Cluster, namespace: str) -> None:
    again = "/root/get_data.sh && bireme data check /tmp/out && ls /tmp/out/quick_start"
    said = run_pod(loaded, namespace, f"export OUT_DIR=/tmp/out SPLIT_COUNT=2 && /root/get_data.sh && {again}")
    for expected in ("ready: /tmp/out", "holds 2 shards already", "no problems", "trainer_config.lr.py"):
        assert expected in said


@pytest.mark.slow
def test_the_dockerfile_builds_with_buildah_and_runs(places: object, built: dict[str, Any], room: Path) -> None:
    need("buildah", "buildah")
    cache = Cache(user_places().cache / "images")
    tree = next(iter(cache.root.glob("debian-*")))
    storage = ["--root", str(room / "storage"), "--runroot", str(room / "run"), "--storage-driver", "vfs"]

    def buildah(*arguments: str) -> str:
        command = ["buildah", *storage, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    # There is no way to a public registry here: the base is the Debian that `image build` made.
    base = buildah("from", "scratch")
    buildah("add", "--quiet", base, str(tree), "/")
    buildah("commit", "--quiet", base, "localhost/debian-python")
    wheels = room / "wheels"
    wheels.mkdir()
    wanted = ["hatchling>=1.27", *requirements(ROOT / "src" / "bireme")]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels), *wanted], check=True)
    buildah(
        "build", "--isolation", "chroot", "--quiet", "-f", "deploy/Dockerfile", "-t", "localhost/bireme-docker",
        "--build-arg", "BASE=localhost/debian-python", "--build-arg", "PIP_ARGS=--no-index --find-links=/wheels",
        "-v", f"{wheels}:/wheels:ro", ".",
    )  # fmt: skip
    made = buildah("from", "localhost/bireme-docker")
    said = buildah("run", "--isolation", "chroot", made, "--", "bireme", "--version")
    assert said.startswith("bireme, version ")
    kernels = buildah(
        "run", "--isolation", "chroot", made, "--", "sh", "-c", "find /opt/bireme/numba-cache -name '*.nbc' | wc -l"
    )
    assert int(kernels) > 50
