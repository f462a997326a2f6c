"""Writing files so that a reader sees the old one or the new one, never half of either.

What a disk promises beyond what a path can be asked for goes through a `Volume`. There is one for this machine; the
simulator mounts one that loses what was not synced.
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
    """What files are kept on."""

    token: str
    """Unique to this process, for names that no other process uses."""

    def writer(self) -> int:
        """The number of the calling process, for people."""

    def sync(self, f: BinaryIO) -> None:
        """Make a file's content survive a power cut."""

    def sync_directory(self, path: Path) -> None:
        """Make renames in a directory survive a power cut."""

    def create(self, path: Path, data: bytes) -> None:
        """Write a file that must not be there; FileExistsError if it is."""

    def cut(self, path: Path, nbytes: int) -> None:
        """Leave only so many bytes of a file, which needs no room; safe once the file is synced."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all that is in it."""

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
    """What files are kept on right now."""
    return _volume


@contextmanager
def mounted(other: Volume) -> Iterator[None]:
    """Keep files on another volume for a while."""
    global _volume
    before, _volume = _volume, other
    try:
        yield
    finally:
        _volume = before


def half_of(path: Path) -> Path:
    """The name under which this process writes a file before the rename.

    On a shared volume other processes have the same id, as every container has its own number 1, and the same host
    name: a pod has that of the one that it replaces.
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
    """Make a directory, and those above it that are missing, so that a power cut does not take them.

    Syncs also where it exists: the process that made it may have died before its fsync.
    """
    with storage_errors(str(path)):
        if not path.parent.is_dir():
            make_directory(path.parent)
        path.mkdir(exist_ok=True)
        try:
            sync_directory(path.parent)
        except OSError as e:
            # A process that may not open the parent has made nothing in it, and some mounts do not support fsync.
            if e.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
                raise


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power cut."""
    _volume.sync_directory(path)
