"""Keeping log files within their budget while processes write to them.

A process that writes does not know about files, it has its output. So a log that is full is copied aside and cut
to nothing under its writer, who appends. What is written in between those two steps is lost: a line, rarely.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from bireme.spec.model import Logs

log = logging.getLogger(__name__)
AT_ONCE_NBYTES = 1 << 20


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


class Copier:
    """Repeats what processes add to their logs, line by line, with their names in front.

    What was there before is left alone: it was repeated by whoever ran then. A log that was cut to nothing is read
    from its beginning again.
    """

    def __init__(self, logs: Mapping[str, Path], out: BinaryIO) -> None:
        self._logs = dict(logs)
        self._out = out
        self._read = {name: _size_of(path) for name, path in logs.items()}
        self._half = dict.fromkeys(logs, b"")

    def copy(self) -> None:
        """Repeat whole lines that are new."""
        for name, path in self._logs.items():
            while new := self._take(name, path):
                whole, newline, self._half[name] = (self._half[name] + new).rpartition(b"\n")
                self._say(name, whole + newline)
        self._out.flush()

    def finish(self) -> None:
        """Repeat what is left, also where the last line has no end."""
        self.copy()
        for name, half in self._half.items():
            self._say(name, half + b"\n" if half else b"")
        self._half = dict.fromkeys(self._half, b"")
        self._out.flush()

    def _take(self, name: str, path: Path) -> bytes:
        size = _size_of(path)
        if size < self._read[name]:
            self._read[name] = 0
        if size == self._read[name]:
            return b""
        try:
            with path.open("rb") as f:
                f.seek(self._read[name])
                new = f.read(AT_ONCE_NBYTES)
        except OSError:
            return b""
        self._read[name] += len(new)
        return new

    def _say(self, name: str, lines: bytes) -> None:
        prefix = f"{name} | ".encode()
        self._out.write(b"".join(prefix + line for line in lines.splitlines(keepends=True)))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
