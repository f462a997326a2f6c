"""Writing files so that a reader sees the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bireme.core.errors import StorageError


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn the operating system's refusals into words about `what` was being written."""
    try:
        yield
    except OSError as e:
        if e.errno == errno.ENOSPC:
            raise StorageError(
                f"the disk is full: cannot write {what}",
                fix="free some space; nothing already saved was touched",
            ) from e
        if e.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StorageError(
                f"cannot write {what}: {e.strerror}", fix="choose an output directory that you may write to"
            ) from e
        raise StorageError(f"cannot write {what}: {e.strerror or e}") from e


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file's content: temporary name, fsync, rename, fsync of the directory."""
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(str(path)):
        try:
            with half.open("wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
