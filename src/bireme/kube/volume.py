"""A short-lived pod on a job's volume, and commands run in it through the API server.

The pod runs the job's own image as the job's own user, so whoever may read the job's files can be asked, wherever the
volume is and whether or not the job's pods still exist. It ends by itself if this process cannot end it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from bireme.core import errors
from bireme.core.errors import BiremeError, ClusterError
from bireme.kube import naming
from bireme.kube.client import CLAIM, POD, Cluster
from bireme.kube.indexed import container_security, scheduling, security
from bireme.kube.listing import waits_for
from bireme.kube.submission import Object
from bireme.spec.kubernetes import KubernetesFile

LIFETIME_S = 3600
PATIENCE_S = 120.0
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
    labels = settings.labels | {naming.NAME: "bireme", naming.MANAGED_BY: "bireme", naming.VOLUME_OF: place.name}
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


class VolumePod:
    """A pod on a volume for as long as the `with` block lasts."""

    def __init__(self, cluster: Cluster, place: Place) -> None:
        self._cluster = cluster
        self._place = place
        self._name = ""

    def __enter__(self) -> VolumePod:
        cluster, place = self._cluster, self._place
        if cluster.find(CLAIM, place.claim) is None:
            raise ClusterError(
                f"there is no volume claim {place.claim} in the namespace {cluster.namespace}",
                fix="`bireme data push JOB.yaml` or `bireme submit JOB.yaml` makes it",
            )
        self._sweep()
        suffix = f"volume-{secrets.token_hex(3)}"
        made = volume_pod(place, cluster.namespace, suffix, ["bireme", "volume", "wait", str(LIFETIME_S)])
        self._name = cluster.create(made)["metadata"]["name"]
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.delete(POD, self._name, grace_s=0)

    def _sweep(self) -> None:
        """Remove what earlier calls could not."""
        for pod in self._cluster.list(POD, {naming.VOLUME_OF: self._place.name}):
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
                raise ClusterError(f"the pod {self._name} on the volume ended before it was used")
            if waits.startswith(HOPELESS) or time.monotonic() > deadline:
                raise ClusterError(f"the pod {self._name} on the volume does not start: {waits}")
            time.sleep(0.1)

    def run(self, command: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        """Run `bireme volume …` in the pod and return its output unless `stdout` takes it; its failures are raised."""
        code, output, complaints = self._cluster.run(
            self._name, ["bireme", "volume", *command], stdin=stdin, stdout=stdout
        )
        if code:
            raise told_error(complaints, code)
        return output

    def ask(self, command: Sequence[str], *, stdin: BinaryIO | None = None) -> Any:
        """Run a command that answers in JSON."""
        return json.loads(self.run(command, stdin=stdin))


def told_error(complaints: str, code: int) -> BiremeError:
    """The error that a command in the pod has ended with, as the class it was."""
    last = complaints.strip().splitlines()[-1:] or [""]
    try:
        told = json.loads(last[0])
        kind = getattr(errors, told["error"], ClusterError)
        return kind(f"on the volume: {told['what']}", why=told["why"], fix=told["fix"])
    except (ValueError, KeyError, TypeError):
        return ClusterError(f"a command on the volume failed with exit code {code}: {last[0]}")
