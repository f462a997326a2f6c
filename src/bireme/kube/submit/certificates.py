"""A job's certificates: its own authority, whose key never leaves this machine, and one leaf for its pods."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bireme.core.errors import BiremeError

RENEW_BELOW_DAYS = 30.0


class JobIdentity(NamedTuple):
    """The job that an authority is for: jobs of one name in two clusters are two jobs."""

    server: str
    namespace: str
    name: str

    def place(self, state: Path) -> Path:
        return state / "ca" / hashlib.sha256(self.server.encode()).hexdigest()[:12] / self.namespace / self.name


def make_certificates(state: Path, whose: JobIdentity, days: int) -> dict[str, bytes]:
    """A fresh leaf for a job's pods, signed by the job's authority, which is made where there is none yet."""
    from bireme.core.certificates import files_of, keep_ca

    ca = keep_ca(whose.place(state), whose.name)
    return files_of(ca, f"{whose.name}.{whose.namespace}.bireme", days)


def needs_renewal(leaf: bytes) -> bool:
    from bireme.core.certificates import days_left

    return days_left(leaf) < RENEW_BELOW_DAYS


def forget(state: Path, whose: JobIdentity) -> None:
    """Remove a job's authority; its certificates cannot be renewed any more."""
    shutil.rmtree(whose.place(state), ignore_errors=True)


@contextmanager
def forgotten_unless_used(state: Path, whose: JobIdentity, in_use: Callable[[], bytes | None]) -> Iterator[None]:
    """Remove an authority that was made for a submission which then failed.

    Keep one that is older than the submission, or whose certificate is `in_use` on the cluster, or may be: a cluster
    that does not answer may have received it.
    """
    from bireme.core.certificates import read_ca

    place = whose.place(state)
    was_there = place.exists()
    try:
        yield
    except BiremeError:
        with suppress(BiremeError):
            made = None if was_there else read_ca(place)
            if made is not None and in_use() != made.certificate:
                forget(state, whose)
                with suppress(OSError):  # another job has files there
                    for directory in place.parents[:3]:
                        directory.rmdir()
        raise
