"""`bireme resume`: go on with a job that was stopped or died, from its newest snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from bireme.cli.running import finish
from bireme.core.errors import SpecError


@click.command(epilog="\b\nExample: bireme resume first-job/output --trainers 1")
@click.argument("output", metavar="OUTPUT", type=Path)
@click.option("--trainers", type=click.IntRange(1), help="Trainers instead of as many as before.")
@click.option("--pservers", type=click.IntRange(1), help="Pservers instead of as many as before.")
@click.option("--ports-num", type=click.IntRange(1, 64), help="Dense lanes of each pserver.")
@click.option("--passes", type=click.IntRange(1), help="Passes over the data, counted from the first.")
@click.option("--accept-changes", is_flag=True, help="Go on even if the program, the data or its rules have changed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def resume(output: Path, accept_changes: bool, as_json: bool, **overrides: Any) -> None:
    """Go on with the job whose output directory this is, from its newest snapshot.

    It ends with the same bits as if it had never stopped, also with other numbers of trainers, pservers and lanes.
    """
    from bireme.job.entry import read_job
    from bireme.ps.tree import share_out

    path = output / "job.json"
    if not path.is_file():
        raise SpecError(f"{output} is not a job's output: there is no {path}", fix="name the directory with pass-00000")
    changes = {name: value for name, value in overrides.items() if value is not None}
    place = output.absolute() / "snapshots"
    job = msgspec.structs.replace(read_job(path), output=str(output.absolute()), **changes)
    job = msgspec.structs.replace(job, snapshots=msgspec.structs.replace(job.snapshots, path=str(place)))
    share_out(job.shards, job.trainers)
    if any(place.glob("*/manifest.json")):
        # Where the job began is in the snapshot; without one it begins there once more.
        start = {"start_pass": 0, "init_model": "", "is_resumed": True, "accepts_changes": accept_changes}
        job = msgspec.structs.replace(job, **start)
    finish(job, str(output), as_json=as_json)
