"""`list`, `status`, `logs`, `cancel`, `resume` and `delete` for jobs on a cluster."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET, to_builtins

from bireme.api.where import Where, has_cluster
from bireme.core.errors import BiremeError, UsageError
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.job.status import JobStatus
    from bireme.kube.api.client import Cluster
    from bireme.kube.jobs.listing import JobView, PodView

LIST_PATIENCE_S = 2.0


def views_in(cluster: Cluster) -> list[JobView]:
    """All jobs of a namespace, newest first."""
    from bireme.kube.api import naming
    from bireme.kube.api.client import JOB
    from bireme.kube.jobs.listing import by_name, job_view

    found = by_name(cluster.list(JOB, {naming.NAME: "bireme", naming.MANAGED_BY: "bireme"}))
    return sorted((job_view(jobs) for jobs in found.values()), key=lambda view: view.started, reverse=True)


def listed(where: Where) -> tuple[list[JobView], str]:
    """The jobs on the cluster, or a note on why they are left out; waits long only if the cluster was asked for."""
    if where.is_asked:
        with where.connect() as cluster:
            return views_in(cluster), ""
    if not has_cluster():
        return [], ""
    found: list[list[JobView]] = []
    failed: list[str] = []

    def look() -> None:
        try:
            with where.connect(timeout_s=LIST_PATIENCE_S) as cluster:
                found.append(views_in(cluster))
        except BiremeError as e:
            failed.append(e.what)

    asking = threading.Thread(target=look, name="list", daemon=True)
    asking.start()
    asking.join(LIST_PATIENCE_S)
    if found:
        return found[0], ""
    return [], f"the cluster is left out: {failed[0] if failed else 'it does not answer'}"


def as_row(view: JobView) -> dict[str, Any]:
    """A job in a list, for programs."""
    plain = {k: v for k, v in asdict(view).items() if k not in ("status", "error")}
    return {**plain, "passes_done": view.status.done, "passes": view.status.total, "where": "kubernetes"}


def show_status(cluster: Cluster, name: str, *, shows_all: bool, as_json: bool) -> None:
    """Print how a job and each of its pods are doing."""
    from bireme.kube.api import naming
    from bireme.kube.api.client import POD
    from bireme.kube.jobs.lifecycle import view_of
    from bireme.kube.jobs.listing import gathering, is_ended, pod_views
    from bireme.view.plain import pass_lines, time_left

    view = view_of(cluster, name)
    pods = pod_views(cluster.list(POD, naming.selector_of(name)), view.status)
    if as_json:
        plain = {**as_row(view), "error": dict(view.error), "status": to_builtins(view.status)}
        plain["pod_list"] = [{**to_builtins(pod), "trains": to_builtins(pod.trains or {})} for pod in pods]
        click.echo(json.dumps(plain))
        return
    from bireme.cli.jobs.listing import ago

    row = as_row(view)
    why = f" ({view.reason})" if view.reason else ""
    far = f", {row['passes_done']}/{row['passes']} passes" if row["passes"] else ""
    if view.state == "running" and (left := time_left(view.status)):
        far += f", {left}"
    click.echo(f"{name}: {view.state}{why}, submitted {ago(view.started)} ago{far}")
    click.echo(f"in the namespace {cluster.namespace} of context {cluster.context}")
    for line in pass_lines(view.status.passes_done, shows_all=shows_all):
        click.echo(line)
    if view.state in ("pending", "starting"):
        click.echo(gathering(view, pods))
        click.echo(f"more: `{command_name()} why {name} --namespace {cluster.namespace}`")
    if view.status.waits_for and view.state in ("running", "starting"):
        click.echo(f"waits for {', '.join(view.status.waits_for)}")
    for warning in view.status.warnings if view.state == "running" else ():
        click.echo(f"warning: {warning}")
    for line in pod_lines(pods):
        click.echo(line)
    if not is_ended(view.state):
        for line in certificate_lines(view.status, time.time()):
            click.echo(line)


def certificate_lines(status: JobStatus, now: float) -> Iterator[str]:
    """A warning while there is time: nothing renews a job's certificate by itself."""
    from bireme.kube.submit.certificates import RENEW_BELOW_DAYS

    left_days = ((status.certificate_until or math.inf) - now) / 86400
    if left_days < RENEW_BELOW_DAYS:
        left = max(left_days, 0.0)
        yield f"its certificate is good for {left:.0f} more days; to renew it, submit the same file again"


def pod_lines(pods: list[PodView]) -> Iterator[str]:
    """One line for each pod, under a head."""
    if not pods:
        return
    states = ["Running, not ready" if pod.phase == "Running" and not pod.is_ready else pod.phase for pod in pods]
    width, wide = max(len(pod.name) for pod in pods), max(12, *map(len, states))
    head = f"{'pod':<{width}}  {'role':<8} {'machine':<12} {'state':<{wide}}"
    yield f"{head} {'restarts':>8}  {'pass':>4}  {'samples/s':>10}"
    for pod, state in zip(pods, states, strict=True):
        trainer = pod.trains if pod.trains and pod.trains.pass_id is not UNSET else None
        at, rate = (trainer.pass_id, f"{trainer.rate:,.0f}") if trainer else ("–", "–")
        late = "  all wait for it" if pod.is_straggler else ""
        waits = f"  {pod.waits}" if pod.waits else ""
        yield (
            f"{pod.name:<{width}}  {pod.role:<8} {pod.machine or '–':<12} {state:<{wide}} {pod.restarts:>8}  "
            f"{at!s:>4}  {rate:>10}{late}{waits}"
        )


def resume_there(cluster: Cluster, name: str, changes: dict[str, Any], *, as_json: bool) -> None:
    """Let a job go on that was stopped, has failed, or is to have more passes."""
    from bireme.kube.jobs.lifecycle import has_left_its_plan, jobs_of, start_again, unsuspend, view_of

    named = f"{name} --namespace {cluster.namespace}"
    how = "resumed"
    if not jobs_of(cluster, name) and has_left_its_plan(cluster, name):
        start_again(cluster, name, changes)
    else:
        view = view_of(cluster, name)
        if view.state in ("running", "starting", "pending"):
            fix = f"`{command_name()} status {named}` tells how it is doing"
            raise UsageError(f"{name} runs already: it is {view.state}", fix=fix)
        if view.state == "finished" and changes.get("passes", view.status.total) <= view.status.done:
            how = "finished"
        elif view.state in ("suspended", "queued") and not changes:
            unsuspend(cluster, name)
        else:
            start_again(cluster, name, changes)
    if as_json:
        click.echo(json.dumps({"job": name, "namespace": cluster.namespace, "outcome": how}))
    elif how == "finished":
        click.echo(f"already finished; for more passes: `{command_name()} resume {named} --passes N`")
    else:
        click.echo(f"{name} goes on; follow it with `{command_name()} status {named}`")
