"""The entry of a node: starts its pserver and its trainer and supervises them until both have exited.

A pod runs it, and the local runner starts it. It never imports a framework, nor runs the user's code. What else a place
to run needs of it (probes, logs, a snapshot before it leaves) is in a `NodeWatch`, which it calls in between.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from bireme.core.errors import BiremeError, ProcessError, SpecError
from bireme.core.forking import Forker, Loader
from bireme.job.node.failure_reports import first_cause, has_ended, read_reports, report_failure
from bireme.job.node.headway import Headway
from bireme.job.node.incarnations import Lease
from bireme.job.node.supervisor import GRACE_S, Child, Ended, ProcessGroup, Supervisor, describe_exit, is_error
from bireme.spec.job import Job
from bireme.spec.load import is_pinned

log = logging.getLogger(__name__)
WATCH_EVERY_S = 0.05
STOPPED = 128 + signal.SIGTERM
"""The exit code of a node that was asked to end."""
Role = Literal["pserver", "trainer"]
LOGS: dict[Role, str] = {"pserver": "server.log", "trainer": "train.log"}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node's job, its rank, and its processes' surroundings."""

    job: Path
    rank: int
    run: Path
    role: Role | None = None
    """Where pservers and trainers have nodes of their own: which of them this is."""
    host: str = ""
    """This node's own address; '' where all nodes share a machine."""
    scratch: Path | None = None
    """A directory that no other node sees; None: what would be there is in the run's."""
    lease: Lease | None = None
    """This node's lease on the volume, where a replacement may start while it still runs."""


class NodeWatch:
    """Hooks of a place to run, called while a node's processes run; these are for one that the local runner starts."""

    def may_continue(self) -> bool:
        """Do periodic work; False if this node was replaced and must kill its processes."""
        return True

    def may_leave(self) -> bool:
        """Polled after the first signal to end: whether the node may end its processes now."""
        return True

    def left(self) -> None:
        """Called once all processes have ended."""


def read_job(path: Path) -> Job:
    """Read the job from the file that the runner or the first node has written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError) as e:
        fix = "was it written by another version of bireme? In a pod: build the image again from the version here"
        raise SpecError(f"cannot read the job from {path}: {e}", fix=fix) from e


def roles_of(job: Job, rank: int, only: Role | None = None) -> list[Role]:
    counts: dict[Role, int] = {"pserver": job.pservers, "trainer": job.trainers}
    return [role for role, count in counts.items() if rank < count and only in (None, role)]


def children_of(job: Job, config: NodeConfig) -> list[Child]:
    node, children = Path(job.output) / f"node_{config.rank}", []
    for role in roles_of(job, config.rank, config.role):
        command = [
            sys.executable, "-m", "bireme", role, f"--job={config.job}", f"--rank={config.rank}",
            f"--run={config.run}", f"--parent={os.getpid()}",
        ]  # fmt: skip
        mark = None
        if config.host:
            command.append(f"--host={config.host}")
        if config.scratch is not None:
            mark = config.scratch / f"{role}.mark"
            command += [f"--scratch={config.scratch}", f"--mark={mark}"]
        if config.lease is not None:
            command += [f"--lease={config.lease.directory}", f"--lease_number={config.lease.number}"]
        children.append(Child(f"{role} {config.rank}", command, node / LOGS[role], mark))
    return children


def note_signals() -> list[int]:
    """A list that handlers fill with the signals that ask this process to end.

    A plain list: the code that a signal interrupts may hold an Event's lock, and the handler would deadlock.
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    return received


def run_node(
    config: NodeConfig, watch: NodeWatch | None = None, stops: list[int] | None = None, load: Loader | None = None
) -> None:
    """Run this node's processes to their end; raises the first cause of a failure. `load` lets it fork them."""
    job = read_job(config.job)
    stops = note_signals() if stops is None else stops
    watch = NodeWatch() if watch is None else watch
    # A forked child has our environment.
    fork = Forker(load).start if load is not None and is_pinned() else None
    try:
        with ProcessGroup(fork) as group:
            _supervise(job, config, group, watch, stops)
    finally:
        watch.left()


def _supervise(job: Job, config: NodeConfig, group: ProcessGroup, watch: NodeWatch, stops: list[int]) -> None:
    children = children_of(job, config)
    supervisor = Supervisor(group, children, job.restarts, job.logs, Headway(Path(job.output)).look)
    # After a first signal the processes still run until the watch has its snapshot; a second one ends that wait.
    while not stops or (len(stops) == 1 and not watch.may_leave()):
        for name, pid, why in supervisor.started:
            log.info("started %s pid=%d%s", name.replace(" ", "="), pid, f" previous={why!r}" if why else "")
        supervisor.started.clear()
        if not watch.may_continue():
            group.end(0.0)  # no grace: the replacement's processes write to the same output
            raise SystemExit(STOPPED)
        outcome = supervisor.look(lambda: has_ended(Path(job.output)))
        if isinstance(outcome, Ended):
            raise _cause(outcome, job, config.run, next(child.log for child in children if child.name == outcome.name))
        if outcome:
            return
        time.sleep(WATCH_EVERY_S)
    group.end(GRACE_S)
    raise SystemExit(STOPPED)


def _cause(ended: Ended, job: Job, run: Path, log_file: Path) -> BiremeError:
    reports = [report for report in read_reports(run) if report.process == ended.name]
    cause = first_cause(reports) if is_error(ended.code) else None
    if cause is not None:
        return cause.error()
    error = too_many_deaths(ended, job, f"its last words are in {log_file}")
    if ended.code != ProcessError.exit_code:  # that code means: stopped because of another process, which reports
        report_failure(run, f"node {ended.name.split()[1]}", error)
    return error


def too_many_deaths(ended: Ended, job: Job, where: str) -> ProcessError:
    how = describe_exit(ended.code)
    if ended.deaths == 1:
        return ProcessError(f"{ended.name} {how}", fix=where)
    when, why = f"within {job.restarts.within_s:g} s", ""
    if ended.stuck_at is not None:
        reached = f"round {ended.stuck_at}" if ended.stuck_at >= 0 else "its beginning"
        when = f"while the job got no further than {reached}"
        why = "what ends it there, for example too little memory for the next batch, would end it again"
    return ProcessError(f"{ended.name} died {ended.deaths} times {when}; at last it {how}", why=why, fix=where)
