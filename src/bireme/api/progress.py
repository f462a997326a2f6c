"""How far the job in an output directory is, whether it runs or not, by the files there.

A run's last status has no passes of other runs, and a run that was killed leaves no final status. The output directory
has the passes of all runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bireme.core.errors import SpecError
from bireme.job.node.entry import read_job
from bireme.job.output.kept import early_end
from bireme.job.status import JobStatus
from bireme.local.registry import RunRecord
from bireme.spec.job import Job
from bireme.spec.load import command_name


class Progress(NamedTuple):
    """Passes of a job that count, and how many it is to have."""

    done: int
    passes: int


def job_in(output: Path) -> Job | None:
    try:
        return read_job(output / "job.json")
    except SpecError:
        return None


def progress_in(output: Path, job: Job) -> Progress:
    """How far a job is: a pass counts when its model is finished and the ledger has it for every shard.

    A job that `stop_when` has ended has no more passes than it has done.
    """
    from bireme.job.output import journal  # here, as they import NumPy, which `bireme list` rarely needs
    from bireme.job.output.model import finished_passes

    ledger = journal.rows_of(output / journal.LEDGER)
    last = max(journal.counted(ledger, job.shards) & finished_passes(output), default=-1)
    if job.stop_after and early_end(journal.costs_in(output, last), job.stop_after):
        return Progress(last + 1, last + 1)
    return Progress(last + 1, job.passes)


def progress_of(record: RunRecord, status: JobStatus, *, is_newest: bool = True) -> Progress:
    """How far the job of a run is; the files are those of the newest run in an output directory."""
    job = job_in(Path(record.output)) if is_newest else None
    if job is None:
        return Progress(status.done, status.total)
    on_disk = progress_in(Path(record.output), job)
    return Progress(max(status.done, on_disk.done), on_disk.passes)


def has_snapshot(output: Path) -> bool:
    return any((output / "snapshots").glob("*/manifest.json"))


def way_on(output: Path) -> str:
    """How to resume the job in an output directory, as people type it here."""
    return f"continue with `{command_name()} resume {output}`"
