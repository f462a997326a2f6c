"""`bireme list | status`: jobs on this machine and on a cluster, from any terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from bireme.api.live import status_of
from bireme.api.progress import Progress, progress_of, way_on
from bireme.api.where import Where, is_here
from bireme.cli.options import either_options, job_argument, json_option
from bireme.cli.output import note
from bireme.core.errors import UsageError
from bireme.core.text import duration
from bireme.local import registry
from bireme.spec.load import command_name

LISTED = 20
"""How many jobs `list` shows, if nothing else is asked for."""


def ago(moment: float) -> str:
    """How long ago something was, for people."""
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
    with --all. A cluster that does not answer within two seconds is left out, unless it is asked for.
    """
    from bireme.cli.jobs.cluster_jobs import as_row, listed
    from bireme.view.plain import count

    if limit is None and not as_json:
        limit = LISTED
    newest = registry.newest_runs()
    here = [] if where.is_asked else registry.all_runs() if shows_all else [r for r in newest if not is_gone(r)]
    runs, ids = here[:limit], {r.id for r in newest}
    found = [(r, progress_of(r, status_of(r), is_newest=r.id in ids)) for r in runs]
    there, note = listed(where)
    rows = [as_row(view) for view in there[:limit]]
    if as_json:
        told = {"jobs": [_short(r, progress) for r, progress in found], "cluster": rows}
        click.echo(json.dumps({**told, "note": note} if note else told))
        return
    hidden = 0 if shows_all or where.is_asked else sum(map(is_gone, newest))
    if not runs and not rows and not hidden:
        nowhere = "no job is there" if where.is_asked else "no job has run here yet"
        click.echo(f"{nowhere}; try `{command_name()} {'submit JOB.yaml' if where.is_asked else 'demo'}`")
    else:
        click.echo(f"{'job':<24} {'state':<10} {'started':>16} {'progress':<14} output")
    for r, progress in found:
        place = f"{r.output} (gone)" if is_gone(r) else r.output
        click.echo(f"{r.name:<24} {r.state:<10} {ago(r.started):>12} ago  {progress!s:<14} {place}")
        if r.state == "died" and r.id in ids and _can_go_on(r, progress):
            click.echo(f"{'':<24} {way_on(Path(r.output))}")
    for row in rows:
        far = str(Progress(row["passes_done"], row["passes"]))
        place = f"kubernetes/{row['namespace']}"
        click.echo(f"{row['name']:<24} {row['state']:<10} {ago(row['started']):>12} ago  {far:<14} {place}")
    if more := len(here) - len(runs) + len(there) - len(rows):
        click.echo(f"({more} more; `--limit {(limit or 0) + more}` shows them)")
    if hidden:
        click.echo(f"({count(hidden, 'job')} hidden, as the output directory is gone; `--all` shows them)")
    if note:
        click.echo(f"note: {note}", err=True)


def is_gone(record: registry.RunRecord) -> bool:
    """Whether nothing is left of a run but its record."""
    return record.state != "running" and not Path(record.output).is_dir()


def _can_go_on(record: registry.RunRecord, progress: Progress) -> bool:
    return record.state not in ("running", "finished") and progress.done < progress.passes


def _short(record: registry.RunRecord, progress: Progress) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record)
    del plain["status"]
    return {**plain, "passes_done": progress.done, "passes": progress.passes}


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
    if not is_here(job, where, note):
        from bireme.cli.jobs.cluster_jobs import show_status
        from bireme.cli.jobs.follow import watch_there

        with where.connect() as cluster:
            if is_watching:
                watch_there(cluster, str(job))
            show_status(cluster, str(job), shows_all=shows_all, as_json=as_json)
        return
    record = registry.find_run(job)
    if is_watching:
        from bireme.cli.jobs.follow import watch_here

        record = watch_here(record, status_of)
    _show_local(record, shows_all=shows_all, as_json=as_json)


def _show_local(record: registry.RunRecord, *, shows_all: bool, as_json: bool) -> None:
    from bireme.view.plain import number, pass_lines, time_left

    now = status_of(record)
    is_newest = record.id in {r.id for r in registry.newest_runs()}
    progress = progress_of(record, now, is_newest=is_newest)
    if as_json:
        click.echo(json.dumps({**_short(record, progress), "status": msgspec.to_builtins(now)}))
        return
    why = f" ({record.reason})" if record.reason else ""
    left = time_left(now) if record.state == "running" else ""
    far = "".join(f", {word}" for word in (progress, left) if str(word))
    click.echo(f"{record.name}: {record.state}{why}, started {ago(record.started)} ago{far}")
    click.echo(f"output: {record.output}")
    from bireme.job.output.kept import metrics_in

    # What this run says of its passes, and the models of those that runs before it did.
    closed = metrics_in(Path(record.output)) if is_newest else {}
    closed |= {each.pass_id: each for each in now.passes_done}
    for line in pass_lines([closed[pass_id] for pass_id in sorted(closed)], shows_all=shows_all):
        click.echo(line)
    if is_newest and _can_go_on(record, progress):
        click.echo(way_on(Path(record.output)))
    if record.state == "running":
        if now.waits_for:
            click.echo(f"waits for {', '.join(now.waits_for)}")
        for warning in now.warnings:
            click.echo(f"warning: {warning}")
        for t in now.trainers:
            if t.pass_id is not msgspec.UNSET:
                click.echo(
                    f"trainer {t.trainer} (pid {t.pid}): pass {t.pass_id}, batch {t.batch}/{t.batches}, "
                    f"cost {number(t.cost)}, {t.rate:,.0f} samples/s"
                )
