"""Who is in the job, in which view, and when it ends: events with their times in, effects out. No I/O, no clock.

    gathering ──all members joined──► setting-up ──all pservers ready──► training ──last pass saved──► finished
        ▲                                  │                                │
        └───────── a member was lost ──────┴────────────────────────────────┘      anywhere: failed | cancelled

Each way through setting-up makes a new view. If only trainers or connections were lost, lanes keep their state (a
mend); if a pserver was, all lanes load the last committed cut (a rewind, which begins a new history). The file is long
because an event's effects depend on phase, view and cuts at once; members.py, passes.py and cuts.py have the rest.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bireme.core.draws import stream_key
from bireme.job.coordination import messages as m
from bireme.job.coordination.cuts import CutFailure, Cuts, inputs_of, manifest_of
from bireme.job.coordination.effects import (
    Base,
    Commit,
    Conclude,
    Effect,
    HangUp,
    Leave,
    Load,
    OwnFault,
    Reach,
    RefuseJoin,
    Send,
    Write,
)  # fmt: skip
from bireme.job.coordination.members import Members, Pserver, Trainer, forget, is_noted, progress_facts, why_not
from bireme.job.coordination.passes import Passes
from bireme.job.output.kept import early_end
from bireme.job.output.manifest import Manifest
from bireme.job.status import ENDED, Ending
from bireme.ps.lanes.authority import view_of
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.setup import Setup, cuts_only_at_passes, has_private_state
from bireme.ps.tree import share_out
from bireme.spec.terms import Facts

Phase = Literal["gathering", "setting-up", "training"] | Ending
Reason = Literal[
    "all members joined",
    "all pservers are ready",
    "a member was lost",
    "the last model is saved",
    "it cannot continue",
    "a stop was requested",
]
LIVE: tuple[Phase, ...] = ("gathering", "setting-up", "training")
ENDINGS: dict[Ending, Reason] = {
    "finished": "the last model is saved",
    "failed": "it cannot continue",
    "cancelled": "a stop was requested",
}
TRANSITIONS: dict[tuple[Phase, Reason], Phase] = {
    ("gathering", "all members joined"): "setting-up",
    ("setting-up", "all pservers are ready"): "training",
    ("setting-up", "a member was lost"): "gathering",
    ("training", "a member was lost"): "gathering",
    **{(phase, why): ending for phase in LIVE for ending, why in ENDINGS.items()},
}
"""Every way from one phase to another; the docs draw it."""
SET_UP_PATIENCE_S = 300.0
"""Long: with an empty cache pservers compile their kernels here, all of them at the same time."""
MAX_MENDS = 20
"""Fail the job after so many views in a row without a closed round: the connections will not get better."""
TAKEN_OVER = "another coordinator has taken over"
NO_END = "there is no snapshot at the end of pass"
"""Prefix of the reason for which a job fails where recomputing a pass would not give the same bits."""


class Coordinator:
    """The state of one job's membership and passes."""

    # No lock: `CoordinatorService` makes every call under its own.
    def __init__(self, trainers: int, incarnation: int = 1) -> None:
        self.expected = trainers
        self.incarnation = incarnation
        self.phase: Phase = "gathering"
        self.reason = ""
        self.facts: Facts | None = None
        self.members = Members()
        self.passes = Passes()
        self.history = 0
        """The view of the last SetUp: lanes keep their state since then."""
        self.begun_s = 0.0
        self.losses: list[str] = []
        """Losses since the last closed round, as text."""
        self._number = 0
        self._must_rewind = True  # also the first view loads: no pserver keeps anything yet
        self.cuts = Cuts()
        self.cut_failure: CutFailure | None = None
        """The last failed cut, until a later one is committed."""
        self._waits_since_s = 0.0
        self._not_before_s = 0.0
        self._mends = 0
        self._base_round = 0
        self._has_base = False

    @property
    def view(self) -> int:
        """The current view, or the one being set up: ordered by incarnation, then number."""
        return view_of(self.incarnation, self._number)

    @property
    def job_id(self) -> int:
        return stream_key(0, msgspec.json.encode(self.facts).decode())

    @property
    def snapshot_round(self) -> int | None:
        """The round of the newest snapshot of this history, its base included; None: there is none."""
        if self.cuts.newest is not None:
            return self.cuts.newest.round
        return self._base_round if self._has_base else None

    def receive(self, connection: int, message: m.Message, now_s: float) -> list[Effect]:
        match message:
            case m.Alive():
                self.members.heard(connection, now_s)
                return []
            case m.Progress():
                return self.progressed(connection, message, now_s)
            case m.PassDone():
                return self.pass_done(connection, message, now_s)
            case m.Saved():
                return self.model_saved(connection, message, now_s)
            case m.LinkLost():
                return self.link_lost(connection, message, now_s)
            case m.Failed() if self.members.trainer(connection, message.trainer) is not None:
                # A restart would repeat the error.
                return self._end("failed", f"trainer {message.trainer}: {message.what}")
            case m.Here():
                return self.pserver_is_here(message, now_s)
            case m.Ready():
                return self.ready(connection, message, now_s)
            case m.CutPart():
                return self.part_done(message, now_s)
            case _:
                return []  # not a message for a coordinator, or one of a trainer that was replaced

    def _to(self, why: Reason) -> None:
        self.phase = TRANSITIONS[self.phase, why]

    # Membership

    def joined(self, connection: int, join: m.Join, now_s: float) -> list[Effect]:
        """Handle a trainer's Join; the first one brings the facts, the others must agree."""
        if self.phase in ENDED:
            if self.reason == TAKEN_OVER:
                return [HangUp(connection)]  # another coordinator runs the job
            how = next(ending for ending in ENDED if ending == self.phase)
            return [Send(connection, m.Stop(reason=self.reason, how=how))]
        facts = join.facts
        if facts.trainers == 0:  # started by hand: as in the original, only pservers know how many there are
            facts = msgspec.structs.replace(facts, trainers=self.expected, shards=self.expected)
        present = self.members.trainers.get(join.trainer)
        refusal = why_not(join, facts, present.join if present else None, self.facts, self.expected)
        if refusal is not None:
            return [RefuseJoin(connection, *refusal)]
        effects: list[Effect] = []
        if present is not None:  # its successor joined before the old connection was seen to close
            del self.members.trainers[join.trainer]
            effects = [HangUp(present.connection), *self._disturb(f"trainer {join.trainer} was replaced", now_s)]
        if self.facts is None or join.trainer == 0:
            self.facts = facts
        self.members.trainers[join.trainer] = Trainer(connection, now_s, join)
        return [*effects, *self._advance(now_s)]

    def pserver_reached(self, rank: int, connection: int, address: m.Address, now_s: float) -> list[Effect]:
        self.members.reaching.discard(rank)
        self.members.trouble.pop(rank, None)
        if self.phase in ENDED or rank in self.members.pservers:
            return [HangUp(connection)]
        self.members.pservers[rank] = Pserver(connection, now_s, address)
        return self._advance(now_s)

    def pserver_is_here(self, message: m.Here, now_s: float) -> list[Effect]:
        """Handle a pserver's Here; one with a later incarnation and another address replaces the connected one.

        The old one may be stopped or cut off: its connection may not close for long, or ever.
        """
        rank, pservers = message.pserver, self.members.pservers
        is_younger = self.members.pserver_lives(rank, message.incarnation)
        present = pservers.get(rank)
        if present is None or not is_younger or message.address == present.address or self.phase in ENDED:
            return []
        del pservers[rank]
        self._must_rewind = True
        return [HangUp(present.connection), *self._disturb(f"pserver {rank} was replaced", now_s)]

    def pserver_out_of_reach(self, rank: int, why: str) -> list[Effect]:
        """Handle a failed connection to a pserver; the next tick tries again."""
        self.members.reaching.discard(rank)
        self.members.trouble[rank] = why
        return []

    def lost(self, connection: int, now_s: float) -> list[Effect]:
        if (rank := forget(self.members.trainers, connection)) is not None:
            if not self.members.trainers and not self.begun_s:
                self.facts = None  # training has not begun: the next trainer may bring another job
            return self._disturb(f"trainer {rank} was lost", now_s)
        if (rank := forget(self.members.pservers, connection)) is not None:
            self._must_rewind = True  # its part of the parameters may be gone with it
            return self._disturb(f"pserver {rank} was lost", now_s)
        return []

    def link_lost(self, connection: int, message: m.LinkLost, now_s: float) -> list[Effect]:
        """Handle a trainer's loss of a connection to a lane, though both may still run."""
        is_member = self.members.trainer(connection, message.trainer) is not None
        if not is_member or message.view != self.view or self.phase != "training":
            return []
        self._mends += 1
        if self._mends > MAX_MENDS:
            return self._end("failed", f"trainer {message.trainer} cannot keep its connections: {message.what}")
        # Growing pauses: a link that keeps breaking must not make view after view at full speed.
        self._not_before_s = now_s + min(0.05 * 2**self._mends, 2.0)
        return self._disturb(f"trainer {message.trainer} lost a connection: {message.what}", now_s)

    def tick(self, now_s: float) -> list[Effect]:
        """Handle the passage of time: fail after the patience, or try again."""
        if self.phase in ENDED or self.facts is None:
            return []
        if not self._waits_since_s:
            return self._ask_for_cut(now_s)
        waited_s = now_s - self._waits_since_s
        if self.phase == "gathering" and waited_s > self.facts.connect_timeout_s:
            missing = "; ".join(self.missing())
            return self._end("failed", f"waited {waited_s:.0f} s for {missing}", own_fault="process")
        if self.phase == "setting-up" and waited_s > self.facts.connect_timeout_s + SET_UP_PATIENCE_S:
            late = [f"pserver {r}" for r, p in self.members.pservers.items() if p.ready_in != self.view]
            reason = f"waited {waited_s:.0f} s for {', '.join(late)} to get ready"
            return self._end("failed", reason, own_fault="process")
        return self._advance(now_s)

    def missing(self) -> list[str]:
        return self.members.missing(self.expected, self.facts.pservers if self.facts else 0)

    # Views

    def _disturb(self, what: str, now_s: float) -> list[Effect]:
        """Record a loss and gather again."""
        if self.phase in ENDED:
            return []
        effects: list[Effect] = []
        if self.begun_s:
            self.losses.append(what)
            effects = [self._event("lost", now_s, what=what)]
            # Trainers have state that lanes lack (`local`, `top_k`): a lost one's can only be computed again.
            if self.facts is not None and has_private_state(self.facts.updates, self.facts.wire):
                self._must_rewind = True
        if self.phase != "gathering":
            self._to("a member was lost")
            self._waits_since_s = now_s
        if self.facts is None:
            self._waits_since_s = 0.0  # no trainer is left: patience starts anew with the next one
        return [*effects, *self._advance(now_s)]

    def _advance(self, now_s: float) -> list[Effect]:
        """Reach missing pservers; start a new view once all members are present."""
        facts = self.facts
        if facts is None or self.phase != "gathering":
            return []
        addresses = next((t.join.pservers for t in self.members.trainers.values()), ())
        wanted = [r for r in range(facts.pservers) if r not in self.members.pservers and r not in self.members.reaching]
        self.members.reaching.update(wanted)
        effects: list[Effect] = [Reach(r, addresses[r] if r < len(addresses) else None) for r in wanted]
        if len(self.members.trainers) < self.expected:
            return effects
        self._waits_since_s = self._waits_since_s or now_s
        if len(self.members.pservers) < facts.pservers or now_s < self._not_before_s:
            return effects
        self._to("all members joined")
        self._waits_since_s = now_s
        self._number += 1
        if not self._must_rewind:
            return [*effects, *self._to_pservers(m.ChangeView(view=self.view, history=self.history))]
        # Parts of cuts that arrive later belong to the history that ends here: forget the incomplete ones.
        self.history, self.cuts = self.view, Cuts()
        if self.cut_failure is not None:  # rounds restart below it, so any commit from now on clears it
            self.cut_failure = self.cut_failure._replace(round=-1)
        inputs = None if facts.accepts_changes else inputs_of(facts)
        return [*effects, Load(self.view, inputs, 0 if facts.is_resumed else facts.run_incarnation)]

    def _to_pservers(self, message: m.Message) -> list[Effect]:
        return [Send(pserver.connection, message) for _, pserver in sorted(self.members.pservers.items())]

    def loaded(self, view: int, base: Base, now_s: float) -> list[Effect]:
        """Handle the result of Load: send every pserver its SetUp, from the snapshot or from the beginning."""
        facts = self.facts
        # The disk may be slow: a member may have been lost meanwhile, and a later view may load anew.
        if view != self.view or self.phase != "setting-up" or facts is None:
            return []
        manifest, past = base.manifest, base.past
        ended = manifest.ended.totals() if manifest is not None and manifest.ended is not None else None
        is_saved = ended is not None and ended.pass_id <= past.saved
        self.passes.rewind(max(past.saved, facts.start_pass - 1), None if is_saved else ended)
        self.passes.costs = dict(past.costs)
        self._has_base = manifest is not None
        self._base_round = manifest.round if manifest is not None else 0
        if past.elapsed_s and not self.begun_s:
            self.begun_s = now_s - past.elapsed_s
            self.losses.append("the coordinator was lost")
            self.passes.closed = list(past.closed)
        if ending := self._end_if_done(facts):
            return ending  # the coordinator before this one died after the last ledger row, before the final status
        job, shares = self.job_id, share_out(facts.shards, facts.trainers)
        effects: list[Effect] = []
        for rank in range(facts.pservers):
            setup = Setup(job=job, view=self.view, pserver=rank, facts=facts, shares=shares, base=base.files)
            effects.append(Send(self.members.pservers[rank].connection, m.SetUp(setup=setup)))
        return effects

    def ready(self, connection: int, message: m.Ready, now_s: float) -> list[Effect]:
        """Handle a pserver's Ready; after the last one, send Begin."""
        pserver = self.members.pservers.get(message.pserver)
        # A Ready may still arrive on the connection of a pserver that was replaced.
        if pserver is None or pserver.connection != connection or self.facts is None:
            return []
        pserver.ready_in = message.view
        self.members.pserver_lives(message.pserver, message.incarnation)
        if self.phase != "setting-up" or any(p.ready_in != self.view for p in self.members.pservers.values()):
            return []
        return self._begin(self.facts, now_s)

    def _begin(self, facts: Facts, now_s: float) -> list[Effect]:
        kind = ("rewind" if self._must_rewind else "mend") if self.begun_s else "begin"
        self._to("all pservers are ready")
        self._must_rewind, self._waits_since_s = False, 0.0
        self.passes.begin(now_s)
        event = self._event("view", now_s, kind=kind, round=self._base_round, run=facts.run_incarnation)
        self.begun_s = self.begun_s or now_s
        where = tuple(self.members.pservers[rank].address for rank in range(facts.pservers))
        begin = m.Begin(
            job=self.job_id, view=self.view, shares=share_out(facts.shards, facts.trainers), pservers=where,
            wants_values=facts.is_set_by_trainer and not self._has_base, start_samples=facts.start_samples,
            saved=self.passes.saved,
        )  # fmt: skip
        return [event, *(Send(trainer.connection, begin) for _, trainer in sorted(self.members.trainers.items()))]

    def _event(self, name: str, now_s: float, **more: object) -> Write:
        since = round(now_s - self.begun_s, 3) if self.begun_s else 0.0
        return Write("metrics.jsonl", ({"event": name, "t": since, "view": self.view, **more},))

    # Passes and cuts

    def progressed(self, connection: int, message: m.Progress, now_s: float) -> list[Effect]:
        trainer = self.members.trainer(connection, message.trainer)
        if trainer is None:
            return []
        trainer.progress, trainer.heard_s = message, now_s
        effects: list[Effect] = []
        if self.losses and message.closed and message.view == self.view and self.phase == "training":
            effects = [self._event("recovered", now_s, round=message.round, after=list(self.losses))]
            self.losses, self._mends = [], 0
        if not is_noted(trainer, message, now_s, now_s - self.begun_s):
            return effects
        # Progress sent before a rewind must not count for the new history: `Headway` would take it for an advance.
        history = {"history": self.history} if message.view == self.view else {}
        return [*effects, self._event("progress", now_s, **progress_facts(message), **history)]

    def lane_passed(self, history: int, totals: PassTotals, now_s: float) -> list[Effect]:
        if history != self.history:
            return []
        self.passes.lane_passed(totals)
        return self._close_pass(totals.pass_id, now_s)

    def pass_done(self, connection: int, message: m.PassDone, now_s: float) -> list[Effect]:
        if self.members.trainer(connection, message.trainer) is None:
            return []
        seen = self.passes.seen(message.pass_id)
        if seen is not None:  # saved already, but trainer 0 entered another view before it got Counted
            return [Send(connection, seen)] if message.trainer == 0 else []
        self.passes.report(message)
        return self._close_pass(message.pass_id, now_s)

    def _close_pass(self, pass_id: int, now_s: float) -> list[Effect]:
        closed = self.passes.close(pass_id, self.facts, now_s) if self.facts is not None else None
        if closed is None or 0 not in self.members.trainers:
            return []
        if closed.samples == 0:
            return self._end("failed", "there is not one training sample in all shards", own_fault="data")
        return [Send(self.members.trainers[0].connection, closed)]

    def part_done(self, message: m.CutPart, now_s: float) -> list[Effect]:
        if self.facts is None or message.history != self.history or self.phase in ENDED:
            return []
        parts = self.cuts.add(message, self.facts.pservers)
        if not message.sha256:
            failure = CutFailure(message.round, f"pserver {message.pserver}: {message.failure}")
            return self._cut_lost(failure, message.pass_id - 1 if message.ends_pass else None, now_s)
        if parts is None:
            return []
        ended = self.passes.totals(message.pass_id - 1) if message.ends_pass else None
        # A job resumed from such a cut would wait forever for the pass to close.
        assert ended is not None or not message.ends_pass, "a cut ends a pass without totals; this is a bug"
        return [Commit(manifest_of(self.facts, self.incarnation, parts, ended, self.cuts.base_of(parts)))]

    def cut_settled(self, manifest: Manifest, now_s: float, *, failure: str = "") -> list[Effect]:
        # A cut of a history that ended while it was committed; its snapshot stays, but nothing here waits for it.
        if manifest.view != self.history:
            return []
        ended = manifest.pass_id - 1 if manifest.ended is not None else None
        if failure:
            return self._cut_lost(CutFailure(manifest.round, failure), ended, now_s)
        self.cuts.committed(manifest)
        if self.cut_failure is not None and self.cut_failure.round < manifest.round:
            self.cut_failure = None
        effects: list[Effect] = []
        if self.facts is not None and any(p.is_sparse for p in self.facts.parameters):
            committed = m.Committed(history=self.history, round=manifest.round, chain=len(manifest.base))
            effects = self._to_pservers(committed)
        return effects if ended is None else [*effects, *self._settle(ended, now_s)]

    def _cut_lost(self, failure: CutFailure, ended: int | None, now_s: float) -> list[Effect]:
        """Record a failed cut; close the pass that ended with it only if recomputing it gives the same bits.

        Otherwise a rewind could replace a model that is already published, so the job fails here.
        """
        self.cut_failure = failure
        if ended is None:
            return []
        if self.facts is not None and self.facts.updates.is_streamed:
            return self._end("failed", f"{NO_END} {ended}: {failure.what}", own_fault="storage")
        return self._settle(ended, now_s)

    def snapshot_wanted(self, now_s: float) -> list[Effect]:
        """Request a snapshot for a client about to leave; ignored where cuts are made at passes only."""
        facts = self.facts
        if self.phase != "training" or facts is None or not facts.snapshots.path:
            return []
        if cuts_only_at_passes(facts.updates, facts.wire):
            return []
        self.cuts.want(max((t.progress.round for t in self.members.trainers.values() if t.progress), default=0))
        return self._ask_for_cut(now_s)

    def _ask_for_cut(self, now_s: float) -> list[Effect]:
        is_time = self.phase == "training" and self.cuts.is_to_be_asked(now_s)
        return self._to_pservers(m.CutSoon()) if is_time else []

    def _settle(self, pass_id: int, now_s: float) -> list[Effect]:
        self.passes.settle(pass_id)
        return self._close_pass(pass_id, now_s)

    def model_saved(self, connection: int, message: m.Saved, now_s: float) -> list[Effect]:
        """Handle a saved model: write the pass's ledger rows; the last pass ends the job."""
        if self.members.trainer(connection, 0) is None or self.facts is None:
            return []
        saved = self.passes.save(message.pass_id, now_s)
        counted = Send(connection, m.Counted(pass_id=message.pass_id))
        if saved is None:
            return [counted] if message.pass_id <= self.passes.saved else []
        closed, rows = saved
        return [
            Write("ledger.jsonl", tuple(rows)),
            self._event("pass", now_s, **msgspec.to_builtins(closed)),
            counted,
            *self._end_if_done(self.facts),
        ]

    def _end_if_done(self, facts: Facts) -> list[Effect]:
        is_done = self.passes.saved + 1 >= facts.passes
        reason = "all passes done" if is_done else early_end(self.passes.costs, facts.stop_after)
        return self._end("finished", reason) if reason else []

    # Endings

    def failed(self, reason: str) -> list[Effect]:
        return self._end("failed", reason)

    def superseded(self) -> list[Effect]:
        """Leave without a Stop: a later coordinator runs the job."""
        if self.phase in ENDED:
            return []
        self._to("it cannot continue")
        self.reason = TAKEN_OVER
        return [Leave(self.reason)]

    def cancelled(self) -> list[Effect]:
        return self._end("cancelled", "stopped on request")

    def _end(self, how: Ending, reason: str, *, own_fault: OwnFault | None = None) -> list[Effect]:
        if self.phase in ENDED:
            return []
        self._to(ENDINGS[how])
        self.reason = reason
        stop = m.Stop(reason=reason, how=how)
        sends: list[Effect] = [Send(trainer.connection, stop) for trainer in self.members.trainers.values()]
        # Conclude first: a supervisor that sees a child leave at Stop, and no final status, would restart it.
        return [Conclude(own_fault), *sends, *self._to_pservers(stop), Leave(reason)]
