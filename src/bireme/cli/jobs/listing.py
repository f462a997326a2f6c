"""`bireme list | status | logs`: jobs on this machine and on a cluster, from any terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
from msgspec import UNSET

from bireme.api.backends import Listing, RunStatus
from bireme.api.where import Where, backend_of, list_cluster
from bireme.cli.options import either_options, job_argument, json_option, pod_image_option
from bireme.cli.output import emit, note
from bireme.core.errors import UsageError
from bireme.core.text import duration, parse_duration
from bireme.job.output.logs import LogFilter
from bireme.job.status import JobStatus
from bireme.spec.load import command_name
from bireme.view.plain import count, number, pass_lines, time_left
from bireme.view.readers import choose_view

if TYPE_CHECKING:
    from bireme.api.kube import PodView

LISTED = 20
"""How many jobs `list` shows by default."""
LAST_LINES = 20


def ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    return duration(seconds, is_exact=seconds < 3600)


@click.command("list", epilog="\b\nExample: bireme list --limit 5")
@click.option(
    "--all", "shows_all", is_flag=True, help="Every run, also older ones of an output directory or of one that is gone."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.  [default: 20; all with --json]")
@either_options
@json_option
def list_(shows_all: bool, limit: int | None, where: Where, as_json: bool) -> None:
    """List the jobs that run or ran on this machine, newest first, and those on the cluster.

    A job that was stopped and resumed is listed once, with all its passes; one whose output directory is gone only
    with --all. A cluster that does not answer within two seconds is left out, unless the command names it.
    """
    from bireme.api.local import LocalBackend

    if limit is None and not as_json:
        limit = LISTED
    here = Listing() if where.is_asked else LocalBackend().list(limit, shows_all=shows_all)
    there = list_cluster(where, limit)
    value = {"jobs": [job.row for job in here.jobs], "cluster": [job.row for job in there.jobs]}
    lines = _lines(here, there, limit or 0, is_there=where.is_asked)
    emit({**value, "note": there.note} if there.note else value, lines, as_json=as_json)
    if there.note and not as_json:
        note(f"note: {there.note}")


def _lines(here: Listing, there: Listing, limit: int, *, is_there: bool) -> Iterator[str]:
    jobs = [*here.jobs, *there.jobs]
    if not jobs and not here.hidden:
        nowhere = "no job is there" if is_there else "no job has run here yet"
        yield f"{nowhere}; try `{command_name()} {'submit JOB.yaml' if is_there else 'demo'}`"
    else:
        yield f"{'job':<24} {'state':<10} {'started':>16} {'progress':<14} output"
    for job in jobs:
        place = f"{job.place} (gone)" if job.is_gone else job.place
        yield f"{job.name:<24} {job.state:<10} {ago(job.started):>12} ago  {job.progress:<14} {place}"
        if job.state == "died" and job.next_step:
            yield f"{'':<24} {job.next_step}"
    if more := here.more + there.more:
        yield f"({more} more; `--limit {limit + more}` shows them)"
    if here.hidden:
        yield f"({count(here.hidden, 'job')} hidden, as the output directory is gone; `--all` shows them)"


@click.command(epilog="\b\nExample: bireme status quick-start")
@job_argument
@click.option("--all", "shows_all", is_flag=True, help="Every pass, not only the last ten.")
@click.option("--watch", "is_watching", is_flag=True, help="Show what is new until the job is over, or until Ctrl-C.")
@either_options
@json_option
def status(job: str | None, shows_all: bool, is_watching: bool, where: Where, as_json: bool) -> None:
    """Show how JOB is doing: a job's name, a run's id or its output directory (the newest when left out).

    A name that no job on this machine has is looked for on the cluster.
    """
    if is_watching and as_json:
        raise UsageError("--watch and --json do not go together", fix="ask again and again with --json alone")
    backend = backend_of(job, where, note)
    view = choose_view(is_silent=not is_watching)
    if is_watching:
        from bireme.api.foreground import watch

        last = watch(backend, job, view)
        job = last.id if last else job
    report = backend.status(job)
    lines = _describe(report, shows_all=shows_all, after=view.last_pass)
    emit({**report.row, **report.details}, lines, as_json=as_json)


def _describe(run: RunStatus, *, shows_all: bool, after: int) -> Iterator[str]:
    """A job in words; passes up to `after` have been shown already."""
    reason = f" ({run.reason})" if run.reason else ""
    left = time_left(run.job) if run.state == "running" else ""
    far = "".join(f", {text}" for text in (run.progress, left) if text)
    began = "submitted" if run.place.startswith("kubernetes/") else "started"
    yield f"{run.name}: {run.state}{reason}, {began} {ago(run.started)} ago{far}"
    yield run.where
    yield from pass_lines([each for each in run.closed if each.pass_id > after], shows_all=shows_all)
    if run.next_step:
        yield run.next_step
    yield from run.hints
    if run.state in ("running", "starting") and run.waits_for:
        yield f"waits for {', '.join(run.waits_for)}"
    if run.state == "running":
        yield from (f"warning: {warning}" for warning in run.warnings)
    if began == "started":
        yield from trainer_lines(run.job) if run.state == "running" else ()
    else:
        yield from pod_lines(run.pods)
        yield from run.notices


def trainer_lines(status: JobStatus) -> Iterator[str]:
    for t in status.trainers:
        if t.pass_id is not UNSET:
            done = f"pass {t.pass_id}, batch {t.batch}/{t.batches}, cost {number(t.cost)}, {t.rate:,.0f} samples/s"
            yield f"trainer {t.trainer} (pid {t.pid}): {done}"


def pod_lines(pods: Sequence[PodView]) -> Iterator[str]:
    if not pods:
        return
    states = ["Running, not ready" if pod.phase == "Running" and not pod.is_ready else pod.phase for pod in pods]
    width, wide = max(len(pod.name) for pod in pods), max(12, *map(len, states))
    head = f"{'pod':<{width}}  {'role':<8} {'machine':<12} {'state':<{wide}}"
    yield f"{head} {'restarts':>8}  {'pass':>4}  {'samples/s':>10}"
    for pod, state in zip(pods, states, strict=True):
        trainer = pod.trains if pod.trains and pod.trains.pass_id is not UNSET else None
        at, rate = (trainer.pass_id, f"{trainer.rate:,.0f}") if trainer else ("–", "–")
        remarks = ("  all wait for it" if pod.is_straggler else "") + (f"  {pod.waits}" if pod.waits else "")
        row = f"{pod.name:<{width}}  {pod.role:<8} {pod.machine or '–':<12} {state:<{wide}}"
        yield f"{row} {pod.restarts:>8}  {at!s:>4}  {rate:>10}{remarks}"


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value, " s m h d")
    except ValueError as e:
        raise click.BadParameter(f"{value!r} is no time: write 90s, 5m, 2h or 3d") from e


@click.command(epilog="\b\nExample: bireme logs quick-start --node 1 --role trainer -f")
@job_argument
@click.option("--node", type=int, help="Only this node.")
@click.option("--role", type=click.Choice(["trainer", "pserver"]), help="Only this kind of process.")
@click.option("--since", callback=_duration, metavar="5m", help="Only younger lines: 90s, 5m, 2h, 3d.")
@click.option("-f", "--follow", "is_following", is_flag=True, help="Keep printing what comes, until the job is over.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Last lines of each file.  [default: 20; all with --since]")
@click.option("--from-volume", is_flag=True, help="On a cluster: lines of earlier pods too, from the volume.")
@pod_image_option
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(  # noqa: PLR0913 - its flags
    job: str | None, node: int | None, role: str | None, since: float | None, is_following: bool, lines: int | None,
    from_volume: bool, image: str | None, where: Where, as_json: bool,
) -> None:  # fmt: skip
    """Print the logs of JOB's processes, in the order of time.

    Of a job on a cluster also when its pods are gone.
    """
    last = lines if lines is not None or since is not None else LAST_LINES
    wanted = LogFilter(node, role, last, since, is_following, from_volume)
    for line in backend_of(job, where, note).logs(job, wanted, image=image, note=note):
        click.echo(json.dumps({"log": line.log, "line": line.text}) if as_json else f"{line.log}: {line.text}")
