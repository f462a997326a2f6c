"""Prepare a fresh cluster for jobs, and empty it before it is deleted: objects outside of a single job's namespace.

Emptying deletes what costs money at a cloud or blocks the deletion there: jobs, Services of type LoadBalancer,
Ingresses, and claims whose volumes the cloud made for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bireme.core.errors import ClusterError, NetworkError
from bireme.kube.api.client import CLAIM, JOB, KINDS, Cluster, Kind
from bireme.kube.api.fields import annotations_in, is_true, meta, name_of, spec_of
from bireme.kube.api.naming import Object

Note = Callable[[str], None]
Value = TypeVar("Value")
POLL_S = 3.0
REACH_S = 300.0
"""How long a new API server may be unreachable: resolvers learn its name late."""
NOTE_S = 180.0
"""Between two notes about machines that are still missing."""


def apply_all(cluster: Cluster, objects: list[Object], note: Note) -> None:
    """Apply objects in their order, a new namespace before its objects; retry while the API server is unreachable."""
    left = list(objects)

    def attempt() -> None:
        while left:
            cluster.apply(left[0], namespace=meta(left[0]).get("namespace", ""))
            del left[0]

    try:
        _reached(attempt, note)
    except NetworkError as e:
        fix = "may your address reach it? `access.api` in cluster.yaml says who may"
        raise NetworkError(e.what, why=e.why, fix=fix) from e


def _reached(
    attempt: Callable[[], Value],
    note: Note,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Value:
    """Call `attempt` until the API server can be reached, for REACH_S at most."""
    until, is_noted = now() + REACH_S, False
    while True:
        try:
            return attempt()
        except NetworkError as e:
            if now() >= until:
                raise
            if not is_noted:
                note(f"waiting for the API server: {e.what}")
                is_noted = True
            pause(POLL_S)


def is_ready(node: Object) -> bool:
    """Whether a machine takes pods: it is Ready, and not cordoned."""
    return is_true(node, "Ready") and not _is_cordoned(node)


def _is_cordoned(node: Object) -> bool:
    return bool(spec_of(node).get("unschedulable"))


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
        nodes = _reached(cluster.nodes, note, now, pause)
        ready = [name_of(node) for node in nodes if is_ready(node)]
        if len(ready) >= count:
            return ready
        is_due = now() - noted_at >= NOTE_S
        if len(ready) != noted or is_due:
            cordoned = sum(map(_is_cordoned, nodes))
            text = f"{len(ready)} of {count} machines are Ready{f'; {cordoned} cordoned' if cordoned else ''}"
            if is_due:
                text += "; still waiting for the others" + (f": {reason}" if (reason := why()) else "")
            note(text)
            noted, noted_at = len(ready), now()
        pause(POLL_S)


def clear(cluster: Cluster, note: Note) -> None:
    ingresses = Kind("networking.k8s.io", "v1", "Ingress", "ingresses")
    doomed: list[tuple[Kind, Callable[[Object], bool]]] = [
        (JOB, lambda job: True),
        (ingresses, lambda ingress: True),
        (KINDS["Service"], lambda service: bool(spec_of(service).get("type") == "LoadBalancer")),
        # A provisioner has made the volume for its claim; the shared volume was made otherwise.
        (CLAIM, lambda claim: "volume.kubernetes.io/storage-provisioner" in annotations_in(claim)),
    ]
    for kind, is_doomed in doomed:
        for each in filter(is_doomed, cluster.everywhere(kind)):
            name, namespace = name_of(each), meta(each)["namespace"]
            note(f"deleting {kind.kind} {namespace}/{name}")
            try:
                cluster.delete(kind, name, namespace=namespace)
            except ClusterError as e:
                note(f"{kind.kind} {namespace}/{name} cannot be deleted: {e.what}")
