"""The cache of finished layers and trees, by a hash of all their inputs.

Everything is written under another name first, so entries are complete. Removing the directory is always safe: the
next build makes everything again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bireme.core.files import half_of, storage_errors, write_atomic
from bireme.images.layers import Layer, Skip, walk

FORMAT = "1"
"""Part of every key: raise it when layers are made in another way."""
KEPT = 8
"""Layers of one name that are kept: the ones used last."""


def key_of(*parts: str) -> str:
    """One key for a list of inputs."""
    digest = hashlib.sha256()
    for part in (FORMAT, *parts):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def key_of_tree(tree: Path, skip: Skip = lambda path: False) -> str:
    """One key for the files of a directory: their paths, contents and modes."""
    digest = hashlib.sha256()
    for name, path in walk(tree, skip):
        mode = path.lstat().st_mode
        content = (
            b"" if stat.S_ISDIR(mode) else os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        )
        digest.update(f"{name}\0{mode:o}\0{hashlib.sha256(content).hexdigest()}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory of layers (tar files), trees (directories) and wheels."""

    root: Path
    made: list[Path] = field(default_factory=list)
    """Layers that this build made."""

    @property
    def layers(self) -> Path:
        """Tar files, each with its facts beside it."""
        return self._folder("layers")

    @property
    def trees(self) -> Path:
        """The files of layers, to run commands in."""
        return self._folder("trees")

    @property
    def wheels(self) -> Path:
        """Downloaded packages, one directory for each list of requirements."""
        return self._folder("wheels")

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        with storage_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def layer(self, name: str, key: str, make: Callable[[Path], Layer]) -> Layer:
        """The layer of this key, made if it is not there yet."""
        target, facts = self.layers / f"{name}-{key[:16]}.tar", self.layers / f"{name}-{key[:16]}.json"
        if target.is_file() and facts.is_file():
            facts.touch()
            record = json.loads(facts.read_text("utf-8"))
            return Layer(
                name, record["digest"], record["nbytes"], record["diff_id"], target, media_type=record["media_type"]
            )
        made = make(target)
        self.made.append(target)
        record = {"digest": made.digest, "nbytes": made.nbytes, "diff_id": made.diff_id, "media_type": made.media_type}
        write_atomic(facts, json.dumps(record).encode())
        self._prune(name)
        return made

    def _prune(self, name: str) -> None:
        """Remove the least recently used layers, each one's facts first: without these it is made again."""
        newest_last = sorted(self.layers.glob(f"{name}-*.json"), key=lambda path: path.stat().st_mtime_ns)
        for facts in newest_last[:-KEPT]:
            facts.unlink(missing_ok=True)
            facts.with_suffix(".tar").unlink(missing_ok=True)
            shutil.rmtree(self.trees / facts.stem, ignore_errors=True)

    def forget(self, name: str, key: str) -> None:
        """Let the layer of this key be made again."""
        (self.layers / f"{name}-{key[:16]}.json").unlink(missing_ok=True)

    @contextmanager
    def making(self, target: Path, *, is_replacing: bool = False) -> Iterator[Path]:
        """A directory that becomes `target` if the block succeeds.

        If another build has made the same meanwhile, its directory stays, as it may be running commands in it.
        """
        half = half_of(target)
        shutil.rmtree(half, ignore_errors=True)
        with storage_errors(str(target)):
            half.mkdir(parents=True)
        try:
            yield half
            if is_replacing and target.is_dir():
                target.rename(half.with_suffix(".old"))
                shutil.rmtree(half.with_suffix(".old"), ignore_errors=True)
            if not target.is_dir():
                half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
