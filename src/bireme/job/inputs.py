"""A job's data in one hash, so that a snapshot is not resumed with other data.

It covers which files the shards have and how long they are, and what `bireme data split` wrote about them: enough to
notice another split or other data, without reading all of it again at every start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from bireme.core.files import storage_errors


def data_fingerprint(data: Path, shards: int) -> str:
    """Hash the names and lengths of all files of all shards, and the split's own description."""
    digest = hashlib.sha256()
    with storage_errors(str(data)):
        for shard in range(shards):
            root = data / str(shard) / "data"
            for path in sorted(p for p in root.rglob("*") if p.is_file()):
                digest.update(f"{shard}\0{path.relative_to(root)}\0{path.stat().st_size}\n".encode())
        described = data / "shards.json"
        if described.is_file():
            digest.update(described.read_bytes())
    return digest.hexdigest()
