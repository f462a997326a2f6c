"""What the coordinator wants done: plain values that its shell carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bireme.job import messages as m
from bireme.job.manifest import Inputs, Manifest
from bireme.ps.setup import Setup


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
class SetUpPservers:
    """Effect: hand every pserver its part, then report back with `pservers_ready` or `pserver_failed`."""

    addresses: tuple[m.Address, ...]
    setups: tuple[Setup, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Effect: find the newest good snapshot of these inputs (None: of any), then report back with `loaded`."""

    inputs: Inputs | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: make a cut count, then report back with `cut_settled`, also if that failed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Base:
    """What a job goes on from."""

    manifest: Manifest
    files: tuple[tuple[str, ...], ...]
    """Its parts, after those of the snapshots that it builds on."""
    saved: int
    """The last pass whose model and ledger are on disk."""


@dataclass(frozen=True, slots=True)
class Write:
    """Effect: append a line to a file of the output tree."""

    file: Literal["metrics.jsonl", "ledger.jsonl"]
    line: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Leave:
    """Effect: everything is over; leave a last status behind, and pservers may go."""

    reason: str
    how: m.Ending
    is_own: bool = False
    """The coordinator itself found the fault, so nobody else will tell."""


Effect = Send | RefuseJoin | Load | SetUpPservers | Commit | Write | Leave
