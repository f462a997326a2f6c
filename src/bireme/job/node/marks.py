"""Marks: empty files by which a process tells the one who started it that it takes part in the job.

They lie on the machine's own disk and are removed with the process's death, so a mark that is there speaks of now.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def put_mark(mark: Path | None) -> None:
    """Say so, where somebody wants to know; a disk that refuses is no reason to stop."""
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def take_mark(mark: Path | None) -> None:
    """Say so no more."""
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
