"""Splitting data where it is: `bireme data split` as a Kubernetes Job on the job's volume."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from bireme.core import errors
from bireme.core.errors import ClusterError, DataError
from bireme.kube import naming
from bireme.kube.client import JOB, POD, Cluster
from bireme.kube.listing import condition, waits_for
from bireme.kube.submission import Object
from bireme.kube.volume import HOPELESS, Place, volume_pod

LABEL = "bireme.dev/split-of"


def split_job(place: Place, namespace: str, command: Sequence[str]) -> Object:
    """A Job with one pod on the volume; it is gone some minutes after its end."""
    pod = volume_pod(place, namespace, "split", command)
    labels = {**pod["metadata"]["labels"], LABEL: place.name}
    spec = pod["spec"]
    del spec["activeDeadlineSeconds"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{place.name}-split", "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def split_on_volume(cluster: Cluster, place: Place, command: Sequence[str]) -> dict[str, Any]:
    """Run the Job to its end and return the report that it printed; its failure is raised as the error it was."""
    made = split_job(place, cluster.namespace, command)
    name = made["metadata"]["name"]
    _clear(cluster, name)
    cluster.create(made)
    while True:
        job = cluster.get(JOB, name)
        if condition(job, "Complete") or condition(job, "Failed"):
            break
        for pod in cluster.list(POD, {LABEL: place.name}):
            if (waits := waits_for(pod)).startswith(HOPELESS):
                cluster.delete(JOB, name)
                raise ClusterError(f"the pod {pod['metadata']['name']} does not start: {waits}")
        time.sleep(0.3)
    told = _last_words(cluster, place)
    cluster.delete(JOB, name)
    if condition(job, "Failed"):
        kind = getattr(errors, str(told.get("error")), DataError)
        raise kind(told.get("what", f"{name} failed"), why=told.get("why", ""), fix=told.get("fix", ""))
    return told


def _clear(cluster: Cluster, name: str) -> None:
    """Remove what an earlier split has left; one that runs is not disturbed."""
    there = cluster.find(JOB, name)
    if there is None:
        return
    if not (naming.is_ours(there) and (condition(there, "Complete") or condition(there, "Failed"))):
        raise ClusterError(f"there is a Job {name} already, and it has not ended", fix="wait until it has")
    cluster.delete(JOB, name)
    while cluster.find(JOB, name) is not None:
        time.sleep(0.2)


def _last_words(cluster: Cluster, place: Place) -> dict[str, Any]:
    """The JSON object that the pod printed last."""
    for pod in cluster.list(POD, {LABEL: place.name}):
        for line in reversed(list(cluster.log(pod["metadata"]["name"]))):
            try:
                told = json.loads(line.partition(" ")[2])
            except ValueError:
                continue
            if isinstance(told, dict):
                return told
    return {}
