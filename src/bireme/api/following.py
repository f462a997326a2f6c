"""Follow a job on a cluster with the same view as a local run; leaving does not end it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from bireme import __version__
from bireme.core.errors import BiremeError, Cancelled, ClusterError, NetworkError, ProcessError, error_in
from bireme.job.status import JobStatus
from bireme.kube.api import naming
from bireme.kube.api.client import POD, Cluster
from bireme.kube.jobs import logs
from bireme.kube.jobs.lifecycle import view_of
from bireme.kube.jobs.listing import JobView, PodView, gathering, is_ended, pod_views
from bireme.spec.load import command_name
from bireme.view.readers import View

POLL_S = 0.5
PODS_EVERY_S = 2.0
REASON_S = 5.0
"""How long a failed job may take to report its reason: Kubernetes sees a failure before its pods have reported why."""


def follow(cluster: Cluster, name: str, view: View, is_left: Callable[[], bool] = lambda: False) -> JobView | None:
    """Show a job until it ends or the user leaves; its last state, None if the cluster never answered."""
    watch, last = _Watch(cluster, name), None
    with view:
        while True:
            now = watch.look()
            if now is not None:
                last = now
                view.update(watch.status(now))
                watch.show_changes(view, now)
                if is_ended(now.state) and (watch.has_reason(now) or is_left()):
                    return now
            elif last is not None and is_ended(last.state):
                return last
            if is_left():
                view.alert(parting_words(name, cluster.namespace, last.state if last else ""))
                return last
            time.sleep(POLL_S)


def parting_words(name: str, namespace: str, state: str) -> str:
    """What happens to a job that the user follows no longer, by its state; empty: not known."""
    named, bireme = f"{name} --namespace {namespace}", command_name()
    if state == "suspended":
        return f"{name} is suspended; `{bireme} resume {named}` resumes it"
    if state in ("pending", "queued"):
        ways = f"`{bireme} why {named}` shows what it waits for, `… cancel {named}` stops it"
        return f"{name} does not run yet: it is {state}, and starts as soon as it can; {ways}"
    back = f"come back with `{bireme} status {named}`"
    if not state:
        return f"the cluster has not reported the state of {name}; {back}"
    return f"{name} keeps running; {back}, stop it with `… cancel {named}`"


def _has_no_pods(job: JobView) -> bool:
    """Whether its last status is therefore of another time."""
    return job.state in ("suspended", "queued")


class _Watch:
    """Polls a job."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._pods: list[PodView] = []
        self._pods_at = 0.0
        self._answered_at = time.monotonic()
        self._shown = ""
        self._failed_at = math.inf

    def look(self) -> JobView | None:
        """The state of the job; None while the API server does not answer."""
        try:
            job = view_of(self._cluster, self._name)
            if not job.status.trainers and time.monotonic() - self._pods_at > PODS_EVERY_S:
                self._pods = pod_views(self._cluster.list(POD, naming.selector_of(self._name)), job.status)
                self._pods_at = time.monotonic()
        except NetworkError:
            if time.monotonic() - self._answered_at > logs.OUTAGE_S:
                raise
            return None
        self._answered_at = time.monotonic()
        return job

    def status(self, job: JobView) -> JobStatus:
        """What a view draws: the coordinator's status, or before its first one the state of the pods."""
        if not _has_no_pods(job) and (job.status.trainers or job.state in ("finished", "failed")):
            return job.status
        return JobStatus(phase=self._gathering(job))

    def has_reason(self, job: JobView) -> bool:
        """Whether an ended job has reported all; a failed one is given time for its reason."""
        if job.state != "failed" or job.error:
            return True
        self._failed_at = min(self._failed_at, time.monotonic())
        return time.monotonic() - self._failed_at >= REASON_S

    def _gathering(self, job: JobView) -> str:
        waits = ", ".join(job.status.waits_for)
        return gathering(job, self._pods) + (f"; waiting for {waits}" if waits else "")

    def show_changes(self, view: View, job: JobView) -> None:
        """Print the state of the pods when it has changed, for views without a panel; and that versions differ."""
        text = self._gathering(job) if _has_no_pods(job) or not job.status.phase else ""
        if text and text != self._shown and not view.has_panel:
            view.note(text)
            self._shown = text
        version = job.status.version
        if version and version != __version__ and self._shown != "version":
            view.alert(f"the image has bireme {version}, this is {__version__}")
            self._shown = "version"


def error_of(job: JobView) -> BiremeError | None:
    """The error that an ended job has ended with, as the class it was; None for a finished one."""
    named = f"{job.name} --namespace {job.namespace}"
    fix = f"`{command_name()} why {named}` explains more"
    if job.state == "finished":
        return None
    if job.state == "cancelled":
        return Cancelled(f"{job.name} was stopped", fix=f"continue with `{command_name()} resume {named}`")
    if error := job.error:
        return error_in({**error, "fix": error.get("fix") or fix}, ProcessError)
    return ClusterError(f"{job.name} has failed: {job.reason or 'Kubernetes gives no reason'}", fix=fix)
