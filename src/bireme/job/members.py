"""Whom the coordinator knows, and on which connection each of them speaks. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from bireme.job import messages as m


@dataclass(slots=True)
class Member:
    """Somebody with a connection."""

    connection: int
    heard_s: float


@dataclass(slots=True)
class Trainer(Member):
    """A trainer that has joined."""

    join: m.Join
    progress: m.Progress | None = None


@dataclass(slots=True)
class Pserver(Member):
    """A pserver that the coordinator has reached."""

    address: m.Address
    ready_in: int = 0
    """The view in which it last said it was."""
