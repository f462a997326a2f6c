"""A job of so many pods that no node takes: what a command makes of a crowded namespace."""

from __future__ import annotations

from typing import Any

from tools.kube.machine import wait_for
from tools.kube.running import RunningCluster

NAME = "crowd"


def gather_crowd(cluster: RunningCluster, namespace: str, count: int) -> None:
    """Make the job and wait until all of its pods are there, none of them scheduled."""
    cluster.apply(_job(namespace, count))
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/instance={NAME}"
    wait_for(f"{count} pods", lambda: len(cluster.api.get(path)["items"]) >= count, seconds=300, every=2.0)


def dismiss_crowd(cluster: RunningCluster, namespace: str) -> None:
    """Have it deleted, without waiting for that."""
    cluster.kubectl("delete", "job", NAME, "-n", namespace, "--wait=false")


def _job(namespace: str, count: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "bireme", "app.kubernetes.io/managed-by": "bireme"}
    labels["app.kubernetes.io/instance"] = NAME
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    restricted["seccompProfile"] = {"type": "RuntimeDefault"}
    box = {"name": "node", "image": "none", "securityContext": restricted}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed", "completions": count, "parallelism": count,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": {"is": "nowhere"}, "restartPolicy": "Never", "containers": [box]},
            },
        },
    }  # fmt: skip
