"""The members of a job (trainers and pservers) and the connection of each. No I/O."""

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
    """A process with a connection to the coordinator."""

    connection: int
    heard_s: float


@dataclass(slots=True)
class Trainer(Member):
    """A trainer that has joined."""

    join: m.Join
    progress: m.Progress | None = None
    noted: tuple[int, float] = (0, 0.0)
    """The view and time of this trainer's last line in metrics.jsonl."""


@dataclass(slots=True)
class Pserver(Member):
    """A pserver that the coordinator has reached."""

    address: m.Address
    ready_in: int = 0
    """The view of its last Ready."""


class Members:
    """The connected members by rank, and why others are missing."""

    def __init__(self) -> None:
        self.trainers: dict[int, Trainer] = {}
        self.pservers: dict[int, Pserver] = {}
        self.reaching: set[int] = set()
        """Pservers to which the shell is connecting."""
        self.trouble: dict[int, str] = {}
        """Why the last attempt to reach a pserver failed."""
        self.lives: dict[int, int] = {}
        """The newest incarnation seen of each pserver."""

    def named(self) -> Iterator[tuple[str, Member]]:
        """All members with their names, as in `trainer 1`."""
        yield from ((f"trainer {rank}", trainer) for rank, trainer in sorted(self.trainers.items()))
        yield from ((f"pserver {rank}", pserver) for rank, pserver in sorted(self.pservers.items()))

    def label(self, connection: int) -> str:
        """The member of a connection as fields of a log line; '' if it is none's."""
        for rank, trainer in self.trainers.items():
            if trainer.connection == connection:
                return f"trainer={rank} incarnation={trainer.join.incarnation}"
        for rank, pserver in self.pservers.items():
            if pserver.connection == connection:
                return f"pserver={rank} incarnation={self.lives.get(rank, 0)}"
        return ""

    def heard(self, connection: int, now_s: float) -> None:
        for _, member in self.named():
            if member.connection == connection:
                member.heard_s = now_s

    def trainer(self, connection: int, rank: int) -> Trainer | None:
        """The trainer of this rank, if this is its connection; None for one that was replaced."""
        trainer = self.trainers.get(rank)
        return trainer if trainer is not None and trainer.connection == connection else None

    def pserver_lives(self, rank: int, incarnation: int) -> bool:
        """Note a pserver's incarnation; True if it is later than any seen before."""
        before = self.lives.get(rank, 0)
        self.lives[rank] = max(before, incarnation)
        return incarnation > before

    def missing(self, trainers: int, pservers: int) -> list[str]:
        names = [f"trainer {rank}" for rank in range(trainers) if rank not in self.trainers]
        for rank in range(pservers):
            if rank not in self.pservers:
                names.append(f"pserver {rank}" + (f" ({self.trouble[rank]})" if rank in self.trouble else ""))
        return names


def forget(members: dict[int, Trainer] | dict[int, Pserver], connection: int) -> int | None:
    """Forget the member of a closed connection; its rank, if it was one."""
    for rank, member in members.items():
        if member.connection == connection:
            del members[rank]
            return rank
    return None


def is_noted(trainer: Trainer, message: m.Progress, now_s: float, age_s: float) -> bool:
    """Whether a trainer's progress gets a line in metrics.jsonl, which else would grow by gigabytes a day.

    The older the job, the coarser its curve. The first report in a view is always noted: supervisors restart a process
    without limit only while they see the job advance.
    """
    view, then_s = trainer.noted
    if message.view == view and now_s - then_s < min(age_s / YOUNG, COARSEST_S):
        return False
    trainer.noted = message.view, now_s
    return True


def progress_facts(message: m.Progress) -> dict[str, object]:
    return {
        "trainer": message.trainer,
        "pass": message.pass_id,
        "batch": message.batch,
        "samples": message.samples,
        "cost": message.cost / max(message.samples, 1),
        "rate": round(message.rate, 1),
        "round": message.round,
    }
