"""A disk that loses power before a chosen operation, and with it, if asked, what had not been synced.

It stands in for the calls of `os` that change directories. Every such call counts; from the chosen one on
all of them raise `PowerCut`, so that no handler tidies up: a dead process does not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

Forgets = Literal["nothing", "everything", "the first"]
"""What of the changes to directories that were not synced is lost: disks need not keep to their order."""


class PowerCut(BaseException):
    """The process is dead from here on."""


class FailingDisk:
    def __init__(self, root: Path, patch: pytest.MonkeyPatch, *, dies_at: int, forgets: Forgets) -> None:
        self._root, self._dies_at, self._forgets = root, dies_at, forgets
        self.count = 0
        self._synced = {p.stat().st_ino for p in root.rglob("*") if p.is_file()}
        self._undo: list[tuple[Path, Callable[[], object]]] = []
        self._real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "mkdir", "rmdir")}
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "replace", self._replace)
        patch.setattr(os, "unlink", self._unlink)
        patch.setattr(os, "mkdir", self._mkdir)
        patch.setattr(os, "rmdir", self._rmdir)

    def _step(self) -> None:
        if self.count >= self._dies_at:
            raise PowerCut
        self.count += 1

    def _fsync(self, fd: int) -> None:
        self._step()
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self._synced.add(os.fstat(fd).st_ino)
        self._undo = [(parent, undo) for parent, undo in self._undo if parent != path and parent.exists()]

    def _replace(self, source: Any, target: Any) -> None:
        self._step()
        path = Path(target)
        before = path.read_bytes() if path.exists() else None
        self._real["replace"](source, target)
        self._undo.append((path.parent, lambda: self._put_back(path, before)))

    def _unlink(self, name: Any, *, dir_fd: int | None = None) -> None:
        path = _full(name, dir_fd)
        if not path.is_symlink() and not path.exists():
            raise FileNotFoundError(2, "No such file or directory")
        self._step()
        before = path.read_bytes()
        self._real["unlink"](path)
        self._undo.append((path.parent, lambda: self._put_back(path, before)))

    def _mkdir(self, name: Any, mode: int = 0o777) -> None:
        path = Path(name)
        if path.exists():
            raise FileExistsError(17, "File exists")
        self._step()
        self._real["mkdir"](path, mode)
        self._undo.append((path.parent, lambda: shutil.rmtree(path)))

    def _rmdir(self, name: Any, *, dir_fd: int | None = None) -> None:
        self._step()
        path = _full(name, dir_fd)
        self._real["rmdir"](path)
        self._undo.append((path.parent, lambda: self._real["mkdir"](path)))

    def _put_back(self, path: Path, before: bytes | None) -> None:
        if not path.parent.is_dir():
            return  # it has gone with its directory
        if before is None:
            self._real["unlink"](path)
        else:
            path.write_bytes(before)
            self._synced.add(path.stat().st_ino)

    def after_the_cut(self, patch: pytest.MonkeyPatch) -> None:
        """Leave on the disk what a power cut may leave there, and let the system's own calls work again."""
        patch.undo()
        if self._forgets == "nothing":
            return
        for path in self._root.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self._synced:
                os.truncate(path, path.stat().st_size // 2)
        for _, undo in reversed(self._undo if self._forgets == "everything" else self._undo[:1]):
            undo()


def _full(name: Any, dir_fd: int | None) -> Path:
    return Path(name) if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / name
