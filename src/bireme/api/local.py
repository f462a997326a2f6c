"""Jobs that run on this machine: every use case, by the runs that the registry has.

A run is a process of its own, the one that `bireme train` is: it survives the end of Python or of a notebook's kernel,
and every other terminal sees it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

import msgspec

from bireme.api.backends import Diagnosis, Listing, Note, RunStatus, Started, Stopped, no_note
from bireme.api.progress import progress_of, way_on
from bireme.core.errors import BiremeError, Cancelled, ProcessError, UsageError, error_in
from bireme.job.node.failure_reports import last_status
from bireme.job.output.kept import metrics_in
from bireme.job.output.logs import LogFilter, LogLine, followed, log_files
from bireme.job.status import JobStatus
from bireme.local import registry
from bireme.spec.load import command_name
from bireme.view.readers import View

POLL_S = 0.1
CANCEL_S = 15.0
"""How long `cancel` waits for a clean stop before it returns all the same."""
AGAIN_S = 0.3
"""Pause between two SIGTERMs: if both were pending, they would count once."""
_OTHER = "for a job of that name on the cluster, add --kube"
SILENT = "pserver 0 (the coordinator), which does not answer"


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Jobs of this user on this machine."""

    stops_on_interrupt: ClassVar[bool] = True

    def submit(self, file: Path, changes: Mapping[str, Any]) -> Started:
        """Start a process that trains the job."""
        return Started(self, _start("train", str(file), *_overriding(changes)))

    def list(self, limit: int | None = None, *, shows_all: bool = False) -> Listing:
        """The newest run of each job, newest first, or all runs."""
        newest = registry.newest_runs()
        ids = {record.id for record in newest}
        records = registry.all_runs() if shows_all else [r for r in newest if not _is_gone(r)]
        jobs = [_report(record, is_newest=record.id in ids) for record in records[:limit]]
        hidden = 0 if shows_all else sum(map(_is_gone, newest))
        return Listing(jobs, len(records) - len(jobs), hidden)

    def status(self, name: str | None) -> RunStatus:
        return report_of(registry.find_run(name))

    def follow(self, name: str | None, view: View, is_left: Callable[[], bool]) -> RunStatus:
        record = registry.find_run(name)
        with view:
            while record.state == "running" and not is_left():
                status = status_of(record)
                if status.phase != "training" or status.passes:  # else its coordinator has never answered
                    view.update(status)
                time.sleep(POLL_S)
                record = registry.find_run(record.id)
            if record.state != "running":
                view.update(record.status)
        return report_of(record)

    def logs(
        self, name: str | None, wanted: LogFilter, *, image: str | None = None, note: Note = no_note
    ) -> Iterator[LogLine]:
        record = registry.find_run(name)
        logs: dict[str, Sequence[Path]] = {}
        for role in [wanted.role] if wanted.role else ["trainer", "pserver"]:
            logs |= log_files(Path(record.output), wanted.node, role)
        if not logs:
            fix = "leave --node and --role out to see all"
            raise UsageError(f"{record.name} has no such log under {record.output}", fix=fix)
        return followed(logs, wanted, lambda: registry.find_run(record.id).state != "running")

    def why(self, name: str | None) -> Diagnosis:
        from bireme.diagnose.evidence import Evidence
        from bireme.diagnose.explain import explain

        record = registry.find_run(name)
        now, output, here = _report(record, is_newest=True), Path(record.output), Path.cwd()
        known = {**msgspec.to_builtins(record), **now.details, "passes_done": now.passes_done, "passes": now.passes}
        if output.is_relative_to(here):  # as people would type it from here
            known["output"] = str(output.relative_to(here))
        facts = Evidence(job=record.name, where="local", now=time.time(), command=command_name(), record=known)
        return Diagnosis(facts.job, facts.where, facts.namespace, explain(facts), [])

    def cancel(self, name: str | None, *, now: bool = False) -> Stopped:
        record = registry.find_run(name)
        if record.state != "running":
            raise UsageError(f"{record.name} does not run: its state is {record.state}")
        registry.check_one(name)
        with suppress(ProcessLookupError):  # it ended since it was looked up
            os.kill(record.pid, signal.SIGTERM)
            if now:
                # As a second Ctrl-C would; not SIGINT, which jobs in the background of a script ignore.
                time.sleep(AGAIN_S)
                if registry.find_run(record.id).state == "running":
                    os.kill(record.pid, signal.SIGTERM)
        deadline = time.monotonic() + CANCEL_S
        while time.monotonic() < deadline and registry.find_run(record.id).state == "running":
            time.sleep(0.05)
        return Stopped(record.name, registry.find_run(record.id).state)

    def resume(self, name: str, changes: Mapping[str, Any]) -> str:
        """Start a process that resumes a run, in the same output directory; the id of the new run."""
        return _start("resume", registry.find_run(name).output, *_flags(changes))

    def fetch(self, name: str, directory: Path, **_: object) -> NoReturn:
        """Refused: the files are on this machine."""
        record = registry.find_run(name)
        fix = f"its models and logs are in {record.output}; {_OTHER}"
        raise UsageError(f"{record.name} is a job of this machine: there is nothing to fetch", fix=fix)

    def delete(self, name: str, *, with_volume: bool = False) -> NoReturn:
        """Refused: a run here is a process, which `cancel` ends, and a directory of the user's."""
        record = registry.find_run(name)
        stop = f"stop it with `{command_name()} cancel {record.id}`, then " if record.state == "running" else ""
        fix = f"{stop}remove {record.output}, where its models and logs are; {_OTHER}"
        raise UsageError(f"{record.name} is a job of this machine: it has nothing but its files to delete", fix=fix)


def status_of(record: registry.RunRecord) -> JobStatus:
    """The coordinator's answer while it lives, its last status afterwards."""
    from bireme.job.coordination import messages as m
    from bireme.local.runner import coordinator_of

    if record.state != "running":
        return record.status
    address = coordinator_of(registry.runs_directory() / record.id)
    if address is None:
        return JobStatus(phase="starting")
    try:
        return m.ask(address, m.GetStatus())
    except BiremeError:
        return _last_known(record)


def _last_known(record: registry.RunRecord) -> JobStatus:
    """The status of a job whose coordinator does not answer: it is paused, or is being restarted."""
    status = last_status(Path(record.output))
    status = status if status.phase else record.status
    if status.ending:
        return status
    phase = status.phase or ("training" if _has_trained(record) else "starting")
    return msgspec.structs.replace(status, phase=phase, waits_for=(SILENT,))


def _has_trained(record: registry.RunRecord) -> bool:
    from bireme.job.output.journal import METRICS, rows_of

    views = rows_of(Path(record.output) / METRICS, b'"view"')
    return any(row.get("event") == "view" and row.get("unix", 0.0) >= record.started for row in views)


def running_in(output: Path) -> registry.RunRecord | None:
    """The run that uses an output directory now."""
    runs = (run for run in registry.all_runs() if run.state == "running")
    return next((run for run in runs if run.output == str(output.absolute())), None)


def report_of(record: registry.RunRecord) -> RunStatus:
    """How a run is doing, with the passes of earlier runs if it is the newest in its output directory."""
    return _report(record, is_newest=record.id in {r.id for r in registry.newest_runs()}, has_passes=True)


def _report(record: registry.RunRecord, *, is_newest: bool, has_passes: bool = False) -> RunStatus:
    status, output = status_of(record), Path(record.output)
    done, passes = progress_of(record, status, is_newest=is_newest)
    row: dict[str, Any] = msgspec.to_builtins(record)
    del row["status"]
    # What this run reports of its passes, and the models of those that runs before it finished.
    closed = metrics_in(output) if is_newest and has_passes else {}
    closed |= {each.pass_id: each for each in status.passes_done}
    can_resume = is_newest and record.state not in ("running", "finished") and done < passes
    return RunStatus(
        name=record.name,
        id=record.id,
        state=record.state,
        reason=record.reason,
        started=record.started,
        job=status,
        passes_done=done,
        passes=passes,
        place=record.output,
        output=output,
        where=f"output: {record.output}",
        row={**row, "passes_done": done, "passes": passes},
        details={"status": msgspec.to_builtins(status)},
        closed=[closed[pass_id] for pass_id in sorted(closed)],
        next_step=way_on(output) if can_resume else "",
        is_gone=_is_gone(record),
        error=_error_of(record),
    )


def _is_gone(record: registry.RunRecord) -> bool:
    return record.state != "running" and not Path(record.output).is_dir()


def _error_of(record: registry.RunRecord) -> BiremeError | None:
    if record.state in ("running", "finished"):
        return None
    if record.state == "cancelled":
        return Cancelled(f"{record.name} was stopped", fix="`run.resume()` continues from its newest snapshot")
    what = record.error.get("what") or record.reason or f"{record.name} has {record.state}"
    return error_in({**record.error, "what": what}, ProcessError)


def _overriding(changes: Mapping[str, Any]) -> list[str]:
    """Values for keys of job.yaml, for `train`: it has flags for a few of the keys alone."""
    return ["--overrides", msgspec.json.encode(changes, enc_hook=str).decode()]


def _flags(changes: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in changes.items() if value is not None]


def _start(*arguments: str) -> str:
    """Start the process of a run and wait until it has written its record; the run's id."""
    command = [sys.executable, "-m", "bireme", *arguments, "--json"]
    with tempfile.TemporaryFile() as answer:
        begun = time.time()
        # A session of its own: Ctrl-C and the end of this Python do not reach it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.STDOUT, start_new_session=True
        )
        # Without this the process of a run that was killed would stay a zombie, and count as running.
        threading.Thread(target=process.wait, daemon=True).start()
        while True:
            has_left = process.poll() is not None  # asked first: a short run may end between the two questions
            record = record_of(process.pid, begun, registry.all_runs())
            if record is not None:
                return record.id
            if has_left:
                return _without_record(process.returncode, answer, arguments)
            time.sleep(0.02)


def record_of(pid: int, begun: float, records: Sequence[registry.RunRecord]) -> registry.RunRecord | None:
    """The record of a process; one from before it began is of another process that had the same number."""
    return next((record for record in records if record.pid == pid and record.started >= begun), None)


def _without_record(code: int, answer: IO[bytes], arguments: Sequence[str]) -> str:
    """A process that ended before it began to run: the job was finished already, or was refused."""
    if code == 0:
        return registry.find_run(arguments[1]).id
    answer.seek(0)
    text = answer.read().decode(errors="replace")
    try:
        error = msgspec.json.decode(text.strip().rpartition("\n")[2], type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ProcessError(f"`bireme {' '.join(arguments)}` ended with code {code}", why=text.strip()[-400:]) from None
    raise error_in(error, ProcessError)
