"""The test cluster itself: what it gives, what can be broken in it, and that it leaves nothing."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tools.kube import build, image, leftovers
from tools.kube.cluster import Cluster
from tools.kube.machine import wait_for
from tools.kube.running import Places, RunningCluster

from bireme.core.errors import MissingError, ProcessError, SpecError, UsageError
from tests.kube.stage import WAS_MADE

BUSYBOX = image.BUSYBOX_IMAGE
# Debian's static wget crashes when it looks a name up, so a page is asked for by hand.
ASK = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2"


def template(command: str, **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command], **more.pop("container", {})}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **more}


def pod(name: str, namespace: str, command: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(command, **more)}


def job(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    body = {"completions": 3, "parallelism": 3, "completionMode": "Indexed", "template": {"spec": spec}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**body, "backoffLimit": 0},
    }


def state(cluster: RunningCluster, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return found


def wait_running(cluster: RunningCluster, namespace: str, *names: str) -> None:
    for name in names:
        wait_for(
            f"pod {name} to run",
            lambda name=name: state(cluster, namespace, name)["phase"] == "Running",  # type: ignore[misc]
            seconds=90,
        )


def log(cluster: RunningCluster, namespace: str, name: str) -> str:
    return cluster.kubectl("logs", "-n", namespace, name)


# What it gives


def test_three_labelled_nodes_are_ready(cluster: Cluster) -> None:
    assert cluster.readiness() == {"n1": True, "n2": True, "n3": True}
    zones = {n["metadata"]["labels"]["topology.kubernetes.io/zone"] for n in cluster.get("nodes")["items"]}
    assert len(zones) == 3


def test_starting_a_cluster_that_is_up_changes_nothing(cluster: Cluster) -> None:
    before = {m.name: m.pid() for m in [cluster.control, *cluster.nodes]}
    assert not cluster.up()
    assert {m.name: m.pid() for m in [cluster.control, *cluster.nodes]} == before


def status_of(name: str) -> dict[str, Any]:
    """What `./dev kube status --json` prints."""
    command = [sys.executable, "-m", "tools.kube", "--name", name, "status", "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_status_names_a_kubeconfig_and_the_start_time(
    cluster: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = status_of(cluster.name)
    assert (status["is_up"], status["name"], status["timings"]) == (True, cluster.name, "short")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    ask = [status["kubectl"], "--kubeconfig", status["kubeconfig"], "get", "nodes", "-o", "name"]
    listed = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    assert listed == ["node/n1", "node/n2", "node/n3"]
    assert {(node["name"], node["is_on"], node["ready"]) for node in status["nodes"]} == {
        (name, True, True) for name in ("n1", "n2", "n3")
    }
    assert status["started_s"] == cluster.facts.seconds > 0
    if request.config.stash[WAS_MADE]:
        assert status["started_s"] < 60
    assert status_of("nobody") == {"is_up": False}


def test_a_usual_client_trusts_the_server_by_the_kubeconfig(cluster: Cluster) -> None:
    from lightkube import Client, KubeConfig
    from lightkube.resources.core_v1 import Node

    config = KubeConfig.from_file(cluster.kubeconfig)
    entry = config.get()
    assert entry is not None
    assert entry.cluster.certificate_auth_data and not entry.cluster.insecure
    with Client(config=config) as client:
        names = {node.metadata.name for node in client.list(Node) if node.metadata}
    assert names == {"n1", "n2", "n3"}


@pytest.mark.alone  # pods of the tutorial want the same port
def test_three_pods_of_one_host_port_run_on_three_nodes(cluster: Cluster, namespace: str) -> None:
    # Each pod serves its index on the host's port, and reads all three through the nodes' addresses.
    hosts = " ".join(node.address for node in cluster.nodes)
    command = (
        "mkdir /tmp/w; echo served by $JOB_COMPLETION_INDEX > /tmp/w/index.html; httpd -p 7164 -h /tmp/w;"
        f"for host in {hosts}; do until {ASK} $host 7164 | grep served; do usleep 100000; done; done;"
        # A pod that left at once would be missed by the others.
        "touch /v/$JOB_COMPLETION_INDEX; until [ $(ls /v | wc -l) = 3 ]; do usleep 100000; done"
    )
    shared = cluster.volume / namespace
    shared.mkdir(mode=0o777)
    spec = template(
        command,
        container={
            "ports": [{"containerPort": 7164, "hostPort": 7164}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        },
        volumes=[{"name": "v", "hostPath": {"path": f"/srv/bireme/{namespace}"}}],
    )
    cluster.apply(job("ports", namespace, spec))
    cluster.wait_job("ports", namespace=namespace)
    pods = cluster.get("pods", "-n", namespace)["items"]
    assert {p["spec"]["nodeName"] for p in pods} == {"n1", "n2", "n3"}
    for p in pods:
        said = log(cluster, namespace, p["metadata"]["name"]).splitlines()
        assert sorted(line for line in said if line.startswith("served")) == [
            "served by 0",
            "served by 1",
            "served by 2",
        ]


def test_headless_names_resolve_to_the_pods_of_a_job(cluster: Cluster, namespace: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "peers", "namespace": namespace},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": "named"},
            "ports": [{"port": 7164}],
        },
    }
    names = [f"named-{n}.peers.{namespace}.svc.cluster.local" for n in range(3)]
    ask = "".join(f"until nslookup {name} >/tmp/{n}; do usleep 100000; done;" for n, name in enumerate(names))
    spec = template(f"{ask} tail -n 3 -q /tmp/0 /tmp/1 /tmp/2 | grep Address; exec sleep 600", subdomain="peers")
    cluster.apply(service, job("named", namespace, spec))

    def pods() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.get("pods", "-n", namespace)["items"]
        return found

    wait_for("three pods with addresses", lambda: sum("podIP" in p["status"] for p in pods()) == 3, seconds=60)
    listed = sorted(pods(), key=lambda p: str(p["spec"]["hostname"]))
    expected = [f"Address: {p['status']['podIP']}" for p in listed]
    for p in listed:
        name = p["metadata"]["name"]
        wait_for("answers", lambda name=name: len(log(cluster, namespace, name).split()) >= 6, seconds=60)  # type: ignore[misc]
        assert log(cluster, namespace, name).splitlines() == expected


def test_a_claim_is_one_directory_for_pods_on_two_nodes(cluster: Cluster, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    more = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
    }
    writer = pod("writer", namespace, "echo shared > /v/part && mv /v/part /v/file", nodeName="n1", **more)
    reader = pod("reader", namespace, "until cat /v/file; do usleep 100000; done", nodeName="n2", **more)
    cluster.apply(claim, writer, reader)
    for name in ("writer", "reader"):
        done = lambda name=name: state(cluster, namespace, name)["phase"] == "Succeeded"  # noqa: E731
        wait_for(f"{name} to succeed", done, seconds=60)
    assert log(cluster, namespace, "reader").splitlines()[-1] == "shared"
    volume = cluster.get("pvc", "-n", namespace, "data")["spec"]["volumeName"]
    assert (cluster.volume / volume / "file").read_text() == "shared\n"
    cluster.kubectl("delete", "-n", namespace, "pod/writer", "pod/reader", "pvc/data")
    wait_for("the directory to go with its claim", lambda: not (cluster.volume / volume).exists(), seconds=60)


def registry_tree(archive: Path, name: str, target: Path) -> None:
    """The files that a registry would serve for the one image of a docker archive."""
    with tarfile.open(archive) as tar:
        parts = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    listed = json.loads(parts["manifest.json"])[0]
    kind = "application/vnd.docker.distribution.manifest.v2+json"

    def blob(data: bytes, media: str) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        (target / "v2" / name / "blobs").mkdir(parents=True, exist_ok=True)
        (target / "v2" / name / "blobs" / digest).write_bytes(data)
        return {"mediaType": media, "size": len(data), "digest": digest}

    manifest = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": blob(parts[listed["Config"]], "application/vnd.docker.container.image.v1+json"),
        "layers": [blob(parts[listed["Layers"][0]], "application/vnd.docker.image.rootfs.diff.tar")],
    }
    data = json.dumps(manifest).encode()
    (target / "v2" / name / "manifests").mkdir(parents=True)
    for tag in ("latest", f"sha256:{hashlib.sha256(data).hexdigest()}"):
        (target / "v2" / name / "manifests" / tag).write_bytes(data)


REGISTRY = """
import http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def guess_type(self, path):
        kind = "vnd.docker.distribution.manifest.v2+json" if "/manifests/" in str(path) else "octet-stream"
        return "application/" + kind
http.server.ThreadingHTTPServer(("10.250.0.1", 5000), lambda *a: Handler(*a, directory=sys.argv[1])).serve_forever()
"""


@pytest.mark.alone  # the registry of the tutorial has the same address
def test_images_of_docker_io_come_from_the_registry_of_the_tests(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    archive = Path(cluster.facts.binaries) / "busybox.tar"
    registry_tree(archive, "paddlepaddle/mirrored", tmp_path)
    tmp_path.chmod(0o755)
    cluster.control.start("registry", [sys.executable, "-c", REGISTRY, str(tmp_path)])
    try:
        wanted = {"image": "paddlepaddle/mirrored", "imagePullPolicy": "Always"}
        cluster.apply(pod("pulled", namespace, "echo pulled", container=wanted))
        wait_for("the pod", lambda: state(cluster, namespace, "pulled")["phase"] == "Succeeded", seconds=60)
    finally:
        cluster.control.stop("registry")
    found = state(cluster, namespace, "pulled")["containerStatuses"][0]
    assert found["imageID"].startswith("docker.io/paddlepaddle/mirrored@sha256:")


def test_pod_security_refuses_a_root_pod_in_its_namespace(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(ProcessError, match="violates PodSecurity"):
        cluster.apply(pod("root", namespace, "true"))


# What can be broken


@pytest.mark.slow  # test_recovery kills one
def test_killed_container_is_restarted_by_its_kubelet(whole: Cluster, namespace: str) -> None:
    body = pod("victim", namespace, "exec sleep 600")
    body["spec"]["restartPolicy"] = "OnFailure"
    whole.apply(body)
    wait_running(whole, namespace, "victim")
    whole.kill_container("victim", signal.SIGKILL, namespace=namespace)

    def restarts() -> int:
        return int(state(whole, namespace, "victim")["containerStatuses"][0]["restartCount"])

    wait_for("the restart", lambda: restarts() == 1, seconds=60)
    ended = state(whole, namespace, "victim")["containerStatuses"][0]["lastState"]["terminated"]
    assert ended["exitCode"] == 137


@pytest.mark.slow  # test_recovery cuts a wire
@pytest.mark.alone
def test_a_cut_between_nodes_drops_packets_until_it_heals(whole: Cluster, namespace: str) -> None:
    serve = "mkdir /tmp/w; echo here > /tmp/w/index.html; httpd -f -p 80 -h /tmp/w"
    for number in (1, 2, 3):
        whole.apply(pod(f"p{number}", namespace, serve, nodeName=f"n{number}"))
    wait_running(whole, namespace, "p1", "p2", "p3")
    address = {n: state(whole, namespace, f"p{n}")["podIP"] for n in (1, 2, 3)}

    def reaches(one: int, other: int) -> bool:
        ask = f"{ASK} {address[other]} 80 || echo lost"
        return "here" in whole.exec(f"p{one}", "sh", "-c", ask, namespace=namespace)

    wait_for("the servers", lambda: reaches(1, 2) and reaches(2, 1) and reaches(1, 3), seconds=30)
    whole.cut("n1", "n2")
    assert not reaches(1, 2)
    assert not reaches(2, 1)
    assert reaches(1, 3)
    whole.heal()
    assert reaches(1, 2)


@pytest.mark.slow  # test_recovery stops a kubelet
@pytest.mark.alone
def test_containers_outlive_a_kubelet_and_its_node_is_unready(whole: Cluster, namespace: str) -> None:
    whole.apply(pod("left", namespace, "exec sleep 600", nodeName="n2"))
    wait_running(whole, namespace, "left")
    whole.stop_kubelet("n2")
    wait_for("the node to be missed", lambda: not whole.readiness()["n2"], seconds=60)
    listed = whole.node("n2").run("ctr", "-n", "k8s.io", "tasks", "list")
    container = state(whole, namespace, "left")["containerStatuses"][0]["containerID"].rpartition("/")[2]
    assert any(line.startswith(container) and "RUNNING" in line for line in listed.splitlines())
    whole.start_kubelet("n2")
    wait_for("the node to be ready", lambda: whole.readiness()["n2"], seconds=60)
    assert state(whole, namespace, "left")["phase"] == "Running"


@pytest.mark.slow  # test_recovery loses a machine
@pytest.mark.alone
def test_lost_node_is_missed_and_comes_back_with_its_disk(whole: Cluster, namespace: str) -> None:
    whole.apply(pod("before", namespace, "exec sleep 600", nodeName="n3"))
    wait_running(whole, namespace, "before")
    whole.lose_node("n3")
    assert not whole.node("n3").is_on()
    wait_for("the node to be missed", lambda: not whole.readiness()["n3"], seconds=60)
    whole.restart_node("n3")
    wait_for("the node to be ready", lambda: whole.readiness()["n3"], seconds=60)
    # Its images are still there: this one can be pulled from nowhere.
    whole.apply(pod("after", namespace, "exec sleep 600", nodeName="n3"))
    wait_running(whole, namespace, "after")


@pytest.mark.slow  # test_recovery restarts it
@pytest.mark.alone
def test_api_server_comes_back_with_everything_it_knew(whole: Cluster, namespace: str) -> None:
    whole.apply(pod("kept", namespace, "exec sleep 600"))
    wait_running(whole, namespace, "kept")
    whole.restart_apiserver()
    assert state(whole, namespace, "kept")["phase"] == "Running"


def test_node_that_does_not_exist_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="no node 'n9'"):
        cluster.lose_node("n9")


# That it leaves nothing


def host() -> dict[str, object]:
    """All of the host that a cluster could change."""
    kernel = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "net/ipv4/ip_forward")
    links = json.loads(subprocess.run(["ip", "-j", "link"], check=True, capture_output=True).stdout)
    return {
        "mounts": {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        "links": {link["ifname"] for link in links},
        "routes": subprocess.run(["ip", "route"], check=True, capture_output=True).stdout,
        "rules": leftovers.ground(),
        "kernel": {key: Path("/proc/sys", key).read_text() for key in kernel},
        "groups": {p for p in Path("/sys/fs/cgroup").glob("*/*") if p.is_dir() and "-passing" in p.name},
    }


@pytest.fixture
def passing(places: Places) -> Cluster:
    """Another cluster beside the first, with the same addresses."""
    cluster = Cluster(places, "passing", nodes=1)
    cluster.down()
    return cluster


@pytest.mark.alone  # what others do on the host must not be taken for its traces
def test_cluster_that_was_taken_down_leaves_nothing_on_the_host(passing: Cluster) -> None:
    before = host()
    passing.up()
    passing.apply(pod("short", "default", "exec sleep 600"))
    wait_running(passing, "default", "short")
    pids = [m.pid() for m in [passing.control, *passing.nodes]]
    inner = passing.kill_container("short", 0)
    assert passing.down() == []
    assert host() == before
    assert not passing.run.exists()
    assert not any(Path(f"/proc/{pid}/root").exists() for pid in [*pids, inner])


@pytest.mark.slow  # a start of a whole cluster, which the test before has shown
@pytest.mark.alone  # what others do on the host must not be taken for its traces
def test_start_that_is_interrupted_clears_up_and_keeps_the_logs(places: Places, passing: Cluster) -> None:
    before = host()

    def interrupt(line: str) -> None:
        if line.startswith("waiting for the nodes"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cluster(places, "passing", nodes=1, report=interrupt).up()
    assert host() == before
    assert [p.name for p in passing.run.iterdir()] == ["logs"]
    assert (passing.run / "logs/cp-kube-apiserver.log").exists()
    assert passing.down() == []
    assert not passing.run.exists()


@pytest.mark.slow  # another start of a whole cluster
@pytest.mark.alone
def test_a_daemon_dead_in_the_start_is_named_with_its_last_lines(places: Places, passing: Cluster) -> None:
    class Broken(Cluster):
        def commands(self, machine: str) -> dict[str, list[str]]:
            commands = super().commands(machine)
            if "etcd" in commands:
                commands["etcd"].append("--no-such-flag")
            return commands

    with pytest.raises(ProcessError, match=r"etcd of cp ended with code 1[\s\S]*unknown flag: --no-such-flag"):
        Broken(places, "passing", nodes=1).up()
    assert passing.down() == []


def test_run_directory_that_a_machine_could_not_see_is_refused(places: Places) -> None:
    hidden = Places(places.cache, Path("/run/bireme-test"))
    with pytest.raises(SpecError, match="run directory"):
        Cluster(hidden, "hidden").up()
    assert not Path("/run/bireme-test").exists()


def test_missing_go_is_reported_before_anything_is_done(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_go", lambda: None)
    with pytest.raises(MissingError, match=r"needs Go") as caught:
        Cluster(places, "goless").up()
    assert "go.dev" in caught.value.fix
    assert not (places.state / "goless").exists()
