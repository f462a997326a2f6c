"""A trainer's side of sparse lanes: rows go out by the hash of their ids and come back in the order asked for."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError
from bireme.ps.client.carriers import Watched, open_carrier
from bireme.ps.client.slow_pservers import SlowPservers
from bireme.ps.sparse.row_sums import gather, scatter, split, warm
from bireme.ps.wire.frames import Flag, Head
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
        slow_pservers: SlowPservers | None = None,
    ) -> None:
        """Take the pserver of each lane and what keeps count of how they are doing, or all for one's."""
        warm()
        self.sockets = list(sockets)
        self._pservers = [0] * len(sockets) if pservers is None else list(pservers)
        self._slow_pservers = SlowPservers(1) if slow_pservers is None else slow_pservers
        self._orders = self._slow_pservers.orders(self._pservers)
        self._carriers: list[Watched] = []
        self._widths = [p.shape[1] for p in tables]
        self._placed: list[_Placed] = []

    def greet(self, head: Head) -> None:
        """Send ATTACH where a lane of this machine expects it; rows are never shared."""
        for sock, pserver in zip(self.sockets, self._pservers, strict=True):
            self._carriers.append(Watched(open_carrier(sock, head), pserver, self._slow_pservers))

    def _place(self, tables: Sequence[Ids]) -> list[_Placed]:
        """Group by lane; what was asked for is usually what is pushed to, and was grouped then."""
        grouped = {id(p.ids): p for p in self._placed}  # which keeps these arrays alive, so their ids are not reused
        return [grouped.get(id(ids)) or self._group(ids) for ids in tables]

    def _group(self, ids: Ids) -> _Placed:
        order, counts = split(ids, len(self.sockets))
        return _Placed(ids, order, np.concatenate(([0], np.cumsum(counts))))

    def push(self, head: Head, records: bytes, blocks: Sequence[Block] | None) -> None:
        """Send gradient rows to the lanes they belong to; None where there is no sample, so nothing at all."""
        placed = self._place([block.ids for block in blocks or ()])
        for lane in self._orders[self._slow_pservers.last]:
            if blocks is None:
                self._carriers[lane].send(head.pack(), records)
                continue
            picks = [p.of(lane) for p in placed]
            self._carriers[lane].push(
                head, records, pack_blocks([_pick(b, at) for b, at in zip(blocks, picks, strict=True)])
            )

    def ask(self, head: Head, wanted: Sequence[Ids]) -> None:
        tables = [*wanted, *(np.empty(0, np.uint64) for _ in self._widths[len(wanted) :])]
        self._placed = self._place(tables)
        for lane in self._orders[self._slow_pservers.last]:
            self._send(lane, head, pack_ids([p.ids[p.of(lane)] for p in self._placed]))

    def _send(self, lane: int, head: Head, parts: Sequence[NDArray[Any]]) -> None:
        self._carriers[lane].send(head._replace(nbytes=sum(part.nbytes for part in parts)).pack(), *parts)

    def receive(self, targets: Sequence[Floats]) -> list[Head]:
        """Fill the first rows of each target with what was asked for, in that order."""
        heads = []
        for lane in self._orders[self._slow_pservers.last]:
            reply = self._carriers[lane].expect()
            picks = [p.of(lane) for p in self._placed]
            due = sum(4 * width * len(at) for width, at in zip(self._widths, picks, strict=True))
            if reply.nbytes != due:
                raise FrameError(f"{reply.nbytes} bytes of rows came, {due} were due")
            for width, at, target in zip(self._widths, picks, targets, strict=False):
                rows = np.empty((len(at), width), np.float32)
                self._carriers[lane].take(rows.reshape(-1))
                scatter(rows, at, target)
            heads.append(reply)
        return heads

    def pull_all(self, head: Head) -> list[Block]:
        """Every row that exists, by ascending id, one block per table."""
        for lane in self._carriers:
            lane.send(head._replace(flags=head.flags | Flag.ALL).pack())
        parts = []
        for lane in self._carriers:
            # Beside the rounds: not watched, so that no pserver counts as slow by it.
            payload = bytearray(lane.carrier.expect().nbytes)
            lane.carrier.take(payload)
            parts.append(unpack_blocks(payload, self._widths))
        tables = []
        for blocks in zip(*parts, strict=True):
            ids, rows = np.concatenate([b.ids for b in blocks]), np.concatenate([b.rows for b in blocks])
            order = np.argsort(ids, kind="stable")
            tables.append(Block(ids[order], rows[order]))
        return tables

    def set(self, head: Head, blocks: Sequence[Block]) -> None:
        placed = [self._group(block.ids) for block in blocks]
        for lane in range(len(self.sockets)):
            picks = [p.of(lane) for p in placed]
            self._send(lane, head, pack_blocks([_pick(b, at) for b, at in zip(blocks, picks, strict=True)]))


def _pick(block: Block, at: NDArray[np.int64]) -> Block:
    rows = np.empty((len(at), block.rows.shape[1]), np.float32)
    gather(np.ascontiguousarray(block.rows), at, rows)
    return Block(block.ids[at], rows)
