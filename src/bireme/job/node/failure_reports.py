"""How a process that fails tells its family why: one small JSON file per process.

Exit codes travel by themselves; words do not. Whoever supervises collects the reports and shows
the one that came first, leaving out those that only say "my peer went away".
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.errors import BiremeError, ProcessError, error_class
from bireme.core.files import write_atomic


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a process said before it left."""

    process: str
    """For people, e.g. "trainer 1"."""
    kind: str
    what: str
    why: str = ""
    fix: str = ""
    time: float = 0.0

    def error(self) -> BiremeError:
        """The error again, as the class it was, told as coming from that process."""
        return error_class(self.kind, ProcessError)(f"{self.process}: {self.what}", why=self.why, fix=self.fix)


STATUS_FILE = "status.json"
"""In the output tree: the coordinator's last word, for whoever asks after it has left."""


def last_status(output: Path) -> dict[str, Any]:
    """The coordinator's last word; empty while it has not said one."""
    try:
        return msgspec.json.decode((output / STATUS_FILE).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def has_ended(output: Path) -> bool:
    """Whether the coordinator has said its last word."""
    return last_status(output).get("phase") in ("finished", "failed", "cancelled")


def write_report(path: Path, process: str, error: BiremeError) -> None:
    """Leave a report where the supervisor looks for it."""
    report = FailureReport(
        process=process,
        kind=type(error).__name__,
        what=error.what,
        why=error.why,
        fix=error.fix,
        time=time.time(),
    )
    write_atomic(path, msgspec.json.encode(report))


def read_reports(directory: Path) -> list[FailureReport]:
    """All reports so far, oldest first."""
    found = []
    for path in directory.glob("*.json"):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=FailureReport))
        except (OSError, msgspec.MsgspecError):
            continue  # being replaced, or not ours
    return sorted(found, key=lambda r: r.time)


# Losing a peer, or being sent away by one, is a consequence of something that happened before.
_CONSEQUENCES = {"ProcessError": 1, "RefusedError": 2, "StaleError": 2, "NetworkError": 3}


def first_cause(reports: Iterable[FailureReport]) -> FailureReport | None:
    """The report that explains the others: the oldest of those that are least of a consequence."""
    return min(reports, key=lambda r: (_CONSEQUENCES.get(r.kind, 0), r.time), default=None)


def failure_of(output: Path, run: Path) -> BiremeError | None:
    """What a job failed of, as its processes and its coordinator have told; None if it has not failed."""
    status = last_status(output)
    if status.get("phase") != "failed":
        return None
    cause = first_cause(read_reports(run / "reports"))
    return cause.error() if cause is not None else ProcessError(f"the job failed: {status.get('reason', '')}")
