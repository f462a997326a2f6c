"""The data of a job in one hash: which files its shards have and how long they are, and what the split wrote.

That is enough to notice another split or other data, without reading all of it again at every start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from bireme.core.errors import DataError
from bireme.core.files import storage_errors


def data_fingerprint(data: Path, shards: int) -> str:
    """Hash the names and lengths of all files of all shards, and the split's own description."""
    digest = hashlib.sha256()
    with storage_errors(str(data)):
        for shard in range(shards):
            for name, nbytes in files_of(data / str(shard) / "data").items():
                digest.update(f"{shard}\0{name}\0{nbytes}\n".encode())
        described = data / "shards.json"
        if described.is_file():
            digest.update(described.read_bytes())
    return digest.hexdigest()


def files_of(root: Path) -> dict[str, int]:
    """The files of a shard and their lengths."""
    found = sorted(p for p in root.rglob("*") if p.is_file())
    return {str(path.relative_to(root)): path.stat().st_size for path in found}


def check_shards(data: Path, shards: int, fix: str) -> None:
    """Refuse to begin where a shard is missing."""
    for shard in range(shards):
        place = data / str(shard) / "data"
        if not place.is_dir():
            raise DataError(f"shard {shard} of {shards} is missing: there is no directory {place}", fix=fix)
