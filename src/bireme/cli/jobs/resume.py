"""`bireme resume`: continue a job that was stopped or died, from its newest snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.api.where import Where, has_cluster
from bireme.cli.options import either_options, json_option
from bireme.cli.output import emit
from bireme.core.errors import UsageError
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.api.resuming import Resumption


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
    output: str | None, job_file: Path | None, accept_changes: bool, where: Where, as_json: bool, **overrides: Any
) -> None:
    """Resume a job from its newest snapshot.

    OUTPUT is the job's output directory, its name or a run's id; left out, the newest job on this machine that is
    not finished. It ends with the same bits as if it had never stopped, also with other numbers of trainers,
    pservers and lanes, except in the modes `bounded` and `async`. For a job that was moved, also to another machine,
    --job names where its program and its data are. A name that no job on this machine has is looked for on the
    cluster: there a stopped job resumes, and one that has ended is started again.
    """
    from bireme.api.resuming import is_here, prepare

    changes = {key: value for key, value in overrides.items() if value is not None}
    if where.is_asked or (has_cluster() and not is_here(output)):
        if job_file is not None:
            raise UsageError("--job is for jobs on this machine", fix=f"`{command_name()} submit {job_file}` instead")
        from bireme.api.kube import KubeBackend

        more = {"accepts_changes": True} if accept_changes else {}
        done = KubeBackend(where).resume_job(output, changes | more)
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
    from bireme.api.foreground import run_to_end

    finished = run_to_end(plan.job, str(plan.output), is_silent=as_json, program=plan.program)
    emit(finished.as_dict(), finished.lines(), as_json=as_json)


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
