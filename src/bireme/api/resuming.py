"""Resume a job on this machine: which one is meant, whether anything is left to do, and from which snapshot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bireme.api.local import running_in
from bireme.api.progress import job_in, progress_in, progress_of
from bireme.core.errors import OutputExistsError, SpecError, UsageError
from bireme.job.node.entry import read_job
from bireme.job.output import snapshots
from bireme.job.output.inputs import origin_of, refuse_changes
from bireme.job.output.manifest import Manifest
from bireme.job.output.model import pass_name
from bireme.job.preflight import check_program
from bireme.local import registry
from bireme.programs.program import Program
from bireme.ps.tree import share_out
from bireme.spec.job import Job
from bireme.spec.load import command_name, load_job


@dataclass(frozen=True, slots=True)
class Resumption:
    """A job that is ready to resume, or one that is finished."""

    output: Path
    job: Job
    program: Program | None = None
    """None where the job is finished."""
    notes: tuple[str, ...] = ()
    passes_done: int = 0

    @property
    def model(self) -> Path:
        return self.output / pass_name(self.passes_done - 1)


def prepare(
    name: str | None, changes: Mapping[str, Any], job_file: Path | None, *, accepts_changes: bool
) -> Resumption:
    """What to run to resume a job, from its newest snapshot; `job_file` says where its program and data are by now."""
    changes = dict(changes)
    if job_file is not None:
        there = load_job(job_file, {})
        changes |= {"config": there.config, "data": there.data}
    output = find_output(name)
    _refuse_running(output)
    job = job_to_resume(output, changes)
    progress, asked = progress_in(output, job), changes.get("passes")
    if asked and progress.done == progress.passes < job.passes:
        job, progress = msgspec.structs.replace(job, stop_after=0), progress._replace(passes=job.passes)
    done = progress.done
    if done >= progress.passes:
        if asked is not None and asked < done:
            fix = f"the model of that pass is {output / pass_name(asked - 1)}; ask for more than {done} to continue"
            raise SpecError(f"--passes {asked}, but the job in {output} has done {done} passes already", fix=fix)
        return Resumption(output, job, passes_done=done)
    share_out(job.shards, job.trainers)
    program = check_program(job)
    base, remarks = find_base(job)
    if not accepts_changes:
        refuse_changes(job, base, origin_of(job, program))
    if base is not None:
        # Where the job began is in the snapshot; without one it begins there once more.
        start = {"start_pass": 0, "init_model": "", "is_resumed": True, "accepts_changes": accepts_changes}
        job = msgspec.structs.replace(job, **start)
    notes = (*remarks, *moved_note(output, job, changes), describe_start(base)) if base or not done else ()
    return Resumption(output, job, program, notes, done)


def names_local_job(name: str | None) -> bool:
    """Whether `find_output` may find it; `where.is_here` does not take an output that was copied here."""
    return name is None or Path(name).exists() or any(name in (r.name, r.id) for r in registry.newest_runs())


def moved_note(place: Path, job: Job, changes: dict[str, Any]) -> list[str]:
    """Where the program and the data are that a copied or moved output uses."""
    made_in = Path(read_job(place / "job.json").output)
    if "config" in changes or made_in.resolve() == place.resolve():
        return []
    where = f"its program is still {job.config}, its data {job.data}"
    return [f"this output was made in {made_in}: {where} (--job JOB.yaml names others)"]


def find_output(name: str | None) -> Path:
    """The output directory that is meant by a path, a job's name, a run's id, or nothing: the newest unfinished job."""
    if name is None:
        for record in registry.newest_runs():
            if _is_unfinished(record):
                return Path(record.output)
        raise UsageError("no job on this machine waits to be resumed", fix=f"`{command_name()} list` shows all jobs")
    path = Path(name)
    if (path / "job.json").is_file():
        return path
    # A directory that is no output, such as the job's own, must not hide a job of its name.
    if known := [r for r in registry.newest_runs() if name in (r.name, r.id)]:
        unfinished = [r.output for r in known if _is_unfinished(r)]
        return Path((unfinished or [known[0].output])[0])
    if not path.exists():
        fix = f"name an output directory, or a job that `{command_name()} list` shows"
        raise UsageError(f"there is neither a directory nor a job {name!r} on this machine", fix=fix)
    below = path / "output"
    fix = f"did you mean {below}?" if (below / "job.json").is_file() else "name the directory with pass-00000"
    raise SpecError(f"{name} is not a job's output: there is no {path / 'job.json'}", fix=fix)


def _refuse_running(output: Path) -> None:
    if (record := running_in(output)) is not None:
        fix = f"`{command_name()} status {record.id}` shows its state, `{command_name()} cancel` stops it"
        raise OutputExistsError(f"{output} belongs to a job that runs now (process {record.pid})", fix=fix)


def _is_unfinished(record: registry.RunRecord) -> bool:
    if record.state == "running" or job_in(Path(record.output)) is None:
        return False
    progress = progress_of(record, record.status)
    return progress.done < progress.passes


def job_to_resume(output: Path, changes: dict[str, Any]) -> Job:
    """The job of an output directory, which may have been moved, with changes."""
    job = msgspec.structs.replace(read_job(output / "job.json"), output=str(output.absolute()), **changes)
    for what, path in (("program", job.config), ("data", job.data)):
        if not Path(path).exists():
            fix = f"`{command_name()} resume {output} --job JOB.yaml` names the file of a job that was moved"
            raise SpecError(f"the job's {what} is not where it was: there is no {path}", fix=fix)
    settings = msgspec.structs.replace(job.snapshots, path=str(output.absolute() / "snapshots"))
    # A job that was brought here from a cluster finds its pservers on this machine.
    tls = job.tls if job.tls and Path(job.tls).is_dir() else ""
    return msgspec.structs.replace(job, snapshots=settings, hosts=(), tls=tls)


def find_base(job: Job) -> tuple[Manifest | None, list[str]]:
    """The snapshot to resume from, None where there is none yet, and remarks on newer ones that cannot be used."""
    place = Path(job.snapshots.path)
    if not any(place.glob("*/manifest.json")):
        return None, []
    base, problems = snapshots.load_newest(place, None)
    return base, [f"the snapshot {problem.name} cannot be used: {problem.what}" for problem in problems]


def describe_start(base: Manifest | None) -> str:
    if base is None:
        return "no snapshot yet: from the beginning"
    made, today = time.localtime(base.created), time.localtime()
    when = time.strftime("%H:%M:%S" if made[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", made)
    return f"resuming from round {base.round}, batch {base.batch} of pass {base.pass_id} (snapshot of {when})"
