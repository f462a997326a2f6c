"""Create several files that appear only when all are complete.

Work happens in a hidden directory beside the target, on the same disk, so that the last step is
a rename. If the work stops (an error, a full disk, Ctrl-C), the hidden directory is removed.
A killed process can leave one behind; `leftovers` finds those.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bireme.core.errors import BiremeError, OutputExistsError, StorageError

UNFINISHED = ".unfinished-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Create a hidden directory inside `target`, from which files are then moved.

    It is removed at the end, and on failure so are `target` and its parents if they were created here.
    Disk errors inside are raised as StorageError.
    """
    made: list[Path] = []
    try:
        made = _make_directories(target)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=target, ignore_cleanup_errors=True) as name:
            yield Path(name)
    except OSError as error:
        _remove_empty(made)
        raise storage_error(error, target) from error
    except BaseException:
        _remove_empty(made)
        raise


def move_all(moves: list[tuple[Path, Path]]) -> None:
    """Rename each pair without replacing files; if one fails, remove those already moved."""
    try:
        for source, target in moves:
            if target.exists():
                raise OutputExistsError(
                    f"{target} appeared while it was being made",
                    fix="make sure that nothing else writes there, then run this again",
                )
            source.rename(target)
    except BaseException:
        for source, target in moves:
            if not source.exists():  # so this call moved it; otherwise the target is another process's
                _remove(target)
        raise


def leftovers(directory: Path) -> list[Path]:
    """Find hidden directories that a killed process left in `directory`."""
    return sorted(directory.glob(UNFINISHED + "*"))


def storage_error(error: OSError, target: Path) -> BiremeError:
    """Convert a failed disk operation to an error with advice."""
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
    return StorageError(
        f"{where}: {error.strerror or error}",
        fix="check the path and the disk, then run this again",
    )


def _make_directories(target: Path) -> list[Path]:
    missing = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(directories: list[Path]) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return  # another process has put a file there, or it was never created


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target, ignore_errors=True)
    else:
        target.unlink(missing_ok=True)
