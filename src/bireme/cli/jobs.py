"""`bireme list | status | logs | cancel | delete`: jobs on this machine and on a cluster, from any terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from bireme.api.live import cancel_run, status_of
from bireme.api.progress import Progress, progress_of, way_on
from bireme.cli.cluster import Where, cluster_options, either_options, local_run
from bireme.core.errors import UsageError
from bireme.core.text import duration, parse_duration
from bireme.local import registry
from bireme.spec.load import command_name

LAST_LINES = 20
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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def list_(shows_all: bool, limit: int | None, where: Where, as_json: bool) -> None:
    """List the jobs that run or ran on this machine, newest first, and those on the cluster.

    A job that was stopped and resumed is listed once, with all its passes; one whose output directory is gone only
    with --all. A cluster that does not answer within two seconds is left out, unless it is asked for.
    """
    from bireme.cli.cluster_jobs import as_row, listed
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
@click.argument("job", required=False)
@click.option("--all", "shows_all", is_flag=True, help="Every pass, not only the last ten.")
@click.option("--watch", "is_watching", is_flag=True, help="Show what is new until the job is over, or until Ctrl-C.")
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def status(job: str | None, shows_all: bool, is_watching: bool, where: Where, as_json: bool) -> None:
    """Show how JOB is doing: a job's name, a run's id or its output directory (the newest when left out).

    A name that no job on this machine has is looked for on the cluster.
    """
    if is_watching and as_json:
        raise UsageError("--watch and --json do not go together", fix="ask again and again with --json alone")
    record = local_run(job, where)
    if record is None:
        from bireme.cli.cluster_jobs import show_status
        from bireme.cli.watching import watch_there

        with where.connect() as cluster:
            if is_watching:
                watch_there(cluster, str(job))
            show_status(cluster, str(job), shows_all=shows_all, as_json=as_json)
        return
    if is_watching:
        from bireme.cli.watching import watch_here

        record = watch_here(record, status_of)
    _show_local(record, shows_all=shows_all, as_json=as_json)


def _show_local(record: registry.RunRecord, *, shows_all: bool, as_json: bool) -> None:
    from bireme.view.plain import number, pass_lines, time_left

    now = status_of(record)
    is_newest = record.id in {r.id for r in registry.newest_runs()}
    progress = progress_of(record, now, is_newest=is_newest)
    if as_json:
        click.echo(json.dumps({**_short(record, progress), "status": now}))
        return
    why = f" ({record.reason})" if record.reason else ""
    left = time_left(now) if record.state == "running" else ""
    far = "".join(f", {word}" for word in (progress, left) if str(word))
    click.echo(f"{record.name}: {record.state}{why}, started {ago(record.started)} ago{far}")
    click.echo(f"output: {record.output}")
    from bireme.job.output.kept import metrics_in

    # What this run says of its passes, and the models of those that runs before it did.
    closed = metrics_in(Path(record.output)) if is_newest else {}
    closed |= {told["pass_id"]: told for told in now.get("passes_done", [])}
    for line in pass_lines([closed[pass_id] for pass_id in sorted(closed)], shows_all=shows_all):
        click.echo(line)
    if is_newest and _can_go_on(record, progress):
        click.echo(way_on(Path(record.output)))
    if record.state == "running":
        if now.get("waits_for"):
            click.echo(f"waits for {', '.join(now['waits_for'])}")
        for warning in now.get("warnings", []):
            click.echo(f"warning: {warning}")
        for t in now.get("trainers", []):
            if "pass" in t:
                click.echo(
                    f"trainer {t['trainer']} (pid {t['pid']}): pass {t['pass']}, batch {t['batch']}/{t['batches']}, "
                    f"cost {number(t['cost'])}, {t['rate']:,.0f} samples/s"
                )


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value, " s m h d")
    except ValueError as e:
        raise click.BadParameter(f"{value!r} is no time: write 90s, 5m, 2h or 3d") from e


@click.command(epilog="\b\nExample: bireme logs quick-start --node 1 --role trainer -f")
@click.argument("job", required=False)
@click.option("--node", type=int, help="Only this node.")
@click.option("--role", type=click.Choice(["trainer", "pserver"]), help="Only this kind of process.")
@click.option("--since", callback=_duration, metavar="5m", help="Only what was said since: 90s, 5m, 2h, 3d.")
@click.option("-f", "--follow", "is_following", is_flag=True, help="Keep printing what comes, until the job is over.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Last lines of each file.  [default: 20; all with --since]")
@click.option("--from-volume", is_flag=True, help="On a cluster: what earlier pods said too, from the volume.")
@click.option("--image", help="On a cluster: image for the pod on the volume, where the job itself is gone.")
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(  # noqa: PLR0913 - its flags
    job: str | None, node: int | None, role: str | None, since: float | None, is_following: bool, lines: int | None,
    from_volume: bool, image: str | None, where: Where, as_json: bool,
) -> None:  # fmt: skip
    """Print what JOB's processes have said, in the order of time.

    Of a job on a cluster also when its pods are gone.
    """
    record = local_run(job, where)
    last = lines if lines is not None or since is not None else LAST_LINES
    if record is None:
        from bireme.cli.cluster_logs import Wanted, print_logs

        wanted = Wanted(node, role, last, since, is_following, from_volume)
        with where.connect() as cluster:
            print_logs(cluster, str(job), wanted, image, as_json=as_json)
        return
    names = {"trainer": ["train.log"], "pserver": ["server.log"], None: ["train.log", "server.log"]}[role]
    pattern = "node_*" if node is None else f"node_{node}"
    files = [f for d in sorted(Path(record.output).glob(pattern)) for n in names if (f := d / n).is_file()]
    if not files:
        raise UsageError(
            f"{record.name} has no such log under {record.output}",
            fix="leave --node and --role out to see all",
        )
    is_over = (lambda: registry.find_run(record.id).state != "running") if is_following else None
    for path, line in _lines(files, last, since, is_over):
        who = f"{path.parent.name}/{path.name}"
        click.echo(json.dumps({"log": who, "line": line}) if as_json else f"{who}: {line}")


def _lines(
    files: list[Path], last: int | None, since_s: float | None, is_over: Callable[[], bool] | None
) -> Iterator[tuple[Path, str]]:
    """Lines of logs in the order of time; with `is_over`, those too that come until that is so."""
    from bireme.kube.jobs.log_merge import merged

    after = time.time() - since_s if since_s is not None else 0.0
    places = {path: (path.stat().st_ino, path.stat().st_size) for path in files}
    for found in merged({str(path): [path] for path in files}, last=last, since=after):
        yield Path(found.log), found.text
    while is_over is not None:
        sys.stdout.flush()
        time.sleep(0.2)
        is_last = is_over()
        for path in files:
            whole = b""
            with suppress(FileNotFoundError), path.open("rb") as f:  # (gone for a moment: it is being rotated)
                stat, at = os.fstat(f.fileno()), 0
                # A log that is full is cut to nothing under its writer: then all that is there is new.
                if stat.st_ino == places[path][0] and stat.st_size >= places[path][1]:
                    at = f.seek(places[path][1])
                whole, end, _ = f.read().rpartition(b"\n")
                places[path] = stat.st_ino, at + len(whole) + len(end)
            for line in whole.decode(errors="replace").splitlines():
                yield path, line
        if is_last:
            return


@click.command(epilog="\b\nExample: bireme cancel quick-start")
@click.argument("job", required=False)
@click.option("--now", is_flag=True, help="Do not wait for a clean stop.")
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def cancel(job: str | None, now: bool, where: Where, as_json: bool) -> None:
    """Stop JOB cleanly; finished passes stay.

    On a cluster its pods take a snapshot and leave; the job stays there, suspended, until it is resumed or deleted.
    """
    record = local_run(job, where)
    if record is None:
        from bireme.cli.cluster_jobs import cancel_there

        with where.connect() as cluster:
            cancel_there(cluster, str(job), now=now, as_json=as_json)
        return
    if record.state == "running":
        registry.check_one(job)
    state = cancel_run(record, now=now)
    click.echo(json.dumps({"job": record.name, "state": state}) if as_json else f"{record.name}: {state}")


@click.command(epilog="\b\nExample: bireme delete quick-start --namespace training")
@click.argument("job")
@click.option("--volume", "with_volume", is_flag=True, help="Its volume too, with all its models and data.")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def delete(job: str, with_volume: bool, where: Where, as_json: bool) -> None:
    """Take JOB from the cluster; its volume stays unless --volume is given.

    A volume claim that bireme did not make is never deleted.
    """
    from bireme.kube.jobs.lifecycle import delete as take_away
    from bireme.kube.submit.certificates import JobIdentity, forget
    from bireme.spec.load import places

    with where.connect() as cluster:
        done = take_away(cluster, job, with_volume=with_volume)
        forget(places().state, JobIdentity(cluster.server, cluster.namespace, job))
    if as_json:
        told = {"job": job, "deleted": done.things, "claim": done.claim, "volume": done.volume}
        click.echo(json.dumps({**told, "note": f"--volume was ignored: {done.ignored}"} if done.ignored else told))
        return
    for line in done.words(job):
        click.echo(line)
