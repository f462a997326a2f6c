"""Marks: empty files that exist while a process takes part in the job, for its node's readiness probe.

They lie on the machine's own disk; the supervisor removes a dead process' mark, so an existing one is current.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def put_mark(mark: Path | None) -> None:
    """Create the mark, if one is configured; a failing disk is no reason to stop."""
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def take_mark(mark: Path | None) -> None:
    """Remove the mark."""
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
