"""What the coordinator wants done: plain values that its shell carries out."""

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
    """Effect: tell a would-be member no, and hang up."""

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
    """Where a trainer knows it to be; the shell may know better."""


@dataclass(frozen=True, slots=True)
class Load:
    """Effect: find the newest good snapshot of these inputs (None: of any), then report back with `loaded`."""

    view: int
    inputs: Inputs | None
    since: int = 0
    """What older incarnations of a coordinator committed is of another run."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: make a cut count, then report back with `cut_settled`, also if that failed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Base:
    """What a job goes on from."""

    manifest: Manifest | None
    """None: there is no snapshot, it goes from the beginning."""
    files: tuple[tuple[str, ...], ...]
    """Its parts, after those of the snapshots that it builds on."""
    past: JournalSummary = JournalSummary()  # noqa: RUF009 - a tuple
    """What the books say."""


@dataclass(frozen=True, slots=True)
class Write:
    """Effect: append lines to a file of the output tree."""

    file: Literal["metrics.jsonl", "ledger.jsonl"]
    lines: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """Effect: leave the last status behind. Before anybody is told: whoever has left would be started again."""

    own_fault: OwnFault | None = None
    """What the coordinator itself found wrong, so that nobody else will tell."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Effect: go."""

    reason: str


Effect = Send | RefuseJoin | HangUp | Reach | Load | Commit | Write | Conclude | Leave
