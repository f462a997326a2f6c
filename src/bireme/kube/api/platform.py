"""Prepare a fresh cluster for jobs, and empty it before it is deleted: objects outside of a single job's namespace.

Emptying deletes what costs money at a cloud or blocks the deletion there: jobs, Services of type LoadBalancer,
Ingresses, and claims whose volumes the cloud made for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bireme.core.errors import ClusterError, NetworkError
from bireme.kube.api.client import AbsentError, Cluster, Kind
from bireme.kube.api.naming import Object

Note = Callable[[str], None]
GLOBAL = {
    "Namespace": Kind("", "v1", "Namespace", "namespaces"),
    "PersistentVolume": Kind("", "v1", "PersistentVolume", "persistentvolumes"),
    "StorageClass": Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
}
_JOBS = Kind("batch", "v1", "Job", "jobs")
_SERVICES = Kind("", "v1", "Service", "services")
_INGRESSES = Kind("networking.k8s.io", "v1", "Ingress", "ingresses")
_CLAIMS = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POLL_S = 3.0
REACH_S = 300.0
"""How long a new API server may be unreachable: resolvers learn its name late."""
NOTE_S = 180.0
"""Between two notes about machines that are still missing."""


def apply_all(cluster: Cluster, objects: list[Object], note: Note) -> None:
    """Apply objects in their order, a new namespace before its objects; retry while the API server is unreachable."""
    until, is_noted = time.monotonic() + REACH_S, False
    for made in objects:
        while True:
            try:
                cluster.apply_to(made, GLOBAL.get(made["kind"]))
                break
            except NetworkError as e:
                if time.monotonic() >= until:
                    fix = "may your address reach it? `access.api` in cluster.yaml says who may"
                    raise NetworkError(e.what, why=e.why, fix=fix) from e
                if not is_noted:
                    note(f"waiting for the API server: {e.what}")
                    is_noted = True
                time.sleep(POLL_S)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a machine takes pods: it is Ready, and not cordoned."""
    conditions = node.get("status", {}).get("conditions") or ()
    return not is_cordoned(node) and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def wait_for_nodes(
    cluster: Cluster,
    count: int,
    note: Note,
    why: Callable[[], str] = lambda: "",
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait until `count` machines are ready and return their names.

    No deadline: a cloud that is short of spot machines keeps trying for hours. `why` returns the cloud's own reason
    while machines are missing.
    """
    noted, noted_at = -1, now()
    while True:
        nodes = _nodes(cluster, note, now, pause)
        ready = [node["metadata"]["name"] for node in nodes if is_ready(node)]
        if len(ready) >= count:
            return ready
        is_due = now() - noted_at >= NOTE_S
        if len(ready) != noted or is_due:
            cordoned = sum(map(is_cordoned, nodes))
            text = f"{len(ready)} of {count} machines are Ready{f'; {cordoned} cordoned' if cordoned else ''}"
            note(text + (f"; still waiting for the others{_reason(why())}" if is_due else ""))
            noted, noted_at = len(ready), now()
        pause(POLL_S)


def _reason(text: str) -> str:
    return f": {text}" if text else ""


def _nodes(cluster: Cluster, note: Note, now: Callable[[], float], pause: Callable[[float], None]) -> list[Object]:
    """List the machines; retry, as the API server may be unreachable for a moment in a wait of hours."""
    until, is_noted = now() + REACH_S, False
    while True:
        try:
            return cluster.nodes()
        except NetworkError as e:
            if now() >= until:
                raise
            if not is_noted:
                note(f"waiting for the API server: {e.what}")
                is_noted = True
            pause(POLL_S)


def clear(cluster: Cluster, note: Note) -> None:
    """Delete jobs, load balancers and claims of every namespace."""
    for kind, wanted in ((_JOBS, _any), (_INGRESSES, _any), (_SERVICES, _is_balancer), (_CLAIMS, _is_made)):
        for each in cluster.everywhere(kind):
            if not wanted(each):
                continue
            name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
            note(f"deleting {kind.kind} {namespace}/{name}")
            try:
                cluster.delete_in(kind, name, namespace)
            except AbsentError:
                continue
            except ClusterError as e:
                note(f"{kind.kind} {namespace}/{name} cannot be deleted: {e.what}")


def _any(thing: Mapping[str, Any]) -> bool:
    return True


def _is_balancer(service: Mapping[str, Any]) -> bool:
    return bool(service.get("spec", {}).get("type") == "LoadBalancer")


def _is_made(claim: Mapping[str, Any]) -> bool:
    """Whether a claim's volume was made for it, by a provisioner: the shared volume was not."""
    key = "volume.kubernetes.io/storage-provisioner"
    return key in (claim["metadata"].get("annotations") or {})
