"""Splitting data where it is: `bireme data split` as a Kubernetes Job on the job's volume.

The Job is no part of the job whose volume it uses: it has a component of its own and names that job in another label.
Whoever has started it waits for its end, and takes it along when leaving early.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from bireme.core.errors import BiremeError, ClusterError, DataError, NetworkError, error_class
from bireme.kube.api import naming
from bireme.kube.api.client import JOB, KINDS, POD, VOLUME_CONTAINER, Cluster, ConflictError
from bireme.kube.jobs.listing import condition, waits_for
from bireme.kube.submit.submission import Object
from bireme.kube.volume.helper_pod import REAL, Pacing, Starting, Tell, VolumePlace, end_of, labels_of, volume_pod

COMPONENT = "split"
LOOK_EVERY_S = 0.3
SILENCE_S = 120.0
"""How long the API server may be away while the Job runs."""
CLEAR_S = 60.0
"""How long a Job that was deleted may stay."""


def split_job(place: VolumePlace, namespace: str, command: Sequence[str]) -> Object:
    """A Job with one pod on the volume; it is gone some minutes after its end."""
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
    cluster: Cluster, place: VolumePlace, command: Sequence[str], tell: Tell, pace: Pacing = REAL
) -> dict[str, Any]:
    """Run the Job to its end and return the report that it printed; its failure is raised as the error it was."""
    made = split_job(place, cluster.namespace, command)
    name = made["metadata"]["name"]
    _clear(cluster, name, pace)
    try:
        watch = _Watch(cluster, cluster.create(made), tell, pace)
        job, pods = watch.until_ended(), watch.pods()
        told = _last_words(cluster, pods)
    except (ConflictError, NetworkError):
        raise  # it is another's, or cannot be reached and may well be at work
    except BaseException:
        with contextlib.suppress(BiremeError):
            cluster.delete(JOB, name)
        raise
    cluster.delete(JOB, name)
    if failed := condition(job, "Failed"):
        raise _failure(name, told, str(failed.get("message", "")), pods)
    if "shards" not in told:
        raise ClusterError(
            f"{name} has ended well, but what it came to is not known: the log of its pod is empty",
            fix="the shards are on the volume, with their description in shards.json",
        )
    return told


def _failure(name: str, told: dict[str, Any], message: str, pods: list[Object]) -> BiremeError:
    """The error that the pod told of, or what Kubernetes says about its end."""
    if "what" in told:
        kind = error_class(told.get("error"), DataError)
        return kind(told["what"], why=told.get("why", ""), fix=told.get("fix", ""))
    ends = "; ".join(f"{pod['metadata']['name']}: {end_of(pod)}" for pod in pods if end_of(pod))
    return ClusterError(f"{name} failed, and its log does not say why: {message}", why=ends)


class _Watch:
    """Waiting for a Job, with words about what it waits for itself."""

    def __init__(self, cluster: Cluster, job: Object, tell: Tell, pace: Pacing) -> None:
        self._cluster = cluster
        self._job = job
        self._name: str = job["metadata"]["name"]
        self._pace = pace
        self._starting = Starting(tell, pace)
        self._answered = pace.now()

    def pods(self) -> list[Object]:
        """The Job's pods, and not those of one before it that had the same name."""
        head = self._job["metadata"]
        found = self._cluster.list(POD, labels_of(head["labels"][naming.VOLUME_OF], COMPONENT))
        return [pod for pod in found if head["uid"] in _owners(pod)]

    def until_ended(self) -> Object:
        """The Job, once it is complete or has failed."""
        while True:
            try:
                job = self._cluster.get(JOB, self._name)
                if condition(job, "Complete") or condition(job, "Failed"):
                    return job
                self._look_at(self.pods())
                self._answered = self._pace.now()
            except NetworkError as e:
                if self._pace.now() - self._answered > SILENCE_S:
                    why = f"the Job {self._name} may go on without anybody who waits for it"
                    raise NetworkError(e.what, why=why, fix=e.fix) from e
            self._pace.rest(LOOK_EVERY_S)

    def _look_at(self, pods: Sequence[Object]) -> None:
        """Say what keeps the pod from starting; give up where that will not pass, or has not for long."""
        waiting = [pod for pod in pods if waits_for(pod)]
        if pods and not waiting:
            self._starting.begin()
        elif waiting:
            self._starting.look_at(waiting[0]["metadata"]["name"], waiting[0], lambda: "")
        else:
            self._starting.look_at(self._name, None, self._why_no_pod)

    def _why_no_pod(self) -> str:
        """What the cluster says about a Job that has no pod."""
        events = self._cluster.list(KINDS["Event"], {})
        told = [e for e in events if e.get("involvedObject", {}).get("name") == self._name]
        newest = max(told, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""), default={})
        return str(newest.get("message") or "the cluster makes no pod for it")


def _owners(pod: Object) -> list[str]:
    return [str(each.get("uid")) for each in pod["metadata"].get("ownerReferences") or ()]


def _clear(cluster: Cluster, name: str, pace: Pacing) -> None:
    """Remove what an earlier split has left; one that runs is not disturbed."""
    there = cluster.find(JOB, name)
    if there is None:
        return
    labels = there["metadata"].get("labels") or {}
    if not naming.is_ours(there) or labels.get(naming.COMPONENT) != COMPONENT:
        raise ClusterError(
            f"there is a Job {name} that does not split data",
            why="the Job that splits would have the same name",
            fix="wait until it is gone, or split before the data is pushed",
        )
    if not (condition(there, "Complete") or condition(there, "Failed")):
        raise ClusterError(
            f"there is a Job {name} already, and it has not ended",
            fix=f"wait until it has; one that nobody waits for is removed by `kubectl delete job {name}`",
        )
    cluster.delete(JOB, name)
    deadline_s = pace.now() + CLEAR_S
    while (there := cluster.find(JOB, name)) is not None:
        if pace.now() > deadline_s:
            held = ", ".join(there["metadata"].get("finalizers") or ()) or "nobody says by whom"
            raise ClusterError(
                f"the Job {name} of an earlier split was deleted {CLEAR_S:.0f} s ago and is still there",
                why=f"it is held by: {held}",
                fix=f"look at it with `kubectl get job {name} -o yaml`; once it is gone, split again",
            )
        pace.rest(LOOK_EVERY_S)


def _last_words(cluster: Cluster, pods: Sequence[Object]) -> dict[str, Any]:
    """The JSON object that the pod printed last."""
    for pod in pods:
        lines: list[str] = []
        with contextlib.suppress(ClusterError):  # it never ran, or its log went with its machine
            lines = list(cluster.log(pod["metadata"]["name"], container=VOLUME_CONTAINER))
        for line in reversed(lines):
            try:
                told = json.loads(line.partition(" ")[2])
            except ValueError:
                continue
            if isinstance(told, dict):
                return told
    return {}
