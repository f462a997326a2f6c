"""Effects: what the coordinator has decided, as plain values that its shell carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bireme.job.coordination import messages as m
from bireme.job.output.journal import JournalSummary
from bireme.job.output.manifest import Inputs, Manifest

OwnFault = Literal["data", "process", "storage"]


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: send a message on a connection."""

    to: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class RefuseJoin:
    """Effect: refuse a trainer's Join and close its connection."""

    to: int
    reason: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Effect: close a connection whose process was replaced."""

    to: int


@dataclass(frozen=True, slots=True)
class Reach:
    """Effect: connect to a pserver, then report back with `pserver_reached` or `pserver_out_of_reach`."""

    pserver: int
    address: m.Address | None
    """The address from a trainer's Join; the shell's discovery takes precedence."""


@dataclass(frozen=True, slots=True)
class Load:
    """Effect: find the newest good snapshot of these inputs (None: of any), then report back with `loaded`."""

    view: int
    inputs: Inputs | None
    newer_than: int = 0
    """Ignore snapshots of coordinators up to this incarnation: they belong to another run."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: commit a cut, then report back with `cut_settled`, also if that failed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Base:
    """The state that a job resumes from."""

    manifest: Manifest | None
    files: tuple[tuple[str, ...], ...]
    """Its parts, after those of the snapshots that it builds on."""
    past: JournalSummary = JournalSummary()  # noqa: RUF009 - a tuple
    """The contents of metrics.jsonl and ledger.jsonl."""


@dataclass(frozen=True, slots=True)
class Write:
    """Effect: append lines to a file of the output tree."""

    file: Literal["metrics.jsonl", "ledger.jsonl"]
    lines: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """Effect: write the final status, before any Stop: without it, supervisors would restart what has exited."""

    own_fault: OwnFault | None = None
    """The kind of failure, if the coordinator itself found it, so that no other process reports it."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Effect: end the coordinator's process."""

    reason: str


Effect = Send | RefuseJoin | HangUp | Reach | Load | Commit | Write | Conclude | Leave
