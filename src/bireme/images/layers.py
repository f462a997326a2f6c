"""Layers: directory trees as tar files whose bytes depend on names, contents and modes alone, kept in a cache.

Entries are sorted, belong to root, and carry one fixed time and no set-id bits, so the same tree gives the same digest
on any machine. Layers are not compressed unless asked for: digests would depend on the compressor's version too, and
containerd unpacks them faster. The cache finds a layer by a hash of all its inputs; removing it is always safe.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.core.files import half_of, storage_errors

EPOCH = 315_532_800
"""1980-01-01, the time of every file: the oldest that a zip file can hold as well."""
TAR = "application/vnd.oci.image.layer.v1.tar"
TAR_GZIP = TAR + "+gzip"
FORMAT = "2"
"""Part of every key: raise it when layers are made in another way."""
KEPT = 8
"""Entries of one name that the cache keeps: the ones used last."""
_BLOCK = 1 << 20
_KINDS = {stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}

Skip = Callable[[str], bool]
"""Whether to leave out a path within the tree (`usr/share/doc`) and all below it."""


@dataclass(frozen=True, slots=True)
class ImageLayer:
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
    is_new: bool = False
    """Whether the cache did not have it."""

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        with self.path.open("rb") as f:
            f.seek(self.offset + start)
            left = self.nbytes - start
            while left:
                data = f.read(min(_BLOCK, left))
                if not data:
                    raise EOFError(f"{self.path} lacks {left} bytes")
                left -= len(data)
                yield data


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_blob(layer: ImageLayer) -> str:
    digest = hashlib.sha256()
    for data in layer.blocks():
        digest.update(data)
    return "sha256:" + digest.hexdigest()


def walk(tree: Path, skip: Skip, below: str = "") -> Iterator[tuple[str, Path]]:
    """All paths below a tree, parents before children; sockets and devices are not files of an image."""
    for entry in sorted(os.scandir(tree / below), key=lambda e: e.name):
        name = below + entry.name
        kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
        if not skip(name) and kind in _KINDS:
            yield name, Path(entry.path)
            if kind == stat.S_IFDIR:
                yield from walk(tree, skip, f"{name}/")


def write_tar(tree: Path, target: Path, skip: Skip = lambda path: False, *, keeps_modes: bool = False) -> None:
    """Write the tar of a tree; its modes become those of the usual umask, unless they are to be kept."""
    linked: dict[tuple[int, int], str] = {}
    with storage_errors(str(target)), tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in walk(tree, skip):
            facts = path.lstat()
            inode = (facts.st_dev, facts.st_ino)
            entry = tarfile.TarInfo(name)
            entry.type, entry.mtime = _KINDS[stat.S_IFMT(facts.st_mode)], EPOCH
            if entry.issym():
                entry.mode, entry.linkname = 0o777, str(path.readlink())
            elif keeps_modes:
                entry.mode = facts.st_mode & 0o1777
            else:
                entry.mode = 0o755 if entry.isdir() or facts.st_mode & 0o100 else 0o644
            if not entry.isreg():
                tar.addfile(entry)
            elif inode in linked:
                entry.type, entry.linkname = tarfile.LNKTYPE, linked[inode]
                tar.addfile(entry)
            else:
                if facts.st_nlink > 1:
                    linked[inode] = name
                entry.size = facts.st_size
                with path.open("rb") as f:
                    tar.addfile(entry, f)


def compress(layer: ImageLayer, target: Path) -> None:
    """Write a layer as gzip, without a time or a name in its head."""
    with storage_errors(str(target)), target.open("wb") as f, gzip.GzipFile("", "wb", 6, f, mtime=0) as packed:
        for data in layer.blocks():
            packed.write(data)


def key_of(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in (FORMAT, *parts):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def key_of_tree(tree: Path, skip: Skip = lambda path: False) -> str:
    """One key for the files of a directory: their paths, contents and modes."""
    digest = hashlib.sha256()
    for name, path in walk(tree, skip):
        mode, content = path.lstat().st_mode, b""
        if stat.S_ISLNK(mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        digest.update(f"{name}\0{mode:o}\0{hashlib.sha256(content).hexdigest()}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _used_at(entry: Path) -> int:
    """When an entry of the cache was used last; 0 where another build has pruned it since it was listed."""
    try:
        return entry.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory of finished trees and layers; each entry is a directory, written under another name first."""

    root: Path

    def folder(self, name: str, key: str, fill: Callable[[Path], None], *, is_fresh: bool = False) -> tuple[Path, bool]:
        """The directory of this key, and whether it was filled now."""
        target = self.root / f"{name}-{key[:16]}"
        if not is_fresh:
            with suppress(FileNotFoundError, NotADirectoryError):  # also if another build prunes it just now
                os.utime(target)
                return target, False
        half = half_of(target)
        shutil.rmtree(half, ignore_errors=True)
        with storage_errors(str(target)):
            half.mkdir(parents=True)
        try:
            fill(half)
            if is_fresh and target.is_dir():
                # Renamed first: removing takes long, and a build that is killed meanwhile must not leave a part of it.
                target.rename(half.with_suffix(".old"))
                shutil.rmtree(half.with_suffix(".old"), ignore_errors=True)
            if not target.is_dir():  # or another build made the same meanwhile, and may be running commands in it
                half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
        newest_last = sorted(self.root.glob(f"{name}-*"), key=_used_at)
        for old in newest_last[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return target, True

    def layer(self, name: str, key: str, write: Callable[[Path], None]) -> ImageLayer:
        """The layer of this key; `write` makes `layer.tar` in a directory."""

        def fill(half: Path) -> None:
            write(half)
            path = half / "layer.tar"
            digest = digest_of_blob(ImageLayer(name, "", path.stat().st_size, "", path))
            (half / "digest").write_text(digest, "ascii")

        folder, is_new = self.folder(name, key, fill)
        path, digest = folder / "layer.tar", (folder / "digest").read_text("ascii")
        return ImageLayer(name, digest, path.stat().st_size, digest, path, is_new=is_new)

    def compressed(self, plain: ImageLayer) -> ImageLayer:
        name, key = f"gz-{plain.name}", key_of(plain.digest)
        packed = self.layer(name, key, lambda folder: compress(plain, folder / "layer.tar"))
        return replace(packed, name=plain.name, diff_id=plain.diff_id, media_type=TAR_GZIP)
