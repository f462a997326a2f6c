"""Control groups of the test cluster's pods: made before a kubelet starts, cleared after its node is gone.

Each kubelet keeps its pods under a group of its own. With cgroup v1 that is a directory in every hierarchy,
and cpuset's needs its processors and memory before a process can enter. With cgroup v2 it is one directory.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The places in which a group may exist; beside v1's there may be an empty v2, where runc makes groups too."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [d for d in sorted(ROOT.iterdir()) if (d / "cgroup.procs").exists()]


def make(group: str) -> None:
    """Make the group `a/b` everywhere, ready for processes."""
    for hierarchy in hierarchies():
        here = hierarchy
        for part in group.split("/"):
            parent, here = here, here / part
            here.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (here / file).exists() and not (here / file).read_text().strip():
                    (here / file).write_text((parent / file).read_text())


def clear(group: str, *, seconds: float = 10.0) -> list[Path]:
    """Remove the group and all below it; returns what could not be removed."""
    end = time.monotonic() + seconds
    while left := [d for d in existing(group) if not _remove(d)]:
        if time.monotonic() > end:
            return left
        time.sleep(0.05)
    return []


def existing(group: str) -> list[Path]:
    """Where the group exists now."""
    return [hierarchy / group for hierarchy in hierarchies() if (hierarchy / group).is_dir()]


def _remove(directory: Path) -> bool:
    inner = sorted((d for d in directory.rglob("*") if d.is_dir()), key=lambda d: len(d.parts), reverse=True)
    for d in [*inner, directory]:
        try:
            d.rmdir()
        except FileNotFoundError:
            continue
        except OSError as e:
            if e.errno in (errno.EBUSY, errno.ENOTEMPTY):  # its last process is still on its way out
                return False
            raise
    return True
