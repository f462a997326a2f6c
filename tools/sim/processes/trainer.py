"""A simulated trainer process: joins, follows the coordinator's orders, and runs the loop as a generator.

It does what job/node/trainer.py, train/loop.py and job/node/pass_reporter.py do with threads and sockets. The product's
`Orders`, `oldest`, `unsaved_pass` and `first_batches` decide where it begins and what it follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tools.sim.case import OUTPUT, PATIENCE_S, add, gradient
from tools.sim.processes.lanes import Slice
from tools.sim.processes.pserver import ALIVE_EVERY_S, PULL, PUSH, REST
from tools.sim.processes.values import save_model
from tools.sim.world.network import End, Process

from bireme.core.errors import BiremeError, NetworkError, StaleError
from bireme.job.coordination import messages as m
from bireme.job.node import incarnations
from bireme.job.node.orders import Orders
from bireme.ps.client.push_pull import Position, oldest
from bireme.ps.tree import Span, fold, rows_of, share_out
from bireme.ps.wire.frames import Flag, Head, Kind, Record
from bireme.train.loop import first_batches, unsaved_pass

if TYPE_CHECKING:
    from tools.sim.harness import Harness

REPORT_EVERY_S = 0.2
Steps = Generator[float | None, Any, None]
Asking = Generator[float | None, Any, Position]


class SimTrainer(Process):
    """One trainer from start to death."""

    def __init__(self, harness: Harness, rank: int) -> None:
        super().__init__(harness.world, f"trainer {rank}")
        self.harness = harness
        self.shape = harness.shape
        self.rank = rank
        self.share = share_out(self.shape.shards, self.shape.trainers)[rank]
        self.spans = rows_of(self.share, self.shape.shards, is_apart=self.shape.is_streamed)
        self.incarnation = 0
        self.view = 0
        self._line: End | None = None
        self._orders = Orders(self._hang_up)
        self._seeks_since_s = 0.0
        self._is_busy = False
        self._run: Steps | None = None
        self._lanes: list[End] = []
        self._begin: m.Begin | None = None
        self._replies: dict[int, Slice] = {}
        self._values: tuple[int, ...] = ()
        self._unsent: list[Any] = []
        self._cut_at = 0
        self._closed: deque[m.PassClosed | m.Counted] = deque()
        self._awaits_reply = False
        self._reported_s = -1.0
        self._pushed = 0
        """Rounds in this view."""
        self._trained: dict[int, int] = {}
        self._own: dict[int, int] = {}
        """Local mode: the last gradient sent of each shard in this pass; no other process has it."""
        self._pass = 0

    def start(self) -> None:
        """Take an incarnation and look for the coordinator."""
        self.incarnation = incarnations.take(self.world.disk.at(OUTPUT), self.name)
        self.harness.checks.incarnation(self.name, self.incarnation)
        self.note(f"starts as incarnation {self.incarnation}")
        self.later(ALIVE_EVERY_S, self._beat)
        self._seek_anew()

    def _beat(self) -> None:
        if self._line is not None:
            self._line.send(m.Alive())
        self.later(ALIVE_EVERY_S, self._beat)

    # The coordinator's orders

    def _seek_anew(self) -> None:
        self._line, self.view, self._seeks_since_s = None, 0, self.monotonic()
        self._seek()

    def _seek(self) -> None:
        end = self.world.connect(self, self.harness.pserver_at(0), 0)
        if end is None:
            if self.harness.is_ended:
                self.world.kill(self, "left: the job is over", is_own_will=True)
            elif self.monotonic() - self._seeks_since_s > PATIENCE_S:
                self.harness.failed(self, NetworkError("pserver 0 does not answer"))
            else:
                self.later(0.05 + 0.1 * self.world.rng.random(), self._seek)
            return
        end.on_message, end.on_closed = self._received, self._line_lost
        self._line, self._orders = end, Orders(self._hang_up)
        end.send(
            m.Join(
                trainer=self.rank,
                pid=self.pid,
                host=f"node-{self.rank}",
                facts=self.harness.facts,
                pservers=(),
                incarnation=self.incarnation,
            )
        )

    def _received(self, end: End, message: Any) -> None:
        if end is not self._line:
            return
        if isinstance(message, m.PassClosed | m.Counted):
            if self._begin is not None:  # else no loop runs that could take it
                self._closed.append(message)
                if self._awaits_reply:
                    self._step(None)
            return
        if isinstance(message, BiremeError):
            self._orders.refuse(message)
        else:
            self._orders.put(message)
        self._follow()

    def _line_lost(self, end: End) -> None:
        if end is self._line:
            self._orders.put(None)
            self._follow()

    def _follow(self) -> None:
        """Follow the newest order, unless the loop of the one before still runs."""
        if self._is_busy or self._line is None or not self._orders.has_newer(self.view):
            return
        try:
            order = self._orders.wait(self.view, 0.0)
        except BiremeError as e:
            self.harness.failed(self, e)
            return
        if isinstance(order, m.Begin):
            self.view, self._is_busy = order.view, True
            self.note(f"enters view {order.view:x}")
            self.harness.checks.role(self.name, order.view, self)
            self.later(self.world.delay(), self._open, order)
            return
        self._line.close()
        if order is None:
            self.note("lost the coordinator")
            self._seek_anew()
        else:
            self.harness.stopped(self, order)

    # The lanes

    def _open(self, begin: m.Begin) -> None:
        self._lanes, self._replies, self._unsent, self._cut_at = [], {}, [], 0
        for address in begin.pservers:
            for lane in range(self.shape.lanes):
                end = self.world.connect(self, self.harness.at_address(address), lane)
                if end is None:
                    self._over(NetworkError("a lane does not answer"))
                    return
                end.on_message, end.on_closed, end.tag = self._answered, self._lane_lost, len(self._lanes)
                self._lanes.append(end)
        self._begin = begin
        if self._orders.has_newer(self.view):
            self._over(NetworkError("the view ended while its lanes were being opened"))
            return
        self._closed.clear()
        self._pushed = 0
        self._run = self._loop(begin)
        self._step(None)

    def _hang_up(self) -> None:
        """As in the product, a newer order ends a loop that has begun, not one whose lanes are still being opened."""
        if self._begin is not None:
            self._over(NetworkError("hung up"))

    def _over(self, error: BiremeError | None) -> None:
        """End the loop, with an error unless it returned by itself."""
        for end in self._lanes:
            end.close()
        self._run = None
        self._lanes, self._begin, self._is_busy, self._awaits_reply = [], None, False, False
        if error is not None and not self._orders.has_newer(self.view):
            assert self._line is not None
            if not isinstance(error, NetworkError | StaleError):
                self._line.send(m.Failed(trainer=self.rank, what=error.what))
                self.harness.failed(self, error)
                return
            self.note(f"waits for another view: {error.what}")
            self._line.send(m.LinkLost(trainer=self.rank, view=self.view, what=error.what))
        self._follow()

    def _lane_lost(self, end: End) -> None:
        if end in self._lanes and self._begin is not None:
            self._over(NetworkError("a lane was lost"))

    def _answered(self, end: End, message: Any) -> None:
        if self._begin is None or end not in self._lanes:
            return
        if isinstance(message, BiremeError):
            self._over(message)
            return
        self._replies[end.tag] = message
        if len(self._replies) == len(self._lanes):
            replies, self._replies = self._replies, {}
            self._step([replies[lane] for lane in range(len(replies))])

    def _step(self, value: Any) -> None:
        run = self._run
        assert run is not None
        self._awaits_reply = False
        try:
            pause = run.send(value)
        except StopIteration:
            self._over(None)
            return
        if pause is not None:
            self.later(pause, self._continue, run)

    def _continue(self, run: Steps) -> None:
        if run is self._run:
            self._step(None)

    # The loop

    def _loop(self, begin: m.Begin) -> Steps:
        at = yield from self._pull_now(self.share.lo)
        unsaved = unsaved_pass(at, begin.saved)
        if unsaved is not None:
            self._count(unsaved, None)
            yield from self._end_pass(unsaved, at)
        while at.pass_id < self.shape.passes:
            pass_id = at.pass_id
            yield from (self._apart(at) if self.shape.is_streamed else self._rounds(at))
            at = yield from self._ask(Flag.AT_PASS, pass_id + 1, self.share.lo)
            yield from self._end_pass(pass_id, at)

    def _count(self, pass_id: int, done: dict[int, int] | None) -> int:
        """Reset counts for a pass of which so many batches are done, or all; returns the trainer's number of rounds."""
        samples, size = self.shape.samples[pass_id], self.shape.batch_size
        self._pass = pass_id
        self._trained = {s: samples[s] if done is None else min(done[s] * size, samples[s]) for s in self.share.shards}
        return max(self.shape.rounds(pass_id, s) for s in self.share.shards)

    def _rounds(self, at: Position) -> Steps:
        rounds = self._count(at.pass_id, dict.fromkeys(self.share.shards, at.batch))
        self._own.clear()
        while at.batch < rounds:
            yield self._compute_s()
            self._push_round(at)
            self._report(at, rounds)
            if at.batch + 1 >= rounds:
                return
            at = yield from self._ask(Flag.NONE, at.round + 1)

    def _compute_s(self) -> float:
        draw = self.world.rng.random()
        return 0.0005 + 0.004 * draw if draw > self.world.slow else 0.2 * self.world.rng.random()

    def _push_round(self, at: Position) -> None:
        shape, pass_id, batch = self.shape, at.pass_id, at.batch
        for span in self.spans:
            live = [s for s in span.shards if batch < shape.rounds(pass_id, s)]
            if not live:
                continue

            def leaf(shard: int) -> int | None:
                if batch >= shape.batches(pass_id, shard):
                    return None
                result = gradient(shard, pass_id, batch, self._values, self._own.get(shard, 0))
                if shape.mode == "local":
                    self._own[shard] = result
                return result

            total = fold(span, leaf, add)
            records = [shape.record(pass_id, s, batch) for s in live]
            for record in records:
                self._trained[record.shard] += record.samples
            self._push(at.round, span, records, total, self._cut_at)

    def _push(self, round_: int, span: Span, records: list[Record], payload: int | None, extra: int) -> None:
        head = self._head(Kind.PUSH, Flag.NONE, round_, span.lo, span.hi, extra)
        head = head._replace(records=len(records), nbytes=0 if payload is None else 4)
        if self.world.rng.random() < 0.1:  # send the head alone: the payload may never follow
            self._unsent.append((PUSH, head, records, payload or 0, False))
            self._flush()
            self._unsent.append((REST,))
        else:
            self._unsent.append((PUSH, head, records, payload or 0, True))

    def _head(self, kind: Kind, flags: int, round_: int, lo: int, hi: int, extra: int) -> Head:
        assert self._begin is not None
        begin = self._begin
        return Head(kind, flags, begin.job, begin.view, round_, 0, self.incarnation, lo, hi, 0, extra)

    def _flush(self) -> None:
        frames, self._unsent = self._unsent, []
        for end in self._lanes:
            end.send(frames)

    def _ask(self, flags: int, round_: int, shard: int = 0, pass_id: int = 0, *, may_differ: bool = False) -> Asking:
        self._unsent.append((PULL, self._head(Kind.PULL, flags, round_, shard, shard + 1, pass_id)))
        self._flush()
        replies: list[Slice] = yield None
        positions = {Position(r[0], r[1], r[2]) for r in replies}
        if len(positions) > 1 and not may_differ and not self.shape.is_streamed:
            raise AssertionError(f"lanes answered from different rounds {sorted(positions)}")
        self._values = tuple(r[4] for r in replies)
        self._cut_at = max(self._cut_at, *(r[3] for r in replies))
        return oldest(positions)

    def _pull_now(self, shard: int) -> Asking:
        at = yield from self._ask(Flag.NOW, 0, shard, may_differ=True)
        rounds = (self.shape.rounds(at.pass_id, s) for s in self.share.shards) if at.batch else ()
        if not self.shape.is_streamed and (at.batch == 0 or at.batch < max(rounds)):
            at = yield from self._ask(Flag.NONE, at.round)
        return at

    def _apart(self, at: Position) -> Steps:
        shape, pass_id = self.shape, at.pass_id
        begins: dict[int, Position] = {}
        for shard in self.share.shards:
            begins[shard] = yield from self._pull_now(shard)
        first = first_batches(at, begins, lambda shard: shape.rounds(pass_id, shard))
        rounds = self._count(pass_id, first)
        for batch in range(min(first.values()), rounds):
            for shard in self.share.shards:
                if first[shard] <= batch < shape.rounds(pass_id, shard):
                    yield from self._batch(pass_id, shard, batch)
            self._report(Position(batch, pass_id, batch), rounds)

    def _batch(self, pass_id: int, shard: int, batch: int) -> Steps:
        yield from self._ask(Flag.NONE, batch, shard, pass_id)
        yield self._compute_s()
        record = self.shape.record(pass_id, shard, batch)
        self._trained[shard] += record.samples
        self._push(batch, Span(shard, shard + 1), [record], 1 if record.samples else None, pass_id)

    # Reports

    def _report(self, at: Position, rounds: int) -> None:
        now = self.monotonic()
        self._pushed += 1
        if at.batch + 1 < rounds and now - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now
        assert self._line is not None
        self._line.send(
            m.Progress(
                trainer=self.rank, pass_id=at.pass_id, batch=at.batch + 1, batches=rounds, samples=0, cost=0.0,
                evals=(), rate=0.0, view=self.view, round=at.round, closed=self._pushed - 1,
            )
        )  # fmt: skip

    def _end_pass(self, pass_id: int, at: Position) -> Steps:
        assert self._begin is not None and self._line is not None
        if pass_id <= self._begin.saved:
            return
        samples = self.shape.samples[pass_id]
        read = {shard: samples[shard] for shard in self.share.shards}
        done = m.PassDone(trainer=self.rank, pass_id=pass_id, round=at.round, read=read, trained=dict(self._trained))
        self._line.send(done)
        if self.rank == 0:
            yield from self._save(pass_id)

    def _save(self, pass_id: int) -> Steps:
        yield from self._await(m.PassClosed, pass_id)
        yield 0.01 * self.world.rng.random()
        assert self._line is not None
        try:
            is_exact = not self.shape.is_streamed
            save_model(self.world.disk.at(OUTPUT), pass_id, self._values, self.incarnation, is_exact=is_exact)
        except BiremeError as e:
            self._over(e)
            yield None
        self.note(f"has saved the model of pass {pass_id}")
        self._line.send(m.Saved(trainer=0, pass_id=pass_id))
        yield from self._await(m.Counted, pass_id)

    def _await(self, kind: type[m.PassClosed] | type[m.Counted], pass_id: int) -> Steps:
        while True:
            while self._closed:
                reply = self._closed.popleft()
                if isinstance(reply, kind) and reply.pass_id == pass_id:
                    return
            self._awaits_reply = True
            yield None
