"""Whom the coordinator knows, and on which connection each of them speaks. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bireme.job.coordination import messages as m

YOUNG = 1000.0
"""Two lines of a trainer in metrics.jsonl are no closer than this part of the job's age …"""
COARSEST_S = 10.0
"""… and a line is never further away than this."""


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
    noted: tuple[int, float] = (0, 0.0)
    """The view and the moment of the progress that metrics.jsonl last got of it."""


@dataclass(slots=True)
class Pserver(Member):
    """A pserver that the coordinator has reached."""

    address: m.Address
    ready_in: int = 0
    """The view in which it last said it was."""


class Members:
    """Everybody who is there, by rank; whom the coordinator waits for, and why they are not there."""

    def __init__(self) -> None:
        self.trainers: dict[int, Trainer] = {}
        self.pservers: dict[int, Pserver] = {}
        self.reaching: set[int] = set()
        """Pservers that the shell is trying to reach."""
        self.trouble: dict[int, str] = {}
        """Why pservers cannot be reached right now."""
        self.lives: dict[int, int] = {}
        """The newest incarnations of pservers that were heard of."""

    def named(self) -> Iterator[tuple[str, Member]]:
        """Everybody, as in `trainer 1`."""
        yield from ((f"trainer {rank}", trainer) for rank, trainer in sorted(self.trainers.items()))
        yield from ((f"pserver {rank}", pserver) for rank, pserver in sorted(self.pservers.items()))

    def heard(self, connection: int, now_s: float) -> None:
        """Somebody has said something."""
        for _, member in self.named():
            if member.connection == connection:
                member.heard_s = now_s

    def trainer(self, connection: int, rank: int) -> Trainer | None:
        """The trainer that speaks on this connection, if it is the one it says it is."""
        trainer = self.trainers.get(rank)
        return trainer if trainer is not None and trainer.connection == connection else None

    def trainer_gone(self, connection: int) -> int | None:
        """Forget the trainer of a closed connection; its rank, if it was one."""
        return _forget(self.trainers, connection)

    def pserver_gone(self, connection: int) -> int | None:
        """Forget the pserver of a closed connection; its rank, if it was one."""
        return _forget(self.pservers, connection)

    def pserver_lives(self, rank: int, incarnation: int) -> bool:
        """Note a pserver's incarnation; True if it is later than any heard of before."""
        before = self.lives.get(rank, 0)
        self.lives[rank] = max(before, incarnation)
        return incarnation > before

    def missing(self, trainers: int, pservers: int) -> list[str]:
        """Who is not there of so many, and why if that is known."""
        found = [f"trainer {rank}" for rank in range(trainers) if rank not in self.trainers]
        for rank in range(pservers):
            if rank not in self.pservers:
                found.append(f"pserver {rank}" + (f" ({self.trouble[rank]})" if rank in self.trouble else ""))
        return found


def _forget(members: dict[int, Trainer] | dict[int, Pserver], connection: int) -> int | None:
    for rank, member in members.items():
        if member.connection == connection:
            del members[rank]
            return rank
    return None


def is_noted(trainer: Trainer, message: m.Progress, now_s: float, age_s: float) -> bool:
    """Whether a trainer's progress gets a line in metrics.jsonl, which else would grow by gigabytes a day.

    The older the job, the coarser its curve. The first word in a view is always noted: those who start processes again
    see by it that the job has got further, however often somebody dies.
    """
    view, then_s = trainer.noted
    if message.view == view and now_s - then_s < min(age_s / YOUNG, COARSEST_S):
        return False
    trainer.noted = message.view, now_s
    return True


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
