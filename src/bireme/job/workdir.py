"""The directory a config script runs in: the program's files, with one shard's `data/` beside them.

The original copied both into /root of each pod. Here they are links, so nothing is copied and a
trainer that owns several shards has one such directory for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bireme.core.errors import DataError, SpecError
from bireme.spec.job import Job


def lay_workdir(root: Path, program: Path, data: Path) -> Path:
    """Make `root` look like the program's directory with the shard's files in `data/`."""
    if not data.is_dir():
        raise DataError(f"there is no data directory {data}", fix="split the data with `bireme data split`")
    if not program.is_dir():
        fix = "put it back, or name a job that says where it is now with --job JOB.yaml"
        raise SpecError(f"the program's directory {program} is not there any more", fix=fix)
    root.mkdir(parents=True, exist_ok=True)
    for entry in program.iterdir():
        if entry.name not in ("data", "__pycache__"):
            _link(root / entry.name, entry)
    inner = root / "data"
    inner.mkdir(exist_ok=True)
    own = program / "data"
    # The shard's files win over what the program's directory brings along.
    for entry in [*(own.iterdir() if own.is_dir() else ()), *data.iterdir()]:
        _link(inner / entry.name, entry)
    return root


@contextmanager
def borrowed_workdir(job: Job, shard: int = 0) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bireme-") as folder:
        yield lay_workdir(Path(folder), Path(job.config).parent, Path(job.data) / str(shard) / "data")


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target.resolve())
