"""`bireme list | status | logs | cancel`: jobs on this machine, from any terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from bireme.cli.progress import Progress, passes_in, progress_of, way_on
from bireme.core.errors import UsageError
from bireme.local import registry
from bireme.spec.load import command_name


def _ago(moment: float) -> str:
    from bireme.view.terminal import duration

    seconds = max(0.0, time.time() - moment)
    if seconds < 3600:
        return duration(seconds)
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


@click.command("list", epilog="\b\nExample: bireme list --limit 5")
@click.option("--all", "shows_all", is_flag=True, help="Every run, not only the newest of each output directory.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def list_(shows_all: bool, limit: int | None, as_json: bool) -> None:
    """List the jobs that run or ran on this machine, newest first.

    A job that was stopped and resumed is listed once, with all its passes.
    """
    newest = registry.newest_runs()
    runs = (registry.all_runs() if shows_all else newest)[:limit]
    ids = {r.id for r in newest}
    found = [(r, progress_of(r, _status_of(r), is_newest=r.id in ids)) for r in runs]
    if as_json:
        click.echo(json.dumps({"jobs": [_short(r, progress) for r, progress in found]}))
        return
    if not runs:
        click.echo(f"no job has run here yet; try `{command_name()} demo`")
    for r, progress in found:
        click.echo(f"{r.name:<24} {r.state:<10} {_ago(r.started):>12} ago  {progress!s:<14} {r.output}")
        if r.state == "died" and r.id in ids and _can_go_on(r, progress):
            click.echo(f"{'':<24} {way_on(Path(r.output))}")


def _can_go_on(record: registry.Record, progress: Progress) -> bool:
    return record.state not in ("running", "finished") and progress.done < progress.passes


def _short(record: registry.Record, progress: Progress) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(record)
    del plain["status"]
    return {**plain, "passes_done": progress.done, "passes": progress.passes}


def _status_of(record: registry.Record) -> dict[str, Any]:
    """The coordinator's word while it lives, its last word afterwards."""
    from bireme.core.errors import BiremeError
    from bireme.job import messages as m
    from bireme.local.runner import ask, coordinator_of

    if record.state != "running":
        return record.status
    address = coordinator_of(registry.runs_directory() / record.id)
    if address is None:
        return {"phase": "starting"}
    try:
        return ask(address, m.GetStatus())
    except BiremeError:
        return record.status or {"phase": "starting"}


@click.command(epilog="\b\nExample: bireme status quick-start")
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def status(job: str | None, as_json: bool) -> None:
    """Show how JOB is doing: a job's name, a run's id or its output directory (the newest when left out)."""
    record = registry.find_run(job)
    now = _status_of(record)
    is_newest = record.id in {r.id for r in registry.newest_runs()}
    progress = progress_of(record, now, is_newest=is_newest)
    if as_json:
        click.echo(json.dumps({**_short(record, progress), "status": now}))
        return
    why = f" ({record.reason})" if record.reason else ""
    far = f", {progress}" if progress.passes else ""
    click.echo(f"{record.name}: {record.state}{why}, started {_ago(record.started)} ago{far}")
    click.echo(f"output: {record.output}")
    from bireme.view.plain import number, pass_line

    # What this run says of its passes, and the models of those that runs before it did.
    closed = passes_in(Path(record.output)) if is_newest else {}
    closed |= {told["pass_id"]: told for told in now.get("passes_done", [])}
    for pass_id in sorted(closed):
        click.echo(pass_line(closed[pass_id]))
    if is_newest and _can_go_on(record, progress):
        click.echo(way_on(Path(record.output)))
    if record.state == "running":
        if now.get("waits_for"):
            click.echo(f"waits for {', '.join(now['waits_for'])}")
        for t in now.get("trainers", []):
            if "pass" in t:
                click.echo(
                    f"trainer {t['trainer']} (pid {t['pid']}): pass {t['pass']}, batch {t['batch']}/{t['batches']}, "
                    f"cost {number(t['cost'])}, {t['rate']:,.0f} samples/s"
                )


@click.command(epilog="\b\nExample: bireme logs quick-start --node 1 --role trainer -f")
@click.argument("job", required=False)
@click.option("--node", type=int, help="Only this node.")
@click.option("--role", type=click.Choice(["trainer", "pserver"]), help="Only this kind of process.")
@click.option("-f", "--follow", "is_following", is_flag=True, help="Keep printing what comes.")
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="Last lines of each file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(job: str | None, node: int | None, role: str | None, is_following: bool, lines: int, as_json: bool) -> None:
    """Print what JOB's processes have said."""
    record = registry.find_run(job)
    names = {"trainer": ["train.log"], "pserver": ["server.log"], None: ["train.log", "server.log"]}[role]
    pattern = "node_*" if node is None else f"node_{node}"
    files = [f for d in sorted(Path(record.output).glob(pattern)) for n in names if (f := d / n).is_file()]
    if not files:
        raise UsageError(
            f"{record.name} has no such log under {record.output}",
            fix="leave --node and --role out to see all",
        )
    for path, line in _lines(files, lines, is_following):
        who = f"{path.parent.name}/{path.name}"
        click.echo(json.dumps({"log": who, "line": line}) if as_json else f"{who}: {line}")


def _lines(files: list[Path], last: int, is_following: bool) -> Iterator[tuple[Path, str]]:
    places: dict[Path, int] = {}
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        places[path] = path.stat().st_size
        for line in text.splitlines()[-last:] if last else ():
            yield path, line
    while is_following:
        sys.stdout.flush()
        time.sleep(0.2)
        for path in files:
            with path.open("rb") as f:
                f.seek(places[path])
                new = f.read()
            whole, _, _ = new.rpartition(b"\n")
            places[path] += len(whole) + 1 if whole else 0
            for line in whole.decode(errors="replace").splitlines():
                yield path, line


@click.command(epilog="\b\nExample: bireme cancel quick-start")
@click.argument("job", required=False)
@click.option("--now", is_flag=True, help="Do not wait for a clean stop.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def cancel(job: str | None, now: bool, as_json: bool) -> None:
    """Stop JOB cleanly; finished passes stay."""
    record = registry.find_run(job)
    if record.state != "running":
        raise UsageError(f"{record.name} does not run: it is {record.state}")
    os.kill(record.pid, signal.SIGTERM)
    if now:
        os.kill(record.pid, signal.SIGINT)  # another one: two pending signals of one kind would count once
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and registry.find_run(record.id).state == "running":
        time.sleep(0.05)
    state = registry.find_run(record.id).state
    click.echo(json.dumps({"job": record.name, "state": state}) if as_json else f"{record.name}: {state}")
