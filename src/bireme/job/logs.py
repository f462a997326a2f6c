"""Keeping log files within their budget while processes write to them.

A process that writes does not know about files, it has its output. So a log that is full is copied aside and cut
to nothing under its writer, who appends. What is written in between those two steps is lost: a line, rarely.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from bireme.spec.model import Logs

log = logging.getLogger(__name__)


def rotate(path: Path, rule: Logs) -> bool:
    """Move a log that is larger than allowed to `.1`, and older ones one further; returns whether it was."""
    try:
        if path.stat().st_size <= rule.max_mb * 1_000_000:
            return False
        for number in range(rule.keep, 0, -1):
            older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if number == 1:
                shutil.copyfile(older, path.with_name(f"{path.name}.1"))
            elif older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))
        os.truncate(path, 0)
    except OSError as e:
        log.warning("%s cannot be rotated: %s", path, e.strerror)
        return False
    return True
