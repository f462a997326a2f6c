"""The processes themselves: what a pod runs, and what a person may start by hand with the original's flags."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.core.errors import BiremeError, Cancelled, ProcessError

if TYPE_CHECKING:
    from bireme.core.forking import Main
    from bireme.spec.job import Job

_shown = functools.partial(click.option, show_default=True)


@dataclass(frozen=True, slots=True)
class Started:
    """Flags that a supervising process adds when it starts one of ours; people leave them out."""

    job: Path | None = None
    rank: int | None = None
    run: Path | None = None
    parent: int | None = None
    host: str | None = None
    """The address of this node where it has one of its own."""
    scratch: Path | None = None
    mark: Path | None = None
    lease: Path | None = None
    lease_number: int | None = None

    def check_lease(self) -> None:
        """Leave if this process's node was replaced; to be called after the process has taken its number."""
        from bireme.job.node.incarnations import Lease

        if self.lease is not None and self.lease_number is not None and Lease(self.lease, self.lease_number).is_lost():
            raise Cancelled("another pod has taken this node's place")

    def place(self) -> tuple[Path, int, Path]:
        """The job's file, the rank and the run's directory, all of which come together."""
        assert self.job is not None and self.rank is not None and self.run is not None
        return self.job, self.rank, self.run

    def run_child(self, role: str, work: Callable[[Job, int, Path], object]) -> None:
        """Work as the node's pserver or trainer; `work` gets the job, the rank and the run's directory."""
        from bireme.job.node.entry import read_job

        path, rank, run = self.place()
        job = read_job(path)
        _settle(self, job, role)
        _guarded(run, f"{role} {rank}", lambda: work(job, rank, run))


def _supervised(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that a supervising process adds, in one value."""

    @functools.wraps(command)
    def started(**flags: Any) -> Any:
        own = Started(**{field.name: flags.pop(field.name) for field in fields(Started)})
        return command(own, **flags)

    kinds: dict[str, type] = {"rank": int, "parent": int, "host": str, "lease_number": int}
    for field in fields(Started):
        started = click.option(f"--{field.name}", type=kinds.get(field.name, Path), hidden=True)(started)
    return started


def _settle(started: Started, job: Job | None = None, role: str = "") -> None:
    from bireme.core import faults as points
    from bireme.core import log
    from bireme.core.processes import die_with

    if started.parent is not None:
        die_with(started.parent)
    log.start()
    logging.getLogger("bireme").info("commandline: %s", " ".join(sys.argv))
    if job is not None and started.run is not None:
        points.arm(job.faults, f"{role}:{started.rank}", started.run / "fired")
        if job.tls:
            from bireme.ps.wire import security

            security.use(Path(job.tls))


def _guarded(run: Path | None, process: str, work: Callable[[], object]) -> None:
    """Do the work; a failure is logged, and reported in the run's directory if there is one."""
    from bireme.job.node.failure_reports import report_failure

    try:
        work()
    except BiremeError as e:
        log = logging.getLogger("bireme")
        log.log(logging.INFO if isinstance(e, Cancelled) else logging.ERROR, "%s", e)
        if run is not None and not isinstance(e, Cancelled | ProcessError):  # those follow from another failure
            report_failure(run, process, e)
        raise SystemExit(0 if isinstance(e, Cancelled) else e.exit_code) from e


@click.command(epilog="\b\nExample: BIREME_JOB=/etc/bireme/job/job.json JOB_COMPLETION_INDEX=0 bireme node")
@_supervised
def node(started: Started) -> None:
    """Run one node of a job: its pserver and its trainer.

    This is what a pod runs; its environment names the job and the node: BIREME_JOB and
    JOB_COMPLETION_INDEX, or JOB_NAME, JOB_PATH and CONF_PADDLE_… as in the original's jobs.
    """
    from bireme.job.node.entry import NodeConfig, run_node

    if started.job is None:
        from bireme.kube.pod.entry import run_pod

        _pin()
        _settle(started)
        _guarded(None, "node", lambda: run_pod(dict(os.environ), _load_for_children))
        return
    _settle(started)
    job, rank, run = started.place()
    _guarded(None, f"node {rank}", lambda: run_node(NodeConfig(job, rank, run), load=_load_for_children))


@click.command(hidden=True)
@click.option("--parent", type=int, required=True)
def fork_server(parent: int) -> None:
    """Fork nodes for the local runner, which is at the other end of the standard input."""
    from bireme.core.forking import serve
    from bireme.core.processes import die_with

    die_with(parent)
    serve(socket.socket(fileno=0), _load_for_children)


def _pin() -> None:
    """Restart this program in the environment that equal bits need, unless it has it."""
    from bireme.spec.load import child_environment, is_pinned

    if not is_pinned():
        os.execve(sys.executable, [sys.executable, "-m", "bireme", *sys.argv[1:]], child_environment())


def _load_for_children() -> Main:
    """Load once what pserver and trainer both need, most of their start-up; returns what a forked child runs."""
    from bireme.cli.main import importing, main

    with importing():
        import numpy as np

        from bireme.ps.optim import kernels

        importlib.import_module("bireme.job.node.pserver")
        kernels.load()

    def run(arguments: list[str]) -> None:
        np.random.seed()  # NumPy's own generator, should the user's code draw from it: each process another start
        main(arguments)

    return run


@click.command(epilog="\b\nExample: bireme pserver --port=7164 --ports_num=2 --num_gradient_servers=3")
@_shown("--port", type=click.IntRange(1, 65535), default=20134, help="First listening port.")
@_shown("--ports_num", type=click.IntRange(1, 64), default=1, help="Dense lanes.")
@_shown("--ports_num_for_sparse", type=click.IntRange(0, 64), default=0, help="Sparse lanes.")
@click.option("--nics", default="", help="Network interface to listen on; all when left out.")
@_shown("--num_gradient_servers", type=click.IntRange(1, 4096), default=1, help="Trainers of the job.")
@click.option("--comment", default="", help="Ignored; a marker for `ps`.")
@_supervised
def pserver(
    started: Started, port: int, ports_num: int, ports_num_for_sparse: int, nics: str, num_gradient_servers: int,
    comment: str,
) -> None:  # fmt: skip
    """Keep a part of every parameter and apply updates to it.

    Started by hand on each machine, with the original's flags; the first host in the trainers'
    --pservers list also coordinates the job.
    """
    from bireme.job.node.discovery import discovery_of
    from bireme.job.node.pserver import PserverOptions, PserverProcess, options_of_job

    if started.job is None:
        _settle(started)
        by_hand = PserverOptions(num_gradient_servers, port, ports_num, ports_num_for_sparse, nics)
        _guarded(None, "pserver", lambda: PserverProcess(by_hand).run())
        return

    def serve(job: Job, rank: int, run: Path) -> None:
        options = options_of_job(job, rank, started.host, started.mark)
        started.check_lease()
        PserverProcess(options).run(discovery_of(job, run))

    started.run_child("pserver", serve)


@click.command(
    epilog="\b\nExample: bireme trainer --config=trainer_config.lr.py --pservers=10.0.0.1,10.0.0.2 --port=7164 "
    "--ports_num=2 --trainer_id=0 --num_passes=10 --save_dir=./output"
)
@click.option("--config", type=Path, help="The trainer_config file; it runs in the current directory, with ./data.")
@click.option("--config_args", default="", help="k1=v1,k2=v2 for get_config_arg.")
@_shown("--pservers", default="127.0.0.1", help="Hosts of the pservers, the same list for all trainers.")
@_shown("--port", type=click.IntRange(1, 65535), default=20134, help="First port of each pserver.")
@_shown("--ports_num", type=click.IntRange(1, 64), default=1, help="Dense lanes of each pserver.")
@_shown("--ports_num_for_sparse", type=click.IntRange(0, 64), default=0, help="Sparse lanes of each pserver.")
@_shown("--trainer_id", type=click.IntRange(0), default=0, help="Rank of this trainer; 0 saves the models.")
@_shown("--num_passes", type=click.IntRange(1), default=100, help="Passes to run.")
@_shown("--start_pass", type=click.IntRange(0), default=0, help="Continue after pass N-1 of save_dir.")
@click.option("--init_model_path", type=Path, help="Start from this saved model.")
@_shown("--save_dir", type=Path, default="./output/model", help="Where models go.")
@_shown("--log_period", type=click.IntRange(1), default=100, help="Rounds between log lines.")
@_shown("--seed", type=click.IntRange(0), default=1, help="First values and shuffling.")
@click.option("--trainer_count", type=int, default=1, help="A hint for compute threads; never changes the result.")
@_shown("--connect_timeout", type=float, default=60.0, help="Seconds to wait for the pservers.")
@click.option("--num_gradient_servers", type=int, default=0, hidden=True)
@click.option("--nics", default="", hidden=True)
@click.option("--local", default="0", hidden=True)
@click.option("--use_gpu", default="0", hidden=True)
@click.option("--dot_period", default="", hidden=True)
@click.option("--saving_period", default="1", hidden=True)
@click.option("--comment", default="", hidden=True)
@_supervised
def trainer(started: Started, **flags: Any) -> None:
    """Compute gradients on one shard of the data, and train with the pservers."""
    from bireme.job.node.discovery import HostList, discovery_of
    from bireme.job.node.trainer import TrainerProcess
    from bireme.job.node.trainer_options import options_of_flags, options_of_job

    if started.job is None:
        _pin()
        _settle(started)
        by_hand = options_of_flags(flags, Path.cwd())
        lanes = flags["ports_num"] + flags["ports_num_for_sparse"]
        hosts = HostList(flags["pservers"].split(","), flags["port"], lanes)
        _guarded(None, f"trainer {by_hand.trainer}", lambda: TrainerProcess(by_hand).run(hosts))
        return

    def train(job: Job, rank: int, run: Path) -> None:
        options = options_of_job(job, rank, started.scratch or run, started.mark)
        started.check_lease()
        TrainerProcess(options).run(discovery_of(job, run))

    started.run_child("trainer", train)
