"""`why` on a real cluster: every situation that Kubernetes makes by itself is made, and must be named first.

All Jobs of the first part are applied at once; each test then waits for its own. What would disturb other pods (nodes
that are lost, tainted or cordoned) comes after. Jobs of bireme itself are in test_why_jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tools.kube.running import RunningCluster

from tests.kube.why_stage import Json, Stage, asks, job

NODE = "bireme.dev/node"
ARM = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (183).to_bytes(2, "little") + bytes(44)
"""The head of a program for another processor."""
SECCOMP = {"type": "Localhost", "localhostProfile": "none.json"}
PIECES = {
    "claim-lost": {"storageClassName": "fast", "size": "1Gi"},
    "claim-bare": {"storageClassName": "", "size": "1Gi"},
    "claim-far": {"storageClassName": "", "size": "1Gi", "volumeName": "why-far"},
}


def claim(name: str) -> Json:
    asked = {k: v for k, v in PIECES[name].items() if k != "size"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": PIECES[name]["size"]}}, **asked}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def far_volume(namespace: str) -> Json:
    """A volume that only machines of another place can reach."""
    term = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["elsewhere-1"]}]}
    spec = {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/srv"},
        "claimRef": {"namespace": namespace, "name": "claim-far"}, "storageClassName": "",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "why-far"}, "spec": spec}


def mounting(source: Json) -> tuple[Json, Json]:
    """A container and a pod that mount something at /x."""
    return {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, {"volumes": [{"name": "x", **source}]}


def with_claim(name: str, claim_name: str) -> Json:
    container, pod = mounting({"persistentVolumeClaim": {"claimName": claim_name}})
    return job(name, container=container, pod=pod)


def with_volume(name: str, source: Json, **more: Any) -> Json:
    container, pod = mounting(source)
    return job(name, container={**container, **more}, pod=pod)


def apart() -> Json:
    """Four pods that must not share a node, on three nodes."""
    rule = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"job-name": "spread"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    return job("spread", parallelism=4, pod={"affinity": affinity})


def secret_variable() -> Json:
    source = {"secretKeyRef": {"name": "nowhere", "key": "token"}}
    return {"env": [{"name": "TOKEN", "valueFrom": source}]}


JOBS: dict[str, Callable[[], Json]] = {
    "too-little-cpu": lambda: job("too-little-cpu", parallelism=2, container=asks(cpu="64")),
    "too-little-memory": lambda: job("too-little-memory", container=asks(memory="500Gi")),
    "too-little-else": lambda: job("too-little-else", container=asks(**{"nvidia.com/gpu": "1"})),
    "node-selector": lambda: job("node-selector", pod={"nodeSelector": {"accelerator": "v9"}}),
    "ports-taken": lambda: job(
        "ports-taken", parallelism=4, container={"ports": [{"containerPort": 1, "hostPort": 17164}]}
    ),
    "spread": apart,
    "gated": lambda: job("gated", pod={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),
    "claim-unbound": lambda: with_claim("claim-unbound", "claim-lost"),
    "claim-without-class": lambda: with_claim("claim-without-class", "claim-bare"),
    "claim-missing": lambda: with_claim("claim-missing", "nowhere"),
    "volume-elsewhere": lambda: with_claim("volume-elsewhere", "claim-far"),
    "image-never-pulled": lambda: job(
        "image-never-pulled", container={"image": "localhost/none:1", "imagePullPolicy": "Never"}
    ),
    "image-name": lambda: job("image-name", container={"image": "Bireme:Latest"}),
    "registry-unreachable": lambda: job("registry-unreachable", container={"image": "localhost:5999/bireme:1"}),
    "command-missing": lambda: job("command-missing", container={"command": ["bireme", "node"]}),
    "object-missing": lambda: job("object-missing", container=secret_variable()),
    "secret-not-mounted": lambda: with_volume("secret-not-mounted", {"secret": {"secretName": "nowhere-tls"}}),
    "runs-as-root": lambda: job("runs-as-root", pod={"securityContext": {"runAsNonRoot": True}}),
    "mount-failed": lambda: with_volume("mount-failed", {"hostPath": {"path": "/nowhere", "type": "Directory"}}),
    "sandbox": lambda: job("sandbox", pod={"runtimeClassName": "why-none"}),
    "out-of-memory": lambda: job(
        "out-of-memory", run="tail /dev/zero", container={"resources": {"limits": {"memory": "20Mi"}}}
    ),
    "evicted": lambda: evicted(),
    "kubelet-refused": lambda: job("kubelet-refused", container=asks(cpu="64"), pod={"nodeName": "n1"}),
    "deadline": lambda: job("deadline", activeDeadlineSeconds=1),
    "probe-failed": lambda: probed(),
    "crash-loop": lambda: job(
        "crash-loop", run="echo boom; exit 7", pod={"restartPolicy": "OnFailure"}, backoffLimit=9
    ),
    "gave-up": lambda: job(
        "gave-up", run="echo boom; exit 7", backoffLimitPerIndex=0, maxFailedIndexes=0, parallelism=2
    ),
    "service-account": lambda: job("service-account", pod={"serviceAccountName": "nobody"}),
    "class-missing": lambda: job("class-missing", pod={"priorityClassName": "none-such"}),
    "cannot-start": lambda: job("cannot-start", container={"securityContext": {"seccompProfile": SECCOMP}}),
    "suspended": lambda: job("suspended", suspend=True),
    "queued": lambda: job("queued", suspend=True, labels={"kueue.x-k8s.io/queue-name": "team-a"}),
    "finished": lambda: job("finished", run="true"),
    "no-word-yet": lambda: job("no-word-yet"),
    "waiting-for-pods": lambda: job(
        "waiting-for-pods",
        parallelism=2,
        container={"readinessProbe": {"exec": {"command": ["test", "$JOB_COMPLETION_INDEX", "=", "0"]}}},
    ),
    "config-error": lambda: ends(
        "config-error", 4, "trainer_config.lr.py line 7: there is no layer 'fcc'", "", "did you mean fc_layer?"
    ),
}


def evicted() -> Json:
    container, pod = mounting({"emptyDir": {"sizeLimit": "1Mi"}})
    return job("evicted", run="dd if=/dev/zero of=/x/big bs=1M count=8; sleep 3600", container=container, pod=pod)


def probed() -> Json:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    return job("probe-failed", container={"livenessProbe": probe}, pod={"restartPolicy": "OnFailure"}, backoffLimit=9)


def ends(name: str, code: int, what: str, why: str, fix: str) -> Json:
    """A pod that ends as a process of bireme does: an error in three lines, and its exit code."""
    text = "\n".join([f"error: {what}", f"  why: {why}", f"  fix: {fix}"])
    return job(name, container={"command": ["sh", "-c", 'echo "$0"; exit $1', text, str(code)]})


@pytest.fixture(scope="module")
def stage(cluster: RunningCluster) -> Iterator[Stage]:
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "why-none"},
        "handler": "none",
    }
    with Stage(cluster, "why") as made:
        made.apply(runtime, far_volume(made.namespace), *map(claim, PIECES), *(make() for make in JOBS.values()))
        yield made
    cluster.kubectl("delete", "pv/why-far", "runtimeclass/why-none", "--wait=false")


SAID: dict[str, tuple[str, ...]] = {
    "too-little-cpu": ("ask for 64 CPUs each", "3 of 3 nodes", "has 2 CPUs in all"),
    "too-little-memory": ("asks for 500 GiB", "too little memory"),
    "too-little-else": ("asks for 1 nvidia.com/gpu", "has 0 nvidia.com/gpu in all"),
    "node-selector": ("accelerator=v9",),
    "ports-taken": ("wants the host port 17164", "3 of 3 nodes"),
    "spread": ("anti-affinity",),
    "gated": ("kueue.x-k8s.io/admission",),
    "claim-unbound": ("claim-lost (1Gi, ReadWriteOnce, class fast) is pending", '"fast" not found'),
    "volume-elsewhere": ("claim claim-far cannot be reached from 3 of 3 nodes",),
    "image-never-pulled": ("localhost/none:1",),
    "image-name": ("'Bireme:Latest' is not the name of an image",),
    "registry-unreachable": ("localhost:5999/bireme:1", "connection refused"),
    "command-missing": ("has no program bireme",),
    "object-missing": ("The Secret nowhere does not exist",),
    "runs-as-root": ("localhost/busybox:1 would run as root",),
    "mount-failed": ("/nowhere is not a directory",),
    "sandbox": ('no runtime for "none" is configured',),
    "out-of-memory": ("its limit of 20 MiB", "was killed"),
    "evicted": ('Usage of EmptyDir volume "x" exceeds the limit "1Mi"',),
    "kubelet-refused": ("OutOfcpu", "Node n1 rejected pod kubelet-refused-0"),
    "deadline": ("was given 1 s",),
    "probe-failed": ("Liveness probe failed",),
    "crash-loop": ("exit code 7", "boom"),
    "service-account": ("service account nobody",),
    "class-missing": ("priority class none-such",),
    "cannot-start": ("CreateContainerError", "seccomp"),
    "suspended": ("has been suspended",),
    "queued": ("queue team-a",),
    "finished": ("nothing is wrong",),
    "no-word-yet": ("1 of 1 pods are ready",),
    "waiting-for-pods": ("0 of 2 pods are ready",),
    "config-error": ("configuration is wrong: trainer_config.lr.py line 7",),
}


@pytest.mark.parametrize("situation", SAID)
def test_a_situation_that_kubernetes_makes_is_reported_first(stage: Stage, situation: str) -> None:
    cause = stage.until(situation, said=SAID[situation][0])
    for words in SAID[situation]:
        assert words in cause.cause


def test_a_claim_without_a_class_asks_for_one(stage: Stage) -> None:
    cause = stage.until("claim-unbound", "claim-without-class", said="no storage class is set")
    assert "kubernetes.volume.storage_class" in cause.advice


def test_a_claim_that_does_not_exist_is_named(stage: Stage) -> None:
    assert "claim nowhere" in stage.until("claim-unbound", "claim-missing").cause


def test_a_secret_that_cannot_be_mounted_is_named(stage: Stage) -> None:
    assert "Secret nowhere-tls does not exist" in stage.until("object-missing", "secret-not-mounted").cause


def test_a_program_for_another_processor_is_reported(stage: Stage) -> None:
    import base64

    data = {"program": base64.b64encode(ARM).decode()}
    stage.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "arm"}, "binaryData": data})
    made = with_volume(
        "wrong-architecture", {"configMap": {"name": "arm", "defaultMode": 0o755}}, command=["/x/program"]
    )
    stage.apply(made)
    assert "amd64, which n" in stage.until("wrong-architecture").cause


def test_a_given_up_job_shows_how_its_pods_ended(stage: Stage) -> None:
    second = stage.until("gave-up", place=1)
    assert "0 tries again are allowed per node" in second.cause
    assert "exit code 7" in stage.until("crash-loop", "gave-up").cause


def test_an_unknown_name_is_refused_with_one_that_is_close(stage: Stage) -> None:
    cause = stage.until("not-found", "deadlin", keep="not-found")
    assert "There is no job deadlin in namespace" in cause.cause and "Did you mean deadline?" in cause.advice


def test_an_unknown_cause_is_given_in_the_schedulers_words(stage: Stage) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    stage.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "leaving"}, "spec": spec})
    stage.apply(with_claim("holder", "leaving"))
    stage.until("no-word-yet", "holder", keep="no-word-yet")
    stage.kubectl("delete", "pvc", "leaving", "--wait=false")
    stage.apply(with_claim("unschedulable", "leaving"))
    cause = stage.until("unschedulable")
    assert 'persistentvolumeclaim "leaving" is being deleted' in cause.cause
