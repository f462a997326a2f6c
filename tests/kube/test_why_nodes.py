"""`why` on a real cluster: what nodes do to pods. Nodes are tainted, cordoned and stopped, and put right again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube.machine import wait_for
from tools.kube.running import RunningCluster

from tests.kube.test_why_jobs import Jobs
from tests.kube.why_stage import Json, Stage, asks, job

pytestmark = pytest.mark.alone
NODE = "n3"
THERE: Json = {"nodeSelector": {"kubernetes.io/hostname": NODE}}


@pytest.fixture(scope="module")
def stage(cluster: RunningCluster) -> Iterator[Stage]:
    with Stage(cluster, "why-nodes") as made:
        yield made


def test_a_taint_is_reported_with_the_toleration_that_would_help(stage: Stage) -> None:
    stage.running.kubectl("taint", "nodes", NODE, "dedicated=infra:NoSchedule")
    try:
        stage.apply(job("taint", pod=THERE))
        cause = stage.until("taint")
    finally:
        stage.running.kubectl("taint", "nodes", NODE, "dedicated-")
    assert "1 of 3 nodes have the taint dedicated=infra" in cause.cause
    assert "{key: dedicated, value: 'infra', effect: NoSchedule}" in cause.advice


def test_a_cordoned_node_is_named(stage: Stage) -> None:
    stage.running.kubectl("cordon", NODE)
    try:
        stage.apply(job("cordoned", pod=THERE))
        cause = stage.until("cordoned")
    finally:
        stage.running.kubectl("uncordon", NODE)
    assert f"1 of 3 nodes are cordoned ({NODE})" in cause.cause
    assert f"kubectl uncordon {NODE}" in cause.advice


def test_a_node_that_is_full_of_pods_is_reported(stage: Stage) -> None:
    """The node is an object without a machine: no real one has room for so few pods."""
    labels = {"why": "full", "kubernetes.io/hostname": "paper"}
    stage.running.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "paper", "labels": labels}})
    room = {"cpu": "4", "memory": "8Gi", "pods": "0"}
    ready = [{"type": "Ready", "status": "True", "reason": "Paper", "message": "", "lastHeartbeatTime": None}]
    status = {"status": {"allocatable": room, "capacity": room, "conditions": ready}}
    try:
        stage.running.kubectl(
            "patch", "node", "paper", "--subresource=status", "--type=merge", "-p", json.dumps(status)
        )
        anywhere = [{"operator": "Exists"}]
        stage.apply(job("too-many-pods", pod={"nodeSelector": {"why": "full"}, "tolerations": anywhere}))
        cause = stage.until("too-many-pods")
    finally:
        stage.running.kubectl("delete", "node", "paper")
    assert "1 of 4 nodes hold as many pods as they may" in cause.cause


def test_an_eviction_by_the_api_is_shown_while_the_pod_leaves(stage: Stage) -> None:
    stubborn = "trap '' TERM; sleep 3600 & wait; wait"
    stage.apply(job("disrupted", run=stubborn, pod={"terminationGracePeriodSeconds": 60}))
    stage.until("no-word-yet", "disrupted")
    pod = stage.kubectl("get", "pods", "-l", "job-name=disrupted", "-o", "name").strip().removeprefix("pod/")
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": stage.namespace}}
    stage.kubectl(
        "create",
        "--raw",
        f"/api/v1/namespaces/{stage.namespace}/pods/{pod}/eviction",
        "-f",
        "-",
        stdin=json.dumps(asked),
    )
    cause = stage.until("disrupted")
    assert "was evicted through the API" in cause.cause and "continues from its snapshot" in cause.advice


def test_a_pod_that_had_to_make_room_is_reported(stage: Stage) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "why-high"}, "value": 9}
    stage.running.apply(high)
    stubborn = "trap '' TERM; sleep 3600 & wait; wait"
    low = {**THERE, "terminationGracePeriodSeconds": 60}
    try:
        stage.apply(job("preempted", run=stubborn, container=asks(cpu="1500m"), pod=low))
        stage.until("no-word-yet", "preempted")
        stage.apply(job("first", container=asks(cpu="1500m"), pod={**THERE, "priorityClassName": "why-high"}))
        cause = stage.until("disrupted", "preempted")
        stage.kubectl("delete", "job", "first", "preempted", "--wait=false")
    finally:
        stage.running.kubectl("delete", "priorityclass", "why-high")
    assert "preempted by a pod of higher priority" in cause.cause
    assert "kubernetes.priority_class" in cause.advice


REGISTRY = """
import http.server, json, sys
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        name = self.path.split("/")[2] if self.path.count("/") > 2 else ""
        code, said = {
            "missing": (404, {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}),
            "private": (403, {"errors": [{"code": "DENIED", "message": "access denied"}]}),
        }.get(name, (200, {}))
        body = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
    do_HEAD = do_GET
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 5998), Answer)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture
def registry(stage: Stage, tmp_path: Path) -> Iterator[str]:
    """A registry on the node's own loopback, where containerd speaks plain HTTP, that has nothing to give."""
    script = tmp_path / "registry.py"
    script.write_text(REGISTRY)
    command = stage.running.node(NODE).inside(sys.executable, str(script), only_net=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield "localhost:5998"
        process.kill()


def test_a_missing_image_and_a_denied_one_are_distinguished(stage: Stage, registry: str) -> None:
    stage.apply(
        job("image-not-found", container={"image": f"{registry}/missing/bireme:9"}, pod=THERE),
        job("pull-denied", container={"image": f"{registry}/private/bireme:1"}, pod=THERE),
    )
    assert f"The image {registry}/missing/bireme:9 does not exist" in stage.until("image-not-found").cause
    denied = stage.until("pull-denied")
    assert f"refuses to give the image {registry}/private/bireme:1" in denied.cause
    assert "without a pull secret" in denied.cause and "kubernetes.image_pull_secrets" in denied.advice


@pytest.mark.slow  # pods wait for each other for minutes; recorded for tests/unit/diagnose
def test_a_cut_between_nodes_is_reported(
    cluster: RunningCluster, whole: RunningCluster, image: str, tmp_path: Path
) -> None:
    with Jobs(cluster, tmp_path, image) as jobs:
        for one, other in (("n1", "n2"), ("n1", "n3"), ("n2", "n3")):
            whole.cut(one, other)
        jobs.submit("port-blocked", connect_timeout_s=20.0)
        cause = jobs.until("port-blocked")
        whole.heal()
    assert "do not reach each other" in cause.cause


@pytest.mark.slow  # test_recovery loses one; recorded for tests/unit/diagnose
def test_a_lost_node_and_an_unreachable_one_are_named(stage: Stage) -> None:
    stage.apply(job("node-lost", pod=THERE))
    stage.until("no-word-yet", "node-lost")
    stage.running.stop_kubelet(NODE)
    try:
        cause = stage.until("node-lost")
        stage.apply(job("sick-nodes", pod=THERE))
        sick = stage.until("sick-nodes")
    finally:
        stage.running.start_kubelet(NODE)
    assert f"Node {NODE} has not answered" in cause.cause or f"Node {NODE} was lost" in cause.cause
    assert "Kubelet stopped posting node status" in cause.cause
    assert f"1 of 3 nodes are unreachable ({NODE})" in sick.cause
    wait_for(f"{NODE} to be ready", lambda: stage.running.readiness()[NODE], seconds=60)
