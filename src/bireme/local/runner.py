"""Running a job as processes on this machine: the same entry that a pod runs, once per node.

The runner is the parent of all: it starts the nodes, asks the coordinator how things are, and
ends everything when one fails or when it is told to. The kernel kills the nodes if the runner
dies first.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.errors import BiremeError, Cancelled, OutputExistsError, ProcessError, SpecError
from bireme.core.files import storage_errors, write_atomic
from bireme.job import messages as m
from bireme.job.coordinating import STATUS_FILE
from bireme.job.discover import SharedDirectory
from bireme.job.model import pass_name
from bireme.job.reports import first_cause, read_reports
from bireme.job.supervise import Child, Family, decide, describe_exit
from bireme.local import registry
from bireme.ps.client import connect
from bireme.spec.job import Job

ASK_TIMEOUT_S = 2.0


def ask(address: m.Address, message: m.Message) -> dict[str, Any]:
    """Send the coordinator one message and return the status it answers with."""
    sock = connect(address.host, address.ports[0], timeout_s=ASK_TIMEOUT_S, what="the coordinator")
    with sock:
        sock.settimeout(ASK_TIMEOUT_S)
        m.send(sock, message)
        reply = m.expect(sock)
    if not isinstance(reply, m.Status):
        raise AssertionError(f"expected Status, got {type(reply).__name__}: this is a bug")
    return reply.status


def coordinator_of(run: Path) -> m.Address | None:
    """Where a run's coordinator listens, once it does."""
    return SharedDirectory(run / "meet", 1).find()[0]


def check_output(job: Job) -> Job:
    """Refuse to mix two runs in one directory; going on from a finished pass is the exception."""
    output = Path(job.output)
    if output.exists() and not output.is_dir():
        raise OutputExistsError(f"{output} exists and is not a directory", fix="choose another `output`")
    busy = [r for r in registry.all_runs() if r.state == "running" and r.output == job.output]
    if busy:
        raise OutputExistsError(
            f"{output} belongs to {busy[0].name}, which runs now (process {busy[0].pid})",
            fix="give another directory with `--output DIR`, or stop that job with `bireme cancel`",
        )
    passes = sorted(p.name for p in output.glob("pass-*")) if output.is_dir() else []
    if job.start_pass == 0:
        if passes:
            next_pass = int(passes[-1][5:10]) + 1
            go_on = f", or go on with `--start-pass {next_pass}`" if next_pass < job.passes else ""
            raise OutputExistsError(
                f"{output} already holds a run up to {passes[-1]}",
                why="a new run would mix its logs and models with the old ones",
                fix=f"give another directory with `--output DIR`{go_on}",
            )
        return job
    return _go_on(job, output, passes)


def _go_on(job: Job, output: Path, passes: list[str]) -> Job:
    model = output / pass_name(job.start_pass - 1)
    if not (model / "done").is_file():
        raise SpecError(
            f"--start-pass {job.start_pass} needs the model {model}, which is not there", fix="start from 0"
        )
    if job.start_pass >= job.passes:
        raise SpecError(
            f"--start-pass {job.start_pass}, but the job has only passes 0 to {job.passes - 1}",
            fix="raise --passes",
        )
    later = [p for p in passes if p > model.name]
    if later:
        raise OutputExistsError(
            f"{output / later[0]} exists already",
            fix=f"use --start-pass {int(later[-1][5:10]) + 1}, or move it away",
        )
    return msgspec.structs.replace(job, init_model=str(model))


class LocalRun:
    """One job running here; a context manager that leaves no process behind."""

    def __init__(self, job: Job, job_file: str) -> None:
        self.job = check_output(job)
        output = Path(job.output)
        with storage_errors(str(output)):
            output.mkdir(parents=True, exist_ok=True)
        self._family = Family()
        self._record, self._run = registry.new_run(job.name, job_file, job.output)
        self._status: dict[str, Any] = {}
        self._is_cancelled = False
        (output / STATUS_FILE).unlink(missing_ok=True)
        path = output / "job.json"
        write_atomic(path, msgspec.json.format(msgspec.json.encode(self.job), indent=2) + b"\n")
        for rank in range(job.nodes):
            command = [
                sys.executable, "-m", "bireme", "node", f"--job={path}", f"--rank={rank}",
                f"--run={self._run}", f"--parent={os.getpid()}",
            ]  # fmt: skip
            self._family.start(Child(f"node {rank}", command, output / f"node_{rank}" / "node.log"))

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._family.end(5.0 if error is None else 2.0)
        state: registry.State = "finished"
        if error is not None:
            state = "cancelled" if isinstance(error, Cancelled | KeyboardInterrupt) else "failed"
        reason = error.what if isinstance(error, BiremeError) else ""
        registry.save(
            msgspec.structs.replace(self._record, state=state, reason=reason, ended=time.time(), status=self._status)
        )
        registry.clear(self._run)

    def poll(self) -> dict[str, Any] | None:
        """Ask for the status; None when the job is over. Raises what went wrong, or Cancelled."""
        verdict = decide(self._family.codes())
        if verdict == "go-on":
            self._ask(m.GetStatus())
            return self._status
        self._read_last_word()
        if verdict == "end-others":
            self._raise()
        if self._is_cancelled:
            raise Cancelled("stopped on request")
        return None

    @property
    def status(self) -> dict[str, Any]:
        """The last status that the coordinator gave."""
        return self._status

    def cancel(self) -> None:
        """Ask the job to stop cleanly; where nobody can be asked yet, end the processes."""
        self._is_cancelled = True
        if not self._ask(m.Cancel()):
            self._family.end(1.0)

    def kill(self) -> None:
        """End everything at once."""
        self._is_cancelled = True
        self._family.end(0.0)

    def _ask(self, message: m.Message) -> bool:
        address = coordinator_of(self._run)
        if address is None:
            return False
        try:
            self._status = ask(address, message)
        except (BiremeError, socket.timeout):  # noqa: UP041 - what settimeout raises
            return False  # it has just left, or not yet come; the next poll or the exit codes will tell
        return True

    def _read_last_word(self) -> None:
        try:
            said = msgspec.json.decode((Path(self.job.output) / STATUS_FILE).read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            return  # it was killed before it could say anything
        self._status = said

    def _raise(self) -> None:
        if self._is_cancelled:
            raise Cancelled("stopped on request")
        # A moment for the others to leave their word: the first to exit need not be the cause.
        time.sleep(0.3)
        cause = first_cause(read_reports(self._run / "reports"))
        if cause is not None:
            raise cause.error()
        name, code = next((n, c) for n, c in self._family.codes().items() if c not in (None, 0))
        raise ProcessError(
            f"{name} {describe_exit(code or 0)}", fix=f"look into {self.job.output}/{name.replace(' ', '_')}"
        )
