"""Who is in the job, when it begins, when a pass is over and when it ends. No sockets, no files, no clock.

The coordinator is not on the data path: rounds go on between trainers and lanes without it.
Events come in with the time they happened; what is to be done comes out as effects.

    gathering ──all trainers joined──► setting-up ──all pservers ready──► training ──last pass saved──► finished
        └──────────────────────────────────┴────────────────────────────────┴── somebody failed ──► failed | cancelled
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from bireme.core.draws import stream_key
from bireme.job import messages as m
from bireme.job.cuts import Cuts, inputs_of, manifest_of
from bireme.job.effects import Base, Commit, Effect, Leave, Load, RefuseJoin, Send, SetUpPservers, Write
from bireme.job.manifest import Manifest
from bireme.ps.rounds import PassTotals, Totals
from bireme.ps.setup import Setup
from bireme.ps.tree import share_out

Phase = Literal["gathering", "setting-up", "training"] | m.Ending
_TRAINER_0_KNOWS = ("output", "start_samples")
"""Facts that only trainer 0's word matters for: it alone reads and writes models."""
ENDED: tuple[m.Ending, ...] = get_args(m.Ending)


@dataclass(slots=True)
class _Member:
    connection: int
    pid: int
    host: str
    progress: m.Progress | None = None
    passes_done: dict[int, m.PassDone] = field(default_factory=dict)


class Coordinator:
    """The state of one job's membership and passes."""

    def __init__(self, trainers: int, incarnation: int = 1) -> None:
        self.trainers = trainers
        self.incarnation = incarnation
        self.phase: Phase = "gathering"
        self.reason = ""
        self.facts: m.Facts | None = None
        self.closed: list[m.PassClosed] = []
        self.saved = -1
        self._members: dict[int, _Member] = {}
        self._totals: dict[int, PassTotals] = {}
        self._unsaved: tuple[int, list[Effect]] = (-1, [])
        self._cuts = Cuts()
        self._settled: set[int] = set()
        """Passes whose end is in a committed cut, or cannot be: only these are closed for people to see."""
        self._begun_s = 0.0
        self._pass_begun_s = 0.0

    @property
    def view(self) -> int:
        """The current view: ordered by incarnation, then number; there is one view so far."""
        return self.incarnation << 32 | 1

    def joined(self, connection: int, join: m.Join, now_s: float) -> list[Effect]:
        """A trainer says hello; the first one brings the facts, the others must agree."""
        if self.phase != "gathering":
            return [RefuseJoin(connection, f"the job is {self.phase}: nobody can join now")]
        if not 0 <= join.trainer < self.trainers:
            return [
                RefuseJoin(
                    connection,
                    f"trainer_id {join.trainer}, but this job has trainers 0 to {self.trainers - 1}",
                    f"start pserver 0 with --num_gradient_servers={join.trainer + 1}, or use a smaller --trainer_id",
                )
            ]
        if join.trainer in self._members:
            return [
                RefuseJoin(
                    connection,
                    f"trainer {join.trainer} has joined already",
                    "give each trainer its own --trainer_id",
                )
            ]
        facts = join.facts
        if facts.trainers == 0:  # started by hand: as in the original, only pservers know how many trainers there are
            facts = msgspec.structs.replace(facts, trainers=self.trainers, shards=self.trainers)
        if facts.shards < facts.trainers:
            return [RefuseJoin(connection, f"{facts.trainers} trainers but only {facts.shards} data shards")]
        difference = self._difference(facts)
        if difference:
            return [
                RefuseJoin(
                    connection,
                    f"trainer {join.trainer} runs another job: {difference}",
                    "give all trainers the same config and flags",
                )
            ]
        if self.facts is None or join.trainer == 0:
            self.facts = facts
        self._members[join.trainer] = _Member(connection, join.pid, join.host)
        if len(self._members) < self.trainers:
            return []
        self.phase = "setting-up"
        self._begun_s = now_s
        if self.facts.is_resumed:
            return [Load(None if self.facts.accepts_changes else inputs_of(self.facts))]
        self.saved = self.facts.start_pass - 1
        return [self._set_up(self.facts)]

    def loaded(self, base: Base) -> list[Effect]:
        """A snapshot was found to go on from."""
        if self.facts is None:
            return []
        self.saved = base.saved
        ended = base.manifest.ended
        if ended is not None and ended.pass_id > base.saved:
            self._totals[ended.pass_id] = ended.totals()
            self._settled.add(ended.pass_id)
        return [self._set_up(self.facts, base.files)]

    def _difference(self, facts: m.Facts) -> str:
        if facts.trainers != self.trainers:
            return f"it counts {facts.trainers} trainers, pserver 0 counts {self.trainers}"
        if self.facts is None:
            return ""
        ours, theirs = msgspec.to_builtins(self.facts), msgspec.to_builtins(facts)
        for name in ours:
            if ours[name] != theirs[name] and name not in _TRAINER_0_KNOWS:
                return f"`{name}` is {_short(theirs[name])} there and {_short(ours[name])} with the others"
        return ""

    def _set_up(self, facts: m.Facts, base: tuple[tuple[str, ...], ...] = ()) -> SetUpPservers:
        setups = tuple(
            Setup(
                job=self.job_id,
                view=self.view,
                pserver=i,
                pservers=len(facts.pservers),
                dense_lanes=facts.dense_lanes,
                sparse_lanes=facts.sparse_lanes,
                parameters=facts.parameters,
                optimizer=facts.optimizer,
                seed=facts.seed,
                shards=facts.shards,
                shares=share_out(facts.shards, facts.trainers),
                updates=facts.updates,
                wire=facts.wire,
                snapshots=facts.snapshots.path,
                cut_every_s=facts.snapshots.every_s,
                base=base,
                is_set_by_trainer=facts.is_set_by_trainer,
                start_pass=facts.start_pass,
                start_samples=facts.start_samples,
            )
            for i in range(len(facts.pservers))
        )
        return SetUpPservers(facts.pservers, setups)

    @property
    def job_id(self) -> int:
        """What frames carry so that two jobs cannot mix: differs with anything the job is made of."""
        return stream_key(self.incarnation, msgspec.json.encode(self.facts).decode())

    def pservers_ready(self, now_s: float) -> list[Effect]:
        """Every pserver holds its part: training begins."""
        if self.phase != "setting-up" or self.facts is None:
            return []
        self.phase = "training"
        self._pass_begun_s = now_s
        begin = m.Begin(
            job=self.job_id,
            view=self.view,
            shares=share_out(self.facts.shards, self.facts.trainers),
            start_samples=self.facts.start_samples,
            saved=self.saved,
        )
        return [Send(member.connection, begin) for member in self._members.values()]

    def _member(self, connection: int, trainer: int) -> _Member | None:
        """The member that speaks on this connection, if it is the one it says it is."""
        member = self._members.get(trainer)
        return member if member is not None and member.connection == connection else None

    def progressed(self, connection: int, message: m.Progress, now_s: float) -> list[Effect]:
        """A trainer tells how far it is."""
        member = self._member(connection, message.trainer)
        if member is None:
            return []
        member.progress = message
        samples = max(message.samples, 1)
        line = {
            "event": "progress", "t": round(now_s - self._begun_s, 3), "trainer": message.trainer,
            "pass": message.pass_id, "batch": message.batch, "samples": message.samples, "cost": message.cost / samples,
            "rate": round(message.rate, 1),
        }  # fmt: skip
        return [Write("metrics.jsonl", line)]

    def lane_passed(self, totals: PassTotals, now_s: float) -> list[Effect]:
        """The first lane has closed a pass: these samples were applied."""
        self._totals[totals.pass_id] = totals
        return self._close_pass(totals.pass_id, now_s)

    def pass_done(self, connection: int, message: m.PassDone, now_s: float) -> list[Effect]:
        """A trainer has ended a pass."""
        member = self._member(connection, message.trainer)
        if member is None:
            return []
        member.passes_done[message.pass_id] = message
        return self._close_pass(message.pass_id, now_s)

    def _close_pass(self, pass_id: int, now_s: float) -> list[Effect]:
        reports = [member.passes_done.get(pass_id) for member in self._members.values()]
        is_settled = pass_id in self._settled or (self.facts is not None and not self.facts.snapshots.path)
        if self.facts is None or pass_id not in self._totals or None in reports or not is_settled:
            return []
        ended = self._totals.pop(pass_id)
        totals = ended.shards
        done = [report for report in reports if report is not None]
        test = next((report.test for report in done if report.test is not None), None)
        samples = sum(t.samples for t in totals.values())
        if samples == 0:
            return self._end("failed", "there is not one training sample in all shards", is_own=True)
        closed = m.PassClosed(
            pass_id=pass_id,
            round=done[0].round,
            samples=samples,
            samples_so_far=ended.samples,
            seconds=round(now_s - self._pass_begun_s, 3),
            cost=sum(t.cost for _, t in sorted(totals.items())) / max(samples, 1),
            evals={
                name: sum(t.evals[i] for _, t in sorted(totals.items())) / max(samples, 1)
                for i, name in enumerate(self.facts.evals)
            },
            test_samples=test.samples if test else 0,
            test_cost=test.cost / max(test.samples, 1) if test and test.cost is not None else None,
            test_evals={k: v / max(test.samples, 1) for k, v in test.evals.items()} if test else {},
            staleness={str(ahead): count for ahead, count in sorted(ended.staleness.items())},
            wire_error=max((report.wire_error for report in done), default=0.0),
            spent={n: round(s, 6) for report in done if report.trainer == 0 for n, s in report.spent.items()},
        )
        self._pass_begun_s = now_s
        self.closed.append(closed)
        line = {"event": "pass", "t": round(now_s - self._begun_s, 3), **msgspec.to_builtins(closed)}
        self._unsaved = (pass_id, [*(Write("ledger.jsonl", row) for row in _ledger_rows(pass_id, totals, done))])
        return [Write("metrics.jsonl", line), Send(self._members[0].connection, closed)]

    def part_done(self, message: m.CutPart, now_s: float) -> list[Effect]:
        """A pserver has written its part of a cut, or could not; the last part makes the cut complete."""
        if self.facts is None or message.view != self.view or self.phase != "training":
            return []
        parts = self._cuts.add(message, len(self.facts.pservers))
        if not message.sha256 and message.ends_pass:
            return self._settle(message.pass_id - 1, now_s)
        if parts is None:
            return []
        ended = self._totals.get(message.pass_id - 1) if message.ends_pass else None
        return [Commit(manifest_of(self.facts, self.incarnation, parts, ended))]

    def cut_settled(self, manifest: Manifest, now_s: float) -> list[Effect]:
        """A cut counts from now on, or is lost; either way a pass that ended with it can be closed."""
        return self._settle(manifest.pass_id - 1, now_s) if manifest.ended else []

    def _settle(self, pass_id: int, now_s: float) -> list[Effect]:
        """No cut is to be waited for any more before a pass is closed."""
        self._settled.add(pass_id)
        return self._close_pass(pass_id, now_s)

    def model_saved(self, connection: int, message: m.Saved) -> list[Effect]:
        """The model of a pass is on disk, so the pass counts; after the last one the job is over."""
        pass_id, rows = self._unsaved
        if self._member(connection, 0) is None or message.pass_id != pass_id or self.facts is None:
            return []
        self.saved = pass_id
        self._unsaved = (-1, [])
        is_last = pass_id + 1 == self.facts.start_pass + self.facts.passes
        return [*rows, *(self._end("finished", "all passes done") if is_last else [])]

    def trainer_failed(self, connection: int, message: m.Failed) -> list[Effect]:
        """A trainer cannot go on, so nobody can."""
        if self._member(connection, message.trainer) is None:
            return []
        return self._end("failed", f"trainer {message.trainer}: {message.what}")

    def failed(self, reason: str) -> list[Effect]:
        """The coordinator's own shell cannot go on."""
        return self._end("failed", reason)

    def cancelled(self) -> list[Effect]:
        """Somebody asked to stop."""
        return self._end("cancelled", "stopped on request")

    def lost(self, connection: int) -> list[Effect]:
        """A connection has closed; that matters only while its trainer is needed."""
        gone = [rank for rank, member in self._members.items() if member.connection == connection]
        if not gone or self.phase in ENDED:
            return []
        if self.phase == "gathering":
            del self._members[gone[0]]
            if not self._members:
                self.facts = None
            return []
        return self._end("failed", f"trainer {gone[0]} went away")

    def _end(self, how: m.Ending, reason: str, *, is_own: bool = False) -> list[Effect]:
        if self.phase in ENDED:
            return []
        self.phase, self.reason = how, reason
        stop = m.Stop(reason=reason, how=how)
        sends: list[Effect] = [Send(member.connection, stop) for member in self._members.values()]
        return [*sends, Leave(reason, how, is_own)]

    def status(self, now_s: float) -> dict[str, object]:
        """The job right now, for people and programs."""
        facts = self.facts
        return {
            "phase": self.phase,
            "reason": self.reason,
            "job": facts.name if facts else "",
            "view": self.view,
            "seconds": round(now_s - self._begun_s, 3) if self._begun_s else 0.0,
            "first_pass": facts.start_pass if facts else 0,
            "passes": facts.passes if facts else 0,
            "pass": max((p.progress.pass_id for p in self._members.values() if p.progress), default=0),
            "trainers": [self._trainer_status(rank) for rank in sorted(self._members)],
            "trainers_missing": [rank for rank in range(self.trainers) if rank not in self._members],
            "pservers": [msgspec.to_builtins(a) for a in facts.pservers] if facts else [],
            "passes_done": [msgspec.to_builtins(c) for c in self.closed],
            "saved": self.saved,
        }

    def _trainer_status(self, rank: int) -> dict[str, object]:
        member = self._members[rank]
        known: dict[str, object] = {"trainer": rank, "pid": member.pid, "host": member.host}
        if member.progress is not None:
            p = member.progress
            n = max(p.samples, 1)
            known |= {"pass": p.pass_id, "batch": p.batch, "batches": p.batches, "samples": p.samples}
            known |= {"cost": p.cost / n, "evals": [e / n for e in p.evals], "rate": p.rate}
        return known


def _ledger_rows(pass_id: int, totals: dict[int, Totals], done: list[m.PassDone]) -> list[dict[str, object]]:
    read = {shard: n for report in done for shard, n in report.read.items()}
    trained = {shard: n for report in done for shard, n in report.trained.items()}
    return [
        {
            "pass": pass_id,
            "shard": s,
            "read": read.get(s, 0),
            "trained": trained.get(s, 0),
            "applied": t.samples,
        }
        for s, t in sorted(totals.items())
    ]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
