"""The members of a job (trainers and pservers), the connection of each, and which trainers may join. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from bireme.core.text import shortened
from bireme.job.coordination import messages as m
from bireme.spec.terms import Facts, JobTerms

YOUNG = 1000.0
"""Two lines of a trainer in metrics.jsonl are no closer than this part of the job's age …"""
COARSEST_S = 10.0
"""… and a line is never further away than this."""
_TRAINER_0_KNOWS = ("output", "start_samples")
"""Facts taken from trainer 0 alone, which reads and writes models; others may differ."""
_TERMS = frozenset(JobTerms.__struct_encode_fields__) - {"name"}
_OTHER_PROGRAM = (
    "its config, or a file that the config reads such as dict.txt, is not that of the trainers that came before it"
)


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


def why_not(
    join: m.Join, facts: Facts, present: m.Join | None, known: Facts | None, trainers: int
) -> tuple[str, str] | None:
    """Why a trainer may not join, and how to fix it; None if it may. `present` holds its rank, `known` is the job."""
    if not 0 <= join.trainer < trainers:
        fix = f"start pserver 0 with --num_gradient_servers={join.trainer + 1}, or use a smaller --trainer_id"
        return f"trainer_id {join.trainer}, but this job has trainers 0 to {trainers - 1}", fix
    if present is not None and not _is_later(present, join):
        return f"trainer {join.trainer} has joined already", "give each trainer its own --trainer_id"
    if facts.shards < facts.trainers:
        return f"{facts.trainers} trainers but only {facts.shards} data shards", ""
    differs = difference(known, facts, trainers)
    if differs:
        fix = "give all trainers the same config and flags"
        if differs == _OTHER_PROGRAM:
            fix += ", and all shards the same files; `bireme data check DIR` finds those that differ"
        return f"trainer {join.trainer} runs another job: {differs}", fix
    return None


def _is_later(present: m.Join, join: m.Join) -> bool:
    """Whether `join` is from the successor of `present`, or from the same process after a lost connection.

    Trainers started by hand have no incarnation: a second one with the same id is a mistake. Where there are
    incarnations they decide alone: in containers a successor has its predecessor's host name and process id.
    """
    if join.incarnation or present.incarnation:
        return join.incarnation >= present.incarnation
    return (present.pid, present.host) == (join.pid, join.host)


def difference(ours: Facts | None, theirs: Facts, trainers: int) -> str:
    """How a trainer's facts differ from those of the others; '' if they agree."""
    if theirs.trainers != trainers:
        return f"it counts {theirs.trainers} trainers, pserver 0 counts {trainers}"
    if ours is None:
        return ""
    left, right = msgspec.to_builtins(ours), msgspec.to_builtins(theirs)
    for name in sorted(left, key=_TERMS.__contains__):  # what the program says explains terms that follow from it
        if left[name] != right[name] and name not in _TRAINER_0_KNOWS:
            if name == "fingerprint":
                return _OTHER_PROGRAM
            there, others = (shortened(repr(facts[name]), 60) for facts in (right, left))
            return f"`{name}` is {there} there and {others} with the others"
    return ""
