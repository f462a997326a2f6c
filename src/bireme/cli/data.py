"""`bireme data`: cut training data into shards, and look it over before training.

Results go to stdout (one JSON object with --json); progress and warnings go to stderr, drawn on
a terminal and as a few plain lines anywhere else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.cluster import Where, cluster_options
from bireme.cli.push import push, split_there

if TYPE_CHECKING:
    from bireme.data.check import CheckReport
    from bireme.data.scan import Problem
    from bireme.data.split import SplitReport

Progress = Callable[[int, int], None]
_PLAIN_FROM_BYTES = 64 << 20
"""Piped, less than this is over before a line about it could be read."""

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@click.group()
def data() -> None:
    """Prepare training data: cut it into shards, check them, and bring them to a cluster."""


data.add_command(push)


@data.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--shards", type=click.IntRange(min=1), required=True, help="How many shards to make.")
@click.option("--out", "job", type=click.Path(path_type=Path), required=True, help="The job's directory.")
@click.option(
    "--on-volume",
    "job_file",
    metavar="JOB.yaml",
    type=Path,
    help="Split on the cluster: SOURCE and --out are then directories on this job's volume.",
)
@click.option("--image", help="With --on-volume: image instead of what the file says.")
@cluster_options
@_json_option
def split(
    source: Path, shards: int, job: Path, job_file: Path | None, image: str | None, where: Where, as_json: bool
) -> None:
    """Cut the data directory SOURCE into shards.

    The files that SOURCE/train.list names (train.txt without one) are cut by lines; everything
    else is copied to each shard. Nothing that exists is ever replaced.

    \b
    Example:
      bireme data split quick_start/data --shards 3 --out jobs/reviews
    makes jobs/reviews/0/data, 1/data, 2/data and jobs/reviews/shards.json.
    """
    from bireme.core.errors import UsageError
    from bireme.data.split import split_lines

    if job_file is not None:
        _tell_split(split_there(where, job_file, str(source), shards, str(job), image), as_json=as_json)
        return
    if where.is_asked or image is not None:
        raise UsageError("--context, --namespace and --image are for --on-volume JOB.yaml")
    with progress("splitting", as_json) as on_progress:
        report = split_lines(source, job, shards, on_progress=on_progress)
    if as_json:
        _print_json(report)
        return
    click.echo(_describe_split(report))
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)


def _tell_split(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(told))
        return
    click.echo(f"{_count(told['shards'], 'shard')} in {told['job']} on the volume: {sum(told['lines']):,} lines")
    for warning in told.get("warnings", ()):
        click.echo(f"warning: {warning}", err=True)


@data.command()
@click.argument("job", type=click.Path(path_type=Path))
@_json_option
def check(job: Path, as_json: bool) -> None:
    """Look over the shards in the directory JOB.

    Reads every file once and tells all that is wrong: encoding, labels, dictionaries, list files,
    empty shards, copies that differ, and changes since the split. Exits with 5 if training would fail.

    \b
    Example:
      bireme data check jobs/reviews
    """
    from bireme.core.errors import DataError
    from bireme.data.check import check_job

    with progress("checking", as_json) as on_progress:
        report = check_job(job, on_progress=on_progress)
    if as_json:
        _print_json(report, errors=report.errors, warnings=report.warnings)
    else:
        for line in _describe_check(report):
            click.echo(line)
    if report.errors and as_json:
        raise SystemExit(DataError.exit_code)
    if report.errors:
        raise DataError(
            f"{_count(report.errors, 'error')} in the shards of {job}",
            fix="mend what is listed on stdout, then check again",
        )


def _describe_split(report: SplitReport) -> str:
    low, high = min(report.lines), max(report.lines)
    each = f"{low:,}" if low == high else f"{low:,} or {high:,}"
    copied = f"; {_count(len(report.copied), 'other file')} copied to each" if report.copied else ""
    return (
        f"{_count(report.shards, 'shard')} in {report.job}: {sum(report.lines):,} lines of "
        f"{', '.join(report.split)}, {each} in each{copied}"
    )


def _describe_check(report: CheckReport) -> Iterator[str]:
    for shard in report.shards:
        size = f"{shard.nbytes:,} bytes in {_count(shard.files, 'file')}"
        yield f"shard {shard.shard}: {_count(shard.lines, 'training line')}, {size}"
    for problem in report.problems:
        yield from _describe_problem(problem)
    if not report.problems:
        yield "no problems"
    elif not report.errors:
        yield f"no errors, {_count(report.warnings, 'warning')}"


def _describe_problem(problem: Problem) -> Iterator[str]:
    where = ":".join(str(part) for part in (problem.file, problem.line) if part)
    yield f"{problem.severity}: {where + ': ' if where else ''}{problem.what}"
    yield f"  fix: {problem.fix}"
    if problem.more:
        yield f"  and {_count(problem.more, f'more {problem.severity}')} in this file"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _print_json(report: object, **more: int) -> None:
    import msgspec

    fields = msgspec.to_builtins(report, enc_hook=str)
    click.echo(json.dumps({**fields, **more}))


@contextmanager
def progress(doing: str, as_json: bool) -> Iterator[Progress | None]:
    """Lend a function to tell (bytes done, bytes in all) to."""
    if as_json:
        yield None
    elif not sys.stderr.isatty():
        yield _plain_progress(doing)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_progress(doing: str) -> Progress:
    quarters = 0

    def tell(done: int, total: int) -> None:
        nonlocal quarters
        reached = 4 * done // max(total, 1)
        if total >= _PLAIN_FROM_BYTES and quarters < reached < 4:
            quarters = reached
            click.echo(f"{doing}: {25 * reached} %", err=True)

    return tell
