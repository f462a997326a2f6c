"""A simulated pserver process: lanes, the file of each cut, the coordinator's messages, and in pserver 0 that itself.

It does what job/node/pserver.py, ps/lanes/server.py and ps/snapshot/writer.py do with sockets and threads. The same
`Authority` decides which orders count; the same `write_part` writes parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.sim.case import OUTPUT, PATIENCE_S
from tools.sim.processes.coordination import SimCoordinatorService
from tools.sim.processes.lanes import SimLane
from tools.sim.processes.values import meta_of
from tools.sim.world.network import End, Process

from bireme.core.errors import BiremeError, FrameError, StaleError, StorageError
from bireme.job.coordination import messages as m
from bireme.job.coordination.cuts import part_of
from bireme.job.node import incarnations
from bireme.ps.lanes.authority import Authority
from bireme.ps.lanes.progress import pack_counts
from bireme.ps.lanes.rounds import LaneCounts, PassTotals
from bireme.ps.setup import Setup
from bireme.ps.snapshot.snapshot_files import Written, part_path, read_part, write_part
from bireme.ps.snapshot.writer import FileWritten

if TYPE_CHECKING:
    from tools.sim.harness import Harness

ALIVE_EVERY_S = 1.0
PUSH, REST, PULL = range(3)


class _Cut:
    """Lanes' values at one cut, to be written."""

    def __init__(self, setup: Setup, counts: LaneCounts, ends_pass: bool) -> None:
        self.setup = setup
        self.counts = counts
        self.ends_pass = ends_pass
        self.values: dict[int, int] = {}


class SimPserver(Process):
    """One pserver from start to death."""

    def __init__(self, harness: Harness, rank: int) -> None:
        super().__init__(harness.world, f"pserver {rank}")
        self.harness = harness
        self.rank = rank
        self.incarnation = 0
        self.lanes: list[SimLane] = []
        self.authority = Authority()
        self.coordinator: SimCoordinatorService | None = None
        self._setup: Setup | None = None
        self._link: End | None = None
        self._alone_since_s = float("inf")
        self._cut: _Cut | None = None
        self._left_out = -1
        self._names_cuts: SimLane | None = None
        self._full: list[_Cut] = []
        self._is_writing = False
        self._data: dict[End, None] = {}

    def start(self) -> None:
        """Take an incarnation and announce this pserver."""
        self.incarnation = incarnations.take(self.world.disk.at(OUTPUT), self.name)
        self.authority = Authority.at_birth(self.rank, self.incarnation, self.harness.facts.run_incarnation)
        self.harness.checks.incarnation(self.name, self.incarnation)
        self.note(f"starts as incarnation {self.incarnation}")
        self.harness.announce(self)
        self.later(ALIVE_EVERY_S, self._beat)

    def _beat(self) -> None:
        if self._link is not None:
            self._link.send(m.Alive())
        if self.rank != 0 and (self._link is None or self._alone_since_s != float("inf")):
            self._send_here()
        if self.monotonic() - self._alone_since_s > PATIENCE_S:
            self.leave("the coordinator went away")
            return
        self.later(ALIVE_EVERY_S, self._beat)

    def _send_here(self) -> None:
        """Send the coordinator Here, as none has set this pserver up."""
        end = self.world.connect(self, self.harness.pserver_at(0), 0)
        if end is not None:
            address = self.harness.address_of(self)
            end.send(m.Here(pserver=self.rank, address=address, incarnation=self.incarnation))
            end.close()

    def leave(self, reason: str) -> None:
        """Exit in good order."""
        self.note(f"leaves: {reason}")
        self.world.kill(self, "left", is_own_will=True)

    # Connections

    def accept(self, end: End, port: int) -> None:
        """Accept a connection to a lane or, on the first port, for control messages."""
        end.on_message = self._received
        end.on_closed = self._closed

    def _closed(self, end: End) -> None:
        if end is self._link:
            self._alone_since_s = self.monotonic()
        elif end in self._data:
            del self._data[end]
            if end.port < len(self.lanes):
                self.lanes[end.port].drop(end)
        elif self.coordinator is not None:
            self.coordinator.lost(end)

    def _received(self, end: End, message: Any) -> None:
        try:
            if type(message) is list:
                for frame in message:
                    self._frame(end, frame)
            else:
                self._control(end, message)
        except BiremeError as e:
            self.refuse(end, e)

    def refuse(self, end: End, error: BiremeError) -> None:
        """Send the refusal and close the connection."""
        self.note(f"refuses {end.peer.process.name}: {error.what}")
        end.send(error)
        end.close()
        self._closed(end)

    def _frame(self, end: End, frame: Any) -> None:
        if not self.lanes:
            raise StaleError("this pserver has no job yet")
        if not end.is_open:
            return
        self._data[end] = None
        lane, kind = self.lanes[end.port], frame[0]
        if kind == PULL:
            lane.pull(end, frame[1])
        elif kind == PUSH:
            lane.push(end, frame[1], frame[2], frame[3], is_whole=frame[4])
        else:
            lane.rest(end)

    def _control(self, end: End, message: m.Message) -> None:
        match message:
            case m.SetUp():
                self.later(0.002 * self.world.rng.random(), self._set_up, end, message.setup)
            case m.ChangeView():
                self.authority.check_enter(message.view, message.history)
                self.harness.checks.goes_on(self, message.history)
                self._hang_up_data()
                for lane in self.lanes:
                    lane.enter(message.view)
                self._follow(end, message.view)
            case m.CutSoon():
                if self._names_cuts is not None:
                    self._names_cuts.cut_soon()
            case m.Stop():
                if self._link not in (None, end) and self._alone_since_s == float("inf"):
                    raise FrameError("only the coordinator may stop a pserver")
                self.leave(message.reason)
            case _:
                if self.coordinator is None:
                    self.coordinator = SimCoordinatorService(self)
                self.coordinator.handle(end, message)

    def _set_up(self, end: End, setup: Setup) -> None:
        if not end.is_open:
            return
        try:
            self.authority.check_set_up(setup.job, setup.view)
            self._hang_up_data()
            self.lanes, self.authority.history = [], 0
            self._make_lanes(setup)
        except BiremeError as e:
            self.refuse(end, e)
            return
        self.authority.job, self.authority.history = setup.job, setup.view
        self._follow(end, setup.view)

    def _make_lanes(self, setup: Setup) -> None:
        self._setup, self._cut, self._left_out, self._full, self._names_cuts = setup, None, -1, [], None
        lanes = [SimLane(self, setup, index) for index in range(setup.facts.ports_num)]
        if setup.base:
            parts = [read_part(self.world.disk.at(file[1:]), sha256=None) for file in setup.base[-1]]
            for lane in lanes:
                lane.restore(parts)
        if setup.pserver == 0 and not setup.cuts_only_at_passes:
            self._names_cuts = lanes[0]
            if setup.facts.snapshots.every_s:
                lanes[0].cut_every(setup.facts.snapshots.every_s)
        self.lanes = lanes

    def _hang_up_data(self) -> None:
        for end in list(self._data):
            end.close()
            if end.port < len(self.lanes):
                self.lanes[end.port].waiting.pop(end, None)
        self._data.clear()

    def _follow(self, end: End, view: int) -> None:
        self.authority.view = view
        self._link, self._alone_since_s = end, float("inf")
        self.note(f"is in view {view:x}, history {self.authority.history:x}, round {self.lanes[0].rounds.round}")
        self.harness.checks.role(self.name, view, self)
        end.send(m.Ready(pserver=self.rank, view=view, incarnation=self.incarnation))

    # Cuts and passes

    def lane_passed(self, totals: PassTotals) -> None:
        """Pass the first lane's totals of a closed pass to the coordinator."""
        if self.coordinator is None:
            self.coordinator = SimCoordinatorService(self)
        self.coordinator.lane_passed(self.authority.history, totals)

    def cut(self, lane: SimLane, counts: LaneCounts, *, ends_pass: bool) -> None:
        """Add a lane's value to a cut; the last lane's completes it."""
        assert self._setup is not None
        cut = self._cut
        if cut is None or cut.counts.round != counts.round:
            if self._left_out == counts.round:
                return
            if self._is_writing and not ends_pass:
                self.note(f"leaves out the cut of round {counts.round}")
                self._left_out = counts.round
                return
            cut = self._cut = _Cut(self._setup, counts, ends_pass)
        cut.values[lane.number] = lane.value
        if len(cut.values) == len(self.lanes):
            self._cut = None
            self._full.append(cut)
            self._write_next()

    def _write_next(self) -> None:
        if self._full and not self._is_writing:
            self._is_writing = True
            self.later(0.02 * self.world.rng.random(), self._write, self._full.pop(0))

    def _write(self, cut: _Cut) -> None:
        self._is_writing = False
        path, written, failure = Path(), None, ""
        if cut.setup is self._setup:  # else it belongs to an earlier history
            try:
                path, written = self._write_part(cut)
            except StorageError as e:
                self.note(f"no snapshot of round {cut.counts.round}: {e.what}")
                failure = e.what
            if self._link is not None:
                done = FileWritten(cut.counts, cut.ends_pass, path, written, failure=failure)
                self._link.send(part_of(cut.setup, done))
        self._write_next()

    def _write_part(self, cut: _Cut) -> tuple[Path, Written]:
        setup = cut.setup
        place = self.world.disk.at(setup.facts.snapshots.path)
        path = part_path(place, cut.counts.round, setup.view, setup.pserver)
        written = write_part(path, {}, meta_of(cut.values, pack_counts(cut.counts)))
        self.note(f"has written its part of round {cut.counts.round}")
        return path, written
