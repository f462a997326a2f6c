"""Running a job as processes on this machine: the same entry that a pod runs, once per node.

The runner is the parent of all nodes: it starts them, polls the coordinator's status, and ends everything when one
fails or on request. The kernel kills the nodes if the runner dies first.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bireme.core.errors import BiremeError, Cancelled, NetworkError, OutputExistsError, ProcessError, RefusedError
from bireme.core.files import make_directory, storage_errors
from bireme.core.forking import Forked, ForkServer
from bireme.job.coordination import messages as m
from bireme.job.node import incarnations
from bireme.job.node.discovery import SharedDirectory
from bireme.job.node.entry import too_many_deaths
from bireme.job.node.failure_reports import STATUS_FILE, first_cause, has_ended, last_status, read_reports
from bireme.job.node.headway import Headway
from bireme.job.node.supervisor import Child, Ended, ProcessGroup, Supervisor, describe_exit
from bireme.job.output.data_hash import data_fingerprint
from bireme.job.output.ownership import check_output, write_job
from bireme.job.status import JobStatus
from bireme.local import registry
from bireme.spec.job import Job
from bireme.spec.load import child_environment

CANCEL_GRACE_S = 5.0
LOCK_FILE = ".lock"


def coordinator_of(run: Path) -> m.Address | None:
    """Where a run's coordinator listens, once it does."""
    return SharedDirectory(run / "meet", 1).find()[0]


def lock_output(output: Path) -> int:
    """Claim a directory for one run; the kernel gives it back when this process ends, however that is."""
    path = output / LOCK_FILE
    while True:
        with storage_errors(str(output)):
            # O_CLOEXEC: a child that inherited the descriptor would keep the lock after this process has died.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise OutputExistsError(
                f"{output} belongs to a job that runs now (process {holder})",
                fix="give another directory with `--output DIR`, or stop that job with `bireme cancel`",
            ) from e
        if _is_at(path, fd):
            break
        os.close(fd)  # its last owner has unlinked it since we opened it: our lock would exclude no other run
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def unlock_output(output: Path, fd: int) -> None:
    try:
        # Before the lock is released: afterwards the file may be another run's.
        (output / LOCK_FILE).unlink(missing_ok=True)
    finally:
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


class LocalRun:
    """One job running here; a context manager that leaves no process behind."""

    def __init__(self, job: Job, job_file: str) -> None:
        self.job = job
        self._job_file = job_file
        self._server: ForkServer | None = None
        self._processes = ProcessGroup(self._fork)
        self.status = JobStatus()
        """The last one that the coordinator gave."""
        self._is_cancelled = False
        self._patience_ends = math.inf

    def __enter__(self) -> LocalRun:
        output = Path(self.job.output)
        make_directory(output)
        self._lock = lock_output(output)
        try:
            if self.job.nodes > 1:  # one node loads as fast by itself
                command = [sys.executable, "-m", "bireme", "fork-server", f"--parent={os.getpid()}"]
                self._server = ForkServer(command, child_environment())
            fingerprint = data_fingerprint(Path(self.job.data), self.job.shards)
            job, run_incarnation = check_output(self.job), incarnations.take(output, "runner")
            self.job = msgspec.structs.replace(job, data_fingerprint=fingerprint, run_incarnation=run_incarnation)
            (output / STATUS_FILE).unlink(missing_ok=True)
            path = write_job(self.job)
            self._record, self._run = registry.new_run(self.job.name, self._job_file, self.job.output)
        except BaseException:
            self._close()
            raise
        try:
            self._start_nodes(path)
        except BaseException as e:
            self.__exit__(type(e), e, None)
            raise
        return self

    def _start_nodes(self, path: Path) -> None:
        nodes = []
        for rank in range(self.job.nodes):
            command = [
                # `--parent`: the node has the kernel kill it with this process, and exits if that has died already.
                sys.executable, "-m", "bireme", "node", f"--job={path}", f"--rank={rank}",
                f"--run={self._run}", f"--parent={os.getpid()}",
            ]  # fmt: skip
            nodes.append(Child(f"node {rank}", command, path.parent / f"node_{rank}" / "node.log"))
        headway = Headway(Path(self.job.output))
        self._supervisor = Supervisor(self._processes, nodes, self.job.restarts, self.job.logs, headway.look)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._processes.end(5.0 if error is None else 2.0)
        state: registry.State = "finished"
        if error is not None:
            state = "cancelled" if isinstance(error, Cancelled | KeyboardInterrupt) else "failed"
        reason = error.what if isinstance(error, BiremeError) else ""
        cause = error.as_dict() if isinstance(error, BiremeError) and state == "failed" else {}
        ended = {"state": state, "reason": reason, "ended": time.time(), "error": cause, "status": self.status}
        registry.save(msgspec.structs.replace(self._record, **ended))
        registry.clear(self._run)
        self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        unlock_output(Path(self.job.output), self._lock)

    def _fork(self, command: Sequence[str], output: int) -> Forked | None:
        return self._server.start(command, output) if self._server is not None else None

    def poll(self) -> JobStatus | None:
        """Ask for the status; None when the job is finished. Raises what went wrong, or Cancelled."""
        outcome = self._supervisor.look(lambda: self._is_cancelled or has_ended(Path(self.job.output)))
        if outcome is False:
            if time.monotonic() > self._patience_ends:
                self._processes.end(1.0)
            self._ask(m.GetStatus())
            return self.status
        last = last_status(Path(self.job.output))
        self.status = last if last.phase else self.status
        phase = self.status.phase
        if phase == "finished" and not self._has_cause():
            return None
        if phase != "finished" and (self._is_cancelled or phase == "cancelled"):
            raise Cancelled("stopped on request")
        raise self._error(outcome if isinstance(outcome, Ended) else None)

    @property
    def fired(self) -> Path:
        return self._run / "fired"

    def cancel(self) -> None:
        """Ask the job to stop cleanly; processes that have not within a few seconds are killed."""
        self._is_cancelled = True
        # A coordinator that no trainer has joined yet does not know the job, and writes no end of it: processes that
        # are still starting would gather again and train.
        is_ending = self._ask(m.Cancel()) and has_ended(Path(self.job.output))
        patience_s = CANCEL_GRACE_S if is_ending else 0.0
        self._patience_ends = time.monotonic() + patience_s

    def kill(self) -> None:
        self._is_cancelled = True
        self._processes.end(0.0)

    def _ask(self, message: m.GetStatus | m.Cancel) -> bool:
        address = coordinator_of(self._run)
        if address is None:
            return False
        try:
            self.status = m.ask(address, message)
        except BiremeError:
            return False  # it is not up yet or has just left; the next poll or the exit codes decide
        return True

    def _has_cause(self) -> bool:
        """Whether a process reports another cause than a death; one on the way out harms nothing that is saved."""
        cause = first_cause(read_reports(self._run))
        return cause is not None and cause.kind != ProcessError.__name__

    def _error(self, gone: Ended | None) -> BiremeError:
        # Give the others time to write their reports: the first to exit need not be the cause.
        time.sleep(0.3)
        cause = first_cause(read_reports(self._run))
        codes, look = self._processes.codes(), f"look at the logs in {self.job.output}/node_*/"
        # A killed node writes no report, and its peers report only that a connection closed.
        is_silent = any(code is not None and code < 0 for code in codes.values())
        if cause is not None and not (is_silent and cause.kind in (NetworkError.__name__, RefusedError.__name__)):
            return cause.error()
        if gone is not None and gone.deaths > 1:
            return too_many_deaths(gone, self.job, look)
        killed_first = sorted(codes.items(), key=lambda each: (each[1] or 0) >= 0)
        ended = [f"{name} {describe_exit(code)}" for name, code in killed_first if code]
        reason = self.status.reason if self.status.phase == "failed" else ""
        what = reason or (ended[0] if ended else "all processes left before the job was finished")
        return ProcessError(what, fix=look)
