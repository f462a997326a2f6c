"""One lane at work: what may land when, which pulls wait, and when a round closes.

A lane owns its parameters alone; the only lock is its own. What it keeps and how payloads get in
and out is its store's business (dense.py, sparse.py); which frame counts is decided by a machine
without I/O (rounds.py for rounds of all shards, stream.py where each shard's push counts by itself).
Payloads are received and sent outside the lock: a row belongs to one connection until it has
landed, and what a trainer is being sent cannot change before it has pushed once more.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from bireme.core import faults
from bireme.core.errors import BiremeError, DeterminismError, FrameError, NetworkError
from bireme.ps.lanes.memory import Sharing
from bireme.ps.lanes.progress import agreed_counts, counts_of
from bireme.ps.lanes.rounds import AnswerAt, Closing, LaneRounds, PassTotals, Refuse, Repeat, Take
from bireme.ps.lanes.slow_trainers import Awaited, Stragglers
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.optim.schedules import learning_rate
from bireme.ps.setup import Setup
from bireme.ps.snapshot.snapshot_files import SnapshotFile
from bireme.ps.snapshot.writer import Capture, SnapshotWriter
from bireme.ps.tree import Span, spans_of
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import MAX_ARRAY_NBYTES, Flag, Head, Kind, Record, unpack_records

LOOK_S = 1.0  # how often a thread that waits for a round checks that its trainer is still connected
ASK_S = 0.2  # how long a status request waits for the lane's lock
OnPass = Callable[[PassTotals], None]
Buffers = Sequence[NDArray[Any]]
Answer = tuple[int, int, Buffers]
Machine = LaneRounds | LaneStream


class Store(Protocol):
    """What a lane keeps, and how payloads get in and out. Calls marked * are made under the lane's lock."""

    sharing: Sharing
    slice_nbytes: int | None
    """What a whole contribution's payload measures; None where that differs from push to push."""

    def describe(self) -> str:
        """What is kept here, for the log."""

    def receive(self, sock: socket.socket, head: Head, row: int) -> None:
        """Take a contribution into its row."""

    def receive_aside(self, sock: socket.socket, head: Head) -> object:
        """Read a contribution that is in already."""

    def difference(self, row: int, again: object) -> str:
        """* The name of the first parameter in which a repeat differs from the row; '' if it is the same."""

    def apply(self, closing: Closing, rate: float) -> None:
        """* Update the parameters."""

    def capture(self, round_: int, base: int) -> Capture:
        """* What is kept here at the beginning of a round, under the names of a snapshot's part.

        Where the cut at round `base` counts, what has changed since may be enough.
        """

    def restore(self, chain: Sequence[Sequence[SnapshotFile]], round_: int) -> None:
        """Continue from a snapshot; `chain` holds its parts, after those of the snapshots that it builds on."""

    def receive_request(self, sock: socket.socket, head: Head) -> object:
        """Read what a PULL asks for."""

    def answer(self, sock: socket.socket, round_: int, request: object) -> Answer:
        """* The reply to a PULL: flags, its length, and what is to be sent."""

    def receive_values(self, sock: socket.socket, head: Head, *, is_wanted: bool) -> None:
        """Take first values, or read and discard them."""


class Lane:
    """A part of the model that several trainers push to and pull from."""

    def __init__(self, setup: Setup, store: Store, on_pass: OnPass, writer: SnapshotWriter | None = None) -> None:
        self._on_pass = on_pass
        self._writer = writer
        self._capture: Capture | None = None
        """A cut that is still being copied: nothing of it may be overwritten."""
        self._cut_every_s = 0.0
        self._next_cut_s = math.inf
        self._cut_every_rounds = 0 if setup.cuts_only_at_passes else setup.facts.snapshots.every_rounds
        self._store = store
        updates = setup.facts.updates
        ids = {"job": setup.job, "view": setup.view}
        self.rounds: Machine
        if updates.is_streamed:
            staleness = updates.staleness if updates.mode == "bounded" else None
            self.rounds = LaneStream(setup.facts.shards, store.slice_nbytes, staleness=staleness, **ids)
        else:
            spans = spans_of(setup.shares, setup.facts.shards, is_apart=setup.is_apart)
            self.rounds = LaneRounds(setup.facts.shards, spans, store.slice_nbytes, **ids)
        self.rounds.start_at(setup.facts.start_pass, setup.facts.start_samples)
        self._rule = setup.dense_rule
        self._is_set = not setup.is_set_by_trainer
        # Guards the rounds and the store's state. Payloads move without it, as `rounds.offer` reserves a row for the
        # thread that receives into it; kernels and receives release the interpreter lock, so all of these overlap.
        self._turn = threading.Condition()
        self._busy = 0  # payloads that are being received
        self._stragglers = Stragglers(self.rounds, setup.shares)
        self._is_leaving_view = False
        self._parked: dict[socket.socket, Head] = {}
        """Pulls of trainers that share our memory: the thread that closes the round answers them."""
        self._failure: BiremeError | None = None

    @property
    def largest_payload(self) -> int:
        """The most payload that may follow the head of a refused frame."""
        whole = self._store.slice_nbytes
        return MAX_ARRAY_NBYTES if whole is None else whole

    def awaited(self) -> Awaited | None:
        """The trainers that this lane waits for now, and the slowest of late; None where the lock stays taken."""
        # A lane that waits for its disk at the end of a pass holds this lock: a status request must not wait as long.
        if not self._turn.acquire(timeout=ASK_S):
            return None
        try:
            return self._stragglers.awaited(time.monotonic())
        finally:
            self._turn.release()

    def describe(self) -> str:
        return self._store.describe()

    def stop(self, failure: BiremeError | None = None) -> None:
        """Wake all waiting threads; they raise the failure."""
        with self._turn:
            self._failure = self._failure or failure or NetworkError("the pserver is stopping")
            self._turn.notify_all()
            parked, self._parked = list(self._parked), {}
        for sock in parked:  # without the lock: a send may block
            if failure is not None:
                frame_io.refuse(sock, failure)

    def attach(self, sock: socket.socket, head: Head, fds: list[int]) -> None:
        """Answer the greeting of a trainer of this machine, sharing memory where the store can."""
        self._check(head)
        offer = frame_io.receive_bytes(sock, head.nbytes)
        with self._turn:
            self._check(head)
            shared = self._store.sharing.attach(sock, offer, fds, self.rounds)
        frame_io.send_with(sock, shared, Head(Kind.ATTACH), b"")

    def detach(self, sock: socket.socket) -> None:
        """A connection has closed: its memory is no longer ours to read."""
        with self._turn:
            self._parked.pop(sock, None)
            self._store.sharing.detach(sock)

    def push(self, sock: socket.socket, head: Head) -> None:
        """Receive a contribution; the last one of a round also closes it."""
        records = unpack_records(frame_io.receive_bytes(sock, head.records_nbytes), head.records)
        span = Span(head.lo, head.hi)
        in_place = bool(head.flags & Flag.IN_PLACE)
        with self._turn:
            self._store.sharing.check(sock, self.rounds.row_of(span), in_place=in_place)
            # From a Take until `landed` or `dropped` the row is this thread's: a second push of the span is refused.
            verdict = self.rounds.offer(head, records)
            self._busy += isinstance(verdict, Take)
        if isinstance(verdict, Refuse):
            raise verdict.as_error()
        if isinstance(verdict, Take):
            self._take(sock, head, records, verdict)
        elif in_place:
            return  # a repeat in shared memory is the same row
        elif isinstance(verdict, Repeat):
            self._compare(sock, head, verdict.row)
        else:
            self._store.receive_aside(sock, head)

    def _take(self, sock: socket.socket, head: Head, records: list[Record], verdict: Take) -> None:
        span = Span(head.lo, head.hi)
        try:
            has_payload = sum(r.samples for r in records) > 0
            if has_payload and not head.flags & Flag.IN_PLACE:
                self._store.receive(sock, head, verdict.row)
        except BaseException:
            with self._turn:
                # Also after an interrupt: a row that stays reserved would block the round, and `enter`, for ever.
                self.rounds.dropped(span)
                self._done()
            raise
        with self._turn:
            # Under the lock, so that times are in the order in which pushes landed.
            now_s = time.monotonic()
            self._stragglers.landed(span, now_s)
            closing = self.rounds.landed(span)
            if closing is not None:
                self._close(closing)
                self._stragglers.closed(closing, now_s)
            self._done()

    def _done(self) -> None:
        self._busy -= 1
        if self._is_leaving_view and not self._busy:
            self._turn.notify_all()

    def enter(self, view: int) -> None:
        """Move to a later view. Connections of the one before are closed already, so their payloads end soon."""
        with self._turn:
            self._is_leaving_view = True
            # A payload of the view before may still be on its way into a row, which trainers of the new view write too.
            self._turn.wait_for(lambda: not self._busy)
            self._is_leaving_view = False
            self.rounds.enter(view)
            self._stragglers.forget()
            self._parked.clear()
            self._turn.notify_all()  # waiting pulls are of the view before: each is refused

    def _compare(self, sock: socket.socket, head: Head, row: int) -> None:
        again = self._store.receive_aside(sock, head)
        with self._turn:
            # The payload was read without the lock, so the round may have closed and the row may be another round's.
            if self.rounds.round != head.round or not head.nbytes:
                return  # it closed meanwhile, with the first one; or there is nothing to compare
            name = self._store.difference(row, again)
        if name:
            raise DeterminismError(
                f"shards {head.lo}…{head.hi - 1} sent two different gradients for round {head.round}, first in {name}",
                why="the result would depend on which one came first",
                fix="look for randomness or thread-dependent sums in the program",
            )

    def _close(self, closing: Closing) -> None:
        """Apply a complete round. Runs under the lane's lock, which kernels do not need."""
        rate = learning_rate(self._rule, closing.samples, closing.pass_id)
        faults.at("lane.landed", closing.round)
        if self._capture is not None:
            # What this update overwrites and a cut still needs is copied first.
            self._capture.make(closing.round)
            self._capture = None if self._capture.is_made else self._capture
        self._store.apply(closing, rate)
        faults.at("lane.applied", closing.round)
        done = self.rounds.close()
        if done is not None:
            self._on_pass(PassTotals(closing.pass_id, closing.samples, done, self.rounds.take_staleness()))
        if self._writer is not None:
            self._cut(self._writer, ends_pass=closing.ends_pass)
        self._turn.notify_all()
        self._answer_parked()

    def cut_every(self, seconds: float) -> None:
        """Make this the lane that names the rounds of cuts, this often.

        Those at the end of passes and at multiples of a number need no naming: every lane counts the same.
        """
        self._cut_every_s = seconds
        self._next_cut_s = time.monotonic() + seconds

    def cut_soon(self) -> None:
        """Name a round for a cut as soon as one closes, unless one is named already."""
        with self._turn:
            if self.rounds.cut_at <= self.rounds.round:
                self._next_cut_s = time.monotonic()

    def _cut(self, writer: SnapshotWriter, *, ends_pass: bool) -> None:
        """Start a cut if this round is one for it; else name the next round for one if it is time."""
        now = time.monotonic()
        if ends_pass or self._is_at_cut():
            cut = writer.open(counts_of(self.rounds), ends_pass=ends_pass)
            if cut is not None:
                self._capture = self._store.capture(self.rounds.round, cut.base)
                writer.give(cut, self._capture)
            self._next_cut_s = now + self._cut_every_s if self._cut_every_s else math.inf
        elif now >= self._next_cut_s:
            # Our answers carry it to the trainers, and their next pushes to every lane.
            self.rounds.cut_at = self.rounds.round + 1
            self._next_cut_s = math.inf

    def _is_at_cut(self) -> bool:
        """Whether the round that begins was named for a cut, or is one of those that need no naming."""
        is_multiple = self._cut_every_rounds > 0 and self.rounds.round % self._cut_every_rounds == 0
        return is_multiple or self.rounds.round == self.rounds.cut_at

    def restore(self, chain: Sequence[Sequence[SnapshotFile]]) -> None:
        """Continue from a snapshot, before any connection is served."""
        counts = agreed_counts(chain[-1])
        self._store.restore(chain, counts.round)
        self.rounds.restore(counts)

    def _answer_parked(self) -> None:
        """Answer trainers that share our memory on this thread: waking theirs would take longer.

        A parked trainer sends nothing that needs an answer, so no other thread sends on its connection meanwhile.
        """
        for sock, head in list(self._parked.items()) if self._is_set else ():
            verdict = self.rounds.look(head)
            if isinstance(verdict, AnswerAt):
                del self._parked[sock]
                with contextlib.suppress(NetworkError):  # its own thread will see that it has gone
                    self._reply(sock, head, verdict, self._store.answer(sock, verdict.round, None))

    def pull(self, sock: socket.socket, head: Head) -> None:
        self._check(head)
        request = self._store.receive_request(sock, head)
        with self._turn:
            while True:
                if self._failure is not None:
                    raise self._failure
                verdict = self.rounds.look(head) if self._is_set else None
                if isinstance(verdict, Refuse):
                    raise verdict.as_error()
                if isinstance(verdict, AnswerAt):
                    break
                if self._store.sharing.holds(sock):
                    if sock in self._parked:
                        raise FrameError("a second PULL before the first was answered")
                    self._parked[sock] = head
                    return
                # A waiting thread reads nothing, so it must look for a closed connection: a trainer that has gone would
                # keep its thread until the round closes, which may need that very trainer.
                if not self._turn.wait(LOOK_S) and frame_io.is_gone(sock):
                    raise NetworkError("the trainer went away while it waited")
            # Chosen under the lock, sent without it: a slow trainer must not stop the lane.
            answer = self._store.answer(sock, verdict.round, request)
        self._reply(sock, head, verdict, answer)

    def _reply(self, sock: socket.socket, asked: Head, at: AnswerAt, answer: Answer) -> None:
        flags, nbytes, parts = answer
        # `cut_at` is read without the lock: it only grows, and a trainer may learn of a cut earlier than it must.
        reply = Head(
            Kind.SLICE,
            flags,
            job=asked.job,
            view=asked.view,
            round=at.round,
            nbytes=nbytes,
            lo=at.batch,
            hi=self.rounds.cut_at,
            extra=at.pass_id,
        )
        frame_io.send(sock, reply, *parts)

    def set(self, sock: socket.socket, head: Head) -> None:
        """Take the first values from a trainer that loaded a saved model."""
        with self._turn:
            self._check(head)
            if self._busy and not self._is_set:
                raise FrameError("another connection is sending this lane its values")
            self._busy += 1
        try:
            # Without the lock: while `_busy` no other connection sets values, and no pull is answered before.
            # It may have values already: a trainer may have died before it had set all lanes.
            self._store.receive_values(sock, head, is_wanted=not self._is_set)
            self._is_set = True
        finally:
            with self._turn:
                self._done()
                self._turn.notify_all()
                self._answer_parked()

    def _check(self, head: Head) -> None:
        refusal = self.rounds.check(head)
        if refusal:
            raise refusal.as_error()
