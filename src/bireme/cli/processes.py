"""The processes themselves: what a pod runs, and what a person may start by hand with the original's flags."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bireme.core.errors import BiremeError, Cancelled, ProcessError, UsageError


def _family_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags that a supervising process adds; people leave them out."""
    for name, kind in (("job", Path), ("rank", int), ("run", Path), ("parent", int)):
        command = click.option(f"--{name}", type=kind, hidden=True)(command)
    return command


def _settle(parent: int | None, faults: str = "", who: str = "", run: Path | None = None) -> None:
    from bireme.core import faults as points
    from bireme.core import log
    from bireme.core.processes import die_with

    if parent is not None:
        die_with(parent)
    log.start()
    logging.getLogger("bireme").info("commandline: %s", " ".join(sys.argv))
    points.arm(faults, who, run / "fired" if run is not None else None)


def _guarded(run: Path | None, process: str, work: Callable[[], object]) -> None:
    """Do the work; a failure is logged, and reported to the family where there is one."""
    from bireme.job.entry import report_failure

    try:
        work()
    except BiremeError as e:
        log = logging.getLogger("bireme")
        log.log(logging.INFO if isinstance(e, Cancelled) else logging.ERROR, "%s", e)
        is_own_fault = not isinstance(e, Cancelled | ProcessError)
        if run is not None and is_own_fault:
            report_failure(run, process, e)
        raise SystemExit(0 if isinstance(e, Cancelled) else e.exit_code) from e


@click.command()
@_family_options
def node(job: Path, rank: int, run: Path, parent: int | None) -> None:
    """Run one node of a job: its pserver and its trainer."""
    from bireme.job.entry import run_node

    if job is None or rank is None or run is None:
        raise UsageError("`bireme node` is started by a runner", fix="use `bireme train JOB.yaml`")
    _settle(parent)
    _guarded(None, f"node {rank}", lambda: run_node(job, rank, run))


@click.command(epilog="\b\nExample: bireme pserver --port=7164 --ports_num=2 --num_gradient_servers=3")
@click.option("--port", type=click.IntRange(1, 65535), default=20134, show_default=True, help="First listening port.")
@click.option("--ports_num", type=click.IntRange(1, 64), default=1, show_default=True, help="Dense lanes.")
@click.option("--ports_num_for_sparse", type=click.IntRange(0, 64), default=0, show_default=True, help="Sparse lanes.")
@click.option("--nics", default="", help="Network interface to listen on; all when left out.")
@click.option(
    "--num_gradient_servers",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Trainers of the job.",
)
@click.option("--comment", default="", help="Ignored; a marker for `ps`.")
@_family_options
def pserver(  # noqa: PLR0913 - the original's flags
    port: int, ports_num: int, ports_num_for_sparse: int, nics: str, num_gradient_servers: int, comment: str,
    job: Path | None, rank: int | None, run: Path | None, parent: int | None,
) -> None:  # fmt: skip
    """Keep a part of every parameter and apply updates to it.

    Started by hand on each machine, with the original's flags; the first host in the trainers'
    --pservers list also coordinates the job.
    """
    from bireme.job import incarnations
    from bireme.job.discover import SharedDirectory
    from bireme.job.entry import read_job
    from bireme.job.pserver import PserverOptions, PserverProcess

    if job is None:
        _settle(parent)
        options = PserverOptions(num_gradient_servers, port, ports_num, ports_num_for_sparse, nics)
        _guarded(None, "pserver", lambda: PserverProcess(options).run())
        return
    assert rank is not None and run is not None
    spec = read_job(job)
    _settle(parent, spec.faults, f"pserver:{rank}", run)
    # Pservers of one local job share a machine: each has its own block of ports.
    lanes = spec.ports_num + spec.ports_num_for_sparse
    first = None if spec.port is None else spec.port + rank * lanes
    options = PserverOptions(
        spec.trainers, first, spec.ports_num, spec.ports_num_for_sparse, rank=rank, host="127.0.0.1",
        incarnation=incarnations.take(Path(spec.output), f"pserver {rank}"),
    )  # fmt: skip
    meet = SharedDirectory(run / "meet", spec.pservers)
    _guarded(run, f"pserver {rank}", lambda: PserverProcess(options).run(meet))


@click.command(
    epilog="\b\nExample: bireme trainer --config=trainer_config.lr.py --pservers=10.0.0.1,10.0.0.2 --port=7164 "
    "--ports_num=2 --trainer_id=0 --num_passes=10 --save_dir=./output"
)
@click.option("--config", type=Path, help="The trainer_config file; it runs in the current directory, with ./data.")
@click.option("--config_args", default="", help="k1=v1,k2=v2 for get_config_arg.")
@click.option(
    "--pservers",
    default="127.0.0.1",
    show_default=True,
    help="Hosts of the pservers, the same list for all trainers.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=20134,
    show_default=True,
    help="First port of each pserver.",
)
@click.option(
    "--ports_num",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Dense lanes of each pserver.",
)
@click.option(
    "--ports_num_for_sparse",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Sparse lanes of each pserver.",
)
@click.option(
    "--trainer_id",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Rank of this trainer; 0 saves the models.",
)
@click.option("--num_passes", type=click.IntRange(1), default=100, show_default=True, help="Passes to run.")
@click.option(
    "--start_pass",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Go on after pass N-1 of save_dir.",
)
@click.option("--init_model_path", type=Path, help="Start from this saved model.")
@click.option("--save_dir", type=Path, default="./output/model", show_default=True, help="Where models go.")
@click.option("--log_period", type=click.IntRange(1), default=100, show_default=True, help="Rounds between log lines.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="First values and shuffling.")
@click.option("--trainer_count", type=int, default=1, help="A hint for compute threads; never changes the result.")
@click.option(
    "--connect_timeout", type=float, default=60.0, show_default=True, help="Seconds to wait for the pservers."
)
@click.option("--num_gradient_servers", type=int, default=0, hidden=True)
@click.option("--nics", default="", hidden=True)
@click.option("--local", default="0", hidden=True)
@click.option("--use_gpu", default="0", hidden=True)
@click.option("--dot_period", default="", hidden=True)
@click.option("--saving_period", default="1", hidden=True)
@click.option("--comment", default="", hidden=True)
@_family_options
def trainer(job: Path | None, rank: int | None, run: Path | None, parent: int | None, **flags: Any) -> None:
    """Compute gradients on one shard of the data, and train with the pservers."""
    from bireme.job.discover import HostList, SharedDirectory
    from bireme.job.entry import read_job
    from bireme.job.trainer import TrainerProcess
    from bireme.job.trainers import options_of_flags, options_of_job
    from bireme.spec.load import child_environment, is_pinned

    if job is None:
        if not is_pinned():
            # Started by a person: once more, with the environment that equal bits need.
            os.execve(sys.executable, [sys.executable, "-m", "bireme", *sys.argv[1:]], child_environment())
        _settle(parent)
        by_hand = options_of_flags(flags, Path.cwd())
        hosts = HostList(flags["pservers"], flags["port"], flags["ports_num"] + flags["ports_num_for_sparse"])
        _guarded(None, f"trainer {by_hand.trainer}", lambda: TrainerProcess(by_hand).run(hosts))
        return
    assert rank is not None and run is not None
    spec = read_job(job)
    _settle(parent, spec.faults, f"trainer:{rank}", run)
    meet = SharedDirectory(run / "meet", spec.pservers)
    _guarded(run, f"trainer {rank}", lambda: TrainerProcess(options_of_job(spec, rank, run)).run(meet))
