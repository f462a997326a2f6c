"""A job's certificates: an authority of its own, whose key never leaves this machine, and one leaf for its pods."""

from __future__ import annotations

import shutil
from pathlib import Path

from bireme.kube import naming

RENEW_BELOW_DAYS = 30.0


def authority_place(state: Path, name: str, namespace: str) -> Path:
    """Where a job's authority is kept, below the user's state directory."""
    return state / "ca" / f"{namespace}-{name}"


def make_certificates(state: Path, name: str, namespace: str, days: int) -> dict[str, bytes]:
    """A fresh leaf for a job's pods, signed by the job's authority, which is made where there is none yet."""
    from bireme.core.certificates import files_of, keep_ca

    ca = keep_ca(authority_place(state, name, namespace), name)
    return files_of(ca, naming.common_name(name, namespace), days)


def needs_renewal(leaf: bytes) -> bool:
    """Whether a certificate is soon over."""
    from bireme.core.certificates import days_left

    return days_left(leaf) < RENEW_BELOW_DAYS


def forget(state: Path, name: str, namespace: str) -> None:
    """Remove a job's authority; its certificates cannot be renewed any more."""
    shutil.rmtree(authority_place(state, name, namespace), ignore_errors=True)
