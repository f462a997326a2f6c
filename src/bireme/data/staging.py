"""Create several files that appear only when all are complete.

Work happens in a hidden directory beside the target, on the same disk, so that the last step is
a rename. If the work stops (an error, a full disk, Ctrl-C), the hidden directory is removed.
A killed process can leave one behind, whose name begins with `UNFINISHED`.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bireme.core.errors import BiremeError, OutputExistsError, StorageError

Progress = Callable[[int, int], None]
"""Called with what is done and the total."""
UNFINISHED = ".unfinished-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Create a hidden directory inside `target`, from which files are then moved.

    It is removed at the end, and on failure so are `target` and its parents if they were created here.
    Disk errors inside are raised as StorageError.
    """
    missing: list[Path] = []
    try:
        missing = [path for path in (target, *target.parents) if not path.exists()]
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=target, ignore_cleanup_errors=True) as name:
            yield Path(name)
    except BaseException as error:
        with suppress(OSError):  # another process has put a file there, or it was never created
            for directory in missing:
                directory.rmdir()
        if isinstance(error, OSError):
            raise storage_error(error, target) from error
        raise


def move_all(moves: list[tuple[Path, Path]]) -> None:
    """Rename each pair without replacing files; if one fails, remove those already moved."""
    try:
        for source, target in moves:
            if target.exists():
                fix = "make sure that nothing else writes there, then run this again"
                raise OutputExistsError(f"{target} appeared while it was being made", fix=fix)
            source.rename(target)
    except BaseException:
        for source, target in moves:
            if source.exists():
                continue  # not moved by this call, so the target is another process's
            if target.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            else:
                target.unlink(missing_ok=True)
        raise


def storage_error(error: OSError, target: Path) -> BiremeError:
    where = error.filename or target
    if error.errno in _FULL:
        return StorageError(
            f"the disk that holds {target} is full",
            why="the unfinished work was removed",
            fix="free some space or choose another directory, then run this again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            f"not allowed to use {where}: {error.strerror}",
            fix="check who owns it and whether the disk is read-only, or choose another directory",
        )
    return StorageError(f"{where}: {error.strerror or error}", fix="check the path and the disk, then run this again")
