"""The simulator's inputs from a job's files: the load from its program, a trainer's rate from its last run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bireme.core.errors import SpecError
from bireme.job.preflight import check_program, updates_of
from bireme.ps.tree import share_out
from bireme.scale.plan import Load
from bireme.spec.job import Job


def load_of(job: Job) -> Load:
    """A job's load on any cluster; loads its program, reads no sample."""
    program = check_program(job)
    mode = updates_of(program, job.updates, job.wire).mode
    if mode != "sync":
        raise SpecError(
            f"{job.name} has mode {mode}, and only rounds of all trainers can be simulated",
            fix="leave `mode` out of the file, or set `mode: sync`, to see what rounds would cost",
        )
    values = sum(p.size for p in program.parameters if not p.is_sparse)
    if not values:
        raise SpecError(
            f"{program.name} has sparse parameters only",
            why="which rows travel depends on the data, so the simulator leaves them out",
            fix="simulate a job with dense parameters",
        )
    return Load(
        name=job.name,
        values=values,
        batch=program.batch_size,
        shards=job.shards,
        method=program.optimizer.method,
        wire=job.wire,
    )


class _Ran(msgspec.Struct, frozen=True):
    shards: int
    trainers: int


class _Pass(msgspec.Struct, frozen=True):
    event: str = ""
    samples: int = 0
    spent: dict[str, float] = {}


def rate_of(output: Path) -> float | None:
    """Samples per second that trainer 0 computed when the job ran last; None if it has not, or left no times."""
    try:
        ran = msgspec.json.decode((output / "job.json").read_bytes(), type=_Ran)
        lines = (output / "metrics.jsonl").read_bytes().splitlines()
        passes = [row for row in (msgspec.json.decode(line, type=_Pass) for line in lines) if row.event == "pass"]
    except (OSError, msgspec.MsgspecError):
        return None
    seconds = sum(row.spent.get("compute", 0.0) for row in passes)
    share = share_out(ran.shards, ran.trainers)[0]
    samples = sum(row.samples for row in passes if "compute" in row.spent) * len(share.shards) / ran.shards
    return samples / seconds if seconds and samples else None
