"""A trainer's side of the exchange: push gradients to every lane, pull fresh parameters back.

Frames are made here; how they travel is the lane's carrier's business (carriers.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bireme.core import faults
from bireme.core.errors import FrameError
from bireme.ps.client.carriers import Carrier, CarrierName, Tcp, Watched, open_carrier
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.slow_pservers import SlowPservers
from bireme.ps.plan import Slice
from bireme.ps.tree import Span
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head, Kind, Record, pack_records
from bireme.ps.wire.row_frames import Block, Floats, Ids

if TYPE_CHECKING:
    from bireme.ps.client.coder import Coder
    from bireme.ps.client.push_pull_rows import RowLinks
    from bireme.ps.lanes.slow_trainers import Slowest


class Position(NamedTuple):
    """Where in the job a set of parameters is."""

    round: int
    pass_id: int
    batch: int


def oldest(positions: Iterable[Position]) -> Position:
    """Where to continue when lanes are not all at the same place: where the last one of them is."""
    return min(positions, key=lambda at: (at.pass_id, at.batch, at.round))


def _always(at: Position) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """What every frame of a trainer carries."""

    job: int
    view: int
    incarnation: int


class Link:
    """One lane: its connection, its pserver, and the slice of the parameters that it keeps."""

    def __init__(self, sock: socket.socket, part: Slice, pserver: int = 0) -> None:
        self.sock = sock
        self.part = part
        self.pserver = pserver
        self.carrier: Carrier = Tcp(sock)  # `Exchange` puts another in its place


class Exchange:
    """Links to all dense and sparse lanes, in the order of the plan, over one trainer's memory."""

    def __init__(
        self,
        links: Sequence[Link],
        memory: TrainerMemory,
        me: Identity,
        rows: RowLinks | None = None,
        coder: Coder | None = None,
        is_streamed: bool = False,
        slow_pservers: SlowPservers | None = None,
    ) -> None:
        """Take the sparse lanes and the wire's coding where there are any; `is_streamed`: lanes share no rounds.

        `rows` must share `slow_pservers`.
        """
        # Where shards go apart, an answer is about one of them: it must be one of ours.
        self._own_shard = memory.spans[0].lo if memory.spans else 0
        # Trainers begin with different lanes, so that all lanes have something to do at once.
        first = self._own_shard % max(len(links), 1)
        links = [*links[first:], *links[:first]]
        self._slow_pservers = SlowPservers(1) if slow_pservers is None else slow_pservers
        self._orders = [
            [links[i] for i in order] for order in self._slow_pservers.orders([link.pserver for link in links])
        ]
        # In the order of this round: another pserver is last each time.
        self._links = self._orders[self._slow_pservers.last]
        self._rows = rows
        self._coder = coder
        self._is_streamed = is_streamed
        self._cut_at = 0  # the round of the next cut, from lane 0's answers; our pushes carry it to every lane
        self._reached = 0  # the round of the last answer, which counts updates where shards go apart
        self.memory = memory
        self._me = me
        # No lock: the trainer's main thread alone asks, pushes and receives. Its control thread calls only `close`.
        try:
            for link in self._links:
                carrier = open_carrier(link.sock, self._head(Kind.ATTACH), memory, link.part)
                link.carrier = Watched(carrier, link.pserver, self._slow_pservers)
            if rows is not None:
                rows.greet(self._head(Kind.ATTACH))
        except BaseException:
            self.close()
            raise

    @property
    def carriers(self) -> list[CarrierName]:
        return [link.carrier.name for link in sorted(self._links, key=lambda link: link.part.begin)]

    @property
    def slowest_pserver(self) -> Slowest | None:
        """The pserver whose answers come latest in this view, and by how much; None if not known yet."""
        return self._slow_pservers.slowest

    @property
    def wire_error(self) -> float:
        """What the wire's coding has cost at most, as a share of a gradient's norm."""
        return self._coder.error if self._coder else 0.0

    def _head(self, kind: Kind, flags: int = Flag.NONE, **fields: int) -> Head:
        me = self._me
        return Head(kind, flags, job=me.job, view=me.view, incarnation=me.incarnation, **fields)

    def push(
        self, round_: int, span: Span, records: list[Record], blocks: Sequence[Block] | None = (), *, pass_id: int = 0
    ) -> None:
        """Send what the span's row holds to every lane, at the latest with the next pull; no row if `blocks` is None.

        `blocks` are the gradient rows of sparse parameters. Where shards go apart, `round_` is the batch of the pass.
        """
        moment = self._reached if self._is_streamed else round_
        faults.at("push.before", moment)
        packed = pack_records(records)
        # Not copied: a lane of this machine reads the row in place, so it may not change before the round is answered.
        row = self.memory.row(span)
        extra = pass_id if self._is_streamed else self._cut_at
        head = self._head(Kind.PUSH, round=round_, lo=span.lo, hi=span.hi, records=len(records), extra=extra)
        if self._coder and blocks is not None:
            self._coder.take(span, row, is_last=all(record.is_last for record in records))
        for link in self._links:
            if blocks is None:
                link.carrier.push(head, packed, None)
            else:
                coded = self._coder.part(link.part) if self._coder else row[link.part.begin : link.part.end]
                link.carrier.push(head, packed, [coded])
        if self._rows is not None:
            self._rows.push(head, packed, blocks)
        faults.at("push.after", moment)

    def flush(self) -> None:
        """Send now what would leave with the next pull: there is something else to do before that."""
        for link in self._links:
            link.carrier.send()

    def set(self, values: NDArray[np.float32], blocks: Sequence[Block] = ()) -> None:
        for link in self._links:
            part = values[link.part.begin : link.part.end]
            link.carrier.send(self._head(Kind.SET, nbytes=part.nbytes).pack(), part)
        if self._rows is not None:
            self._rows.set(self._head(Kind.SET), blocks)

    def ask_round(self, round_: int, wanted: Sequence[Ids] = ()) -> None:
        self._ask(self._head(Kind.PULL, round=round_), wanted)

    def ask_batch(self, shard: int, pass_id: int, batch: int, wanted: Sequence[Ids] = ()) -> None:
        """Where shards go apart: ask for parameters to compute this batch of a shard with."""
        self._ask(self._head(Kind.PULL, round=batch, lo=shard, hi=shard + 1, extra=pass_id), wanted)

    def ask_pass(self, pass_id: int, *, shard: int = 0) -> None:
        """Ask for the parameters at the start of a pass: they come when all shards have ended the one before."""
        self._ask(self._head(Kind.PULL, Flag.AT_PASS, round=pass_id, lo=shard), ())

    def ask_now(self, *, shard: int = 0) -> None:
        self._ask(self._head(Kind.PULL, Flag.NOW, lo=shard), ())

    def _ask(self, head: Head, wanted: Sequence[Ids]) -> None:
        packed = head.pack()
        for link in self._links:
            link.carrier.send(packed)
        if self._rows is not None:
            self._rows.ask(head, wanted)

    def receive(self, targets: Sequence[Floats] = (), *, may_differ: bool = False) -> Position:
        """Wait for what was asked; it is then in `memory.values(round)`, and rows in the targets."""
        positions = {self._receive(link) for link in self._links}
        if self._rows is not None:
            positions |= {Position(head.round, head.extra, head.lo) for head in self._rows.receive(targets)}
        if len(positions) > 1 and not may_differ and not self._is_streamed:
            raise AssertionError(f"lanes answered from different rounds {sorted(positions)}: this is a bug")
        self._slow_pservers.answered(time.monotonic())
        self._links = self._orders[self._slow_pservers.last]
        at = oldest(positions)
        self._reached = at.round
        return at

    def _receive_apart(self, *, may_differ: bool = False) -> Position:
        """Wait for what was asked beside the rounds; no pserver counts as slow by it."""
        self._slow_pservers.rest()
        at = self.receive(may_differ=may_differ)
        self._slow_pservers.rest()
        return at

    def pull_round(self, round_: int, wanted: Sequence[Ids] = (), targets: Sequence[Floats] = ()) -> Position:
        self.ask_round(round_, wanted)
        return self.receive(targets)

    def pull_pass(self, pass_id: int) -> Position:
        """Wait for the parameters at the start of a pass, that is, until all shards have ended the one before."""
        self.ask_pass(pass_id, shard=self._own_shard)
        return self._receive_apart()

    def pull_now(self, shard: int | None = None, *, is_needed: Callable[[Position], bool] = _always) -> Position:
        """Take whatever is current; lanes that are one round apart are brought to the older one.

        Where shards go apart, the answer says from which batch on some lane lacks this shard's pushes. Lanes do not
        wait for a trainer that is not needed in their round: it gets their positions, but no parameters of one round.
        """
        self.ask_now(shard=self._own_shard if shard is None else shard)
        at = self._receive_apart(may_differ=True)
        return at if self._is_streamed or not is_needed(at) else self.pull_round(at.round)

    def pull_rows(self, pass_id: int, wanted: Sequence[Ids], targets: Sequence[Floats]) -> None:
        """Take these rows of sparse parameters as they were at the start of a pass, and nothing else."""
        if self._rows is not None:
            self._rows.ask(self._head(Kind.PULL, Flag.AT_PASS, round=pass_id), wanted)
            self._rows.receive(targets)

    def pull_tables(self, pass_id: int) -> list[Block]:
        """Every row of every sparse parameter as it was at the start of a pass."""
        return self._rows.pull_all(self._head(Kind.PULL, Flag.AT_PASS, round=pass_id)) if self._rows is not None else []

    def _receive(self, link: Link) -> Position:
        reply = link.carrier.expect()
        if reply.nbytes != 4 * len(link.part):
            raise FrameError(f"a slice of {reply.nbytes} bytes came, {4 * len(link.part)} were due")
        link.carrier.take(self.memory.values(reply.round)[link.part.begin : link.part.end])
        self._cut_at = max(self._cut_at, reply.hi)
        return Position(reply.round, reply.extra, reply.lo)

    def close(self) -> None:
        """Hang up; a thread that waits for a slice gets a NetworkError."""
        for sock in [*(link.sock for link in self._links), *(self._rows.sockets if self._rows is not None else ())]:
            # First: a close alone would not wake a main thread that waits in a receive.
            frame_io.hang_up(sock)
            sock.close()
        self.memory.close()
