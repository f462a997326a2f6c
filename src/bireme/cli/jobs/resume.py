"""`bireme resume`: go on with a job that was stopped or died, from its newest snapshot."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bireme.api.progress import Progress, job_in, progress_in, progress_of
from bireme.api.where import Where, has_cluster
from bireme.cli.jobs.running import finish
from bireme.cli.options import either_options
from bireme.core.errors import OutputExistsError, SpecError, UsageError
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.job.output.manifest import Manifest
    from bireme.spec.job import Job


@click.command(epilog="\b\nExample: bireme resume first-job/output --trainers 1")
@click.argument("output", metavar="[OUTPUT]", required=False)
@click.option("--trainers", type=click.IntRange(1), help="Trainers instead of as many as before.")
@click.option("--pservers", type=click.IntRange(1), help="Pservers instead of as many as before.")
@click.option("--ports-num", type=click.IntRange(1, 64), help="Dense lanes of each pserver.")
@click.option("--ports-num-for-sparse", type=click.IntRange(1, 64), help="Sparse lanes of each pserver.")
@click.option("--passes", type=click.IntRange(1), help="Passes over the data, counted from the first.")
@click.option("--job", "job_file", metavar="JOB.yaml", type=Path, help="Where its program and data are by now.")
@click.option("--accept-changes", is_flag=True, help="Go on even if the program, the data or its rules have changed.")
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def resume(
    output: str | None, job_file: Path | None, accept_changes: bool, where: Where, as_json: bool, **overrides: Any
) -> None:
    """Go on with a job from its newest snapshot.

    OUTPUT is the job's output directory, its name or a run's id; left out, the newest job on this machine that is
    not finished. It ends with the same bits as if it had never stopped, also with other numbers of trainers,
    pservers and lanes, except in the modes `bounded` and `async`. A job that was moved, also to another machine, is
    told by --job where its program and its data are. A name that no job on this machine has is looked for on the
    cluster: there a stopped job goes on, and one that has ended is started again.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    if _is_elsewhere(output, where):
        if job_file is not None:
            raise UsageError("--job is for jobs on this machine", fix=f"`{command_name()} submit {job_file}` instead")
        from bireme.cli.jobs.cluster_jobs import resume_there

        changes = given | ({"accepts_changes": True} if accept_changes else {})
        with where.connect() as cluster:
            resume_there(cluster, str(output), changes, as_json=as_json)
        return
    _resume_here(output, given | _moved(job_file), accept_changes=accept_changes, as_json=as_json)


def _moved(job_file: Path | None) -> dict[str, Any]:
    """Where a job's program and data are, from its file."""
    from bireme.spec.load import load_job

    if job_file is None:
        return {}
    job = load_job(job_file, {})
    return {"config": job.config, "data": job.data}


def _is_elsewhere(given: str | None, where: Where) -> bool:
    """Whether a job on a cluster is meant: asked for, or known neither as a directory nor as a job here."""
    from bireme.local import registry

    if where.is_asked:
        if given is None:
            raise UsageError("which job?", fix="name it; `bireme list` shows the jobs on the cluster too")
        return True
    if given is None or Path(given).exists() or not has_cluster():
        return False
    return not any(given in (r.name, r.id) for r in registry.newest_runs())


def _resume_here(output: str | None, given: dict[str, Any], *, accept_changes: bool, as_json: bool) -> None:
    from bireme.job.output.inputs import origin_of, refuse_changes
    from bireme.job.preflight import check_program
    from bireme.ps.tree import share_out

    place = find_output(output)
    _refuse_running(place)
    job = job_to_resume(place, given)
    progress = progress_in(place, job)
    if given.get("passes") and progress.done == progress.passes < job.passes:
        job, progress = msgspec.structs.replace(job, stop_after=0), progress._replace(passes=job.passes)
    if progress.done >= progress.passes:
        tell_finished(place, job, progress, asked=given.get("passes"), as_json=as_json)
        return
    share_out(job.shards, job.trainers)
    program = check_program(job)
    base, remarks = find_base(job)
    if not accept_changes:
        refuse_changes(job, base, origin_of(job, program))
    if base is not None:
        # Where the job began is in the snapshot; without one it begins there once more.
        start = {"start_pass": 0, "init_model": "", "is_resumed": True, "accepts_changes": accept_changes}
        job = msgspec.structs.replace(job, **start)
    if not as_json and (base is not None or not progress.done):
        for line in [*remarks, *copied_words(place, job, given), describe_start(base)]:
            click.echo(line)
    finish(job, str(place), as_json=as_json, program=program)


def copied_words(place: Path, job: Job, given: dict[str, Any]) -> list[str]:
    """Say whose program and data are used where an output was copied or moved."""
    from bireme.job.node.entry import read_job

    made_in = Path(read_job(place / "job.json").output)
    if "config" in given or made_in.resolve() == place.resolve():
        return []
    where = f"its program is still {job.config}, its data {job.data}"
    return [f"this output was made in {made_in}: {where} (--job JOB.yaml names others)"]


def find_output(given: str | None) -> Path:
    """The output directory that is meant by a path, a job's name, a run's id, or nothing."""
    from bireme.local import registry

    if given is None:
        return _newest_unfinished()
    path = Path(given)
    if (path / "job.json").is_file():
        return path
    if not path.exists():
        known = [r for r in registry.newest_runs() if given in (r.name, r.id)]
        if not known:
            fix = f"name an output directory, or a job that `{command_name()} list` shows"
            raise UsageError(f"there is neither a directory nor a job {given!r} on this machine", fix=fix)
        unfinished = [r.output for r in known if _is_unfinished(r)]
        return Path((unfinished or [known[0].output])[0])
    hint = path / "output"
    is_above = (hint / "job.json").is_file()
    fix = f"did you mean {hint}?" if is_above else "name the directory with pass-00000"
    raise SpecError(f"{given} is not a job's output: there is no {path / 'job.json'}", fix=fix)


def _newest_unfinished() -> Path:
    from bireme.local import registry

    for record in registry.newest_runs():
        if _is_unfinished(record):
            return Path(record.output)
    raise UsageError("no job on this machine waits to be resumed", fix=f"`{command_name()} list` shows all jobs")


def _refuse_running(output: Path) -> None:
    from bireme.local import registry

    for record in registry.newest_runs():
        if record.state == "running" and record.output == str(output.absolute()):
            fix = f"`{command_name()} status {record.id}` tells how it is doing, `{command_name()} cancel` stops it"
            raise OutputExistsError(f"{output} belongs to a job that runs now (process {record.pid})", fix=fix)


def _is_unfinished(record: Any) -> bool:
    if record.state == "running" or job_in(Path(record.output)) is None:
        return False
    done, passes = progress_of(record, record.status)
    return done < passes


def job_to_resume(output: Path, changes: dict[str, Any]) -> Job:
    """The job of an output directory, which may have been moved, with what the command line changes."""
    from bireme.job.node.entry import read_job

    job = msgspec.structs.replace(read_job(output / "job.json"), output=str(output.absolute()), **changes)
    for what, path in (("program", job.config), ("data", job.data)):
        if not Path(path).exists():
            fix = f"`{command_name()} resume {output} --job JOB.yaml` names the file of a job that was moved"
            raise SpecError(f"the job's {what} is not where it was: there is no {path}", fix=fix)
    snapshots = msgspec.structs.replace(job.snapshots, path=str(output.absolute() / "snapshots"))
    # A job that was brought here from a cluster finds its pservers on this machine.
    tls = job.tls if job.tls and Path(job.tls).is_dir() else ""
    return msgspec.structs.replace(job, snapshots=snapshots, hosts=(), tls=tls)


def tell_finished(output: Path, job: Job, progress: Progress, *, asked: int | None, as_json: bool) -> None:
    """Say that there is nothing to do; asking for fewer passes than there are is a mistake."""
    from bireme.job.output.model import model_hash, pass_name

    done = progress.done
    if asked is not None and asked < done:
        fix = f"the model of that pass is {output / pass_name(asked - 1)}; ask for more than {done} to go on"
        raise SpecError(f"--passes {asked}, but the job in {output} has done {done} passes already", fix=fix)
    model = output / pass_name(done - 1)
    told = {"job": job.name, "output": job.output, "model": str(model), "hash": model_hash(model), "passes": done}
    if as_json:
        click.echo(json.dumps({**told, "phase": "finished", "resumed": False}))
        return
    click.echo(f"already finished, {'its one pass' if done == 1 else f'all {done} passes'}: the model is in {model}")
    click.echo(f"hash: {told['hash']}")
    click.echo(f"for more passes: `{command_name()} resume {output} --passes N`")


def find_base(job: Job) -> tuple[Manifest | None, list[str]]:
    """The snapshot to go on from, None where there is none yet, and remarks on newer ones that cannot be used."""
    from bireme.job.output import snapshots

    place = Path(job.snapshots.path)
    if not any(place.glob("*/manifest.json")):
        return None, []
    base, problems = snapshots.load_newest(place, None)
    return base, [f"the snapshot {problem.name} cannot be used: {problem.what}" for problem in problems]


def describe_start(base: Manifest | None) -> str:
    """From where the job goes on."""
    if base is None:
        return "no snapshot yet: from the beginning"
    made, today = time.localtime(base.created), time.localtime()
    when = time.strftime("%H:%M:%S" if made[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", made)
    return f"going on from round {base.round}, batch {base.batch} of pass {base.pass_id} (snapshot of {when})"
