"""The entry of a node: starts its pserver and its trainer and stays until both have left.

This is what a pod runs and what the local runner starts. It never imports numpy or a framework,
so it costs little to have one per node. What a place asks of it besides (probes, logs, a snapshot
before it leaves) is in a `NodeWatch`, which is called in between.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from bireme.core.errors import BiremeError, ProcessError, SpecError
from bireme.job.node.failure_reports import first_cause, has_ended, read_reports, write_report
from bireme.job.node.headway import Headway
from bireme.job.node.incarnations import Lease
from bireme.job.node.supervisor import GRACE_S, Child, Ended, ProcessGroup, Supervisor, describe_exit, is_error
from bireme.spec.job import Job

log = logging.getLogger(__name__)
WATCH_EVERY_S = 0.05
STOPPED = 128 + signal.SIGTERM
"""The exit code of a node that was told to end."""
Role = Literal["pserver", "trainer"]
LOGS: dict[Role, str] = {"pserver": "server.log", "trainer": "train.log"}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Where a node stands: its job, its rank, and what its processes must know of the place."""

    job: Path
    rank: int
    run: Path
    role: Role | None = None
    """Where pservers and trainers have nodes of their own: which of them this is."""
    host: str = ""
    """This node's own address; '' where all nodes share a machine."""
    scratch: Path | None = None
    """A directory that no other node sees; None: what would be there is in the run's."""
    seat: Lease | None = None
    """This node's place on the volume, where it may be replaced behind its back."""


class NodeWatch(Protocol):
    """What a place asks of a node while its processes run."""

    def may_go_on(self) -> bool:
        """Look after things; whether this node is still the one that is to run its processes."""

    def may_leave(self) -> bool:
        """Asked again and again once the node was told to end: whether it may do so by now."""

    def left(self) -> None:
        """All processes have ended."""


class _Unwatched:
    """A node that somebody else looks after."""

    def may_go_on(self) -> bool:
        return True

    def may_leave(self) -> bool:
        return True

    def left(self) -> None:
        return


def read_job(path: Path) -> Job:
    """The job that the runner has written down."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError) as e:
        fix = "was it written by another version of bireme? In a pod: build the image again from the version here"
        raise SpecError(f"cannot read the job from {path}: {e}", fix=fix) from e


def roles_of(job: Job, rank: int, only: Role | None = None) -> list[Role]:
    """What a node of this rank runs, pserver first."""
    counts: dict[Role, int] = {"pserver": job.pservers, "trainer": job.trainers}
    return [role for role, count in counts.items() if rank < count and only in (None, role)]


def children_of(job: Job, post: NodeConfig) -> list[Child]:
    """The processes that this node runs, pserver first."""
    node, found = Path(job.output) / f"node_{post.rank}", []
    for role in roles_of(job, post.rank, post.role):
        command = [
            sys.executable, "-m", "bireme", role, f"--job={post.job}", f"--rank={post.rank}",
            f"--run={post.run}", f"--parent={os.getpid()}",
        ]  # fmt: skip
        mark = None
        if post.host:
            command.append(f"--host={post.host}")
        if post.scratch is not None:
            mark = post.scratch / f"{role}.mark"
            command += [f"--scratch={post.scratch}", f"--mark={mark}"]
        if post.seat is not None:
            command += [f"--seat={post.seat.directory}", f"--life={post.seat.number}"]
        found.append(Child(f"{role} {post.rank}", command, node / LOGS[role], mark))
    return found


def note_signals() -> list[int]:
    """Signals that ask this process to end, as they come.

    A plain list: an Event's lock may be held by the very code that a signal interrupts.
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    return received


def run_node(post: NodeConfig, watch: NodeWatch | None = None, stops: list[int] | None = None) -> None:
    """Run this node's processes to their end; raises what went wrong first."""
    job = read_job(post.job)
    stops = note_signals() if stops is None else stops
    watch = _Unwatched() if watch is None else watch
    try:
        with ProcessGroup() as family:
            _keep(job, post, family, watch, stops)
    finally:
        watch.left()


def _keep(job: Job, post: NodeConfig, family: ProcessGroup, watch: NodeWatch, stops: list[int]) -> None:
    children = children_of(job, post)
    logs = {child.name: child.log for child in children}
    keeper = Supervisor(family, children, job.restarts, job.logs, Headway(Path(job.output)).look)
    while not stops or (len(stops) == 1 and not watch.may_leave()):
        for name, pid, why in keeper.started:
            log.info("started %s as process %d%s", name, pid, f": the one before {why}" if why else "")
        keeper.started.clear()
        if not watch.may_go_on():
            family.end(0.0)
            raise SystemExit(STOPPED)
        found = keeper.look(lambda: has_ended(Path(job.output)))
        if isinstance(found, Ended):
            raise _cause(found, job, post.run, logs[found.name])
        if found:
            return
        time.sleep(WATCH_EVERY_S)
    family.end(GRACE_S)
    raise SystemExit(STOPPED)


def _cause(ended: Ended, job: Job, run: Path, last_words: Path) -> BiremeError:
    """What went wrong first, as far as this node knows."""
    told = [report for report in read_reports(run / "reports") if report.process == ended.name]
    cause = first_cause(told) if is_error(ended.code) else None
    if cause is not None:
        return cause.error()
    error = too_many_deaths(ended, job, f"its last words are in {last_words}")
    if ended.code != ProcessError.exit_code:  # else it left because of somebody else, who tells
        report_failure(run, f"node {ended.name.split()[1]}", error)
    return error


def too_many_deaths(ended: Ended, job: Job, where: str) -> ProcessError:
    """A process that will not be started again, in words."""
    how = describe_exit(ended.code)
    if ended.deaths == 1:
        return ProcessError(f"{ended.name} {how}", fix=where)
    when, why = f"within {job.restarts.within_s:g} s", ""
    if ended.stuck_at is not None:
        where_stuck = f"than round {ended.stuck_at}" if ended.stuck_at >= 0 else "than its beginning"
        when = f"while the job got no further {where_stuck}"
        why = "what ends it there, for example too little memory for the next batch, would end it again"
    return ProcessError(f"{ended.name} died {ended.deaths} times {when}; at last it {how}", why=why, fix=where)


def report_failure(run: Path, process: str, error: BiremeError) -> None:
    """Leave word of a failure in the run's directory."""
    write_report(run / "reports" / f"{process.replace(' ', '-')}.json", process, error)
