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
from bireme.job.reports import first_cause, read_reports, write_report
from bireme.job.supervise import GRACE_S, Child, Family, decide, describe_exit
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
        for child in children:
            pid = family.start(child)
            log.info("started %s as process %d", child.name, pid)
        while decide(family.codes()) == "go-on" and not asked_to_stop:
            time.sleep(WATCH_EVERY_S)
        codes = family.codes()
        if decide(codes) == "end-others":
            _raise_for(codes, run, logs)
        if decide(codes) == "go-on":
            family.end(GRACE_S)
            raise SystemExit(128 + signal.SIGTERM)


def _raise_for(codes: dict[str, int | None], run: Path, logs: dict[str, Path]) -> None:
    name, code = next((name, code) for name, code in codes.items() if code not in (None, 0))
    told = [r for r in read_reports(run / "reports") if r.process in codes]
    cause = first_cause(told)
    if cause is not None:
        raise cause.error()
    error = ProcessError(f"{name} {describe_exit(code or 0)}", fix=f"its last words are in {logs[name]}")
    if code == ProcessError.exit_code:
        raise error  # it left because of somebody else, who tells
    report_failure(run, f"node {name.split()[1]}", error)
    raise error


def report_failure(run: Path, process: str, error: BiremeError) -> None:
    """Leave word of a failure in the run's directory."""
    write_report(run / "reports" / f"{process.replace(' ', '-')}.json", process, error)
