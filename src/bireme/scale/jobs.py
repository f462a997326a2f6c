"""The simulator's inputs from a job's files: the load from its program, a trainer's rate from its last run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bireme.core.errors import SpecError, UsageError
from bireme.job.preflight import check_program, updates_of
from bireme.ps.tree import share_out
from bireme.scale.plan import Machines, Workload
from bireme.spec.job import Job
from bireme.spec.load import load_job
from bireme.spec.model import Coding, Wire


def load_of(job: Job) -> Workload:
    """Loads the job's program, reads no sample."""
    program = check_program(job)
    mode = updates_of(program, job.updates, job.wire).mode
    if mode != "sync":
        fix = "leave `mode` out of the file, or set `mode: sync`, to see what rounds would cost"
        raise SpecError(f"{job.name} has mode {mode}, and only rounds of all trainers can be simulated", fix=fix)
    values = sum(p.size for p in program.parameters if not p.is_sparse)
    if not values:
        raise SpecError(
            f"{program.name} has sparse parameters only",
            why="which rows travel depends on the data, so the simulator leaves them out",
            fix="simulate a job with dense parameters",
        )
    return Workload(job.name, values, program.batch_size, job.shards, program.optimizer.method, job.wire)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a job and its cluster are taken to be; None: as the job's file says."""

    trainers: int | None = None
    pservers: int | None = None
    lanes: int | None = None
    compute_rate: float | None = None
    """Samples per second of one trainer alone; None: as measured in the job's last run."""
    parameters: int | None = None
    batch: int | None = None
    gradients: Coding | None = None


def scenario(path: Path | None, sizes: Sizes, *, network_bit_s: float, latency_s: float) -> tuple[Workload, Machines]:
    """A load and a cluster to simulate, from a job's file or from sizes alone."""
    if path is None:
        needed = ("parameters", "batch", "trainers", "pservers", "compute_rate")
        missing = [f"--{name.replace('_', '-')}" for name in needed if getattr(sizes, name) is None]
        if missing:
            fix = "name a job file, or say how large the model, the batch and the cluster are"
            raise UsageError(f"without a JOB.yaml, {', '.join(missing)} must be given", fix=fix)
        load, trainers, pservers, lanes = Workload("a job", sizes.parameters or 0, sizes.batch or 0), 0, 0, 1
        rate = sizes.compute_rate
    else:
        if sizes.parameters is not None:
            raise UsageError("--parameters is for a job without a file", fix="leave out one of the two")
        job = load_job(path, {})
        load, trainers, pservers, lanes = load_of(job), job.trainers, job.pservers, job.ports_num
        rate = rate_of(Path(job.output)) if sizes.compute_rate is None else sizes.compute_rate
        if rate is None:
            raise UsageError(
                f"{job.output} has no record of how fast a trainer of this job computes",
                why="nothing else is known about a trainer's speed",
                fix="train a pass of it first, or give --compute-rate SAMPLES_PER_SECOND",
            )
        # More trainers than shards mean other data: each then has one shard.
        load = replace(load, shards=max(load.shards, sizes.trainers or trainers))
    if sizes.batch is not None:
        load = replace(load, batch=sizes.batch)
    if sizes.gradients is not None:
        load = replace(load, wire=Wire(gradients=sizes.gradients))
    size = (sizes.trainers or trainers, sizes.pservers or pservers, sizes.lanes or lanes)
    return load, Machines(*size, network_bit_s, latency_s, rate or 0.0)
