"""What a sparse lane keeps: its rows of every sparse parameter, placed by id, and an inbox of touched rows.

A round's contributions are lists of rows. They are summed id by id along the job's fixed tree, so
that it does not matter how many trainers sent them, and the sum is applied to the table. Rows that a
round does not name stay as they are. So a cut, too, need only hold the rows that were pushed to since the
last cut that counts, and the ids of rows that were forgotten.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError
from bireme.ps.lanes.lane import Answer, Buffers
from bireme.ps.lanes.memory import Sharing
from bireme.ps.lanes.rounds import Closing
from bireme.ps.setup import Setup
from bireme.ps.snapshot.reassembly import chained_rows, pack_table
from bireme.ps.snapshot.snapshot_files import SnapshotFile
from bireme.ps.snapshot.writer import PIECE_NBYTES, Capture, CopyBeforeUpdate
from bireme.ps.sparse import row_sums
from bireme.ps.sparse.row_sums import Slots
from bireme.ps.sparse.table import Table, warm
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head
from bireme.ps.wire.row_frames import Block, Ids, Payload, no_rows, pack_blocks, unpack_blocks, unpack_request


class _Chain(NamedTuple):
    """What a cut of a table builds on, itself included: a whole one, and so many rows in deltas since."""

    is_delta: bool = False
    rows: int = 0


def _choose(table: Table, base: int, before: _Chain | None) -> tuple[_Chain, Slots]:
    """Which rows to write: those that changed since the base, or all when a chain would be about as large as that."""
    if before is not None and table.can_tell_changes(base - 1):
        rows = table.changed_rows(base - 1)
        if 2 * (before.rows + len(rows)) <= len(table):
            return _Chain(True, before.rows + len(rows)), rows
    return _Chain(), table.changed_rows(None)


class SparseStore:
    """The rows that the hash of their ids gives to one lane."""

    slice_nbytes: int | None = None
    sharing = Sharing()

    def __init__(self, setup: Setup, index: int) -> None:
        self._parameters = setup.tables
        self._tables = [Table(p, setup.facts.optimizer, setup.facts.seed) for p in setup.tables]
        for parameter in setup.tables:
            warm(parameter, setup.facts.optimizer)
        row_sums.warm()
        self._widths = [p.shape[1] for p in setup.tables]
        self._lanes = setup.facts.pservers * setup.facts.ports_num_for_sparse
        self._lane = setup.pserver * setup.facts.ports_num_for_sparse + index
        self._round = 0
        self._inbox: dict[int, list[Block]] = {}
        # By round and table, what cuts build on that count or may still come to count.
        self._cuts: dict[int, dict[str, _Chain]] = {}

    def capture(self, round_: int, base: int) -> Capture:
        """Rows with their state: all, or those that changed since the cut at round `base` where that is much less."""
        packed: dict[str, NDArray[Any]] = {}
        pieces: list[CopyBeforeUpdate] = []
        before, now = self._cuts.get(base, {}), {}
        for parameter, table in zip(self._parameters, self._tables, strict=True):
            chain, rows = _choose(table, base, before.get(parameter.name))
            state, copies = table.state_of(rows, PIECE_NBYTES)
            gone = table.evicted(base - 1) if chain.is_delta else None
            packed |= pack_table(self._lane, parameter.name, state, gone)
            pieces += [CopyBeforeUpdate(round_, copy) for copy in copies]
            now[parameter.name] = chain
            table.forget_changes(base - 1)
        # Cuts before the base are not asked for any more: what counts never becomes older.
        self._cuts = {r: chains for r, chains in self._cuts.items() if r >= base} | {round_: now}
        return Capture(packed, pieces, is_delta=any(chain.is_delta for chain in now.values()))

    def restore(self, chain: Sequence[Sequence[SnapshotFile]], round_: int) -> None:
        self._round = round_
        for parameter, table in zip(self._parameters, self._tables, strict=True):
            table.load_state(chained_rows(chain, parameter.name, self._lane, self._lanes))

    def describe(self) -> str:
        return f"rows of {', '.join(p.name for p in self._parameters) or 'nothing'}"

    def receive_aside(self, sock: socket.socket, head: Head) -> Payload:
        try:
            # Memory that nothing was written to costs nothing, so a head that lies about its length does no harm.
            payload = np.empty(head.nbytes, np.uint8)
        except MemoryError as e:
            raise FrameError(f"{head.nbytes} bytes of rows in one frame are more than there is memory for") from e
        frame_io.receive_into(sock, payload)
        return payload

    def _check(self, parameter: int, ids: Ids) -> None:
        own = self._parameters[parameter]
        if len(ids) and int(ids.max()) >= own.shape[0]:
            raise FrameError(f"row {int(ids.max())} of {own.name}, which has {own.shape[0]}")
        if not bool((row_sums.lane_of(ids, self._lanes) == self._lane).all()):
            raise FrameError(f"rows of {own.name} that belong to another lane than {self._lane}")

    def _receive_blocks(self, sock: socket.socket, head: Head) -> list[Block]:
        blocks = unpack_blocks(self.receive_aside(sock, head), self._widths)
        for number, block in enumerate(blocks):
            if not row_sums.is_ascending(block.ids):
                raise FrameError(f"ids of {self._parameters[number].name} that do not rise")
            self._check(number, block.ids)
        return blocks

    def receive(self, sock: socket.socket, head: Head, row: int) -> None:
        self._inbox[row] = self._receive_blocks(sock, head)

    def difference(self, row: int, again: object) -> str:
        assert isinstance(again, np.ndarray)
        pairs = zip(unpack_blocks(again, self._widths), self._inbox[row], strict=True)
        for number, (new, kept) in enumerate(pairs):
            is_same = np.array_equal(new.ids, kept.ids)
            if not is_same or not np.array_equal(new.rows.view(np.uint32), kept.rows.view(np.uint32)):
                return self._parameters[number].name
        return ""

    def apply(self, closing: Closing, rate: float) -> None:
        self._round = closing.round + 1
        for table, block in zip(self._tables, self._sum(closing), strict=True):
            table.apply(block.ids, block.rows, rate, closing.round)
            if closing.ends_pass:
                table.end_pass(rate, closing.round)

    def _sum(self, closing: Closing) -> list[Block]:
        if closing.root is None:
            return [no_rows(width) for width in self._widths]
        # Another shard's rows may be here already, to be applied after these.
        order = sorted({closing.root, *(row for step in closing.steps for row in step)})
        place = {row: i for i, row in enumerate(order)}
        steps = [(place[a], place[b]) for a, b in closing.steps]
        # Popped: rows of a round are megabytes, and must not wait for the next push of their span.
        parts = [self._inbox.pop(row) for row in order]
        return [
            Block(*row_sums.combine(list(blocks), place[closing.root], steps)) for blocks in zip(*parts, strict=True)
        ]

    def receive_request(self, sock: socket.socket, head: Head) -> list[Ids] | None:
        if head.flags & Flag.ALL:
            if head.nbytes:
                raise FrameError("a PULL for every row names none")
            return None
        wanted = unpack_request(self.receive_aside(sock, head), len(self._tables)) if head.nbytes else []
        for number, ids in enumerate(wanted):
            self._check(number, ids)
        return wanted

    def answer(self, sock: socket.socket, round_: int, request: object) -> Answer:
        is_now = round_ == self._round
        if request is None:
            if not is_now:
                raise FrameError(f"every row of round {round_}, which is over: only the current ones can be had whole")
            parts: Buffers = pack_blocks([Block(*table.rows()) for table in self._tables])
            return Flag.ALL, sum(part.nbytes for part in parts), parts
        assert isinstance(request, list)
        pairs = [(table, ids) for table, ids in zip(self._tables, request, strict=False) if len(ids)]
        parts = [(table.read(ids) if is_now else table.read_before(ids)).reshape(-1) for table, ids in pairs]
        return Flag.NONE, sum(part.nbytes for part in parts), parts

    def receive_values(self, sock: socket.socket, head: Head, *, is_wanted: bool) -> None:
        blocks = self._receive_blocks(sock, head)
        for table, block in zip(self._tables, blocks, strict=True) if is_wanted else ():
            table.put(block.ids, block.rows)
