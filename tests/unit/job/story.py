"""What the coordinator's tests share: a small job, and a coordinator that gets one event after the other."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from bireme.job.coordination import messages as m
from bireme.job.coordination.coordinator import Coordinator
from bireme.job.coordination.cuts import inputs_of
from bireme.job.coordination.effects import Base, Effect, Leave, Send, Write
from bireme.job.output.manifest import EndedPass, Manifest, PartRecord
from bireme.ps.lanes.rounds import PassTotals, Totals
from bireme.spec.model import Optimizer, Parameter, Snapshots
from bireme.spec.terms import Facts

ADDRESSES = (m.Address(host="a", ports=(1, 2)), m.Address(host="b", ports=(3, 4)))
FACTS = Facts(
    name="demo",
    program="config.py",
    fingerprint="f",
    parameters=(Parameter(name="w", shape=(4,)),),
    optimizer=Optimizer(),
    batch_size=10,
    evals=("error",),
    shards=3,
    trainers=2,
    passes=2,
    seed=1,
    pservers=2,
    ports_num=1,
    ports_num_for_sparse=1,
    output="/out",
    connect_timeout_s=60.0,
)
CUTS = Snapshots(path="/out/snapshots", every_s=10.0)
NO_BASE = Base(None, ())
HASH = "0" * 64
SHARDS_OF = {0: (0, 1), 1: (2,)}
"""Of two trainers over three shards."""
One = TypeVar("One")


class Story:
    """A coordinator and the moment it is at. Trainer r first speaks on connection 10 + r, pserver r on 20 + r."""

    def __init__(self, *, trainers: int = 2, incarnation: int = 1, **changes: object) -> None:
        self.machine = Coordinator(trainers, incarnation)
        self.facts = msgspec.structs.replace(FACTS, trainers=trainers, **changes)
        self.now_s = 100.0

    def join(self, rank: int, connection: int | None = None, incarnation: int = 1, **changes: object) -> list[Effect]:
        join = m.Join(
            trainer=rank,
            pid=1000 * incarnation + rank,
            host="h",
            facts=msgspec.structs.replace(self.facts, **changes),
            pservers=ADDRESSES,
            incarnation=incarnation,
        )
        return self.machine.joined(10 + rank if connection is None else connection, join, self.now_s)

    def reach(self, rank: int, connection: int | None = None) -> list[Effect]:
        to = 20 + rank if connection is None else connection
        return self.machine.pserver_reached(rank, to, ADDRESSES[rank], self.now_s)

    def load(self, base: Base = NO_BASE) -> list[Effect]:
        return self.machine.loaded(self.machine.view, base, self.now_s)

    def deliver(self, connection: int, message: m.Message) -> list[Effect]:
        return self.machine.receive(connection, message, self.now_s)

    def ready(self) -> list[Effect]:
        """Every pserver is in the current view."""
        members = [(p.connection, rank) for rank, p in self.machine.members.pservers.items()]
        return [e for to, rank in members for e in self.deliver(to, m.Ready(pserver=rank, view=self.machine.view))]

    def lose(self, connection: int) -> list[Effect]:
        return self.machine.lost(connection, self.now_s)

    def wait(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.machine.tick(self.now_s)

    def gather(self) -> list[Effect]:
        """All members join; returns what the last one sets off."""
        for rank in range(self.machine.expected):
            self.join(rank)
        return [e for rank in range(self.facts.pservers) for e in self.reach(rank)]

    def train(self, base: Base = NO_BASE) -> Story:
        """From nothing to training."""
        self.gather()
        self.load(base)
        self.ready()
        assert self.machine.phase == "training"
        return self

    def close_pass(self, pass_id: int) -> list[Effect]:
        """The lanes and all trainers end a pass; returns what the last report sets off."""
        machine = self.machine
        found = machine.lane_passed(machine.history, totals(pass_id, 33 * (pass_id + 1)), self.now_s)
        for rank, trainer in sorted(machine.members.trainers.items(), reverse=True):
            found = self.deliver(trainer.connection, pass_done(rank, pass_id))
        return found

    def save_pass(self, pass_id: int) -> list[Effect]:
        """A pass from its end to its model."""
        self.close_pass(pass_id)
        to = self.machine.members.trainers[0].connection
        return self.deliver(to, m.Saved(trainer=0, pass_id=pass_id))


def pass_done(rank: int, pass_id: int = 0, test: m.Sum | None = None) -> m.PassDone:
    counts = {s: 10 + s for s in SHARDS_OF[rank]}
    return m.PassDone(trainer=rank, pass_id=pass_id, round=5, read=counts, trained=counts, test=test)


def progress(rank: int, view: int = 0) -> m.Progress:
    return m.Progress(
        trainer=rank,
        pass_id=0,
        batch=3,
        batches=9,
        samples=20,
        cost=10.0,
        evals=(5.0,),
        rate=7.0,
        view=view,
        round=2,
        closed=1,
    )


def totals(pass_id: int = 0, samples: int = 33, staleness: dict[int, int] | None = None) -> PassTotals:
    shards = {s: Totals(10 + s, 2.0 * (10 + s), [float(s), 0.0, 0.0]) for s in (2, 0, 1)}
    return PassTotals(pass_id, samples, shards, staleness or {})


def cut_part(pserver: int, history: int, *, round_: int = 5, ends_pass: bool = True, sha256: str = HASH) -> m.CutPart:
    """A part of a cut in pass 0, or of the one that ends it."""
    return m.CutPart(
        pserver=pserver, history=history, round=round_, pass_id=int(ends_pass), batch=0 if ends_pass else round_,
        samples=33, ends_pass=ends_pass, file=f"part-{pserver}.bin", sha256=sha256, nbytes=8,
    )  # fmt: skip


def manifest(view: int, *, ended: PassTotals | None = None, round_: int = 5) -> Manifest:
    """A committed cut of the story's job."""
    parts = [PartRecord(file=f"part-{r}.bin", sha256=HASH, nbytes=8, pserver=r) for r in range(2)]
    return Manifest(
        job="demo", round=round_, pass_id=1, batch=0, samples=33, view=view, incarnation=1, inputs=inputs_of(FACTS),
        pservers=2, dense_lanes=1, sparse_lanes=1, parts=tuple(parts),
        ended=EndedPass.of(ended) if ended else None,
    )  # fmt: skip


def sent(effects: list[Effect]) -> list[tuple[int, m.Message]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send)]


def only(kind: type[One], effects: list[Effect]) -> One:
    """The one effect of a kind."""
    (found,) = [e for e in effects if isinstance(e, kind)]
    return found


def messages_of(kind: type[One], effects: list[Effect]) -> dict[int, One]:
    """Messages of a kind, by connection."""
    return {e.to: e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)}


def lines(file: str, effects: list[Effect]) -> list[dict[str, object]]:
    return [dict(line) for e in effects if isinstance(e, Write) and e.file == file for line in e.lines]


def leaves(effects: list[Effect]) -> Leave:
    """The last effect, which must be to go."""
    assert isinstance(effects[-1], Leave)
    return effects[-1]
