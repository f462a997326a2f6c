"""The data of a job in one hash: which files its shards have and what is in them, and what the split wrote.

Of large files some pieces stand for all: enough to notice another split or other data, without reading all of it again
at every start. What was edited in place between these pieces, without a byte more or less, is not noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bireme.core.errors import DataError
from bireme.core.files import storage_errors

PIECES, PIECE_NBYTES = 16, 1 << 20
"""What is read of a large file: so many pieces, evenly spread from its first byte to its last."""


def data_fingerprint(data: Path, shards: int) -> str:
    """Hash the names and contents of all files of all shards, and the split's own description."""
    with storage_errors(str(data)):
        return fingerprint_of(data, [files_of(data / str(shard) / "data") for shard in range(shards)])


def fingerprint_of(data: Path, shards: Sequence[Mapping[str, tuple[int, str]]]) -> str:
    """The same, from hashes of the files that are known already."""
    digest = hashlib.sha256()
    with storage_errors(str(data)):
        for shard, files in enumerate(shards):
            for name, (nbytes, content) in files.items():
                digest.update(f"{shard}\0{name}\0{nbytes}\0{content}\n".encode())
        described = data / "shards.json"
        if described.is_file():
            digest.update(described.read_bytes())
    return digest.hexdigest()


def files_of(root: Path) -> dict[str, tuple[int, str]]:
    """The files of a shard, each with its length and a hash of what is in it, or of pieces of that."""
    paths = sorted(p for p in root.rglob("*") if p.is_file())
    return {str(path.relative_to(root)): _print_of(path) for path in paths}


def _print_of(path: Path) -> tuple[int, str]:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as f:
        nbytes = os.fstat(f.fileno()).st_size
        is_small = nbytes <= PIECES * PIECE_NBYTES
        for piece in range(1 if is_small else PIECES):
            f.seek(piece * (nbytes - PIECE_NBYTES) // (PIECES - 1))
            digest.update(f.read(nbytes if is_small else PIECE_NBYTES))
    return nbytes, digest.hexdigest()


def check_shards(data: Path, shards: int, fix: str) -> None:
    for shard in range(shards):
        place = data / str(shard) / "data"
        if not place.is_dir():
            raise DataError(f"shard {shard} of {shards} is missing: there is no directory {place}", fix=fix)
