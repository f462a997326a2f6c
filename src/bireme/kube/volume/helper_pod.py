"""A short-lived pod on a job's volume, and commands run in it through the API server.

The pod runs the job's own image as the job's own user, so it can read the job's files wherever the volume is, whether
or not the job's pods still exist. It ends by itself if this process cannot delete it: some minutes after its last
command, or after a day. One that has ended while it was still needed is replaced at the next command.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from bireme.core.errors import BiremeError, ClusterError, NetworkError, error_in
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, POD, VOLUME_CONTAINER, Cluster
from bireme.kube.api.fields import final_states, has_ended, meta, name_of, phase_of, status_of, waiting_states
from bireme.kube.api.naming import Object
from bireme.kube.jobs.listing import waits_for
from bireme.kube.submit.indexed_jobs import CONTAINER_SECURITY, POD_SECURITY, scheduling
from bireme.kube.submit.patching import merge
from bireme.spec.kubernetes import KubernetesFile, amount

LIFETIME_S = 86400
REQUESTS = {"cpu": "50m", "memory": "128Mi"}
LIMITED = ("cpu", "memory", "ephemeral-storage")
"""The job's limits that apply to a pod on the volume too; it needs no GPU or the like."""
START_S = 600.0
"""How long a pod may wait for its machine and its image: some clusters start machines on demand."""
PULL_S = 60.0
"""How long a registry may refuse an image with an error that may be temporary."""
NOTE_AFTER_S = 3.0
"""Shorter waits are not shown."""
KILLED = (137, 143)
"""Exit codes of a command that was ended together with its container."""
HOPELESS = ("ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError")
"""Reasons of a waiting container that do not go away."""
PULLING = ("ErrImagePull", "ImagePullBackOff")
FINAL = re.compile(r"not found|manifest unknown|denied|unauthorized|forbidden|authorization failed", re.IGNORECASE)
"""Errors of a registry that a retry does not change."""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pacing:
    """Clock and sleep of a wait; tests replace them."""

    now: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep


REAL = Pacing()


def on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """A volume, and the image and settings of a pod on it."""

    name: str
    """Of the job."""
    image: str
    settings: KubernetesFile

    @property
    def claim(self) -> str:
        return self.settings.volume.claim or self.name


def volume_pod(place: VolumePlace, namespace: str, suffix: str, command: Sequence[str]) -> Object:
    """A pod with the volume and nothing else, and the user's patch applied."""
    settings = place.settings
    labels = settings.labels | labels_of(place.name, suffix.partition("-")[0])
    where = scheduling(settings, place.name)
    where.pop("topologySpreadConstraints", None)
    if settings.service_account is not None:
        where["serviceAccountName"] = settings.service_account
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{place.name}-{suffix}", "namespace": namespace, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFETIME_S,
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": POD_SECURITY,
            **where,
            "containers": [_container(place, command)],
            "volumes": [
                {"name": "volume", "persistentVolumeClaim": {"claimName": place.claim}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
    patched: Object = merge(made, settings.patch.get("Pod", {}))
    return patched


def _container(place: VolumePlace, command: Sequence[str]) -> Object:
    settings = place.settings
    box: Object = {
        "name": VOLUME_CONTAINER,
        "image": place.image,
        "command": list(command),
        "resources": _resources(settings),
        "securityContext": CONTAINER_SECURITY,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "volumeMounts": [
            {"name": "volume", "mountPath": naming.VOLUME_ROOT},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    if settings.image_pull_policy is not None:
        box["imagePullPolicy"] = settings.image_pull_policy
    return box


def _resources(settings: KubernetesFile) -> Object:
    """Small requests, and the job's limits: some namespaces demand limits of every pod."""
    limits = {k: str(v) for k, v in settings.resources.limits.items() if k in LIMITED}
    requests = {k: min(v, limits.get(k, v), key=amount) for k, v in REQUESTS.items()}
    return {"requests": requests} | ({"limits": limits} if limits else {})


class Starting:
    """Waits for a pod to start: notes the reason, and fails where that is final or lasts too long."""

    def __init__(self, note: Note, pace: Pacing) -> None:
        self._note = note
        self._pace = pace
        self._noted = ""
        self.begin()

    def begin(self) -> None:
        self._since = self._pace.now()
        self._pulls_since: float | None = None

    def look_at(self, who: str, pod: Object | None, why: Callable[[], str]) -> None:
        """Check a pod that has not started (None: not created yet); `why` explains a timeout."""
        waits = "a pod" if pod is None else waits_for(pod) or "its container"
        if pod is not None and self._is_hopeless(pod):
            raise ClusterError(f"the pod {who} does not start: {waits}")
        waited_s = self._pace.now() - self._since
        if waited_s > START_S:
            raise ClusterError(f"{who} has waited for {START_S:.0f} s, and does not start: {why() or waits}")
        if waits != self._noted and waited_s > NOTE_AFTER_S:
            self._noted = waits
            self._note(f"{who} waits for {waits}" if waits[0].islower() else f"{who}: {waits}")

    def _is_hopeless(self, pod: Object) -> bool:
        states = list(waiting_states(pod))
        pulls = [state for state in states if state.get("reason") in PULLING]
        if pulls and self._pulls_since is None:
            self._pulls_since = self._pace.now()
        is_late = bool(pulls) and self._pace.now() - (self._pulls_since or 0.0) > PULL_S
        is_final = any(FINAL.search(str(state.get("message", ""))) for state in pulls)
        return is_late or is_final or any(state.get("reason") in HOPELESS for state in states)


class PodEndedError(NetworkError):
    """The pod on the volume ended during a command; the next command starts another one."""


class VolumePod:
    """A pod on a volume for as long as the `with` block lasts."""

    def __init__(self, cluster: Cluster, place: VolumePlace, note: Note = on_stderr, pace: Pacing = REAL) -> None:
        self._cluster = cluster
        self._place = place
        self._note = note
        self._pace = pace
        self._name = ""

    def __enter__(self) -> VolumePod:
        cluster, place = self._cluster, self._place
        if cluster.find(CLAIM, place.claim) is None:
            raise ClusterError(
                f"there is no volume claim {place.claim} in the namespace {cluster.namespace}",
                fix="`bireme data push JOB.yaml` or `bireme submit JOB.yaml` makes it",
            )
        for ended in filter(has_ended, cluster.list(POD, labels_of(place.name, "volume"))):
            cluster.delete(POD, name_of(ended), grace_s=0)  # earlier calls could not
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(NetworkError):  # the pod ends by itself
            self._cluster.delete(POD, self._name, grace_s=0)

    def _start(self) -> None:
        suffix = f"volume-{secrets.token_hex(3)}"
        command = ["bireme", "volume", "wait", str(LIFETIME_S)]
        made = volume_pod(self._place, self._cluster.namespace, suffix, command)
        self._name = self._cluster.create(made)["metadata"]["name"]
        starting = Starting(self._note, self._pace)
        try:
            while phase_of(pod := self._cluster.get(POD, self._name)) != "Running":
                if has_ended(pod):
                    raise ClusterError(f"the pod {self._name} on the volume ended before it was used: {end_of(pod)}")
                starting.look_at(self._name, pod, lambda: "")
                self._pace.rest(0.1)
        except BaseException:  # also Ctrl-C: `__exit__` is not called for an `__enter__` that fails
            self.__exit__()
            raise

    def _is_there(self) -> bool:
        return not end_of(self._cluster.find(POD, self._name))

    def run(self, command: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        """Run `bireme volume …` in the pod and return its output unless `stdout` takes it; its failures are raised."""
        if not self._is_there():
            self.__exit__()
            self._start()
        words = ["bireme", "volume", *command]
        try:
            code, output, stderr = self._cluster.run(self._name, words, stdin=stdin, stdout=stdout)
        except ClusterError as e:
            if self._is_there():
                raise
            raise self._ended() from e
        if code in KILLED and not stderr.strip():
            raise self._ended()
        if code:
            raise command_error(stderr, code)
        return output

    def ask(self, command: Sequence[str], *, stdin: BinaryIO | None = None) -> Any:
        return json.loads(self.run(command, stdin=stdin))

    def _ended(self) -> PodEndedError:
        """The error for a pod that ended during a command; the API server shows the end a little later."""
        for _ in range(21):
            if end := end_of(self._cluster.find(POD, self._name)):
                break
            self._pace.rest(0.2)
        return PodEndedError(
            f"the pod {self._name} on the volume has ended under a command: {end or 'the command was killed'}",
            why=f"such a pod lives for {LIFETIME_S // 3600} hours at most, and no longer than its machine",
            fix="the same command again continues where this one was",
        )


def labels_of(name: str, component: str) -> dict[str, str]:
    """The labels of pods and Jobs that work on a job's volume; they are no part of the job."""
    return {naming.NAME: "bireme", naming.MANAGED_BY: "bireme", naming.COMPONENT: component, naming.VOLUME_OF: name}


def end_of(pod: Object | None) -> str:
    """Why no command can run in a pod any more, as Kubernetes reports it; empty where one can."""
    if pod is None:
        return "it is gone"
    if not has_ended(pod):
        return "it is being deleted" if meta(pod).get("deletionTimestamp") else ""
    for state in (status_of(pod), *final_states(pod)):
        if state.get("reason"):
            return f"{state['reason']}: {state.get('message', '')}".rstrip(": ")
    return phase_of(pod)


def command_error(stderr: str, code: int) -> BiremeError:
    """The error of a failed command in the pod, in its own class."""
    last = stderr.strip().splitlines()[-1:] or [""]
    try:
        report = json.loads(last[0])
        return error_in({**report, "what": f"on the volume: {report['what']}"}, ClusterError)
    except (ValueError, KeyError, TypeError):
        return ClusterError(f"a command on the volume failed with exit code {code}: {last[0]}")
