"""Layers: a directory tree as a tar file whose bytes depend on nothing but names, contents and modes.

Entries come in the order of their names, belong to root, carry one fixed time and no set-id bits. So the same
tree gives the same digest on any machine and at any hour. Layers are kept uncompressed: a compressor's version
is one more thing that digests would depend on, and containerd unpacks them faster.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from bireme.core.files import half_of, storage_errors

EPOCH = 315_532_800
"""1980-01-01, the time of every file: the oldest that a zip file can hold as well."""
TAR = "application/vnd.oci.image.layer.v1.tar"
TAR_GZIP = TAR + "+gzip"
_BLOCK = 1 << 20
_KINDS = {stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}

Skip = Callable[[str], bool]
"""Whether to leave out a path within the tree (`usr/share/doc`) and all below it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One blob of an image that holds files."""

    name: str
    """What it is for: base, python, dependencies …"""
    digest: str
    nbytes: int
    diff_id: str
    """Digest of the uncompressed tar."""
    path: Path
    """The blob itself: a file of its own, or one that holds it from `offset` on."""
    offset: int = 0
    media_type: str = TAR

    def open(self) -> IO[bytes]:
        """The blob's bytes, from the first one."""
        f = self.path.open("rb")
        f.seek(self.offset)
        return f


def write_layer(name: str, tree: Path, target: Path, skip: Skip = lambda path: False) -> Layer:
    """Write the tar of a tree to `target`, which appears when it is complete."""
    half = half_of(target)
    with storage_errors(str(target)):
        try:
            with half.open("wb") as f:
                hashed = _Hashed(f)
                _write_entries(walk(tree, skip), hashed)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)
    return Layer(name, hashed.digest(), hashed.nbytes, hashed.digest(), target)


def walk(tree: Path, skip: Skip) -> Iterator[tuple[str, Path]]:
    """All paths below a tree, parents before children; sockets and devices are not files of an image."""
    for entry in sorted(os.scandir(tree), key=lambda e: e.name):
        yield from _walk(Path(entry.path), entry.name, skip)


def _walk(path: Path, name: str, skip: Skip) -> Iterator[tuple[str, Path]]:
    kind = stat.S_IFMT(path.lstat().st_mode)
    if skip(name) or kind not in _KINDS:
        return
    yield name, path
    if kind == stat.S_IFDIR:
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            yield from _walk(Path(entry.path), f"{name}/{entry.name}", skip)


def _write_entries(paths: Iterator[tuple[str, Path]], out: _Hashed) -> None:
    linked: dict[tuple[int, int], str] = {}
    # A stream: tarfile must not seek, as every byte goes through the hash once.
    with tarfile.open(fileobj=cast(IO[bytes], out), mode="w|", format=tarfile.GNU_FORMAT, bufsize=_BLOCK) as tar:
        for name, path in paths:
            facts = path.lstat()
            entry = _entry(name, path, facts)
            inode = (facts.st_dev, facts.st_ino)
            if entry.isreg() and inode in linked:
                entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, linked[inode], 0
            if not entry.isreg():
                tar.addfile(entry)
                continue
            if facts.st_nlink > 1:
                linked[inode] = name
            with path.open("rb") as f:
                tar.addfile(entry, f)


def _entry(name: str, path: Path, facts: os.stat_result) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = _KINDS[stat.S_IFMT(facts.st_mode)]
    entry.mtime = EPOCH
    entry.mode = 0o777 if entry.issym() else facts.st_mode & 0o1777
    entry.size = facts.st_size if entry.isreg() else 0
    entry.linkname = str(path.readlink()) if entry.issym() else ""
    return entry


class _Hashed:
    """Hashes bytes on their way to a file; has the methods that tarfile and gzip need for a stream."""

    def __init__(self, f: IO[bytes]) -> None:
        self._f, self._hash, self.nbytes = f, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.nbytes += len(data)
        return self._f.write(data)

    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def compress(layer: Layer, target: Path) -> Layer:
    """The same layer as gzip, without a time or a name in its head: smaller to push, slower to make."""
    import gzip

    half = half_of(target)
    with storage_errors(str(target)):
        try:
            with layer.open() as source, half.open("wb") as f:
                hashed = _Hashed(f)
                with gzip.GzipFile("", "wb", 6, cast(IO[bytes], hashed), mtime=0) as packed:
                    for data in blocks(source, layer.nbytes):
                        packed.write(data)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)
    return Layer(layer.name, hashed.digest(), hashed.nbytes, layer.diff_id, target, media_type=TAR_GZIP)


def blocks(source: IO[bytes], nbytes: int) -> Iterator[bytes]:
    """Read exactly so many bytes, a block at a time."""
    left = nbytes
    while left:
        data = source.read(min(_BLOCK, left))
        if not data:
            raise EOFError(f"{left} bytes are missing")
        left -= len(data)
        yield data


def digest_of(data: bytes) -> str:
    """The digest that names bytes in a registry."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
