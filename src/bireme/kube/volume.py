"""A short-lived pod on a job's volume, and commands run in it through the API server.

The pod runs the job's own image as the job's own user, so whoever may read the job's files can be asked, wherever the
volume is and whether or not the job's pods still exist. It ends by itself if this process cannot end it: soon after
its last command, or after a day. One that has ended while it was still needed is replaced at the next command.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from bireme.core import errors
from bireme.core.errors import BiremeError, ClusterError, NetworkError
from bireme.kube import naming
from bireme.kube.client import CLAIM, POD, Cluster
from bireme.kube.indexed import container_security, scheduling, security
from bireme.kube.listing import waits_for
from bireme.kube.submission import Object
from bireme.spec.kubernetes import KubernetesFile

LIFETIME_S = 86400
PATIENCE_S = 120.0
KILLED = (137, 143)
"""Exit codes of a command that was ended together with its container."""
HOPELESS = ("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
"""What a pod that has not begun will not get over soon."""


@dataclass(frozen=True, slots=True)
class Place:
    """A volume, and what a pod on it looks like."""

    name: str
    """Of the job."""
    image: str
    settings: KubernetesFile

    @property
    def claim(self) -> str:
        """The volume's claim."""
        return naming.claim_of(self.name, self.settings.volume.claim)


def volume_pod(place: Place, namespace: str, suffix: str, command: Sequence[str]) -> Object:
    """A pod that only has the volume."""
    settings = place.settings
    labels = settings.labels | labels_of(place.name, suffix.partition("-")[0])
    box: Object = {
        "name": "volume",
        "image": place.image,
        "command": list(command),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        **container_security(),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "volumeMounts": [
            {"name": "volume", "mountPath": naming.VOLUME_ROOT},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    if settings.image_pull_policy is not None:
        box["imagePullPolicy"] = settings.image_pull_policy
    where = scheduling(settings, place.name)
    where.pop("topologySpreadConstraints", None)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{place.name}-{suffix}", "namespace": namespace, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFETIME_S,
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **security(),
            **where,
            "containers": [box],
            "volumes": [
                {"name": "volume", "persistentVolumeClaim": {"claimName": place.claim}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


class PodEndedError(NetworkError):
    """The pod on the volume has ended under a command; the next command gets another one."""


class VolumePod:
    """A pod on a volume for as long as the `with` block lasts."""

    def __init__(self, cluster: Cluster, place: Place, pause: Callable[[float], None] = time.sleep) -> None:
        self._cluster = cluster
        self._place = place
        self._pause = pause
        self._name = ""

    def __enter__(self) -> VolumePod:
        cluster, place = self._cluster, self._place
        if cluster.find(CLAIM, place.claim) is None:
            raise ClusterError(
                f"there is no volume claim {place.claim} in the namespace {cluster.namespace}",
                fix="`bireme data push JOB.yaml` or `bireme submit JOB.yaml` makes it",
            )
        self._sweep()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(NetworkError):  # it ends by itself
            self._cluster.delete(POD, self._name, grace_s=0)

    def _start(self) -> None:
        """Make a pod and wait until it runs."""
        suffix = f"volume-{secrets.token_hex(3)}"
        command = ["bireme", "volume", "wait", str(LIFETIME_S)]
        made = volume_pod(self._place, self._cluster.namespace, suffix, command)
        self._name = self._cluster.create(made)["metadata"]["name"]
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise

    def _sweep(self) -> None:
        """Remove what earlier calls could not."""
        for pod in self._cluster.list(POD, labels_of(self._place.name, "volume")):
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                self._cluster.delete(POD, pod["metadata"]["name"], grace_s=0)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pod = self._cluster.get(POD, self._name)
            phase, waits = (pod.get("status") or {}).get("phase"), waits_for(pod)
            if phase == "Running":
                return
            if phase in ("Succeeded", "Failed"):
                raise ClusterError(f"the pod {self._name} on the volume ended before it was used: {end_of(pod)}")
            if waits.startswith(HOPELESS) or time.monotonic() > deadline:
                raise ClusterError(f"the pod {self._name} on the volume does not start: {waits}")
            self._pause(0.1)

    def _is_there(self) -> bool:
        return not end_of(self._cluster.find(POD, self._name))

    def run(self, command: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        """Run `bireme volume …` in the pod and return its output unless `stdout` takes it; its failures are raised."""
        if not self._is_there():
            self.__exit__()
            self._start()
        words = ["bireme", "volume", *command]
        try:
            code, output, complaints = self._cluster.run(self._name, words, stdin=stdin, stdout=stdout)
        except ClusterError as e:
            if self._is_there():
                raise
            raise self._ended() from e
        if code in KILLED and not complaints.strip():
            raise self._ended()
        if code:
            raise told_error(complaints, code)
        return output

    def ask(self, command: Sequence[str], *, stdin: BinaryIO | None = None) -> Any:
        """Run a command that answers in JSON."""
        return json.loads(self.run(command, stdin=stdin))

    def _ended(self) -> PodEndedError:
        """What has become of the pod under a command; the cluster learns that a little later than we do."""
        looks = 0
        while not (told := end_of(self._cluster.find(POD, self._name))) and looks < 20:
            self._pause(0.2)
            looks += 1
        return PodEndedError(
            f"the pod {self._name} on the volume has ended under a command: {told or 'the command was killed'}",
            why=f"such a pod lives for {LIFETIME_S // 3600} hours at most, and no longer than its machine",
            fix="the same command again goes on where this one was",
        )


def labels_of(name: str, component: str) -> dict[str, str]:
    """The labels of what looks after a job's volume for a while; it is no part of the job."""
    return {
        naming.NAME: "bireme",
        naming.MANAGED_BY: "bireme",
        naming.COMPONENT: component,
        naming.VOLUME_OF: name,
    }


def end_of(pod: Object | None) -> str:
    """Why nothing can be run in a pod any more, in Kubernetes' words; empty where it can."""
    if pod is None:
        return "it is gone"
    status = pod.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return "it is being deleted" if pod["metadata"].get("deletionTimestamp") else ""
    ends = [(each.get("state") or {}).get("terminated") or {} for each in status.get("containerStatuses") or ()]
    for told in (status, *ends):
        if told.get("reason"):
            return f"{told['reason']}: {told.get('message', '')}".rstrip(": ")
    return str(status["phase"])


def told_error(complaints: str, code: int) -> BiremeError:
    """The error that a command in the pod has ended with, as the class it was."""
    last = complaints.strip().splitlines()[-1:] or [""]
    try:
        told = json.loads(last[0])
        kind = error_class(told["error"], ClusterError)
        return kind(f"on the volume: {told['what']}", why=told["why"], fix=told["fix"])
    except (ValueError, KeyError, TypeError):
        return ClusterError(f"a command on the volume failed with exit code {code}: {last[0]}")


def error_class(name: object, otherwise: type[BiremeError]) -> type[BiremeError]:
    """The class of an error that another process has named."""
    found = getattr(errors, str(name), None)
    return found if isinstance(found, type) and issubclass(found, BiremeError) else otherwise
