"""`bireme train | resume`: run a job here in the foreground, from its start or from its newest snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bireme.api.where import Where, has_cluster
from bireme.cli.options import either_options, job_file_argument, json_option, overrides
from bireme.cli.output import emit
from bireme.core.errors import SpecError, UsageError
from bireme.spec.load import command_name, load_job

if TYPE_CHECKING:
    from bireme.api.resuming import Resumption
    from bireme.programs.program import Program
    from bireme.spec.job import Job


@click.command(epilog="\b\nExample: bireme demo --prepare first-job && bireme train first-job/job.yaml --trainers 2")
@job_file_argument
@overrides
@click.option("--output", type=Path, help="Where logs and models go.")
@click.option(
    "--start-pass",
    type=click.IntRange(0),
    default=0,
    help="Continue from the model of the pass before this one, with fresh optimizer state, so the bits differ.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing.")
@click.option("--overrides", "overriding", default="{}", hidden=True)  # from Python: values for any key, as JSON
@json_option
def train(job_file: Path, start_pass: int, dry_run: bool, overriding: str, as_json: bool, **changes: Any) -> None:
    """Train the job described in JOB.yaml with processes on this machine.

    The model of each pass is left in OUTPUT/pass-00000, OUTPUT/pass-00001, and so on. The result is
    the same bits for every number of trainers, pservers and lanes, except in the modes `bounded` and `async`.
    """
    if job_file.suffix == ".py" and job_file.is_file():
        wanted = f"name a job.yaml whose `program.config` is {job_file.name}"
        fix = f"{wanted}; `bireme demo --prepare DIR` writes an example"
        raise SpecError(f"{job_file} is a config, not a job.yaml", fix=fix)
    flags = {key: value for key, value in changes.items() if value is not None}
    try:
        overrides = msgspec.json.decode(overriding, type=dict[str, Any])
    except msgspec.MsgspecError as e:
        raise UsageError(f"--overrides is not a JSON object: {e}") from e
    job = load_job(job_file, overrides | flags)
    job = msgspec.structs.replace(job, start_pass=start_pass)
    if dry_run:
        from bireme.job.planning import describe
        from bireme.view.plain import plan_lines

        plan = describe(job)
        emit(plan, plan_lines(plan), as_json=as_json)
        return
    _run(job, job_file, as_json=as_json)


def _run(job: Job, source: Path, *, program: Program | None = None, as_json: bool) -> None:
    from bireme.api.foreground import run_to_end

    finished = run_to_end(job, str(source), is_silent=as_json, program=program)
    emit(finished.as_dict(), finished.lines(), as_json=as_json)


@click.command(epilog="\b\nExample: bireme resume first-job/output --trainers 1")
@click.argument("output", metavar="[OUTPUT]", required=False)
@click.option("--trainers", type=click.IntRange(1), help="Trainers instead of as many as before.")
@click.option("--pservers", type=click.IntRange(1), help="Pservers instead of as many as before.")
@click.option("--ports-num", type=click.IntRange(1, 64), help="Dense lanes of each pserver.")
@click.option("--ports-num-for-sparse", type=click.IntRange(1, 64), help="Sparse lanes of each pserver.")
@click.option("--passes", type=click.IntRange(1), help="Passes over the data, counted from the first.")
@click.option("--job", "job_file", metavar="JOB.yaml", type=Path, help="Where its program and data are by now.")
@click.option("--accept-changes", is_flag=True, help="Resume even if the program, the data or its rules have changed.")
@either_options
@json_option
def resume(
    output: str | None, job_file: Path | None, accept_changes: bool, where: Where, as_json: bool, **flags: Any
) -> None:
    """Resume a job from its newest snapshot.

    OUTPUT is the job's output directory, its name or a run's id; left out, the newest job on this machine that is
    not finished. It ends with the same bits as if it had never stopped, also with other numbers of trainers,
    pservers and lanes, except in the modes `bounded` and `async`. For a job that was moved, also to another machine,
    --job names where its program and its data are. A name that no job on this machine has is looked for on the
    cluster: there a stopped job resumes, and one that has ended is started again.
    """
    from bireme.api.resuming import names_local_job, prepare

    changes = {key: value for key, value in flags.items() if value is not None}
    if where.is_asked or (has_cluster() and not names_local_job(output)):
        if job_file is not None:
            raise UsageError("--job is for jobs on this machine", fix=f"`{command_name()} submit {job_file}` instead")
        more = {"accepts_changes": True} if accept_changes else {}
        done = where.backend().resume_job(output, changes | more)
        named = f"{done.job} --namespace {done.namespace}"
        line = f"{done.job} resumes; follow it with `{command_name()} status {named}`"
        if done.outcome == "finished":
            line = f"already finished; for more passes: `{command_name()} resume {named} --passes N`"
        emit(done._asdict(), line, as_json=as_json)
        return
    plan = prepare(output, changes, job_file, accepts_changes=accept_changes)
    if plan.program is None:
        _print_finished(plan, as_json=as_json)
        return
    for line in () if as_json else plan.notes:
        click.echo(line)
    _run(plan.job, plan.output, program=plan.program, as_json=as_json)


def _print_finished(plan: Resumption, *, as_json: bool) -> None:
    from bireme.job.output.model import model_hash

    done, model = plan.passes_done, plan.model
    value = {"job": plan.job.name, "output": plan.job.output, "model": str(model), "hash": model_hash(model)}
    lines = [
        f"already finished, {'its one pass' if done == 1 else f'all {done} passes'}: the model is in {model}",
        f"hash: {value['hash']}",
        f"for more passes: `{command_name()} resume {plan.output} --passes N`",
    ]
    emit({**value, "passes": done, "phase": "finished", "resumed": False}, lines, as_json=as_json)
