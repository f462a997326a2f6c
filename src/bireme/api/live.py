"""The status of a run on this machine: the coordinator's answer, or what the run left on disk."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bireme.api.progress import progress_of
from bireme.core.errors import UsageError
from bireme.job.status import JobStatus
from bireme.local.registry import RunRecord, find_run, runs_directory

if TYPE_CHECKING:
    from bireme.diagnose.facts import Facts

CANCEL_S = 15.0
"""How long a run may take to stop cleanly before `cancel` returns all the same."""
AGAIN_S = 0.3
"""Pause between two SIGTERMs: if both were pending, they would count once."""
SILENT = "pserver 0 (the coordinator), which does not answer"


def status_of(record: RunRecord) -> JobStatus:
    """The coordinator's answer while it lives, its last status afterwards."""
    from bireme.core.errors import BiremeError
    from bireme.job.coordination import messages as m
    from bireme.job.coordination.query import ask
    from bireme.local.runner import coordinator_of

    if record.state != "running":
        return record.status
    address = coordinator_of(runs_directory() / record.id)
    if address is None:
        return JobStatus(phase="starting")
    try:
        return ask(address, m.GetStatus())
    except BiremeError:
        return _last_known(record)


def _last_known(record: RunRecord) -> JobStatus:
    """The status of a job whose coordinator does not answer: it is paused, or is being restarted."""
    from bireme.job.node.failure_reports import last_status

    status = last_status(Path(record.output))
    status = status if status.phase else record.status
    if status.ending:
        return status
    phase = status.phase or ("training" if _has_trained(record) else "starting")
    return msgspec.structs.replace(status, phase=phase, waits_for=(SILENT,))


def _has_trained(record: RunRecord) -> bool:
    """Whether this run has begun to train, by the job's journal."""
    from bireme.job.output.journal import METRICS

    journal = Path(record.output) / METRICS
    for line in journal.read_bytes().splitlines() if journal.is_file() else ():
        with suppress(msgspec.MsgspecError):  # half a line at the end
            row = msgspec.json.decode(line, type=dict[str, Any])
            if row.get("event") == "view" and row.get("unix", 0.0) >= record.started:
                return True
    return False


def local_facts(record: RunRecord) -> Facts:
    """What `diagnose` needs to explain a run on this machine."""
    from bireme.diagnose.facts import Facts
    from bireme.spec.load import command_name

    status = status_of(record)
    progress = progress_of(record, status)
    known = {**msgspec.to_builtins(record), "status": msgspec.to_builtins(status)}
    known |= {"passes_done": progress.done, "passes": progress.passes, "output": _short_path(record.output)}
    return Facts(job=record.name, where="local", now=time.time(), command=command_name(), record=known)


def _short_path(path: str) -> str:
    """A path as people would type it from here."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def cancel_run(record: RunRecord, *, now: bool = False) -> str:
    """Stop a run, cleanly unless `now`; its state after that."""
    if record.state != "running":
        raise UsageError(f"{record.name} does not run: its state is {record.state}")
    with suppress(ProcessLookupError):  # it ended since it was looked up
        os.kill(record.pid, signal.SIGTERM)
        if now:
            # As a second Ctrl-C would; not SIGINT, which jobs in the background of a script ignore.
            time.sleep(AGAIN_S)
            if find_run(record.id).state == "running":
                os.kill(record.pid, signal.SIGTERM)
    deadline = time.monotonic() + CANCEL_S
    while time.monotonic() < deadline and find_run(record.id).state == "running":
        time.sleep(0.05)
    return find_run(record.id).state
