"""Whom the coordinator knows, and on which connection each of them speaks. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
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


def members_of(trainers: Mapping[int, Trainer], pservers: Mapping[int, Pserver]) -> dict[str, Member]:
    """Everybody who is there, by name, as in `trainer 1`."""
    found: dict[str, Member] = {f"trainer {rank}": trainer for rank, trainer in sorted(trainers.items())}
    return found | {f"pserver {rank}": pserver for rank, pserver in sorted(pservers.items())}


def progress_facts(message: m.Progress) -> dict[str, object]:
    """A trainer's progress as metrics.jsonl has it."""
    return {
        "trainer": message.trainer,
        "pass": message.pass_id,
        "batch": message.batch,
        "samples": message.samples,
        "cost": message.cost / max(message.samples, 1),
        "rate": round(message.rate, 1),
        "round": message.round,
    }
