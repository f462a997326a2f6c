"""`bireme data`: cut training data into shards, check it before training, and bring it to a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.api.where import Where
from bireme.cli.options import cluster_options, image_option, job_file_argument, json_option
from bireme.cli.output import emit, note, progress
from bireme.core.errors import DataError, UsageError
from bireme.view.plain import count

if TYPE_CHECKING:
    from bireme.data.check import CheckReport
    from bireme.data.scan import Problem
    from bireme.data.split import SplitReport


@click.group()
def data() -> None:
    """Prepare training data: cut it into shards, check them, and bring them to a cluster."""


@data.command(epilog="\b\nExample: bireme data push first-job/job.yaml --image registry.local/bireme:1")
@job_file_argument
@click.option("--from", "source", type=Path, help="Another directory than the job's shards: all that is in it.")
@click.option("--to", "target", help="Where it goes with --from, relative to the job's directory on the volume.")
@image_option
@cluster_options
@json_option
def push(
    job_file: Path, source: Path | None, target: str | None, image: str | None, where: Where, as_json: bool
) -> None:
    """Bring the shards of the job described in JOB.yaml onto its volume.

    The volume claim is made if there is none. Every byte is checked; what is there already is not sent again, and a
    transfer that was broken off resumes.
    """
    with progress("pushing", as_json) as on_progress:
        done = where.backend().push(job_file, source, target, image, on_progress)
    sent = f"{done['files'] - done['skipped']} files, {done['nbytes']:,} bytes to {done['to']} on the volume"
    emit(done, f"{sent}; {done['skipped']} were there already", as_json=as_json)


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
@click.option("--image", help="With --on-volume: image instead of that in the file.")
@cluster_options
@json_option
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
    if job_file is not None:
        done = where.backend().split(job_file, str(source), shards, str(job), image, note)
        line = f"{count(done['shards'], 'shard')} in {done['job']} on the volume: {sum(done['lines']):,} lines"
    else:
        if where.is_asked or image is not None:
            raise UsageError("--context, --namespace and --image are for --on-volume JOB.yaml")
        from bireme.data.split import split_lines

        with progress("splitting", as_json) as on_progress:
            report = split_lines(source, job, shards, on_progress=on_progress)
        done, line = _plain(report), _describe_split(report)
    emit(done, line, as_json=as_json)
    for warning in () if as_json else done.get("warnings", ()):
        note(f"warning: {warning}")


@data.command()
@click.argument("job", type=click.Path(path_type=Path))
@json_option
def check(job: Path, as_json: bool) -> None:
    """Look over the shards in the directory JOB.

    Reads every file once and reports all that is wrong: encoding, labels, dictionaries, list files,
    empty shards, copies that differ, and changes since the split. Exits with 5 if training would fail.

    \b
    Example:
      bireme data check jobs/reviews
    """
    from bireme.data.check import check_job

    with progress("checking", as_json) as on_progress:
        report = check_job(job, on_progress=on_progress)
    value = {**_plain(report), "errors": report.errors, "warnings": report.warnings}
    found = f"{count(report.errors, 'error')} in the shards of {job}"
    error = DataError(found, fix="correct what is listed, then check again") if report.errors else None
    emit(value, _describe_check(report), as_json=as_json, error=error)


def _describe_split(report: SplitReport) -> str:
    low, high = min(report.lines), max(report.lines)
    each = f"{low:,}" if low == high else f"{low:,} or {high:,}"
    copied = f"; {count(len(report.copied), 'other file')} copied to each" if report.copied else ""
    lines = f"{sum(report.lines):,} lines of {', '.join(report.split)}, {each} in each"
    return f"{count(report.shards, 'shard')} in {report.job}: {lines}{copied}"


def _describe_check(report: CheckReport) -> Iterator[str]:
    for shard in report.shards:
        size = f"{shard.nbytes:,} bytes in {count(shard.files, 'file')}"
        yield f"shard {shard.shard}: {count(shard.lines, 'training line')}, {size}"
    for problem in report.problems:
        yield from _describe_problem(problem)
    if not report.problems:
        yield "no problems"
    elif not report.errors:
        yield f"no errors, {count(report.warnings, 'warning')}"


def _describe_problem(problem: Problem) -> Iterator[str]:
    where = ":".join(str(part) for part in (problem.file, problem.line) if part)
    yield f"{problem.severity}: {where + ': ' if where else ''}{problem.what}"
    yield f"  fix: {problem.fix}"
    if problem.more:
        yield f"  and {count(problem.more, f'more {problem.severity}')} in this file"


def _plain(report: object) -> dict[str, Any]:
    import msgspec

    return dict(msgspec.to_builtins(report, enc_hook=str))
