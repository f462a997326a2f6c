"""A fresh cluster made ready for jobs, and emptied before it goes: what is outside of a single job's namespace.

Machines are waited for by their readiness. Emptying deletes what costs something at a cloud or holds it up there: jobs,
Services of type LoadBalancer, Ingresses, and claims whose volumes the cloud made for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bireme.core.errors import ClusterError, NetworkError
from bireme.kube.api.client import AbsentError, Cluster, Kind
from bireme.kube.submit.submission import Object

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
"""How long a new API server may be out of reach: its name must spread first."""
NOTE_S = 180.0
"""Between two lines about machines that are still missing."""


def apply_all(cluster: Cluster, objects: list[Object], note: Note, pause: Callable[[float], None] = time.sleep) -> None:
    """Bring objects to the cluster, in their order; those of a namespace that was just made too."""
    until, is_told = time.monotonic() + REACH_S, False
    for made in objects:
        while True:
            try:
                cluster.apply_to(made, GLOBAL.get(made["kind"]))
                break
            except NetworkError as e:
                # A new endpoint's name needs a while until every resolver knows it.
                if time.monotonic() >= until:
                    fix = "may your address reach it? `access.api` in cluster.yaml says who may"
                    raise NetworkError(e.what, why=e.why, fix=fix) from e
                if not is_told:
                    note(f"waiting for the API server: {e.what}")
                    is_told = True
                pause(POLL_S)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a machine takes pods: it is Ready, and not cordoned."""
    conditions = node.get("status", {}).get("conditions") or ()
    return not is_cordoned(node) and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_cordoned(node: Mapping[str, Any]) -> bool:
    """Whether new pods are kept off a machine."""
    return bool(node.get("spec", {}).get("unschedulable"))


def wait_for_nodes(
    cluster: Cluster,
    count: int,
    note: Note,
    why: Callable[[], str] = lambda: "",
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait until so many machines are ready; their names.

    This has no end of its own: a cloud that is short of spot machines may have one in hours, and goes on trying.
    `why` is asked for the cloud's own reason while machines are missing.
    """
    told, told_at = -1, now()
    while True:
        nodes = _nodes(cluster, note, now, pause)
        ready = [node["metadata"]["name"] for node in nodes if is_ready(node)]
        if len(ready) >= count:
            return ready
        is_due = now() - told_at >= NOTE_S
        if len(ready) != told or is_due:
            cordoned = sum(map(is_cordoned, nodes))
            text = f"{len(ready)} of {count} machines are Ready{f'; {cordoned} cordoned' if cordoned else ''}"
            note(text + (f"; still waiting for the others{_reason(why())}" if is_due else ""))
            told, told_at = len(ready), now()
        pause(POLL_S)


def _reason(text: str) -> str:
    return f": {text}" if text else ""


def _nodes(cluster: Cluster, note: Note, now: Callable[[], float], pause: Callable[[float], None]) -> list[Object]:
    """The machines, as soon as the API server answers: in a wait of hours it may be out of reach for a moment."""
    until, is_told = now() + REACH_S, False
    while True:
        try:
            return cluster.nodes()
        except NetworkError as e:
            if now() >= until:
                raise
            if not is_told:
                note(f"waiting for the API server: {e.what}")
                is_told = True
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


def _any(found: Mapping[str, Any]) -> bool:
    return True


def _is_balancer(found: Mapping[str, Any]) -> bool:
    return bool(found.get("spec", {}).get("type") == "LoadBalancer")


def _is_made(found: Mapping[str, Any]) -> bool:
    """Whether a claim's volume was made for it, by a provisioner: the shared volume was not."""
    key = "volume.kubernetes.io/storage-provisioner"
    return key in (found["metadata"].get("annotations") or {})
