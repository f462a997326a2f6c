"""The shell around the product's coordinator in virtual time: what job/coordination/service.py does, event by event.

Commits and loads run one after the other, as on the product's one disk thread. The machine gets each result a moment
later, so that the world may have changed in between. The machine's time is the pserver's monotonic clock, dates are
those of its wall clock.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from tools.sim.case import OUTPUT, SNAPSHOTS
from tools.sim.world.network import End

from bireme.core.errors import BiremeError, RefusedError, StaleError
from bireme.core.files import write_atomic
from bireme.job.coordination import messages as m
from bireme.job.coordination.coordinator import Coordinator
from bireme.job.coordination.effects import (
    Base,
    Commit,
    Conclude,
    Effect,
    HangUp,
    Leave,
    Load,
    Reach,
    RefuseJoin,
    Send,
    Write,
)
from bireme.job.node import incarnations
from bireme.job.node.failure_reports import STATUS_FILE
from bireme.job.output import journal, snapshots
from bireme.job.output.manifest import Manifest
from bireme.job.status import JobStatus
from bireme.ps.lanes.rounds import PassTotals
from bireme.spec.terms import Facts

if TYPE_CHECKING:
    from tools.sim.processes.pserver import SimPserver

TICK_S = 0.1
REACH_S = 1.0


class SimCoordinatorService:
    """One coordinator with its connections."""

    def __init__(self, pserver: SimPserver) -> None:
        self.pserver = pserver
        self._harness = pserver.harness
        self._checks = pserver.harness.checks
        self._world = pserver.world
        self.machine = Coordinator(self._harness.shape.trainers, pserver.incarnation)
        self._numbers: dict[End, int] = {}
        self.connections: dict[int, End] = {}
        self._links: set[End] = set()
        self._work: list[Load | Commit] = []
        self._is_working = False
        pserver.later(TICK_S, self._tick)

    def _number(self, end: End) -> int:
        return self._numbers.setdefault(end, len(self._numbers) + 1)

    def _tick(self) -> None:
        self._do(self.machine.tick(self.pserver.monotonic()))
        self._checks.status(self)
        self.pserver.later(TICK_S, self._tick)

    def handle(self, end: End, message: m.Message) -> None:
        """Act on a message from a trainer or a pserver."""
        number, now = self._number(end), self.pserver.monotonic()
        if isinstance(message, m.Join):
            self.connections[number] = end
            self._do(self.machine.joined(number, message, now))
        elif not isinstance(message, m.CutPart) or end in self._links:
            self._do(self.machine.receive(number, message, now))

    def save_soon(self) -> None:
        """Request a snapshot for a client about to leave."""
        self._do(self.machine.snapshot_wanted(self.pserver.monotonic()))

    def lost(self, end: End) -> None:
        """Handle a closed connection."""
        number = self._number(end)
        if self.connections.pop(number, None) is not None:
            self._do(self.machine.lost(number, self.pserver.monotonic()))

    def lane_passed(self, history: int, totals: PassTotals) -> None:
        """Handle a pass that the first lane has closed."""
        self._do(self.machine.lane_passed(history, totals, self.pserver.monotonic()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case Write():
                    self._write(effect)
                case RefuseJoin() | HangUp():
                    self._hang_up(effect)
                case Reach():
                    self.pserver.later(self._world.delay(), self._reach, effect, True)
                case Load() | Commit():
                    self._work.append(effect)
                    self._work_on()
                case Conclude() | Leave():
                    self._end(effect)

    def _end(self, effect: Conclude | Leave) -> None:
        if isinstance(effect, Conclude):
            self._conclude()
        else:
            self._harness.left(self.pserver, effect)

    def _hang_up(self, effect: RefuseJoin | HangUp) -> None:
        end = self.connections.pop(effect.to, None)
        if end is None:
            return
        if isinstance(effect, RefuseJoin):
            self.pserver.note(f"refuses {end.peer.process.name}: {effect.reason}")
            end.send(RefusedError(effect.reason))
        end.close()

    def _send(self, effect: Send) -> None:
        end = self.connections.get(effect.to)
        if end is not None:
            if isinstance(effect.message, m.Begin):
                self._checks.role("coordinator", effect.message.view, self.pserver)
            end.send(effect.message)

    def _reach(self, effect: Reach, may_retry: bool) -> None:
        end = self._world.connect(self.pserver, self._harness.pserver_at(effect.pserver), 0)
        if end is None:
            if may_retry:
                self.pserver.later(REACH_S, self._reach, effect, False)
            else:
                self._do(self.machine.pserver_out_of_reach(effect.pserver, "no answer"))
            return
        end.on_message, end.on_closed = self._pserver_sent, self._pserver_lost
        number = self._number(end)
        self.connections[number] = end
        self._links.add(end)
        address = self._harness.address_of(end.peer.process)
        self._do(self.machine.pserver_reached(effect.pserver, number, address, self.pserver.monotonic()))

    def _pserver_sent(self, end: End, message: Any) -> None:
        if isinstance(message, StaleError):
            self._do(self.machine.superseded())
        elif isinstance(message, BiremeError):
            self._fail(message)
        else:
            self.handle(end, message)

    def _pserver_lost(self, end: End) -> None:
        self._links.discard(end)
        self.lost(end)

    def _work_on(self) -> None:
        if self._work and not self._is_working:
            self._is_working = True
            self.pserver.later(0.01 * self._world.rng.random(), self._work_off, self._work.pop(0))

    def _work_off(self, work: Load | Commit) -> None:
        after_s = self._world.delay()
        facts = self.machine.facts
        if isinstance(work, Load):
            if facts is None:
                self._is_working = False
                self._work_on()
                return
            try:
                base = self._find_base(facts, work)
            except BiremeError as e:
                self._fail(e)
                return
            self.pserver.later(after_s, self._loaded, work, base)
        else:
            manifest = msgspec.structs.replace(work.manifest, created=self.pserver.wall())
            place = self._world.disk.at(SNAPSHOTS)
            failure = ""
            try:
                snapshots.commit(place, manifest)
            except BiremeError as e:
                self.pserver.note(f"the snapshot of round {manifest.round}: {e.what}")
                failure = e.what
            else:
                self._checks.committed(self.pserver, manifest)
                with contextlib.suppress(BiremeError):
                    snapshots.keep(place, self._harness.shape.keep)
            self._checks.disk()
            self.pserver.later(after_s, self._settled, manifest, failure)

    def _loaded(self, work: Load, base: Base) -> None:
        self._is_working = False
        self._do(self.machine.loaded(work.view, base, self.pserver.monotonic()))
        self._work_on()

    def _settled(self, manifest: Manifest, failure: str) -> None:
        self._is_working = False
        self._do(self.machine.cut_settled(manifest, self.pserver.monotonic(), failure=failure))
        self._work_on()

    def _find_base(self, facts: Facts, effect: Load) -> Base:
        disk = self._world.disk
        with patch.object(journal, "time", SimpleNamespace(time=self.pserver.wall)):
            past = journal.repair_tail(disk.at(OUTPUT), facts.shards, facts.run_incarnation)
        base, _ = snapshots.find_base(past, disk.at(SNAPSHOTS), facts, effect)
        self._checks.chosen(base.manifest)
        round_ = base.manifest.round if base.manifest is not None else 0
        self.pserver.note(f"continues from round {round_}, passes count up to {base.past.saved}")
        return base

    def _write(self, effect: Write) -> None:
        path = self._world.disk.at(f"{OUTPUT}/{effect.file}")
        if effect.file == journal.METRICS:
            if self._harness.writes_metrics:
                stamp = {"unix": round(self.pserver.wall(), 3)}
                journal.append(path, [{**line, **stamp} for line in effect.lines])
            return
        self._checks.counted(int(str(effect.lines[0]["pass"])))
        try:
            journal.append(path, effect.lines)
        except BiremeError as e:
            self._fail(e)
        self.pserver.note(f"writes the ledger of pass {effect.lines[0]['pass']}")

    def _fail(self, error: BiremeError) -> None:
        self.pserver.note(f"cannot continue: {error.what}")
        self._do(self.machine.failed(error.what))

    def _conclude(self) -> None:
        if incarnations.newest_of(self._world.disk.at(OUTPUT), "pserver 0") > self.machine.incarnation:
            return  # a later coordinator runs the job
        status = JobStatus(phase=self.machine.phase, reason=self.machine.reason)
        # Before the write: a process killed half-way through it may have written the status all the same.
        self._harness.concluded()
        write_atomic(self._world.disk.at(f"{OUTPUT}/{STATUS_FILE}"), msgspec.json.encode(status))
        self.pserver.note(f"concludes: {self.machine.phase}, {self.machine.reason}")
