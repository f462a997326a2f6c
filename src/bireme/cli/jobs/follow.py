"""Following a job on a cluster with the same view as a local run; leaving does not end it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bireme.cli.jobs.running import Interrupts, show
from bireme.core.errors import BiremeError, Cancelled, ClusterError, NetworkError, ProcessError, error_class
from bireme.job.status import JobStatus
from bireme.local import registry
from bireme.spec.load import command_name
from bireme.view.readers import View, choose_view

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster
    from bireme.kube.jobs.listing import JobView

POLL_S = 0.5
PODS_EVERY_S = 2.0
OUTAGE_S = 120.0
"""How long the API server may be away before following is given up; the job does not need it."""
LAST_WORD_S = 5.0
"""How long a job that has failed may take to say why: Kubernetes knows first that it has, its pods know why."""


def follow_to_end(cluster: Cluster, name: str, *, is_silent: bool, as_json: bool) -> None:
    """Show a job until it ends, then say where its model is; raises what it has failed with.

    Whoever leaves with Ctrl-C gets the exit code of that, though the job goes on.
    """
    from bireme.kube.jobs.listing import is_ended

    seen = follow(cluster, name, choose_view(is_silent=is_silent))
    if seen is None or not is_ended(seen.state):
        if as_json:
            state = seen.state if seen else "unknown"
            click.echo(json.dumps({"job": name, "namespace": cluster.namespace, "state": state}))
        raise SystemExit(Cancelled.exit_code)
    if seen.state != "finished":
        raise ended_with(seen)
    if as_json:
        told = {"job": name, "namespace": cluster.namespace, "state": seen.state, **msgspec.to_builtins(seen.status)}
        click.echo(json.dumps(told))
    elif not is_silent:
        click.echo(f"finished: bring the model here with `{command_name()} fetch {name} DIR{_option(cluster)}`")


def _option(cluster: Cluster) -> str:
    return f" --namespace {cluster.namespace}"


def follow(cluster: Cluster, name: str, view: View) -> JobView | None:
    """Show a job until it ends or the user leaves; how it was seen last, None if the cluster never answered."""
    from bireme.kube.jobs.listing import is_ended

    watched, last = _Watched(cluster, name), None
    with Interrupts() as interrupts, view:
        while True:
            seen = watched.look()
            if seen is not None:
                last = seen
                view = show(view, watched.status(seen))
                watched.tell_news(view, seen)
                if is_ended(seen.state) and (watched.has_said_why(seen) or interrupts.count):
                    return seen
            elif last is not None and is_ended(last.state):
                return last
            if interrupts.count:
                view.alert(parting_words(name, cluster.namespace, last.state if last else ""))
                return last
            time.sleep(POLL_S)


def parting_words(name: str, namespace: str, state: str) -> str:
    """What becomes of a job that the user follows no longer, by its state; empty: not known."""
    named, bireme = f"{name} --namespace {namespace}", command_name()
    if state == "suspended":
        return f"{name} is suspended; `{bireme} resume {named}` goes on with it"
    if state in ("pending", "queued"):
        ways = f"`{bireme} why {named}` tells what it waits for, `… cancel {named}` stops it"
        return f"{name} does not run yet: it is {state}, and starts as soon as it can; {ways}"
    back = f"come back with `{bireme} status {named}`"
    if not state:
        return f"the cluster has not said how {name} is doing; {back}"
    return f"{name} goes on without you; {back}, stop it with `… cancel {named}`"


def _rests(seen: JobView) -> bool:
    """Whether a job has no pods, so that its last status is of another time."""
    return seen.state in ("suspended", "queued")


class _Watched:
    """A job that is looked at again and again."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._pods: list[Any] = []
        self._pods_at = 0.0
        self._answered_at = time.monotonic()
        self._said = ""
        self._failed_at = math.inf

    def look(self) -> JobView | None:
        """How the job is doing; None while the API server does not answer."""
        from bireme.kube.jobs.lifecycle import view_of

        try:
            seen = view_of(self._cluster, self._name)
            if not seen.status.trainers and time.monotonic() - self._pods_at > PODS_EVERY_S:
                self._look_at_pods(seen)
        except NetworkError:
            if time.monotonic() - self._answered_at > OUTAGE_S:
                raise
            return None
        self._answered_at = time.monotonic()
        return seen

    def status(self, seen: JobView) -> JobStatus:
        """What a view draws: the coordinator's status, or before its first one the state of the pods."""
        if not _rests(seen) and (seen.status.trainers or seen.state in ("finished", "failed")):
            return seen.status
        return JobStatus(phase=self._gathering(seen))

    def has_said_why(self, seen: JobView) -> bool:
        """Whether an ended job has no more to say: one that has failed is given time for its reason."""
        if seen.state != "failed" or seen.error:
            return True
        self._failed_at = min(self._failed_at, time.monotonic())
        return time.monotonic() - self._failed_at >= LAST_WORD_S

    def _look_at_pods(self, seen: JobView) -> None:
        from bireme.kube.api import naming
        from bireme.kube.api.client import POD
        from bireme.kube.jobs.listing import pod_views

        self._pods = pod_views(self._cluster.list(POD, naming.selector_of(self._name)), seen.status)
        self._pods_at = time.monotonic()

    def _gathering(self, seen: JobView) -> str:
        from bireme.kube.jobs.listing import gathering

        waits = ", ".join(seen.status.waits_for)
        return gathering(seen, self._pods) + (f"; waiting for {waits}" if waits else "")

    def tell_news(self, view: View, seen: JobView) -> None:
        """Print where the pods are when that has changed, for views without a panel; and that versions differ."""
        from bireme import __version__
        from bireme.view.plain import PlainView

        has_news = _rests(seen) or not seen.status.phase
        news = self._gathering(seen) if has_news else ""
        if isinstance(view, PlainView) and news and news != self._said:
            view.note(news)
            self._said = news
        version = seen.status.version
        if version and version != __version__ and self._said != "version":
            view.alert(f"the image has bireme {version}, this is {__version__}")
            self._said = "version"


def ended_with(seen: JobView) -> BiremeError:
    """The error that a job has ended with, as the class it was."""
    fix = f"`{command_name()} why {seen.name} --namespace {seen.namespace}` tells more"
    if seen.state == "cancelled":
        named = f"{seen.name} --namespace {seen.namespace}"
        return Cancelled(f"{seen.name} was stopped", fix=f"go on with `{command_name()} resume {named}`")
    told = seen.error
    if told:
        return error_class(told.get("kind"), ProcessError)(
            told.get("what", ""), why=told.get("why", ""), fix=told.get("fix", "") or fix
        )
    return ClusterError(f"{seen.name} has failed: {seen.reason or 'Kubernetes says no more'}", fix=fix)


def watch_here(record: registry.RunRecord, status_of: Callable[[registry.RunRecord], JobStatus]) -> registry.RunRecord:
    """Show a run on this machine until it ends or the user leaves; returns the run as it is then."""
    view = choose_view(is_silent=False)
    with Interrupts() as interrupts, view:
        while record.state == "running" and not interrupts.count:
            status = status_of(record)
            if status.phase != "training" or status.passes:  # else its coordinator has never answered
                view = show(view, status)
            time.sleep(POLL_S)
            record = registry.find_run(record.id)
    return record


def watch_there(cluster: Cluster, name: str) -> None:
    """Show a job on a cluster until it ends or the user leaves."""
    follow(cluster, name, choose_view(is_silent=False))
