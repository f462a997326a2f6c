"""Lanes of a simulated pserver: the product's machines for rounds and streams, over numbers instead of arrays.

Events take the place of the threads of ps/lanes/lane.py and ps/snapshot/writer.py; the same machines decide.
After each update the lane's value is compared with the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.sim.case import add, first_value, updated
from tools.sim.processes.values import values_of
from tools.sim.world.network import Broken, End

from bireme.core.errors import FrameError
from bireme.ps.lanes.progress import agreed_counts, counts_of
from bireme.ps.lanes.rounds import AnswerAt, Closing, LaneRounds, Late, PassTotals, Refuse, Repeat, Take, Totals
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.setup import Setup
from bireme.ps.snapshot.snapshot_files import SnapshotFile
from bireme.ps.tree import Span, spans_of
from bireme.ps.wire.frames import Head, Record

if TYPE_CHECKING:
    from tools.sim.processes.pserver import SimPserver

Slice = tuple[int, int, int, int, int]
"""An answer to a pull: round, pass, batch, the round of the next cut, the lane's value."""


class SimLane:
    """One lane."""

    def __init__(self, pserver: SimPserver, setup: Setup, index: int) -> None:
        self._pserver = pserver
        self._checks = pserver.harness.checks
        self.number = setup.pserver * setup.facts.ports_num + index
        updates, ids = setup.facts.updates, {"job": setup.job, "view": setup.view}
        self.is_streamed = updates.is_streamed
        self.rounds: LaneRounds | LaneStream
        if updates.is_streamed:
            staleness = updates.staleness if updates.mode == "bounded" else None
            self.rounds = LaneStream(setup.facts.shards, 4, staleness=staleness, **ids)
            self.value = 0
        else:
            spans = spans_of(setup.shares, setup.facts.shards, is_apart=setup.is_apart)
            self.rounds = LaneRounds(setup.facts.shards, spans, 4, **ids)
            self.value = first_value(self.number)
        self.rounds.start_at(setup.facts.start_pass, setup.facts.start_samples)
        self._before = 0
        self._inbox: dict[int, int] = {}
        self._flying: dict[End, tuple[Head, int, int]] = {}
        self.waiting: dict[End, Head] = {}
        self._cut_every_s = 0.0
        self._next_cut_s = float("inf")
        self._cut_every_rounds = 0 if setup.cuts_only_at_passes else setup.facts.snapshots.every_rounds

    def cut_every(self, seconds: float) -> None:
        """Make this the lane that names the rounds of cuts."""
        self._cut_every_s, self._next_cut_s = seconds, self._pserver.monotonic() + seconds

    def cut_soon(self) -> None:
        """Name a round for a cut as soon as one closes, unless one is named already."""
        if self.rounds.cut_at <= self.rounds.round:
            self._next_cut_s = self._pserver.monotonic()

    def restore(self, parts: list[SnapshotFile]) -> None:
        """Continue from a snapshot."""
        self.rounds.restore(agreed_counts(parts))
        self.value = values_of(parts)[self.number]
        self._checks.value(self)

    def push(self, end: End, head: Head, records: list[Record], payload: int, *, is_whole: bool) -> None:
        """A contribution, or the head of one whose payload is still under way."""
        verdict = self.rounds.offer(head, records)
        if isinstance(verdict, Take):
            self._checks.origin(self._pserver, head)
            if is_whole:
                self._land(head, verdict.row, payload)
            else:
                self._flying[end] = (head, verdict.row, payload)
        elif isinstance(verdict, Refuse):
            raise verdict.as_error()
        elif isinstance(verdict, Repeat) and self._there(verdict.row)[verdict.row] != payload:
            raise Broken(f"lane {self.number}: two different gradients of round {head.round}")
        else:
            assert isinstance(verdict, Late | Repeat)

    def rest(self, end: End) -> None:
        """Receive the payload of a push whose head came before."""
        flying = self._flying.pop(end, None)
        if flying is not None:
            self._land(*flying)

    def drop(self, end: End) -> None:
        """Forget a closed connection's pulls and half-received push."""
        self.waiting.pop(end, None)
        flying = self._flying.pop(end, None)
        if flying is not None:
            self.rounds.dropped(Span(flying[0].lo, flying[0].hi))

    def enter(self, view: int) -> None:
        """Move to a later view; a half-received push completes just before, or never."""
        for end in list(self._flying):
            if self._pserver.world.rng.random() < 0.5:
                self.rest(end)
            else:
                self.drop(end)
        self.rounds.enter(view)
        self.waiting.clear()
        self._inbox.clear()  # rows may lie in memory that connections share, and these are closed

    def _land(self, head: Head, row: int, payload: int) -> None:
        self._inbox[row] = payload
        closing = self.rounds.landed(Span(head.lo, head.hi))
        if closing is not None:
            self._close(closing, head)

    def _close(self, closing: Closing, last: Head) -> None:
        if self.is_streamed:
            self.value = self._checks.applied(self, last)
        else:
            self._apply(closing)
        done = self.rounds.close()
        self._checks.value(self)
        if done is not None:
            self._passed(closing, done)
        self._cut(ends_pass=closing.ends_pass)
        self.answer()

    def _apply(self, closing: Closing) -> None:
        read = [row for step in closing.steps for row in step]
        inbox = self._there(*read, *([] if closing.root is None else [closing.root]))
        for a, b in closing.steps:
            inbox[a] = add(inbox[a], inbox[b])
        total = None if closing.root is None else inbox[closing.root]
        self._before = self.value
        self.value = updated(self.number, self.value, total, closing.samples, closing.pass_id)

    def _there(self, *rows: int) -> dict[int, int]:
        """The inbox, of which rows are to be read."""
        self._checks.adds(self, rows, self._inbox)
        return self._inbox

    def _passed(self, closing: Closing, done: dict[int, Totals]) -> None:
        totals = PassTotals(closing.pass_id, closing.samples, done, self.rounds.take_staleness())
        self._checks.totals(self, totals)
        if self.number == 0:
            self._pserver.lane_passed(totals)

    def _cut(self, *, ends_pass: bool) -> None:
        now = self._pserver.monotonic()
        is_multiple = self._cut_every_rounds > 0 and self.rounds.round % self._cut_every_rounds == 0
        if ends_pass or is_multiple or self.rounds.round == self.rounds.cut_at:
            self._pserver.cut(self, counts_of(self.rounds), ends_pass=ends_pass)
            self._next_cut_s = now + self._cut_every_s if self._cut_every_s else float("inf")
        elif now >= self._next_cut_s:
            self.rounds.cut_at = self.rounds.round + 1
            self._next_cut_s = float("inf")

    def pull(self, end: End, head: Head) -> None:
        """Answer now, or as soon as the round is closed."""
        self.waiting[end] = head
        self._look(end, head)

    def answer(self) -> None:
        """Answer the waiting pulls that can be answered now."""
        for end, head in list(self.waiting.items()):
            try:
                self._look(end, head)
            except FrameError as e:
                self._pserver.refuse(end, e)

    def _look(self, end: End, head: Head) -> None:
        verdict = self.rounds.look(head)
        if isinstance(verdict, AnswerAt):
            del self.waiting[end]
            value = self.value if self.is_streamed or verdict.round == self.rounds.round else self._before
            end.send((verdict.round, verdict.pass_id, verdict.batch, self.rounds.cut_at, value))
        elif isinstance(verdict, Refuse):
            del self.waiting[end]
            raise verdict.as_error()
