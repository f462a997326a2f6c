"""Make several files, and let them appear only when all are done.

Work happens in a hidden directory beside the target, on the same disk, so that the last step is
a rename. Whatever stops the work (an error, a full disk, Ctrl-C) removes the hidden directory.
A process killed outright can leave one behind; `leftovers` finds those.
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
    """Lend a hidden directory inside `target`, to be filled and moved from.

    It is removed at the end, and so is `target` if it was made for nothing. Disk errors inside
    come out as StorageError.
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
    """Rename each pair, replacing nothing; when one fails, those already in place are removed again."""
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
            if not source.exists():  # so the target is ours, not somebody else's
                _remove(target)
        raise


def leftovers(directory: Path) -> list[Path]:
    """Find what a killed process left half-made in `directory`."""
    return sorted(directory.glob(UNFINISHED + "*"))


def storage_error(error: OSError, target: Path) -> BiremeError:
    """Say what a failed disk operation means to the user."""
    where = error.filename or target
    if error.errno in _FULL:
        return StorageError(
            f"the disk that holds {target} is full",
            why="nothing was kept of the unfinished work",
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
            return  # somebody else put something there, or it was never made


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target, ignore_errors=True)
    else:
        target.unlink(missing_ok=True)
