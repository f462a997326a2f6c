"""What a dense lane keeps: its slice of all dense parameters in two buffers, and an inbox of gradient rows.

Rounds are applied out of place, from the buffer of round r into that of round r + 1. A trainer of
the same machine shares its gradient rows and reads the buffers where they are.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core import draws
from bireme.core.errors import FrameError
from bireme.ps.lanes.lane import Answer
from bireme.ps.lanes.memory import LaneMemory, SharedRows, Sharing
from bireme.ps.lanes.rounds import Closing
from bireme.ps.optim.optimizers import UPDATES, Segment, SliceOptimizer, warm
from bireme.ps.plan import Layout, Piece, Slice
from bireme.ps.setup import Setup, plain
from bireme.ps.snapshot.reassembly import VALUES, dense_slice, pack_dense
from bireme.ps.snapshot.snapshot_files import SnapshotFile
from bireme.ps.snapshot.writer import Capture, copy_pieces
from bireme.ps.tree import spans_of
from bireme.ps.wire import codec, frame_io
from bireme.ps.wire.frames import Flag, Head

Floats = NDArray[np.float32]


def initial_values(piece: Piece, seed: int) -> Floats:
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


class DenseStore:
    """A slice of the flat vector of all dense parameters."""

    def __init__(self, setup: Setup, index: int) -> None:
        self._index = index
        self._layout = Layout(setup.dense)
        lanes = setup.facts.pservers * setup.facts.ports_num
        self.part: Slice = self._layout.slices(lanes)[setup.pserver * setup.facts.ports_num + index]
        self._coding = setup.facts.wire.gradients
        self.slice_nbytes = codec.payload_nbytes(self._coding, len(self.part))
        pieces = self._layout.pieces(self.part)
        rule = setup.dense_rule
        segments = [Segment(p.parameter, p.begin, p.end) for p in pieces]
        if setup.facts.updates.mode == "local":
            segments = [Segment(plain(s.parameter), s.begin, s.end) for s in segments]
        self._optimizer = SliceOptimizer(rule, segments)
        # Compile now, before Ready is sent: seconds of compiling in the first round would look like a slow pserver.
        warm(rule)
        codec.warm(self._coding)
        rows = len(spans_of(setup.shares, setup.facts.shards, is_apart=setup.is_apart))
        self._memory = LaneMemory(self.part, rows)
        self._is_streamed = setup.facts.updates.is_streamed
        # Streamed updates change buffers at any moment, and coded gradients must be decoded: neither can be shared.
        is_allowed = not self._is_streamed and self._coding == "float32"
        self.sharing: Sharing = SharedRows(self._memory, self.part, 4 * self._layout.size, is_allowed=is_allowed)
        self._size = pieces[-1].end if pieces else 0
        self._spare: dict[str, NDArray[Any]] = self._make_spare() if setup.facts.snapshots.path else {}
        if not setup.base:
            for piece in pieces:
                self._memory.buffers[0][piece.begin : piece.end] = initial_values(piece, setup.facts.seed)

    def _make_spare(self) -> dict[str, NDArray[Any]]:
        """What cuts are copied into. Written to now: the first touch of fresh memory costs more than a copy."""
        state = self._optimizer.state()
        spare = {name: np.empty_like(array) for name, array in state.items() if name != UPDATES}
        spare[VALUES] = np.empty(len(self.part), np.float32)
        for array in spare.values():
            array.fill(0)
        return spare

    def describe(self) -> str:
        return f"{len(self.part)} values"

    def _buffer(self, round_: int) -> Floats:
        return self._memory.buffers[round_ % 2]

    def receive(self, sock: socket.socket, head: Head, row: int) -> None:
        if self._coding == "float32":
            # No copy: the optimizer reads the row that the kernel writes, and no other thread does until it has landed.
            frame_io.receive_into(sock, self._memory.inbox[row])
        else:
            self._decode(self._receive_coded(sock, head), self._memory.inbox[row])

    def receive_aside(self, sock: socket.socket, head: Head) -> Floats:
        payload = self._receive_coded(sock, head)
        again = np.empty(len(self.part) if head.nbytes else 0, np.float32)
        if len(again):
            self._decode(payload, again)
        return again

    def _receive_coded(self, sock: socket.socket, head: Head) -> bytearray:
        if head.nbytes > codec.PICK_NBYTES * len(self.part):
            raise FrameError(f"{head.nbytes} bytes of gradient for a slice of {len(self.part)} values")
        return frame_io.receive_bytes(sock, head.nbytes)

    def _decode(self, payload: bytearray, target: Floats) -> None:
        if self._coding == "float32":
            target[:] = np.frombuffer(payload, np.float32)
        elif self._coding == "top_k":
            codec.decode_picks(np.frombuffer(payload, np.uint8), target)
        else:
            codec.decode(self._coding, np.frombuffer(payload, np.uint16), target)

    def difference(self, row: int, again: object) -> str:
        assert isinstance(again, np.ndarray)
        kept = self._memory.inbox[row][: len(again)]
        # As bits: NaN differs from itself, and -0.0 equals 0.0.
        different = np.flatnonzero(again.view(np.uint32) != kept.view(np.uint32))
        return self._layout.name_at(self.part.begin + int(different[0])) if len(different) else ""

    def apply(self, closing: Closing, rate: float) -> None:
        before, after = self._buffer(closing.round), self._buffer(closing.round + 1)
        if closing.root is None:
            after[:] = before
        else:
            # Out of place: a pull of the closing round may still be sending `before`.
            steps = np.array(closing.steps, dtype=np.int32).reshape(-1, 2)
            self._optimizer.apply(self._memory.inbox, closing.root, steps, before, after, rate)

    def capture(self, round_: int, base: int) -> Capture:
        """The slice and the optimizer's state at the beginning of a round, always whole.

        State changes with this round's update; the slice stays where it is until the update after it.
        """
        spare, state = self._spare, self._optimizer.state()
        pieces = [piece for name in state if name in spare for piece in copy_pieces(round_, state[name], spare[name])]
        pieces += copy_pieces(round_ + 1, self._buffer(round_), spare[VALUES])
        packed = pack_dense(self._index, self.part, spare[VALUES], {n: spare.get(n, a) for n, a in state.items()})
        return Capture(packed, pieces)

    def restore(self, chain: Sequence[Sequence[SnapshotFile]], round_: int) -> None:
        arrays = dense_slice(chain[-1], self.part, size=self._size)
        self._buffer(round_)[:] = arrays.pop(VALUES)
        self._optimizer.load_state(arrays)

    def receive_request(self, sock: socket.socket, head: Head) -> None:
        if head.nbytes:
            raise FrameError(f"a PULL from a dense lane has no payload, this one has {head.nbytes} bytes")

    def answer(self, sock: socket.socket, round_: int, request: object) -> Answer:
        part = self._buffer(round_)
        if self.sharing.holds(sock):
            return Flag.IN_PLACE, part.nbytes, []
        # Sent without the lock. In rounds the next update writes the other buffer, and the one after it waits for every
        # trainer that computes from this one; where pushes are applied at any moment, it may change while being sent.
        return Flag.NONE, part.nbytes, [part.copy() if self._is_streamed else part]

    def receive_values(self, sock: socket.socket, head: Head, *, is_wanted: bool) -> None:
        if head.nbytes != 4 * len(self.part):
            raise FrameError(f"{head.nbytes} bytes for a slice of {4 * len(self.part)}")
        frame_io.receive_into(sock, self._buffer(0) if is_wanted else np.empty(len(self.part), np.float32))
