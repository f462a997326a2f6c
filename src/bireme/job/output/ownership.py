"""Ownership of an output directory: `job.json` in it names the one job that may write there.

On this machine the runner writes it before it starts the nodes. On a cluster no process is above the nodes: the node of
pserver 0 writes it, the others wait until `job.json` holds the job that they were started with. A restarted node finds
it there and resumes. Another job is refused where it would mix two runs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.errors import OutputExistsError, SpecError
from bireme.core.files import make_directory, write_atomic
from bireme.core.text import LISTED_CHANGES, first_of
from bireme.job.node import incarnations
from bireme.job.node.entry import read_job
from bireme.job.node.failure_reports import STATUS_FILE, last_status
from bireme.job.output.data_hash import check_shards, data_fingerprint
from bireme.spec.job import Job
from bireme.spec.load import command_name

JOB_FILE = "job.json"
RUN_DIRECTORY = "run"
"""In the output tree of a job on a cluster: files of discovery, failure reports and leases."""
_FILLED_IN = ("data_fingerprint", "run_incarnation", "init_model", "is_resumed", "accepts_changes")
"""Fields that settling fills in; they do not make it another job."""
_LAYOUT = frozenset({
    "passes", "pservers", "trainers", "hosts", "port", "ports_num", "ports_num_for_sparse", "tls", "carrier", "faults",
    "connect_timeout_s", "log_period", "logs", "restarts", "snapshots", "accepts_changes", "stop_after", "keep",
})  # fmt: skip
"""Fields that may change when a job is resumed: the result of a pass does not depend on them."""
_ELSEWHERE = "set another `output` in job.yaml and submit it again with `--replace`"


def job_file(job: Job) -> Path:
    return Path(job.output) / JOB_FILE


def write_job(job: Job) -> Path:
    path = job_file(job)
    write_atomic(path, msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n")
    return path


def check_output(job: Job) -> Job:
    """Refuse to mix two runs in one directory; continuing after a finished pass is the exception."""
    output = Path(job.output)
    if job.is_resumed:
        return job
    passes = sorted(p.name for p in output.iterdir() if re.fullmatch(r"pass-\d{5}", p.name))
    if job.start_pass > 0:
        return _continued(job, output, passes)
    if passes or _has_snapshot(output):
        how_far = f"up to {passes[-1]}" if passes else "that was stopped in its first pass"
        raise OutputExistsError(
            f"{output} already holds a run {how_far}",
            why="a new run would mix its logs and models with the old ones",
            fix=_ways_out(job, output, int(passes[-1][5:10]) + 1 if passes else 0),
        )
    return job


def _has_snapshot(output: Path) -> bool:
    return any((output / "snapshots").glob("*/manifest.json"))


def _ways_out(job: Job, output: Path, next_pass: int) -> str:
    """The fix for training into a directory whose passes are done up to `next_pass`."""
    elsewhere = "give another directory with `--output DIR`"
    if _has_snapshot(output):
        resume = f"{command_name()} resume {output}"
        if next_pass >= job.passes:
            return f"train more passes with `{resume} --passes N`, or {elsewhere}"
        has_grown = read_job(output / JOB_FILE).passes != job.passes
        exact = f"{resume} --passes {job.passes}" if has_grown else resume
        return f"continue with `{exact}`, as if it had never stopped (`--passes N` for more passes), or {elsewhere}"
    if next_pass >= job.passes:
        return elsewhere
    fresh = "which starts with fresh optimizer state, so that the bits differ"
    return f"{elsewhere}, or continue with `{command_name()} train JOB.yaml --start-pass {next_pass}`, {fresh}"


def _continued(job: Job, output: Path, passes: list[str]) -> Job:
    from bireme.job.output.model import pass_name

    model = output / pass_name(job.start_pass - 1)
    if not (model / "done").is_file():
        what = f"--start-pass {job.start_pass} needs the model {model}, which is not there"
        raise SpecError(what, fix="start from 0")
    if job.start_pass >= job.passes:
        what = f"--start-pass {job.start_pass}, but the job has only passes 0 to {job.passes - 1}"
        raise SpecError(what, fix="raise --passes")
    later = [p for p in passes if p > model.name]
    if later:
        fix = f"use --start-pass {int(later[-1][5:10]) + 1}, or move it away"
        raise OutputExistsError(f"{output / later[0]} exists already", fix=fix)
    return msgspec.structs.replace(job, init_model=str(model))


def claim(submitted: Job) -> Job:
    """Settle this node's job for all nodes; returns the job in `job.json`.

    The same job again keeps the settled one: its pods were replaced, or it was deleted and submitted again. A failed
    run restarts from its newest snapshot; a finished one stays finished.
    """
    output, data = Path(submitted.output), Path(submitted.data)
    resume = f"{command_name()} resume {submitted.name}"
    check_shards(data, submitted.shards, f"put the shards there: `{command_name()} data push` does, then `{resume}`")
    make_directory(output)
    fingerprint = data_fingerprint(data, submitted.shards)
    settled = settled_job(submitted)
    if settled is not None and settled.data_fingerprint == fingerprint:
        if last_status(output).phase in ("failed", "cancelled"):
            (output / STATUS_FILE).unlink(missing_ok=True)
        return settled
    # Resumed before its first snapshot, the job starts from the beginning.
    is_resumed = submitted.is_resumed and (_has_snapshot(output) or any(output.glob("pass-*")))
    try:
        job = check_output(msgspec.structs.replace(submitted, is_resumed=is_resumed))
    except OutputExistsError as e:
        raise (_of_another_job(submitted, e) if settled is None else _on_other_data(submitted, e)) from e
    # A number of the run's own: what carries a lower one (snapshots, coordinators) is of earlier runs.
    run_incarnation = incarnations.take(output, "runner")
    job = msgspec.structs.replace(job, data_fingerprint=fingerprint, run_incarnation=run_incarnation)
    for part in ("meet", "reports", "fired"):  # left by earlier runs
        shutil.rmtree(output / RUN_DIRECTORY / part, ignore_errors=True)
        (output / RUN_DIRECTORY / part).mkdir(parents=True, exist_ok=True)
    (output / STATUS_FILE).unlink(missing_ok=True)
    write_job(job)
    return job


def _on_other_data(submitted: Job, refusal: OutputExistsError) -> OutputExistsError:
    resume = f"`{command_name()} resume {submitted.name}"
    ways = [f"put the data back as they were and continue with {resume}`"]
    if _has_snapshot(Path(submitted.output)):
        ways.append(f"continue with the new ones with {resume} --accept-changes`")
    fix = "; or ".join([*ways, _ELSEWHERE])
    return OutputExistsError(f"{refusal.what} on other data", why=refusal.why, fix=fix)


def _of_another_job(submitted: Job, refusal: OutputExistsError) -> OutputExistsError:
    """The refusal of another job; it must not offer to resume the given one, which would be refused again."""
    output, there, changes = Path(submitted.output), _job_there(submitted), []
    if there is not None:
        was, is_ = (msgspec.to_builtins(job) for job in (_as_submitted(there, submitted), submitted))
        if (there.pservers, there.trainers) != (submitted.pservers, submitted.trainers):
            is_["hosts"] = was["hosts"]  # which follow from these
        changes = list(changed("", was, is_))
    differs = first_of(changes, LISTED_CHANGES, "; ") or "it was begun by another version of bireme"
    ways = [_ELSEWHERE]
    if changes:
        ways.append("submit it as it was, with `--replace` too")
    done = max((int(p.name[5:]) + 1 for p in output.glob("pass-[0-9][0-9][0-9][0-9][0-9]")), default=0)
    is_other_layout = bool(changes) and all(re.split(r"[. ]", each)[0] in _LAYOUT for each in changes)
    if is_other_layout and _has_snapshot(output) and done < submitted.passes:
        # (`--passes`, even with the present number, names the run in the directory rather than the given job.)
        ways.insert(
            0, f"continue from there with `{command_name()} resume {submitted.name} --passes {submitted.passes}`"
        )
    why = f"{differs}; {refusal.why}"
    return OutputExistsError(f"{refusal.what} of another job", why=why, fix="; or ".join(ways))


def changed(at: str, was: Any, is_: Any) -> Iterator[str]:
    """Describe where two plain values differ, key by key."""
    if isinstance(was, Mapping) and isinstance(is_, Mapping):
        for key in {**was, **is_}:
            yield from changed(f"{at}.{key}" if at else str(key), was.get(key), is_.get(key))
    elif was != is_:
        yield f"{at} {was} → {is_}"


def _as_submitted(job: Job, submitted: Job) -> Job:
    return msgspec.structs.replace(job, **{name: getattr(submitted, name) for name in _FILLED_IN})


def _job_there(submitted: Job) -> Job | None:
    """The last settled job of an output directory; None if there is none that can be read."""
    path = job_file(submitted)
    try:
        return read_job(path) if path.is_file() else None
    except SpecError:
        return None  # another bireme has written it


def settled_job(submitted: Job) -> Job | None:
    """The job as settled for all nodes, if it is this node's; None: not yet."""
    job = _job_there(submitted)
    if job is None or _as_submitted(job, submitted) != submitted:
        return None
    # Accepted changes stay accepted; accepting them now needs a job.json that says so.
    return None if submitted.accepts_changes and not job.accepts_changes else job


def ready_job(submitted: Job) -> list[Job]:
    """The job to start a node's processes for, in a list; empty while it is not settled, or has failed."""
    settled = settled_job(submitted)
    has_failed = last_status(Path(submitted.output)).phase in ("failed", "cancelled")
    return [] if settled is None or has_failed else [settled]
