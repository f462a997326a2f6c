"""A disk in memory that forgets, upon a power cut, what was not synced.

A file's content is safe once it was synced, a name in a directory once the directory was. Until then a power cut
may take it, leave it, or tear it: which one is drawn. Every call counts as a step, and a process can be made to die at
a given step, in the middle of a write. `DiskPath` has those methods of a Path that the product calls; `Disk` is the
volume that core/files.py mounts.
"""

from __future__ import annotations

import errno
import io
import random
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

SHALLOW = 3
"""Files that lie deeper than this are large: those of snapshots."""


class Killed(BaseException):
    """The process died at this very step; not an Exception, as nothing in it runs any more."""


class File:
    """Content as processes see it, and as it would be found after a power cut."""

    __slots__ = ("data", "floor", "kept")

    def __init__(self) -> None:
        self.data = b""
        self.kept = b""
        self.floor = 0
        """After a truncation of synced content: how many bytes of the rest are safe all the same."""


class Directory:
    """Names as processes see them, as they are safe, and what has changed in between."""

    __slots__ = ("kept", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.kept: dict[str, File | Directory] = {}
        self.pending: list[dict[str, File | Directory | None]] = []

    def alter(self, names: dict[str, File | Directory | None]) -> None:
        """Change names together: all of these survive, or none."""
        _apply(self.names, names)
        self.pending.append(names)


Node = File | Directory


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """One disk that all processes share."""

    def __init__(self) -> None:
        self.root = Directory()
        self.pid = 1
        """Of the process that is being run."""
        self.fuse = -1
        """Steps until the running process dies; negative: it does not."""
        self.is_full = False
        """There is no room for snapshots; small files still fit."""

    def at(self, name: str) -> Path:
        """A path on this disk, with the methods that the product calls."""
        return cast(Path, DiskPath(self, tuple(name.split("/")) if name else ()))

    def step(self) -> None:
        """One call to the operating system."""
        if self.fuse >= 0:
            if self.fuse == 0:
                raise Killed
            self.fuse -= 1

    def find(self, parts: tuple[str, ...]) -> Node | None:
        """What lies at a path."""
        node: Node = self.root
        for part in parts:
            child = node.names.get(part) if type(node) is Directory else None
            if child is None:
                return None
            node = child
        return node

    def directory(self, parts: tuple[str, ...]) -> Directory:
        """The directory at a path."""
        node = self.find(parts)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/".join(parts))
        return node

    # The volume of core/files.py

    token = "sim"

    def writer(self) -> int:
        """The running process' id; processes in containers of their own may share one."""
        return self.pid

    def sync(self, f: BinaryIO) -> None:
        """Make a file's content safe."""
        self.step()
        opened = cast(DiskFile, f)
        opened.flush()
        opened.file.kept, opened.file.floor = opened.file.data, 0

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory safe."""
        self.step()
        directory = self.directory(cast(DiskPath, path).where)
        directory.kept = dict(directory.names)
        directory.pending.clear()

    def create(self, path: Path, data: bytes) -> None:
        """Write a file that must not be there."""
        where = cast(DiskPath, path).where
        self.step()
        directory = self.directory(where[:-1])
        if where[-1] in directory.names:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        file = File()
        directory.alter({where[-1]: file})
        self.step()
        file.data = data

    def cut(self, path: Path, nbytes: int) -> None:
        """Truncate a file; until it is synced, a power cut may bring the rest back."""
        self.step()
        file = self.find(cast(DiskPath, path).where)
        assert isinstance(file, File)
        file.floor = min(nbytes, _safe_nbytes(file))
        file.data = file.data[:nbytes]

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all that is in it, name by name."""
        where = cast(DiskPath, path).where
        directory = self.directory(where)
        for name in sorted(directory.names):
            self.step()
            directory.alter({name: None})
        self.step()
        self.directory(where[:-1]).alter({where[-1]: None})

    def show(self, f: BinaryIO) -> bytes:
        """A file's content."""
        return cast(DiskFile, f).file.data

    # Power

    def cut_power(self, rng: random.Random) -> None:
        """Forget what is not safe, or some of it."""
        _survive(self.root, rng, {})
        self.fuse = -1

    def spoil(self, path: Path, rng: random.Random) -> None:
        """Flip a bit of a file, or cut it off."""
        file = self.find(cast(DiskPath, path).where)
        if isinstance(file, File) and file.data:
            at = rng.randrange(len(file.data))
            flipped = file.data[:at] + bytes([file.data[at] ^ 1 << rng.randrange(8)]) + file.data[at + 1 :]
            file.data = file.kept = flipped if rng.random() < 0.7 else file.data[:at]

    def worst(self) -> Disk:
        """A copy of the disk as it would be if everything unsafe were lost."""
        left = Disk()
        left.root = _safe(self.root)
        return left


def _survive(directory: Directory, rng: random.Random, seen: dict[int, bool]) -> None:
    """Draw what survives: some file systems keep a prefix of the pending changes, others any subset."""
    is_ordered = rng.random() < 0.5
    count = rng.randint(0, len(directory.pending))
    for i, change in enumerate(directory.pending):
        if i < count if is_ordered else rng.random() < 0.5:
            _apply(directory.kept, change)
    directory.pending.clear()
    directory.names = dict(directory.kept)
    for node in directory.names.values():
        if id(node) in seen:
            continue
        seen[id(node)] = True
        if isinstance(node, Directory):
            _survive(node, rng, seen)
        elif node.data is not node.kept:
            node.data = node.kept = _torn(node, rng)
            node.floor = 0


def _safe_nbytes(file: File) -> int:
    """How many bytes survive any power cut: synced ones, if the file was only appended to or truncated since."""
    return len(file.kept) if file.data.startswith(file.kept) else file.floor


def _torn(file: File, rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.3:
        return file.kept
    if draw < 0.6:
        return file.data
    end = rng.randint(_safe_nbytes(file), len(file.data))
    return file.data[:end] + (b"\0" * (len(file.data) - end) if draw < 0.75 else b"")


def _safe(directory: Directory) -> Directory:
    copy = Directory()
    for name, node in directory.kept.items():
        if isinstance(node, Directory):
            copy.names[name] = _safe(node)
        else:
            file = File()
            file.data = file.kept = node.kept
            copy.names[name] = file
    copy.kept = dict(copy.names)
    return copy


class DiskFile(io.BytesIO):
    """An open file."""

    def __init__(self, disk: Disk, file: File, mode: str) -> None:
        super().__init__(file.data if mode == "rb" else b"")
        self._disk = disk
        self.file = file
        self._mode = mode
        self._is_dirty = False

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]  # all that is written here
        """Hold what is written until it is handed to the system."""
        self._is_dirty = True
        return super().write(data)

    def flush(self) -> None:
        """Hand what was written to the system."""
        if not self._is_dirty:
            return
        self._is_dirty = False
        data = self.getvalue()
        if self._mode == "ab":
            if self._disk.fuse == 0:  # killed in the middle of a write
                self.file.data += data[: len(data) // 2]
            self._disk.step()
            self.file.data += data
            self.seek(0)
            self.truncate()
        else:
            self._disk.step()
            self.file.data = data

    def close(self) -> None:
        """Hand over the rest."""
        try:
            if not self.closed:
                self.flush()
        finally:
            super().close()


class DiskPath:
    """The methods of a Path that the product calls."""

    __slots__ = ("disk", "where")

    def __init__(self, disk: Disk, where: tuple[str, ...]) -> None:
        self.disk = disk
        self.where = where

    @property
    def name(self) -> str:
        """The last part."""
        return self.where[-1]

    @property
    def parent(self) -> DiskPath:
        """The directory that it is in."""
        return DiskPath(self.disk, self.where[:-1])

    def __truediv__(self, name: str) -> DiskPath:
        return DiskPath(self.disk, (*self.where, name))

    def __str__(self) -> str:
        return "/" + "/".join(self.where)

    def with_name(self, name: str) -> DiskPath:
        """A sibling."""
        return DiskPath(self.disk, (*self.where[:-1], name))

    def exists(self) -> bool:
        """Whether anything is there."""
        return self.disk.find(self.where) is not None

    def is_file(self) -> bool:
        """Whether a file is there."""
        return isinstance(self.disk.find(self.where), File)

    def is_dir(self) -> bool:
        """Whether a directory is there."""
        return isinstance(self.disk.find(self.where), Directory)

    def iterdir(self) -> Iterator[DiskPath]:
        """What is in a directory."""
        for name in list(self.disk.directory(self.where).names):
            yield self / name

    def glob(self, pattern: str) -> Iterator[DiskPath]:
        """What in a directory has such a name."""
        node = self.disk.find(self.where)
        for name in sorted(node.names) if isinstance(node, Directory) else ():
            if fnmatchcase(name, pattern):
                yield self / name

    def stat(self) -> SimpleNamespace:
        """How long a file is."""
        return SimpleNamespace(st_size=len(self._file().data))

    def _file(self) -> File:
        node = self.disk.find(self.where)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        return node

    def read_bytes(self) -> bytes:
        """All of a file."""
        return self._file().data

    def read_text(self) -> str:
        """All of a text file."""
        return self._file().data.decode()

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a directory."""
        node = self.disk.root
        for depth, part in enumerate(self.where, 1):
            child = node.names.get(part)
            if child is None:
                if depth < len(self.where) and not parents:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
                self.disk.step()
                child = Directory()
                node.alter({part: child})
            elif depth == len(self.where) and not exist_ok:
                raise FileExistsError(errno.EEXIST, "File exists", str(self))
            assert isinstance(child, Directory)
            node = child

    def open(self, mode: str) -> DiskFile:
        """Open a file as `rb`, `wb` or `ab`."""
        if mode == "rb":
            return DiskFile(self.disk, self._file(), mode)
        self.disk.step()
        directory = self.disk.directory(self.where[:-1])
        file = directory.names.get(self.where[-1])
        if file is None:
            if self.disk.is_full and len(self.where) > SHALLOW:
                raise OSError(errno.ENOSPC, "No space left on device")
            file = File()
            directory.alter({self.where[-1]: file})
        assert isinstance(file, File)
        if mode == "wb":
            file.data, file.floor = b"", 0
        return DiskFile(self.disk, file, mode)

    def replace(self, target: DiskPath) -> None:
        """Give it another name in the same directory."""
        self.disk.step()
        directory = self.disk.directory(self.where[:-1])
        node = directory.names.get(self.where[-1])
        if node is None or target.where[:-1] != self.where[:-1]:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        directory.alter({self.where[-1]: None, target.where[-1]: node})

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        self.disk.step()
        directory = self.disk.directory(self.where[:-1])
        if self.where[-1] in directory.names:
            directory.alter({self.where[-1]: None})
        elif not missing_ok:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
