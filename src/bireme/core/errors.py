"""Every expected failure of bireme, with its exit code.

    BiremeError                 1   every expected failure
    ├── UsageError              2   the command line does not make sense
    ├── SpecError               3   job.yaml (or a flag) asks for something impossible
    ├── ConfigScriptError       4   the user's config or provider script failed
    ├── DataError               5   training data is missing, torn, or not what the program expects
    ├── ModelError              6   a saved model is missing, torn, or made for another program
    ├── OutputExistsError       7   refusing to write over something that is already there
    ├── StorageError            8   the disk is full, read-only, or lost a file
    ├── NetworkError            9   a peer cannot be reached, or went away
    │   └── PortInUseError      9
    ├── FrameError             10   bytes on the wire that are not a frame of this job
    │   └── RefusedError       10   a peer refused a frame, with a reason
    │       └── StaleError     10   the frame belongs to a view that is over
    ├── NumericError           11   NaN or infinity where a number is needed
    ├── DeterminismError       12   the same work gave different bits
    ├── ProcessError           13   a process of the job died
    ├── MissingError           14   something this needs is not installed here
    ├── SnapshotError          15   no snapshot can be resumed from, or a file of one differs from what was saved
    ├── CertificateError       16   a certificate of the job is missing, expired, or not of this job
    ├── ImageError             17   a container image is torn, cannot be built, or a registry refuses it
    ├── ClusterError           18   a Kubernetes cluster refuses or cannot do what was asked
    ├── CloudError             19   AWS refuses or cannot do what was asked
    ├── LeftoversError          3   a cluster is gone, but billed resources are left
    └── Cancelled             130   stopped on request

A message has up to three parts: what is wrong, why that matters, and how to fix it.
Impossible states raise AssertionError("... this is a bug") instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class BiremeError(Exception):
    """An expected failure: `what` happened, `why` it matters, and how to `fix` it."""

    exit_code = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        if exit_code is not None:  # else the one of the class above
            cls.exit_code = exit_code

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, str]:
        return {"kind": type(self).__name__, "what": self.what, "why": self.why, "fix": self.fix}

    def lines(self) -> list[str]:
        parts = [self.what]
        if self.why:
            parts.append(f"  why: {self.why}")
        if self.fix:
            parts.append(f"  fix: {self.fix}")
        return parts


def error_class(name: object, otherwise: type[BiremeError]) -> type[BiremeError]:
    """The class of an error by the name that another process sent, or `otherwise`."""
    kind = globals().get(str(name))
    return kind if isinstance(kind, type) and issubclass(kind, BiremeError) else otherwise


def error_in(payload: Mapping[str, Any], otherwise: type[BiremeError]) -> BiremeError:
    """The error that another process wrote as JSON, in its own class or in `otherwise`."""
    kind = error_class(payload.get("kind") or payload.get("error"), otherwise)
    return kind(payload.get("what", ""), why=payload.get("why", ""), fix=payload.get("fix", ""))


class UsageError(BiremeError, exit_code=2):
    """The command line does not make sense."""


class SpecError(BiremeError, exit_code=3):
    """The job asks for something impossible."""


class ConfigScriptError(BiremeError, exit_code=4):
    """The user's own script failed; the message names their file and line."""

    IN_DATA = "the provider was in"  # the start of `why` where the script may be right and the data wrong


class DataError(BiremeError, exit_code=5):
    """Training data is missing, torn, or not what the program expects."""


class ModelError(BiremeError, exit_code=6):
    """A saved model is missing, torn, or made for another program."""


class OutputExistsError(BiremeError, exit_code=7):
    """Refusing to write over something that is already there."""


class StorageError(BiremeError, exit_code=8):
    """The disk is full, read-only, or lost a file."""


class NetworkError(BiremeError, exit_code=9):
    """A peer cannot be reached, or went away."""


class PortInUseError(NetworkError):
    """Another process listens on the requested port."""


class FrameError(BiremeError, exit_code=10):
    """Bytes on the wire that are not a frame of this job."""


class RefusedError(FrameError):
    """A peer refused a frame, with a reason."""


class StaleError(RefusedError):
    """The refused frame belongs to a view that is over: its sender must wait for the next one."""


class NumericError(BiremeError, exit_code=11):
    """NaN or infinity where a number is needed."""


class DeterminismError(BiremeError, exit_code=12):
    """The same work gave different bits."""


class ProcessError(BiremeError, exit_code=13):
    """A process of the job died."""


class MissingError(BiremeError, exit_code=14):
    """Something that this needs is not installed here."""


class SnapshotError(BiremeError, exit_code=15):
    """No snapshot can be resumed from, or a file of one is not what was saved."""


class CertificateError(BiremeError, exit_code=16):
    """A certificate of the job is missing, expired, or not of this job."""


class ImageError(BiremeError, exit_code=17):
    """A container image is torn, cannot be built, or a registry refuses it."""


class ClusterError(BiremeError, exit_code=18):
    """A Kubernetes cluster refuses or cannot do what was asked."""


class CloudError(BiremeError, exit_code=19):
    """AWS refuses or cannot do what was asked."""


class LeftoversError(BiremeError, exit_code=3):
    """A cluster was taken down, but billed resources are left."""


class Cancelled(BiremeError, exit_code=130):  # noqa: N818 - a stop on request is not an error to the user
    """Stopped on request."""
