"""Whose an output directory is: the file `job.json` in it says which job may write there, settled for all processes.

A run on this machine has a runner that settles the job and starts everybody. On a cluster nobody stands above the
nodes: the one that runs pserver 0 settles it, the others wait until `job.json` holds the job that they were given
too. A node that comes back finds it there and goes on. Another job is refused where it would mix two runs.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec

from bireme.core.errors import OutputExistsError, SpecError
from bireme.core.files import storage_errors, write_atomic
from bireme.job import incarnations
from bireme.job.entry import read_job
from bireme.job.reports import STATUS_FILE, last_status
from bireme.job.shardprint import check_shards, data_fingerprint
from bireme.spec.job import Job
from bireme.spec.load import command_name

JOB_FILE = "job.json"
RUN_DIRECTORY = "run"
"""In the output tree of a job on a cluster: where its nodes meet, report and count their lives."""


def job_file(job: Job) -> Path:
    """Where a job's processes read it."""
    return Path(job.output) / JOB_FILE


def write_job(job: Job) -> Path:
    """Leave the job where all its processes read it."""
    path = job_file(job)
    write_atomic(path, msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n")
    return path


def check_output(job: Job) -> Job:
    """Refuse to mix two runs in one directory; going on from a finished pass is the exception."""
    output = Path(job.output)
    if job.is_resumed:
        return job
    passes = sorted(p.name for p in output.iterdir() if re.fullmatch(r"pass-\d{5}", p.name))
    if job.start_pass == 0:
        if passes or _has_snapshot(output):
            how_far = f"up to {passes[-1]}" if passes else "that was stopped in its first pass"
            raise OutputExistsError(
                f"{output} already holds a run {how_far}",
                why="a new run would mix its logs and models with the old ones",
                fix=_ways_out(job, output, int(passes[-1][5:10]) + 1 if passes else 0),
            )
        return job
    return _go_on(job, output, passes)


def _has_snapshot(output: Path) -> bool:
    return any((output / "snapshots").glob("*/manifest.json"))


def _ways_out(job: Job, output: Path, next_pass: int) -> str:
    """What to do instead of training into a directory whose passes are done up to `next_pass`."""
    elsewhere = "give another directory with `--output DIR`"
    if _has_snapshot(output):
        resume = f"{command_name()} resume {output}"
        if next_pass >= job.passes:
            return f"train more passes with `{resume} --passes N`, or {elsewhere}"
        has_grown = read_job(output / JOB_FILE).passes != job.passes
        exact = f"{resume} --passes {job.passes}" if has_grown else resume
        return f"go on with `{exact}`, as if it had never stopped (`--passes N` for more passes), or {elsewhere}"
    if next_pass >= job.passes:
        return elsewhere
    fresh = "which starts with fresh optimizer state, so that the bits differ"
    return f"{elsewhere}, or go on with `{command_name()} train JOB.yaml --start-pass {next_pass}`, {fresh}"


def _go_on(job: Job, output: Path, passes: list[str]) -> Job:
    from bireme.job.model import pass_name

    model = output / pass_name(job.start_pass - 1)
    if not (model / "done").is_file():
        raise SpecError(
            f"--start-pass {job.start_pass} needs the model {model}, which is not there", fix="start from 0"
        )
    if job.start_pass >= job.passes:
        raise SpecError(
            f"--start-pass {job.start_pass}, but the job has only passes 0 to {job.passes - 1}",
            fix="raise --passes",
        )
    later = [p for p in passes if p > model.name]
    if later:
        raise OutputExistsError(
            f"{output / later[0]} exists already",
            fix=f"use --start-pass {int(later[-1][5:10]) + 1}, or move it away",
        )
    return msgspec.structs.replace(job, init_model=str(model))


def claim(given: Job) -> Job:
    """Settle a job that this node was given, for all nodes; returns the job as it stands in `job.json`.

    The same job again goes on with what is there: its pods were replaced, or it was taken off the cluster and put
    back. A run that failed is begun again from its newest snapshot; one that is finished stays so.
    """
    output, data = Path(given.output), Path(given.data)
    check_shards(data, given.shards, f"put the shards there: `{command_name()} data push` does")
    with storage_errors(str(output)):
        output.mkdir(parents=True, exist_ok=True)
    fingerprint = data_fingerprint(data, given.shards)
    settled = settled_job(given)
    if settled is not None and settled.data_fingerprint == fingerprint:
        if last_status(output).get("phase") in ("failed", "cancelled"):
            (output / STATUS_FILE).unlink(missing_ok=True)
        return settled
    # Resumed before its first snapshot, it begins at the beginning.
    is_resumed = given.is_resumed and (_has_snapshot(output) or any(output.glob("pass-*")))
    try:
        job = check_output(msgspec.structs.replace(given, is_resumed=is_resumed))
    except OutputExistsError as e:
        whose = "on other data" if settled is not None else "of another job"
        fix = f"go on with `{command_name()} resume {given.name}`, or set another `output` in job.yaml"
        raise OutputExistsError(f"{e.what} {whose}", why=e.why, fix=fix) from e
    since = incarnations.take(output, "runner")
    job = msgspec.structs.replace(job, data_fingerprint=fingerprint, since=since)
    for part in ("meet", "reports", "fired"):  # of whatever ran here before
        shutil.rmtree(output / RUN_DIRECTORY / part, ignore_errors=True)
        (output / RUN_DIRECTORY / part).mkdir(parents=True, exist_ok=True)
    (output / STATUS_FILE).unlink(missing_ok=True)
    write_job(job)
    return job


def settled_job(given: Job) -> Job | None:
    """The job as it was settled for all nodes, if it is the one that this node was given; None: not yet."""
    path = job_file(given)
    if not path.is_file():
        return None
    try:
        job = read_job(path)
    except SpecError:
        return None  # another bireme has written it
    filled_in = ("data_fingerprint", "since", "init_model", "is_resumed")
    as_given = msgspec.structs.replace(job, **{name: getattr(given, name) for name in filled_in})
    return job if as_given == given else None


def ready_job(given: Job) -> list[Job]:
    """The job that a node's processes may be started for, in a list; empty while it is not settled, or has failed."""
    settled = settled_job(given)
    has_failed = last_status(Path(given.output)).get("phase") in ("failed", "cancelled")
    return [] if settled is None or has_failed else [settled]
