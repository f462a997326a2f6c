"""Whether a directory's file system can hold a job: tested with a few small files, which are removed again.

Snapshots and status files are renamed over the ones before, logs and the ledger are appended to, and processes take
numbers by creating files that must be absent. Object stores that are mounted as directories lack some of that, and
would fail in the middle of a job; this finds out in milliseconds.
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bireme.core.errors import SpecError
from bireme.core.files import storage_errors, sync_directory, volume

UNSUPPORTED = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of unsupported operations. A full disk or a lost server raises others, which may be temporary."""
MOUNTS = Path("/proc/mounts")
NAMES = {"fuse.mountpoint-s3": "Mountpoint for S3"}
WHY = "a job renames finished snapshots over older files, appends to its logs and creates files that must be absent"
FIX = "use a volume on EFS or NFS"


@dataclass(frozen=True, slots=True)
class Probed:
    """A directory's file system, and the operations that it lacks."""

    directory: str
    kind: str
    """As /proc/mounts names it."""
    lacks: tuple[str, ...]

    @property
    def words(self) -> str:
        named = f"{NAMES[self.kind]} ({self.kind})" if self.kind in NAMES else self.kind
        return f"{self.directory} is on {named}" + (f", which cannot {'; '.join(self.lacks)}" if self.lacks else "")


def check_volume(output: Path) -> None:
    """Refuse an output directory whose file system cannot hold a job; the directory is made if it is absent."""
    with storage_errors(str(output)):
        output.mkdir(parents=True, exist_ok=True)
    probed = probe(output)
    if probed.lacks:
        raise SpecError(probed.words, why=WHY, fix=FIX)


def probe(directory: Path) -> Probed:
    """Test the operations that a job needs; StorageError where no file can be written at all."""
    # A name of its own: all pods of a job probe the same directory at once.
    place = directory / f".bireme-probe-{secrets.token_hex(8)}"
    try:
        with storage_errors(str(directory)):
            place.mkdir()
            (place / "first").write_bytes(b"1")
            lacks = tuple(words for words, attempt in ABILITIES.items() if not _can(attempt, place))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    mounts = ""
    with suppress(OSError):
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    return Probed(str(directory), file_system_of(directory.resolve(), mounts), lacks)


def _can(attempt: Callable[[Path], bool], place: Path) -> bool:
    try:
        return attempt(place)
    except OSError as e:
        if e.errno in UNSUPPORTED:
            return False
        raise


def _append(place: Path) -> bool:
    for part in (b"1", b"2"):  # the first makes the file, the second must not begin it again
        with (place / "appended").open("ab") as f:
            f.write(part)
    return (place / "appended").read_bytes() == b"12"


def _rename(place: Path) -> bool:
    (place / "old").write_bytes(b"old")
    (place / "new").write_bytes(b"new")
    (place / "new").replace(place / "old")
    return (place / "old").read_bytes() == b"new" and not (place / "new").exists()


def _create_once(place: Path) -> bool:
    volume().create(place / "once", b"1")
    try:
        volume().create(place / "once", b"2")
    except FileExistsError:
        return True
    return False


def _sync_file(place: Path) -> bool:
    with (place / "synced").open("wb") as f:
        f.write(b"1")
        f.flush()
        volume().sync(f)
    return True


def _sync_directory(place: Path) -> bool:
    sync_directory(place)
    return True


def _delete(place: Path) -> bool:
    (place / "first").unlink()
    return not (place / "first").exists()


ABILITIES: dict[str, Callable[[Path], bool]] = {
    "append to a file": _append,
    "rename a file over an existing one": _rename,
    "create a file only if it is absent": _create_once,
    "fsync a file": _sync_file,
    "fsync a directory": _sync_directory,
    "delete a file": _delete,
}


def file_system_of(directory: Path, mounts: str) -> str:
    """The type of the file system that a directory is on, from the text of /proc/mounts."""
    deepest, type_ = "", "a file system of unknown type"
    for line in mounts.splitlines():
        source, point, kind = line.split(" ")[:3]
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
        if directory.is_relative_to(point) and len(point) >= len(deepest):  # of two on one point the later is seen
            # Some programs give their name as the source only.
            deepest, type_ = point, f"fuse.{source}" if kind == "fuse" else kind
    return type_
