"""A trainer's side of the exchange: push gradients to every lane, pull fresh parameters back.

A lane is reached by one of three carriers, chosen by where it is: shared memory (control frames
through a Unix socket, no payload at all), the Unix socket alone where memory cannot be shared,
and TCP between machines. Frames and bits are the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core import faults
from bireme.core.errors import FrameError, NetworkError
from bireme.ps.client.memory import Rows, TrainerMemory
from bireme.ps.client.slow_pservers import SlowPservers
from bireme.ps.plan import Slice
from bireme.ps.tree import Span
from bireme.ps.wire import frame_io, security
from bireme.ps.wire.frames import Flag, Head, Kind, Record, pack_records
from bireme.ps.wire.row_frames import Block, Floats, Ids
from bireme.ps.wire.shared_memory import check_segment, close_quietly

if TYPE_CHECKING:
    from bireme.ps.client.coder import Coder
    from bireme.ps.client.push_pull_rows import RowLinks
    from bireme.ps.lanes.slow_trainers import Slowest

Carrier = Literal["shm", "unix", "tcp"]


class Position(NamedTuple):
    """Where in the job a set of parameters stands."""

    round: int
    pass_id: int
    batch: int


def oldest(positions: Iterable[Position]) -> Position:
    """Where to go on when lanes are not all at the same place: where the last one of them is."""
    return min(positions, key=lambda at: (at.pass_id, at.batch, at.round))


def _always(at: Position) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """What every frame of a trainer carries."""

    job: int
    view: int
    incarnation: int


def connect(host: str, port: int, *, timeout_s: float, what: str) -> socket.socket:
    """Open a TCP connection, retrying while no process listens yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic()))
            sock.settimeout(None)
            return security.secure(frame_io.tune(sock))
        except OSError as e:
            if time.monotonic() + 0.05 >= deadline:
                raise _out_of_reach(f"{what} at {host}:{port}", timeout_s, e) from e
            time.sleep(0.05)


def _out_of_reach(what: str, timeout_s: float, cause: OSError) -> NetworkError:
    if cause.errno == errno.EPROTO:
        return NetworkError(
            f"{what} and this process do not trust each other: {cause.strerror}",
            why="connections of this job are secured: both ends must show a certificate of the same job",
            fix="look into its server.log for what it refused; submitting the job again renews certificates",
        )
    return NetworkError(
        f"{what} does not answer: {cause.strerror or cause}",
        why=f"no process accepted a connection there for {timeout_s:g} s",
        fix="look into its server.log; check that it runs and that the port is open between the machines",
    )


def connect_near(host: str, port: int) -> socket.socket | None:
    """Open a Unix connection to a lane of this very machine and user; None where that is not so."""
    address = _own_address(host)
    for listening in (address, "0.0.0.0") if address else ():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(frame_io.near_name(listening, port))
            if frame_io.peer_user(sock) == os.geteuid():
                return frame_io.tune(sock)
        except OSError:
            pass  # no lane listens under that name
        sock.close()
    return None


def _own_address(host: str) -> str:
    """A host's address if it is this machine's (or container's): only then can we bind it; '' otherwise."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, socket.AF_INET, socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return ""
    return str(address[0])


class Link:
    """One lane: its connection, its slice, and how payloads get there."""

    def __init__(self, sock: socket.socket, part: Slice, pserver: int = 0) -> None:
        self.sock = sock
        self.part = part
        self.pserver = pserver
        self.unsent = b""
        """Pushes without a payload: they leave together with the pull that follows, and wake the lane once."""
        self.carrier: Carrier = "unix" if sock.family == socket.AF_UNIX else "tcp"

    def hold(self, head: Head, records: bytes) -> None:
        """Keep a frame without a payload until there is something to send."""
        self.unsent += head.pack() + records

    def send(self, head: Head, *parts: frame_io.Buffer) -> None:
        """Send a frame after what was held back."""
        self.send_packed(head.pack(), *parts)

    def send_packed(self, *parts: frame_io.Buffer) -> None:
        """Send what was held back, and these bytes."""
        frame_io.send_all(self.sock, [self.unsent, *parts])
        self.unsent = b""

    def attach(self, memory: TrainerMemory, me: Identity) -> None:
        """Greet a lane on a Unix socket, offering to share memory where there is some to share."""
        fds = [memory.fd] if memory.is_shared else []
        body = msgspec.json.encode(Rows(memory.spans, 4 * memory.layout.size))
        head = Head(Kind.ATTACH, job=me.job, view=me.view, incarnation=me.incarnation, nbytes=len(body))
        frame_io.send_with(self.sock, fds, head, body)
        reply, shared = frame_io.receive_with(self.sock)
        try:
            frame_io.raise_refusal(self.sock, reply)
            if reply.kind is not Kind.ATTACH:
                raise FrameError(f"the lane answered ATTACH with {reply.kind.name}")
            if shared:
                check_segment(shared[0], 2 * 4 * len(self.part))
                memory.adopt(self.part, shared[0])
                self.carrier = "shm"
        finally:
            for fd in shared:
                close_quietly(fd)


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
        lagging: SlowPservers | None = None,
    ) -> None:
        """Take the sparse lanes and the wire's coding where there are any; `is_streamed`: lanes share no rounds.

        `rows` must share `lagging`.
        """
        # Trainers begin with different lanes, so that all lanes have something to do at once.
        self._own_shard = memory.spans[0].lo if memory.spans else 0
        """Where shards go apart, an answer says how far one of them is: it must be one of ours."""
        first = self._own_shard % max(len(links), 1)
        links = [*links[first:], *links[:first]]
        self._lagging = SlowPservers(1) if lagging is None else lagging
        self._orders = [[links[i] for i in order] for order in self._lagging.orders([link.pserver for link in links])]
        self._links = self._orders[self._lagging.last]
        """As they are to be used in this round, with another pserver last each time."""
        self._rows = rows
        self._coder = coder
        self._is_streamed = is_streamed
        self._cut_at = 0
        """The round of the next cut, from lane 0's answers; our pushes carry it to every lane."""
        self._reached = 0
        """The round of the last answer: where shards go apart, how many updates were made by then."""
        self.memory = memory
        self._me = me
        try:
            for link in self._links:
                if link.sock.family == socket.AF_UNIX:
                    link.attach(memory, me)
            if rows is not None:
                rows.greet(self._head(Kind.ATTACH))
        except BaseException:
            self.close()
            raise

    @property
    def carriers(self) -> list[Carrier]:
        """How each dense lane is reached."""
        return [link.carrier for link in sorted(self._links, key=lambda link: link.part.begin)]

    @property
    def slowest_pserver(self) -> Slowest | None:
        """The pserver whose answers come latest in this view, and by how much; None if not known yet."""
        return self._lagging.slowest

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
        row = self.memory.row(span)
        extra = pass_id if self._is_streamed else self._cut_at
        head = self._head(Kind.PUSH, round=round_, lo=span.lo, hi=span.hi, records=len(records), extra=extra)
        if self._coder and blocks is not None:
            self._coder.take(span, row, is_last=all(record.is_last for record in records))
        for link in self._links:
            if link.carrier == "shm":
                nbytes = 0 if blocks is None else 4 * len(link.part)
                link.hold(head._replace(flags=Flag.IN_PLACE, nbytes=nbytes), packed)
            elif blocks is None:
                link.hold(head, packed)
            else:
                coded = self._coder.part(link.part) if self._coder else row[link.part.begin : link.part.end]
                began_s = time.monotonic()
                link.send(head._replace(nbytes=coded.nbytes), packed, coded)
                self._lagging.moved(link.pserver, time.monotonic() - began_s)
        if self._rows is not None:
            self._rows.push(head, packed, blocks)
        faults.at("push.after", moment)

    def flush(self) -> None:
        """Send now what would leave with the next pull: there is something else to do before that."""
        for link in self._links:
            if link.unsent:
                link.send_packed()

    def set(self, values: NDArray[np.float32], blocks: Sequence[Block] = ()) -> None:
        """Give every lane its first values."""
        for link in self._links:
            part = values[link.part.begin : link.part.end]
            link.send(self._head(Kind.SET, nbytes=part.nbytes), part)
        if self._rows is not None:
            self._rows.set(self._head(Kind.SET), blocks)

    def ask_round(self, round_: int, wanted: Sequence[Ids] = ()) -> None:
        """Ask for the parameters after this many rounds, and for these rows of each sparse parameter."""
        self._ask(self._head(Kind.PULL, round=round_), wanted)

    def ask_batch(self, shard: int, pass_id: int, batch: int, wanted: Sequence[Ids] = ()) -> None:
        """Where shards go apart: ask for parameters to compute this batch of a shard with."""
        self._ask(self._head(Kind.PULL, round=batch, lo=shard, hi=shard + 1, extra=pass_id), wanted)

    def ask_pass(self, pass_id: int, wanted: Sequence[Ids] = (), *, shard: int = 0) -> None:
        """Ask for the parameters at the start of a pass: they come when all shards have ended the one before."""
        self._ask(self._head(Kind.PULL, Flag.AT_PASS, round=pass_id, lo=shard), wanted)

    def ask_now(self, wanted: Sequence[Ids] = (), *, shard: int = 0) -> None:
        """Ask for whatever is current."""
        self._ask(self._head(Kind.PULL, Flag.NOW, lo=shard), wanted)

    def _ask(self, head: Head, wanted: Sequence[Ids]) -> None:
        packed = head.pack()
        for link in self._links:
            link.send_packed(packed)
        if self._rows is not None:
            self._rows.ask(head, wanted)

    def receive(self, targets: Sequence[Floats] = (), *, may_differ: bool = False) -> Position:
        """Wait for what was asked; it is then in `memory.values(round)`, and rows in the targets."""
        positions = {self._receive(link) for link in self._links}
        if self._rows is not None:
            positions |= {Position(head.round, head.extra, head.lo) for head in self._rows.receive(targets)}
        if len(positions) > 1 and not may_differ and not self._is_streamed:
            raise AssertionError(f"lanes answered from different rounds {sorted(positions)}: this is a bug")
        self._lagging.answered(time.monotonic())
        self._links = self._orders[self._lagging.last]
        at = oldest(positions)
        self._reached = at.round
        return at

    def _receive_apart(self, *, may_differ: bool = False) -> Position:
        """Wait for what was asked beside the rounds; no pserver counts as slow by it."""
        self._lagging.rest()
        at = self.receive(may_differ=may_differ)
        self._lagging.rest()
        return at

    def pull_round(self, round_: int, wanted: Sequence[Ids] = (), targets: Sequence[Floats] = ()) -> Position:
        """Wait for the parameters after this many rounds."""
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
        began_s = time.monotonic()
        reply = frame_io.expect(link.sock, Kind.SLICE)
        there_s = time.monotonic()
        self._lagging.begun(link.pserver, there_s - began_s)
        if reply.nbytes != 4 * len(link.part):
            raise FrameError(f"a slice of {reply.nbytes} bytes came, {4 * len(link.part)} were due")
        if not reply.flags & Flag.IN_PLACE:
            target = self.memory.values(reply.round)
            frame_io.receive_into(link.sock, target[link.part.begin : link.part.end])
            self._lagging.moved(link.pserver, time.monotonic() - there_s)
        self._cut_at = max(self._cut_at, reply.hi)
        return Position(reply.round, reply.extra, reply.lo)

    def close(self) -> None:
        """Hang up; a thread that waits for a slice gets a NetworkError."""
        for sock in [*(link.sock for link in self._links), *(self._rows.sockets if self._rows is not None else ())]:
            with contextlib.suppress(OSError):  # it is down already; a close alone would not wake that thread
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.memory.close()
