"""One dense lane at work: its slice in two buffers, its inbox, and the threads that wait on it.

A lane owns its parameters alone; the only lock is its own. Payloads are received and sent
outside the lock: a row belongs to one connection until it has landed, and a buffer cannot be
written again before the trainer that is being answered has pushed once more.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core import draws
from bireme.core.errors import BiremeError, DeterminismError, FrameError, NetworkError
from bireme.ps import wire
from bireme.ps.frames import Flag, Head, Kind, unpack_records
from bireme.ps.memory import LaneMemory, Rows
from bireme.ps.optimizers import Segment, SliceOptimizer, warm
from bireme.ps.plan import Layout, Piece, Slice
from bireme.ps.rounds import Closing, LaneRounds, Ready, Refuse, Repeat, Take, Totals
from bireme.ps.schedules import learning_rate
from bireme.ps.segments import check_segment
from bireme.ps.tree import Span, spans_of
from bireme.spec.model import Optimizer, Parameter

LOOK_S = 1.0
"""How often a thread that waits for a round looks whether its trainer is still there."""
OnPass = Callable[[int, int, dict[int, Totals]], None]


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a pserver must know to keep its part of a job's parameters."""

    job: int
    view: int
    pserver: int
    pservers: int
    dense_lanes: int
    """Per pserver."""
    parameters: tuple[Parameter, ...]
    optimizer: Optimizer
    seed: int
    shards: int
    shares: tuple[Span, ...]
    """Which shards each trainer owns."""
    is_set_by_trainer: bool = False
    """Values come from a saved model that a trainer sends, not from the generator."""
    start_pass: int = 0
    start_samples: int = 0


def initial_values(piece: Piece, seed: int) -> NDArray[np.float32]:
    """A parameter's first values, drawn from a stream of its own name: any part gives the same bits."""
    p = piece.parameter
    count = piece.end - piece.begin
    if p.init.spread == 0.0:
        return np.full(count, p.init.mean, dtype=np.float32)
    key = draws.stream_key(seed, "init", p.name)
    if p.init.kind == "normal":
        drawn = draws.draw_normal(key, piece.offset, count)
    else:
        drawn = 2.0 * draws.draw_uniform(key, piece.offset, count) - 1.0
    return (p.init.mean + p.init.spread * drawn).astype(np.float32)


class Lane:
    """A slice of the model that several trainers push to and pull from."""

    def __init__(self, setup: Setup, index: int, on_pass: OnPass) -> None:
        self.index = index
        self._on_pass = on_pass
        layout = Layout(setup.parameters)
        self._layout = layout
        lanes = setup.pservers * setup.dense_lanes
        self.part: Slice = layout.slices(lanes)[setup.pserver * setup.dense_lanes + index]
        pieces = layout.pieces(self.part)
        spans = spans_of(setup.shares, setup.shards)
        self.rounds = LaneRounds(setup.shards, spans, 4 * len(self.part), job=setup.job, view=setup.view)
        self.rounds.start_at(setup.start_pass, setup.start_samples)
        self._rule = setup.optimizer
        self._optimizer = SliceOptimizer(setup.optimizer, [Segment(p.parameter, p.begin, p.end) for p in pieces])
        warm(setup.optimizer)
        self._memory = LaneMemory(self.part, len(spans))
        self._attached: dict[int, list[int]] = {}
        for piece in pieces:
            self._memory.buffers[0][piece.begin : piece.end] = initial_values(piece, setup.seed)
        self._is_set = not setup.is_set_by_trainer
        self._is_being_set = False
        self._turn = threading.Condition()
        self._failure: BiremeError | None = None

    def _buffer(self, round_: int) -> NDArray[np.float32]:
        return self._memory.buffers[round_ % 2]

    def stop(self, failure: BiremeError | None = None) -> None:
        """Wake everybody who waits and let them go."""
        with self._turn:
            self._failure = self._failure or failure or NetworkError("the pserver is stopping")
            self._turn.notify_all()

    def attach(self, sock: socket.socket, head: Head, fds: list[int]) -> None:
        """Answer a trainer of this machine: take its gradient rows as they lie, and give it our buffers."""
        try:
            offered = msgspec.json.decode(wire.receive_bytes(sock, head.nbytes), type=Rows)
        except msgspec.MsgspecError as e:
            raise FrameError(f"an ATTACH that makes no sense: {e}") from e
        shared = bool(fds) and self._memory.fd >= 0
        with self._turn:
            refusal = self.rounds.check(head)
            rows = [self.rounds.row_of(span) for span in offered.spans]
            is_fit = offered.row_nbytes == 4 * self._layout.size and None not in rows
            if refusal or not is_fit or self._shared_rows() & set(rows):
                raise FrameError(refusal.reason if refusal else f"the rows {offered.spans} are not free in this view")
            shared = shared and not any(self.rounds.has_landed(span) for span in offered.spans)
            if shared:
                check_segment(fds[0], offered.row_nbytes * len(rows))
                own = [row for row in rows if row is not None]
                self._attached[id(sock)] = own
                for number, row in enumerate(own):
                    self._memory.adopt(row, fds[0], number * offered.row_nbytes + 4 * self.part.begin)
        wire.send_with(sock, [self._memory.fd] if shared else [], Head(Kind.ATTACH), b"")

    def _shared_rows(self) -> set[int | None]:
        return {row for held in self._attached.values() for row in held}

    def detach(self, sock: socket.socket) -> None:
        """A connection has closed: its memory is no longer ours to read."""
        with self._turn:
            for row in self._attached.pop(id(sock), ()):
                self._memory.reclaim(row)

    def push(self, sock: socket.socket, head: Head) -> None:
        """Receive a contribution; the last one of a round also closes it."""
        records = unpack_records(wire.receive_bytes(sock, head.records_nbytes), head.records)
        span = Span(head.lo, head.hi)
        with self._turn:
            in_place = bool(head.flags & Flag.IN_PLACE)
            holders = self._attached.get(id(sock), ()) if in_place else self._shared_rows()
            if in_place != (self.rounds.row_of(span) in holders):
                raise FrameError(
                    f"shards {span.lo}…{span.hi - 1} are not shared by this connection, but by another or none"
                )
            verdict = self.rounds.offer(head, records)
        if isinstance(verdict, Refuse):
            raise FrameError(verdict.reason)
        if isinstance(verdict, Take):
            self._take(sock, head, span, verdict)
        elif in_place:
            return  # it is the very row that was there before
        elif isinstance(verdict, Repeat):
            self._compare(sock, head, verdict.row)
        else:
            wire.receive_into(sock, bytearray(head.nbytes))

    def _take(self, sock: socket.socket, head: Head, span: Span, verdict: Take) -> None:
        try:
            if head.nbytes and not head.flags & Flag.IN_PLACE:
                wire.receive_into(sock, self._memory.inbox[verdict.row])
        except BaseException:
            with self._turn:
                self.rounds.dropped(span)
            raise
        with self._turn:
            closing = self.rounds.landed(span)
            if closing is not None:
                self._close(closing)

    def _compare(self, sock: socket.socket, head: Head, row: int) -> None:
        again = np.empty(head.nbytes // 4, dtype=np.float32)
        wire.receive_into(sock, again)
        with self._turn:
            if self.rounds.round != head.round:
                return  # it closed meanwhile, with the first one
            kept = self._memory.inbox[row][: len(again)]
            different = np.flatnonzero(again.view(np.uint32) != kept.view(np.uint32))
        if len(different):
            name = self._layout.name_at(self.part.begin + int(different[0]))
            raise DeterminismError(
                f"shards {head.lo}…{head.hi - 1} sent two different gradients for round {head.round}, first in {name}",
                why="the result would depend on which one came first",
                fix="look for randomness or thread-dependent sums in the program",
            )

    def _close(self, closing: Closing) -> None:
        """Apply a complete round out of place. Runs under the lane's lock, which the kernel does not need."""
        before, after = self._buffer(closing.round), self._buffer(closing.round + 1)
        if closing.root is None:
            after[:] = before
        else:
            rate = learning_rate(self._rule, closing.samples, closing.pass_id)
            steps = np.array(closing.steps, dtype=np.int32).reshape(-1, 2)
            self._optimizer.apply(self._memory.inbox, closing.root, steps, before, after, rate)
        done = self.rounds.close()
        if done is not None:
            self._on_pass(closing.pass_id, closing.samples, done)
        self._turn.notify_all()

    def pull(self, sock: socket.socket, head: Head) -> None:
        """Answer with a slice as soon as the wanted round is there."""
        with self._turn:
            while True:
                if self._failure is not None:
                    raise self._failure
                verdict = self.rounds.look(head) if self._is_set else None
                if isinstance(verdict, Refuse):
                    raise FrameError(verdict.reason)
                if isinstance(verdict, Ready):
                    break
                if not self._turn.wait(LOOK_S) and wire.is_gone(sock):
                    raise NetworkError("the trainer went away while it waited")
            in_place = id(sock) in self._attached
        part = self._buffer(verdict.round)
        reply = Head(
            Kind.SLICE,
            Flag.IN_PLACE if in_place else Flag.NONE,
            job=head.job,
            view=head.view,
            round=verdict.round,
            nbytes=part.nbytes,
            lo=verdict.batch,
            extra=verdict.pass_id,
        )
        wire.send(sock, reply, *([] if in_place else [part]))

    def set(self, sock: socket.socket, head: Head) -> None:
        """Take the first values from a trainer that loaded a saved model."""
        with self._turn:
            refusal = self.rounds.check(head)
            if refusal or head.nbytes != 4 * len(self.part):
                reason = refusal.reason if refusal else f"{head.nbytes} bytes for a slice of {4 * len(self.part)}"
                raise FrameError(reason)
            if self._is_set or self._is_being_set:
                raise FrameError("the lane has its values already")
            self._is_being_set = True
        try:
            wire.receive_into(sock, self._buffer(0))
            self._is_set = True
        finally:
            with self._turn:
                self._is_being_set = False
                self._turn.notify_all()
