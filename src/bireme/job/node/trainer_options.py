"""A trainer's options, from a job or from the original's flags."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.errors import ModelError, UsageError
from bireme.job.node import incarnations
from bireme.job.output.model import pass_name
from bireme.job.workdir import lay_workdir
from bireme.spec.job import Job


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """A trainer's options at its start."""

    job: Job
    """By hand: what the flags say, with 0 trainers and shards, as only pserver 0 knows how many there are."""
    trainer: int
    workdirs: Callable[[int], Path]
    """The working directory that holds a shard's `data/`."""
    incarnation: int = 0
    """0: started by hand, so that a second one with the same id is a mistake and not a successor."""
    mark: Path | None = None
    """The file that exists while this trainer has joined the job."""


def options_of_job(job: Job, rank: int, scratch: Path, mark: Path | None = None) -> TrainerOptions:
    """Options of a trainer that a runner or a pod starts; it keeps files of its own in `scratch`."""

    @functools.cache
    def workdir(shard: int) -> Path:
        root = scratch / "work" / f"trainer-{rank}" / f"shard-{shard}"
        return lay_workdir(root, Path(job.config).parent, Path(job.data) / str(shard) / "data")

    return TrainerOptions(job, rank, workdir, incarnations.take(Path(job.output), f"trainer {rank}"), mark)


def options_of_flags(flags: Mapping[str, Any], here: Path) -> TrainerOptions:
    """Options of a trainer started by hand: its shard is `./data`, its shard number its id."""
    if flags["config"] is None:
        raise UsageError("--config is missing", fix="name the trainer_config file, e.g. --config=trainer_config.lr.py")
    config = (here / flags["config"]).absolute()
    if not config.is_file():
        raise UsageError(f"--config: there is no file {config}")
    for flag in ("local", "use_gpu"):
        if str(flags[flag]).lower() in ("1", "true"):
            why = "bireme trains on CPUs with pservers"
            raise UsageError(f"--{flag}=1 is not supported", why=why, fix=f"leave --{flag} out")
    save_dir = (here / flags["save_dir"]).absolute()
    save_dir.mkdir(parents=True, exist_ok=True)
    model = flags["init_model_path"]
    if model is None and flags["start_pass"] > 0:
        model = save_dir / pass_name(flags["start_pass"] - 1)
    if model is not None and flags["trainer_id"] == 0 and not (model / "done").is_file():
        raise ModelError(f"there is no finished model in {model}", fix="check --start_pass or --init_model_path")
    job = Job(
        name=config.stem.replace("_", "-").replace(".", "-").lower(),
        shards=0,
        pservers=0,
        trainers=0,
        ports_num=flags["ports_num"],
        ports_num_for_sparse=flags["ports_num_for_sparse"],
        passes=flags["start_pass"] + flags["num_passes"],
        seed=flags["seed"],
        output=str(save_dir),
        connect_timeout_s=flags["connect_timeout"],
        start_pass=flags["start_pass"],
        config=str(config),
        config_args=parse_args(flags["config_args"]),
        data=str(here / "data"),
        port=flags["port"],
        log_period=flags["log_period"],
        init_model=str(model or ""),
    )
    return TrainerOptions(job, flags["trainer_id"], workdirs=lambda shard: here)


def parse_args(text: str) -> dict[str, str]:
    """`k1=v1,k2=v2` as a dictionary."""
    parts = [part for part in text.split(",") if part.strip()]
    if any("=" not in part for part in parts):
        raise UsageError(f"--config_args={text!r} is not of the form k1=v1,k2=v2")
    return {k.strip(): v.strip() for k, v in (part.split("=", 1) for part in parts)}
