"""Split data on the volume: `bireme data split` as a Kubernetes Job.

The Job is no part of the job whose volume it uses: it has a component of its own and names that job in another label.
The command that starts it waits for its end, and deletes it when interrupted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from bireme.core.errors import BiremeError, ClusterError, DataError, NetworkError, error_in
from bireme.kube.api import naming
from bireme.kube.api.client import JOB, KINDS, POD, VOLUME_CONTAINER, Cluster, ConflictError
from bireme.kube.api.fields import condition, is_true, labels_in, meta, name_of
from bireme.kube.api.naming import Object
from bireme.kube.jobs.listing import waits_for
from bireme.kube.volume.helper_pod import REAL, Note, Pacing, Starting, VolumePlace, end_of, labels_of, volume_pod

COMPONENT = "split"
LOOK_EVERY_S = 0.3
SILENCE_S = 120.0
"""How long the API server may be unreachable while the Job runs."""
CLEAR_S = 60.0
"""How long a deleted Job may take to disappear."""


def split_job(place: VolumePlace, namespace: str, command: Sequence[str]) -> Object:
    """A Job with one pod on the volume; Kubernetes removes it some minutes after its end."""
    pod = volume_pod(place, namespace, COMPONENT, command)
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    spec.pop("activeDeadlineSeconds", None)
    head = {key: value for key, value in pod["metadata"].items() if key in ("labels", "annotations")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{place.name}-{COMPONENT}", "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": head, "spec": spec},
        },
    }


def split_on_volume(
    cluster: Cluster, place: VolumePlace, command: Sequence[str], note: Note, pace: Pacing = REAL
) -> dict[str, Any]:
    """Run the Job to its end and return the report that it printed; raise its error, in its own class."""
    made = split_job(place, cluster.namespace, command)
    name = made["metadata"]["name"]
    _clear(cluster, name, pace)
    try:
        created = cluster.create(made)
        job = _until_ended(cluster, created, note, pace)
        pods = _pods_of(cluster, created)
        report = _printed_report(cluster, pods)
    except (ConflictError, NetworkError):
        raise  # the Job belongs to another command, or is unreachable and may still work
    except BaseException:  # also Ctrl-C: a Job without its command would keep writing to the volume
        with contextlib.suppress(BiremeError):
            cluster.delete(JOB, name)
        raise
    cluster.delete(JOB, name)
    if is_true(job, "Failed"):
        raise _failure(name, report, str(condition(job, "Failed").get("message", "")), pods)
    if "shards" not in report:
        raise ClusterError(
            f"{name} has ended well, but its report is lost: the log of its pod is empty",
            fix="the shards are on the volume, with their description in shards.json",
        )
    return report


def _failure(name: str, report: dict[str, Any], message: str, pods: list[Object]) -> BiremeError:
    if "what" in report:
        return error_in(report, DataError)
    ends = "; ".join(f"{name_of(pod)}: {end_of(pod)}" for pod in pods if end_of(pod))
    return ClusterError(f"{name} failed, and its log does not say why: {message}", why=ends)


def _pods_of(cluster: Cluster, job: Object) -> list[Object]:
    """A Job's pods, without those of an earlier Job of the same name."""
    uid, pods = meta(job)["uid"], cluster.list(POD, labels_of(labels_in(job)[naming.VOLUME_OF], COMPONENT))
    return [pod for pod in pods if uid in {each.get("uid") for each in meta(pod).get("ownerReferences") or ()}]


def _until_ended(cluster: Cluster, job: Object, note: Note, pace: Pacing) -> Object:
    """Wait for a Job, and note what keeps its pod from starting; fails where that is final or lasts too long."""
    name = name_of(job)
    starting, answered = Starting(note, pace), pace.now()

    def why_no_pod() -> str:
        own = [e for e in cluster.list(KINDS["Event"], {}) if e.get("involvedObject", {}).get("name") == name]
        newest = max(own, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""), default={})
        return str(newest.get("message") or "the cluster makes no pod for it")

    while True:
        try:
            there = cluster.get(JOB, name)
            if _has_ended(there):
                return there
            pods = _pods_of(cluster, job)
            waiting = next(filter(waits_for, pods), None)
            if waiting is not None:
                starting.look_at(name_of(waiting), waiting, lambda: "")
            elif pods:
                starting.begin()
            else:
                starting.look_at(name, None, why_no_pod)
            answered = pace.now()
        except NetworkError as e:
            if pace.now() - answered > SILENCE_S:
                why = f"the Job {name} may continue, but this command no longer waits for it"
                raise NetworkError(e.what, why=why, fix=e.fix) from e
        pace.rest(LOOK_EVERY_S)


def _has_ended(job: Object) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")


def _clear(cluster: Cluster, name: str, pace: Pacing) -> None:
    there = cluster.find(JOB, name)
    if there is None:
        return
    if not naming.is_ours(there) or labels_in(there).get(naming.COMPONENT) != COMPONENT:
        raise ClusterError(
            f"there is a Job {name} that does not split data",
            why="the Job that splits would have the same name",
            fix="wait until it is gone, or split before the data is pushed",
        )
    if not _has_ended(there):
        raise ClusterError(
            f"there is a Job {name} already, and it has not ended",
            fix=f"wait until it has; if its command was interrupted, remove it with `kubectl delete job {name}`",
        )
    cluster.delete(JOB, name)
    deadline_s = pace.now() + CLEAR_S
    while (there := cluster.find(JOB, name)) is not None:
        if pace.now() > deadline_s:
            held = ", ".join(meta(there).get("finalizers") or ()) or "unknown"
            raise ClusterError(
                f"the Job {name} of an earlier split was deleted {CLEAR_S:.0f} s ago and is still there",
                why=f"it is held by: {held}",
                fix=f"look at it with `kubectl get job {name} -o yaml`; once it is gone, split again",
            )
        pace.rest(LOOK_EVERY_S)


def _printed_report(cluster: Cluster, pods: Sequence[Object]) -> dict[str, Any]:
    for pod in pods:
        lines: list[str] = []
        with contextlib.suppress(ClusterError):  # the pod never ran, or its log is lost with its machine
            lines = list(cluster.log(name_of(pod), container=VOLUME_CONTAINER))
        for line in reversed(lines):
            try:
                parsed = json.loads(line.partition(" ")[2])
            except ValueError:
                continue
            if isinstance(parsed, dict):
                return parsed
    return {}
