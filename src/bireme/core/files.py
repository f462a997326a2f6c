"""Atomic file writes: a reader sees the old file or the new one, never a partial one.

Operations whose durability matters go through a `Volume`. One is this machine's disks; the simulator mounts one that
loses unsynced data.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from bireme.core.errors import StorageError


class Volume(Protocol):
    """The storage under the files."""

    token: str  # unique to this process, for names that no other process uses

    def writer(self) -> int:
        """The id of the calling process, for names that humans read."""

    def sync(self, f: BinaryIO) -> None:
        """Make a file's content survive a power cut."""

    def sync_directory(self, path: Path) -> None:
        """Make renames in a directory survive a power cut."""

    def create(self, path: Path, data: bytes) -> None:
        """Create a file; FileExistsError if it exists."""

    def cut(self, path: Path, nbytes: int) -> None:
        """Truncate a file, which needs no free space; durable once the file is synced."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory tree."""

    def show(self, f: BinaryIO) -> mmap.mmap | bytes:
        """A file's content without a copy."""


class _Machine:
    """The disks of this machine."""

    token = secrets.token_hex(4)

    def writer(self) -> int:
        return os.getpid()

    def sync(self, f: BinaryIO) -> None:
        os.fsync(f.fileno())

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def create(self, path: Path, data: bytes) -> None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as f:
            f.write(data)

    def cut(self, path: Path, nbytes: int) -> None:
        os.truncate(path, nbytes)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def show(self, f: BinaryIO) -> mmap.mmap | bytes:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)


_volume: Volume = _Machine()


def volume() -> Volume:
    return _volume


@contextmanager
def mounted(other: Volume) -> Iterator[None]:
    global _volume
    before, _volume = _volume, other
    try:
        yield
    finally:
        _volume = before


def half_of(path: Path) -> Path:
    """The temporary name under which this process writes a file before the rename.

    Process id and host name do not suffice on a shared volume: every container has a process 1, and a pod has the host
    name of the one that it replaces. Hence the random token.
    """
    return path.with_name(f".{path.name}.{os.uname().nodename}.{_volume.writer()}.{_volume.token}.tmp")


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names `what` was being written."""
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
    half = half_of(path)
    with storage_errors(str(path)):
        try:
            with half.open("wb") as f:
                f.write(data)
                f.flush()
                _volume.sync(f)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Create a directory and missing parents durably.

    An existing one is synced too: the process that created it may have died before its fsync.
    """
    with storage_errors(str(path)):
        if not path.parent.is_dir():
            make_directory(path.parent)
        path.mkdir(exist_ok=True)
        try:
            sync_directory(path.parent)
        except OSError as e:
            # Without permission to open the parent this process created nothing in it; some mounts lack fsync.
            if e.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
                raise


def sync_directory(path: Path) -> None:
    _volume.sync_directory(path)
