"""Rounds in virtual time: every trainer, lane and payload of a cluster, event by event.

A trainer computes, pushes its rows lane after lane (each begins with another lane), sends a pull to all lanes, and
takes their answers in the same order, as `ps.client` does. A lane closes its round when all rows are in, and answers
the waiting pulls. A pserver handles frames one after the other (it has one interpreter), payloads share its port. A
trainer with a slow payload does not continue with the next lane, as with blocking sockets.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bireme.ps.tree import Span
from bireme.scale.plan import Plan
from bireme.scale.ports import START, Flow, Limit, Moment, Port, Turn, after, later

LEAST_FACTOR = 0.1
"""However wide times are spread, a batch takes at least this share of its mean."""


@dataclass(slots=True)
class _Trainer:
    lanes: list[int]
    """In the order of its pushes."""
    rows: list[Span]
    round: int = 0
    row: int = 0
    step: int = 0
    """How many lanes have this row, or have answered."""
    waits_for: int | None = None
    """The lane whose answer is due and has not been sent."""
    reached: Moment = START
    """When it had sent its last row, or had its last answer."""
    ready: dict[int, Moment] = field(default_factory=dict)
    """Answers that it has not begun to receive, by lane."""


@dataclass(slots=True)
class _Lane:
    rounds: int = 0
    """Closed rounds."""
    rows_in: int = 0
    last_row: Moment = START
    askers: list[int] = field(default_factory=list)


class Rounds:
    """A run of some rounds; `run` returns the moment at which the last trainer has its last answer."""

    def __init__(self, plan: Plan, rounds: int, seed: int = 0) -> None:
        self._plan, self._rounds = plan, rounds
        cluster = plan.cluster
        count = len(plan.slices)
        (sends, receives), (takes, gives) = plan.trainer_rates(), plan.pserver_rates()
        self.inward = [Port(takes, sends) for _ in range(cluster.pservers)]
        self.outward = [Port(gives, receives) for _ in range(cluster.pservers)]
        self._turns = [Turn(Limit.LANE_CPU) for _ in range(cluster.pservers)]
        self._lanes = [_Lane() for _ in range(count)]
        self._trainers = [
            _Trainer([(plan.first_lane(t) + k) % count for k in range(count)], rows) for t, rows in enumerate(plan.rows)
        ]
        self._rows = sum(map(len, plan.rows))
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._last = START
        # Drawn in advance: what a trainer needs for a round must not depend on how fast the network is.
        draw = random.Random(seed)
        self._factors = [
            [max(LEAST_FACTOR, draw.gauss(1.0, plan.costs.spread)) for _ in self._trainers] for _ in range(rounds)
        ]

    def run(self) -> Moment:
        for t in range(len(self._trainers)):
            self._compute(t, START)
        while self._events:
            now, _, what, arguments = heapq.heappop(self._events)
            what(now, *arguments)
        return self._last

    def _at(self, at: float, what: Callable[..., None], *arguments: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, what, arguments))

    def _compute(self, t: int, moment: Moment) -> None:
        trainer, plan = self._trainers[t], self._plan
        seconds = plan.compute_s(trainer.rows[trainer.row]) * self._factors[trainer.round][t]
        done = after(moment, Limit.COMPUTE, seconds)
        done = after(done, Limit.TRAINER_CPU, plan.encode_s() + plan.costs.frame * len(trainer.lanes))
        trainer.step = 0
        self._at(done.at, self._push, t, done)

    def _push(self, now: float, t: int, moment: Moment) -> None:
        trainer = self._trainers[t]
        lane = trainer.lanes[trainer.step]
        nbytes = self._plan.push_nbytes(lane, trainer.rows[trainer.row])
        self._start(self.inward, lane, t, moment, nbytes)

    def _start(self, ports: list[Port], lane: int, t: int, moment: Moment, nbytes: int) -> None:
        port = ports[lane // self._plan.cluster.lanes]
        port.start(moment, t, lane, nbytes)
        self._expect(port, self._pushed if ports is self.inward else self._answered)

    def _expect(self, port: Port, then: Callable[[Flow, Moment], None]) -> None:
        end = port.next_end()
        if end is not None:
            self._at(end, self._finish, port, port.version, then)

    def _finish(self, now: float, port: Port, version: int, then: Callable[[Flow, Moment], None]) -> None:
        if version == port.version:  # else a flow has started or ended since, and this end was rescheduled
            flow, moment = port.finish(now)
            self._expect(port, then)
            then(flow, moment)

    def _pushed(self, flow: Flow, moment: Moment) -> None:
        """Finish a push: it lands after the latency, and the trainer continues at once."""
        t, trainer = flow.owner, self._trainers[flow.owner]
        landing = after(moment, Limit.LATENCY, self._plan.cluster.latency_s)
        self._at(landing.at, self._land, flow.lane, landing)
        trainer.step += 1
        if trainer.step < len(trainer.lanes):
            self._push(moment.at, t, moment)
            return
        trainer.row += 1
        if trainer.row < len(trainer.rows):
            self._compute(t, moment)
        else:
            trainer.row = trainer.step = 0
            trainer.reached, trainer.waits_for = moment, trainer.lanes[0]
            self._at(landing.at, self._ask, t, landing)

    def _land(self, now: float, lane: int, moment: Moment) -> None:
        costs, state = self._plan.costs, self._lanes[lane]
        woken = after(moment, Limit.LANE_CPU, costs.wake)
        state.last_row = later(self._turn(lane).take(woken, costs.frame), state.last_row)
        state.rows_in += 1
        if state.rows_in == self._rows:
            closed = after(state.last_row, Limit.LANE_CPU, self._plan.kernel_s(lane))
            self._at(closed.at, self._close, lane, closed)

    def _close(self, now: float, lane: int, moment: Moment) -> None:
        state = self._lanes[lane]
        state.rounds, state.rows_in, state.last_row = state.rounds + 1, 0, START
        askers, state.askers = state.askers, []
        for t in askers:
            self._answer(lane, t, moment)

    def _ask(self, now: float, t: int, moment: Moment) -> None:
        """Handle a trainer's pulls at all lanes: those that have closed the round answer, others will."""
        trainer, frame = self._trainers[t], self._plan.costs.frame
        for lane in trainer.lanes:
            read = self._turn(lane).take(moment, frame)
            if self._lanes[lane].rounds > trainer.round:
                self._answer(lane, t, read)
            else:
                self._lanes[lane].askers.append(t)

    def _answer(self, lane: int, t: int, moment: Moment) -> None:
        """Send an answer; its payload flows when the trainer receives it."""
        trainer = self._trainers[t]
        sent = self._turn(lane).take(moment, self._plan.costs.frame)
        trainer.ready[lane] = after(sent, Limit.LATENCY, self._plan.cluster.latency_s)
        if trainer.waits_for == lane:
            self._receive(t)

    def _receive(self, t: int) -> None:
        trainer = self._trainers[t]
        lane = trainer.lanes[trainer.step]
        ready = trainer.ready.pop(lane, None)
        trainer.waits_for = lane if ready is None else None
        if ready is None:
            return
        if ready.at > trainer.reached.at:
            woken = after(ready, Limit.TRAINER_CPU, self._plan.costs.wake)
            self._at(woken.at, self._pull, t, lane, woken)
        else:
            self._pull(trainer.reached.at, t, lane, trainer.reached)

    def _pull(self, now: float, t: int, lane: int, moment: Moment) -> None:
        self._start(self.outward, lane, t, moment, self._plan.pull_nbytes(lane))

    def _answered(self, flow: Flow, moment: Moment) -> None:
        t, trainer = flow.owner, self._trainers[flow.owner]
        trainer.reached = moment
        trainer.step += 1
        if trainer.step < len(trainer.lanes):
            self._receive(t)
            return
        done = after(moment, Limit.TRAINER_CPU, self._plan.costs.frame * len(trainer.lanes))
        trainer.round += 1
        if trainer.round < self._rounds:
            self._compute(t, done)
        else:
            self._last = later(done, self._last)

    def _turn(self, lane: int) -> Turn:
        return self._turns[lane // self._plan.cluster.lanes]
