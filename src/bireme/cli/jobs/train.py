"""`bireme train`: run a job here, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from bireme.cli.options import job_file_argument, json_option, overrides
from bireme.cli.output import emit
from bireme.core.errors import SpecError
from bireme.spec.load import load_job


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
@json_option
def train(job_file: Path, start_pass: int, dry_run: bool, as_json: bool, **changes: Any) -> None:
    """Train the job described in JOB.yaml with processes on this machine.

    The model of each pass is left in OUTPUT/pass-00000, OUTPUT/pass-00001, and so on. The result is
    the same bits for every number of trainers, pservers and lanes, except in the modes `bounded` and `async`.
    """
    if job_file.suffix == ".py" and job_file.is_file():
        wanted = f"name a job.yaml whose `program.config` is {job_file.name}"
        fix = f"{wanted}; `bireme demo --prepare DIR` writes an example"
        raise SpecError(f"{job_file} is a config, not a job.yaml", fix=fix)
    job = msgspec.structs.replace(load_job(job_file, changes), start_pass=start_pass)
    if dry_run:
        from bireme.job.planning import describe
        from bireme.view.plan import render

        plan = describe(job)
        emit(plan, render(plan), as_json=as_json)
        return
    from bireme.api.foreground import run_to_end

    finished = run_to_end(job, str(job_file), is_silent=as_json)
    emit(finished.as_dict(), finished.lines(), as_json=as_json)
