"""The table of docs/when-something-dies.md, read off the machines that decide: nothing here knows what a loss means.

A job of two nodes trains: the coordinator of `bireme.job`, and for each pserver one lane's bookkeeping of `bireme.ps`.
One lane has just closed a round that the other still waits for, the worst moment there is. Then something is lost,
what is missing comes back, and what the coordinator orders is carried out. Afterwards it is seen from where trainers
continue, and that no lane takes what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bireme.job.coordination import messages as m
from bireme.job.coordination.coordinator import Coordinator
from bireme.job.coordination.cuts import inputs_of
from bireme.job.coordination.effects import Base, Effect, Load, Reach, Send, Write
from bireme.job.coordination.status import SILENT_S, waits_for
from bireme.job.output.journal import JournalSummary
from bireme.job.output.manifest import Manifest
from bireme.ps.lanes.rounds import LaneCounts, LaneRounds, Late, Take, Totals
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.setup import Setup
from bireme.ps.tree import spans_of
from bireme.ps.wire.frames import Flag, Head, Kind, Record
from bireme.spec.model import Optimizer, Parameter, Snapshots, Updates, Wire
from bireme.spec.terms import Facts

NODES = 2
PASS_START, CUT, OPEN = 4, 9, 11
"""Rounds: where pass 1 began, the last snapshot inside it, and the one that only the lane of pserver 0 has closed."""
ADDRESSES = tuple(m.Address(host="h", ports=(rank,)) for rank in range(NODES))
MODES: dict[str, tuple[tuple[Updates, Wire], ...]] = {
    "`sync`": ((Updates(), Wire()), (Updates(), Wire(gradients="bfloat16"))),
    "`bounded`, `async`": ((Updates(mode="bounded"), Wire()), (Updates(mode="async"), Wire())),
    "`local`, `top_k`": ((Updates(mode="local"), Wire()), (Updates(), Wire(gradients="top_k"))),
}


class Outcome(NamedTuple):
    """What followed a loss."""

    said: tuple[str, ...]
    """The logged losses, and without any, what the status waits for."""
    kind: str
    repeated: str
    """What all trainers do once more."""


class World:
    """A job at work, to which something happens."""

    def __init__(self, updates: Updates, wire: Wire) -> None:
        self.facts = Facts(
            name="demo", program="p", fingerprint="f", parameters=(Parameter(name="w", shape=(4,)),),
            optimizer=Optimizer(), batch_size=1, evals=(), shards=NODES, trainers=NODES, passes=3, seed=1,
            pservers=NODES, ports_num=1, ports_num_for_sparse=0, updates=updates, wire=wire, output="/out",
            snapshots=Snapshots(path="/out/snapshots"), connect_timeout_s=60.0,
        )  # fmt: skip
        self.now_s = 100.0
        self._connections = 0
        self._incarnation = 0
        self._base: LaneCounts | None = None
        self.lanes: dict[int, LaneRounds | LaneStream] = {}
        self.setup: Setup | None = None
        self.begun: set[int] = set()
        self.events: list[dict[str, object]] = []
        self.appoint()
        for rank in range(NODES):
            self.join(rank)
        self._train()

    def _train(self) -> None:
        """Be in the middle of pass 1, past a snapshot."""
        assert self.setup is not None and self.machine.phase == "training"
        self._base = _counts(PASS_START if self.setup.cuts_only_at_passes else CUT)
        for rank, lane in self.lanes.items():
            lane.restore(_counts(OPEN + 1 if rank == 0 else OPEN))
        self.events.clear()
        self.begun.clear()

    def appoint(self) -> None:
        """Start a coordinator without members."""
        self._incarnation += 1
        self.machine = Coordinator(NODES, self._incarnation)

    def join(self, rank: int) -> None:
        """A trainer that was started, or has lost the coordinator, says hello."""
        self._connections += 1
        join = m.Join(
            trainer=rank, pid=self._connections, host="h", facts=self.facts, pservers=ADDRESSES, incarnation=1
        )
        self.carry_out(self.machine.joined(self._connections, join, self.now_s))

    def lose_trainer(self, rank: int) -> None:
        """The coordinator sees a trainer's connection close."""
        self.carry_out(self.machine.lost(self.machine.members.trainers[rank].connection, self.now_s))

    def lose_link(self, pserver: int) -> None:
        """The coordinator sees its connection to a pserver close."""
        self.carry_out(self.machine.lost(self.machine.members.pservers[pserver].connection, self.now_s))

    def wait(self, seconds: float) -> None:
        """Time passes and nothing else happens."""
        self.now_s += seconds
        self.carry_out(self.machine.tick(self.now_s))

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Do what the coordinator wants, as its shell and the pservers would."""
        for effect in effects:
            match effect:
                case Reach(pserver=rank):
                    self._connections += 1
                    at = (rank, self._connections, ADDRESSES[rank], self.now_s)
                    self.carry_out(self.machine.pserver_reached(*at))
                case Load():
                    self.carry_out(self.machine.loaded(effect.view, self._found(), self.now_s))
                case Write():
                    self.events += [dict(line) for line in effect.lines]
                case Send(to=to, message=message):
                    self._deliver(to, message)

    def _found(self) -> Base:
        base, past = self._base, JournalSummary(saved=0, elapsed_s=50.0)
        if base is None:
            return Base(None, ())
        manifest = Manifest(
            job="demo", round=base.round, pass_id=1, batch=base.round - PASS_START, samples=base.samples, view=1,
            incarnation=1, inputs=inputs_of(self.facts), pservers=NODES, dense_lanes=1, sparse_lanes=0, parts=(),
        )  # fmt: skip
        return Base(manifest, (("part",),), past)

    def _deliver(self, to: int, message: m.Message) -> None:
        rank = next((r for r, p in self.machine.members.pservers.items() if p.connection == to), 0)
        match message:
            case m.SetUp(setup=setup):
                self.setup, self.lanes[rank] = setup, _lane(setup)
                if setup.base:
                    assert self._base is not None
                    self.lanes[rank].restore(self._base)
                self._ready(to, rank, setup.view)
            case m.ChangeView():
                self.lanes[rank].enter(message.view)  # a pserver that was lost has no lane: this would be an error
                self._ready(to, rank, message.view)
            case m.Begin():
                self.begun.add(next(r for r, t in self.machine.members.trainers.items() if t.connection == to))

    def _ready(self, to: int, rank: int, view: int) -> None:
        self.carry_out(self.machine.receive(to, m.Ready(pserver=rank, view=view), self.now_s))

    def outcome(self) -> Outcome:
        """What followed, once all processes are there again."""
        assert self.machine.phase == "training"
        kinds = [str(event["kind"]) for event in self.events if event["event"] == "view"]
        if not kinds:
            return Outcome(tuple(waits_for(self.machine, self.now_s)), "nothing", "")
        said = [str(event["what"]) for event in self.events if event["event"] == "lost"]
        return Outcome(tuple(said or self.machine.losses), kinds[-1], self._repeated())

    def _repeated(self) -> str:
        """Who continues from where; fails if a lane would take what it has."""
        assert self.begun == set(range(NODES)) and self.setup is not None and self._base is not None
        begins = [_position(lane) for lane in self.lanes.values()]
        for lane, begin in zip(self.lanes.values(), begins, strict=True):
            for shard in range(NODES):
                verdict = lane.offer(self._push(min(begins), shard), [Record(shard, False, 1, 0.0, (0.0, 0.0, 0.0))])
                assert isinstance(verdict, Late if begin > min(begins) else Take), verdict
        if min(begins) == self._base.round:
            return "back to the last " + ("pass" if self.setup.cuts_only_at_passes else "snapshot")
        assert OPEN == min(begins) < max(begins)
        return "one batch a shard again" if self.setup.facts.updates.is_streamed else "one round again"

    def _push(self, round_: int, shard: int) -> Head:
        assert self.setup is not None
        where = {"round": round_}
        if self.setup.facts.updates.is_streamed:
            where = {"round": round_ - PASS_START, "extra": 1}
        ids = {"job": self.setup.job, "view": self.machine.view}
        return Head(Kind.PUSH, Flag.NONE, lo=shard, hi=shard + 1, records=1, nbytes=4, **where, **ids)


def _lane(setup: Setup) -> LaneRounds | LaneStream:
    """A pserver's bookkeeping as `bireme.ps.lanes.lane` makes it."""
    ids = {"job": setup.job, "view": setup.view}
    shards, updates = setup.facts.shards, setup.facts.updates
    if updates.is_streamed:
        bound = updates.staleness if updates.mode == "bounded" else None
        return LaneStream(shards, None, staleness=bound, **ids)
    return LaneRounds(shards, spans_of(setup.shares, shards, is_apart=setup.is_apart), None, **ids)


def _counts(round_: int) -> LaneCounts:
    """A lane in the middle of pass 1; where shards go apart, each of them at the same batch."""
    totals = {shard: Totals() for shard in range(NODES)}
    return LaneCounts(round_, 1, PASS_START, NODES * round_, frozenset(), totals, (round_ - PASS_START,) * NODES)


def _position(lane: LaneRounds | LaneStream) -> int:
    return lane.round if isinstance(lane, LaneRounds) else PASS_START + min(lane.next_q)


def _trainer(world: World) -> None:
    world.lose_trainer(1)
    world.join(1)


def _link_to_lane(world: World) -> None:
    lost = m.LinkLost(trainer=1, view=world.machine.view, what="…")
    world.carry_out(world.machine.receive(world.machine.members.trainers[1].connection, lost, world.now_s))
    world.wait(1.0)


def _pserver(world: World) -> None:
    del world.lanes[1]
    world.lose_link(1)


def _coordinator(world: World) -> None:
    del world.lanes[0]
    _begin_anew(world)


def _begin_anew(world: World) -> None:
    world.appoint()
    for rank in range(NODES):
        world.join(rank)


def _node(world: World) -> None:
    world.lose_trainer(1)
    _pserver(world)
    world.join(1)


def _everything(world: World) -> None:
    world.lanes.clear()
    _begin_anew(world)


def _pause(world: World) -> None:
    for _ in range(10 * int(SILENT_S)):
        world.wait(1.0)
        speakers = [world.machine.members.trainers[0], *world.machine.members.pservers.values()]
        for member in speakers:
            world.carry_out(world.machine.receive(member.connection, m.Alive(), world.now_s))


LOSSES: dict[str, Callable[[World], None]] = {
    "[a trainer](#a-trainer)": _trainer,
    "[a connection](#a-connection) between a trainer and a lane": _link_to_lane,
    "a trainer's connection to the coordinator": lambda world: world.join(1),
    "a pserver's connection to the coordinator": lambda world: world.lose_link(1),
    "[a pserver](#a-pserver)": _pserver,
    "[pserver 0](#pserver-0-and-the-coordinator-with-it), and the coordinator with it": _coordinator,
    "[a node](#a-node): its pserver and its trainer": _node,
    "[everything](#everything-but-the-runner) but the runner": _everything,
    "nothing: [a trainer pauses](#a-process-that-only-pauses)": _pause,
}


def outcome_of(strike: Callable[[World], None], modes: Sequence[tuple[Updates, Wire]]) -> Outcome:
    """What follows a loss in these modes, which must be the same in all of them."""
    found = set()
    for updates, wire in modes:
        world = World(updates, wire)
        strike(world)
        found.add(world.outcome())
    (outcome,) = found
    return outcome


def table() -> str:
    """Every loss and what follows, in Markdown."""
    rows = ["| what is lost | noted as | " + " | ".join(MODES) + " |", "|---|---|" + "---|" * len(MODES)]
    for name, strike in LOSSES.items():
        outcomes = [outcome_of(strike, modes) for modes in MODES.values()]
        (said,) = {outcome.said for outcome in outcomes}
        cells = [f"**{o.kind}**, {o.repeated}" if o.repeated else f"**{o.kind}**" for o in outcomes]
        rows.append(f"| {name} | {', '.join(said)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)
