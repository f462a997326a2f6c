"""A trainer's side of sparse lanes: rows go out by the hash of their ids and come back in the order asked for."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError
from bireme.ps.client.slow_pservers import SlowPservers
from bireme.ps.sparse.row_sums import gather, scatter, split, warm
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head, Kind
from bireme.ps.wire.row_frames import Block, Floats, Ids, pack_blocks, pack_ids, unpack_blocks
from bireme.spec.model import Parameter


class _Placed(NamedTuple):
    """Ids of one table grouped by lane: `ids[order]`, lane i having `ends[i] … ends[i + 1] - 1` of them."""

    ids: Ids
    order: NDArray[np.int64]
    ends: NDArray[np.int64]

    def of(self, lane: int) -> NDArray[np.int64]:
        return self.order[self.ends[lane] : self.ends[lane + 1]]


class RowLinks:
    """Connections to all sparse lanes, in the order of the plan."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        tables: Sequence[Parameter],
        pservers: Sequence[int] | None = None,
        lagging: SlowPservers | None = None,
    ) -> None:
        """Take the pserver of each lane and what keeps count of how they are doing, or all for one's."""
        warm()
        self._sockets = list(sockets)
        self._pservers = [0] * len(sockets) if pservers is None else list(pservers)
        self._lagging = SlowPservers(1) if lagging is None else lagging
        self._orders = self._lagging.orders(self._pservers)
        self._widths = [p.shape[1] for p in tables]
        self._placed: list[_Placed] = []

    @property
    def sockets(self) -> list[socket.socket]:
        """The connections themselves."""
        return self._sockets

    def greet(self, head: Head) -> None:
        """Send ATTACH where a lane of this machine expects it; rows are never shared."""
        for sock in self._sockets:
            if sock.family == socket.AF_UNIX:
                frame_io.send_with(sock, [], head, b"")
                frame_io.expect(sock, Kind.ATTACH)

    def _place(self, tables: Sequence[Ids]) -> list[_Placed]:
        """Group by lane; what was asked for is usually what is pushed to, and was grouped then."""
        grouped = {id(p.ids): p for p in self._placed}  # which keeps these arrays alive, so their ids are not reused
        return [grouped.get(id(ids)) or self._group(ids) for ids in tables]

    def _group(self, ids: Ids) -> _Placed:
        order, counts = split(ids, len(self._sockets))
        return _Placed(ids, order, np.concatenate(([0], np.cumsum(counts))))

    def push(self, head: Head, records: bytes, blocks: Sequence[Block] | None) -> None:
        """Send gradient rows to the lanes they belong to; None where there is no sample, so nothing at all."""
        placed = self._place([block.ids for block in blocks or ()])
        for lane in self._orders[self._lagging.last]:
            sock = self._sockets[lane]
            if blocks is None:
                frame_io.send(sock, head, records)
                continue
            picks = [p.of(lane) for p in placed]
            parts = pack_blocks([_pick(b, at) for b, at in zip(blocks, picks, strict=True)])
            began_s = time.monotonic()
            frame_io.send(sock, head._replace(nbytes=sum(part.nbytes for part in parts)), records, *parts)
            self._lagging.moved(self._pservers[lane], time.monotonic() - began_s)

    def ask(self, head: Head, wanted: Sequence[Ids]) -> None:
        """Send a PULL for these rows of each table; none at all for a table is fine."""
        tables = [*wanted, *(np.empty(0, np.uint64) for _ in self._widths[len(wanted) :])]
        self._placed = self._place(tables)
        for lane in self._orders[self._lagging.last]:
            sock = self._sockets[lane]
            parts = pack_ids([p.ids[p.of(lane)] for p in self._placed])
            frame_io.send(sock, head._replace(nbytes=sum(part.nbytes for part in parts)), *parts)

    def receive(self, targets: Sequence[Floats]) -> list[Head]:
        """Fill the first rows of each target with what was asked for, in that order."""
        heads = []
        for lane in self._orders[self._lagging.last]:
            sock, pserver, began_s = self._sockets[lane], self._pservers[lane], time.monotonic()
            reply = frame_io.expect(sock, Kind.SLICE)
            self._lagging.begun(pserver, time.monotonic() - began_s)
            picks = [p.of(lane) for p in self._placed]
            due = sum(4 * width * len(at) for width, at in zip(self._widths, picks, strict=True))
            if reply.nbytes != due:
                raise FrameError(f"{reply.nbytes} bytes of rows came, {due} were due")
            for width, at, target in zip(self._widths, picks, targets, strict=False):
                rows, began_s = np.empty((len(at), width), np.float32), time.monotonic()
                frame_io.receive_into(sock, rows.reshape(-1))
                self._lagging.moved(pserver, time.monotonic() - began_s)
                scatter(rows, at, target)
            heads.append(reply)
        return heads

    def pull_all(self, head: Head) -> list[Block]:
        """Every row that exists, by ascending id, one block per table."""
        for sock in self._sockets:
            frame_io.send(sock, head._replace(flags=head.flags | Flag.ALL))
        parts = []
        for sock in self._sockets:
            reply = frame_io.expect(sock, Kind.SLICE)
            parts.append(unpack_blocks(frame_io.receive_bytes(sock, reply.nbytes), self._widths))
        tables = []
        for blocks in zip(*parts, strict=True):
            ids, rows = np.concatenate([b.ids for b in blocks]), np.concatenate([b.rows for b in blocks])
            order = np.argsort(ids, kind="stable")
            tables.append(Block(ids[order], rows[order]))
        return tables

    def set(self, head: Head, blocks: Sequence[Block]) -> None:
        """Give every lane its rows of a saved model."""
        placed = [self._group(block.ids) for block in blocks]
        for lane, sock in enumerate(self._sockets):
            picks = [p.of(lane) for p in placed]
            parts = pack_blocks([_pick(b, at) for b, at in zip(blocks, picks, strict=True)])
            frame_io.send(sock, head._replace(nbytes=sum(part.nbytes for part in parts)), *parts)


def _pick(block: Block, at: NDArray[np.int64]) -> Block:
    rows = np.empty((len(at), block.rows.shape[1]), np.float32)
    gather(np.ascontiguousarray(block.rows), at, rows)
    return Block(block.ids[at], rows)
