"""The entry of a node: starts its pserver and its trainer and stays until both have left.

This is what a pod runs and what the local runner starts. It never imports numpy or a framework,
so it costs little to have one per node.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from bireme.core.errors import BiremeError, ProcessError, SpecError
from bireme.job.reports import first_cause, has_ended, read_reports, write_report
from bireme.job.supervise import GRACE_S, Child, Ended, Family, Keeper, describe_exit, is_error
from bireme.spec.job import Job

log = logging.getLogger(__name__)
WATCH_EVERY_S = 0.05


def read_job(path: Path) -> Job:
    """The job that the runner has written down."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError) as e:
        raise SpecError(f"cannot read the job from {path}: {e}") from e


def children_of(job: Job, job_path: Path, rank: int, run: Path) -> list[Child]:
    """The processes that this node runs, pserver first."""
    node = Path(job.output) / f"node_{rank}"
    found = []
    for role, count, log_name in (
        ("pserver", job.pservers, "server.log"),
        ("trainer", job.trainers, "train.log"),
    ):
        if rank < count:
            command = [
                sys.executable, "-m", "bireme", role, f"--job={job_path}", f"--rank={rank}",
                f"--run={run}", f"--parent={os.getpid()}",
            ]  # fmt: skip
            found.append(Child(f"{role} {rank}", command, node / log_name))
    return found


def run_node(job_path: Path, rank: int, run: Path) -> None:
    """Run this node's processes to their end; raises what went wrong first."""
    job = read_job(job_path)
    # A plain list: an Event's lock may be held by the very code that a signal interrupts.
    asked_to_stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked_to_stop.append(received))
    children = children_of(job, job_path, rank, run)
    logs = {child.name: child.log for child in children}
    with Family() as family:
        keeper = Keeper(family, children, job.restarts, job.logs)
        while not asked_to_stop:
            for name, pid, why in keeper.started:
                log.info("started %s as process %d%s", name, pid, f": the one before {why}" if why else "")
            keeper.started.clear()
            found = keeper.look(lambda: has_ended(Path(job.output)))
            if isinstance(found, Ended):
                raise _cause(found, job, run, logs[found.name])
            if found:
                return
            time.sleep(WATCH_EVERY_S)
        family.end(GRACE_S)
        raise SystemExit(128 + signal.SIGTERM)


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
    if ended.deaths > 1:
        how = f"died {ended.deaths} times within {job.restarts.within_s:g} s; at last it {how}"
    return ProcessError(f"{ended.name} {how}", fix=where)


def report_failure(run: Path, process: str, error: BiremeError) -> None:
    """Leave word of a failure in the run's directory."""
    write_report(run / "reports" / f"{process.replace(' ', '-')}.json", process, error)
