"""Failure reports: one small JSON file for each process that failed, written before it exits.

An exit code does not say why. The supervisor collects the reports and shows the first cause;
an error that only says that a peer was lost is a consequence of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bireme.core.errors import BiremeError, ProcessError, error_class
from bireme.core.files import write_atomic
from bireme.job.status import JobStatus, decode_status


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The error that a process exited with."""

    process: str
    """For people, e.g. "trainer 1"."""
    kind: str
    what: str
    why: str = ""
    fix: str = ""
    time: float = 0.0

    def error(self) -> BiremeError:
        return error_class(self.kind, ProcessError)(f"{self.process}: {self.what}", why=self.why, fix=self.fix)


REPORTS = "reports"
STATUS_FILE = "status.json"
"""In the output tree: the coordinator's final status, written before it exits."""


def last_status(output: Path) -> JobStatus:
    """The coordinator's final status; empty while there is none."""
    try:
        return decode_status((output / STATUS_FILE).read_bytes())
    except OSError:
        return JobStatus()


def has_ended(output: Path) -> bool:
    return last_status(output).ending is not None


def report_failure(run: Path, process: str, error: BiremeError) -> None:
    report = FailureReport(process=process, time=time.time(), **error.as_dict())
    write_atomic(run / REPORTS / f"{process.replace(' ', '-')}.json", msgspec.json.encode(report))


def read_reports(run: Path) -> list[FailureReport]:
    """All reports of a run so far, oldest first."""
    reports = []
    for path in (run / REPORTS).glob("*.json"):
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=FailureReport))
        except (OSError, msgspec.MsgspecError):
            continue  # being replaced, or not ours
    return sorted(reports, key=lambda r: r.time)


# Losing a peer, or being refused by one, is a consequence of an earlier failure.
_CONSEQUENCES = {"ProcessError": 1, "RefusedError": 2, "StaleError": 2, "NetworkError": 3}


def first_cause(reports: Iterable[FailureReport]) -> FailureReport | None:
    """The report that explains the others: of the least consequential kind, the oldest."""
    return min(reports, key=lambda r: (_CONSEQUENCES.get(r.kind, 0), r.time), default=None)


def failure_of(output: Path, run: Path) -> BiremeError | None:
    """The first cause of a job's failure, from reports or the final status; None if it has not failed."""
    status = last_status(output)
    if status.phase != "failed":
        return None
    cause = first_cause(read_reports(run))
    return cause.error() if cause is not None else ProcessError(f"the job failed: {status.reason}")
