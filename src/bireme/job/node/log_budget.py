"""Log rotation, and copying of logs, while processes write to them.

A process writes to its inherited output, opened for appending. So a full log is copied aside and truncated under its
writer. A line written between those two steps is lost, rarely.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from bireme.spec.model import Logs

log = logging.getLogger(__name__)
AT_ONCE_NBYTES = 1 << 20


def rotate(path: Path, rule: Logs) -> bool:
    """Move a log that is larger than allowed to `.1`, and older ones one further; returns whether it did."""
    try:
        if path.stat().st_size <= rule.max_mb * 1_000_000:
            return False
        for number in range(rule.keep - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        # Copied and truncated, not renamed: the child keeps its descriptor (O_APPEND) and writes on at the new end.
        # Lines that it writes between the two steps are lost.
        if rule.keep:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    except OSError as e:
        log.warning("failed to rotate path=%s cause=%r", path, e.strerror)
        return False
    return True


class Copier:
    """Copies new lines of logs to one output, each with its process' name in front.

    Earlier content is skipped: the node process before this one has copied it. A truncated log is read from its
    beginning again.
    """

    def __init__(self, logs: Mapping[str, Path], out: BinaryIO) -> None:
        self._logs = dict(logs)
        self._out = out
        self._read = {name: _size_of(path) for name, path in logs.items()}
        self._half = dict.fromkeys(logs, b"")

    def copy(self) -> None:
        for name, path in self._logs.items():
            while new := self._take(name, path):
                whole, newline, self._half[name] = (self._half[name] + new).rpartition(b"\n")
                self._write(name, whole + newline)
        self._out.flush()

    def finish(self) -> None:
        """Copy what is left, also a last line without an end."""
        self.copy()
        for name, half in self._half.items():
            self._write(name, half + b"\n" if half else b"")
            self._half[name] = b""
        self._out.flush()

    def _take(self, name: str, path: Path) -> bytes:
        size, new = _size_of(path), b""
        if size < self._read[name]:  # `rotate` has truncated it
            self._read[name] = 0
        if size != self._read[name]:
            with suppress(OSError), path.open("rb") as f:
                f.seek(self._read[name])
                new = f.read(AT_ONCE_NBYTES)
        self._read[name] += len(new)
        return new

    def _write(self, name: str, lines: bytes) -> None:
        prefix = f"{name} | ".encode()
        self._out.write(b"".join(prefix + line for line in lines.splitlines(keepends=True)))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
