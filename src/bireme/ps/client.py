"""A trainer's side of the exchange: push gradients to every lane, pull fresh parameters back.

A lane is reached by one of three carriers, chosen by where it is: shared memory (control frames
through a Unix socket, no payload at all), the Unix socket alone where memory cannot be shared,
and TCP between machines. Frames and bits are the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError, NetworkError
from bireme.ps import wire
from bireme.ps.frames import Flag, Head, Kind, Record, pack_records
from bireme.ps.memory import Rows, TrainerMemory
from bireme.ps.plan import Slice
from bireme.ps.segments import check_segment, close_quietly
from bireme.ps.tree import Span

Carrier = Literal["shm", "unix", "tcp"]


class Position(NamedTuple):
    """Where in the job a set of parameters stands."""

    round: int
    pass_id: int
    batch: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What every frame of a trainer carries."""

    job: int
    view: int
    incarnation: int


def connect(host: str, port: int, *, timeout_s: float, what: str) -> socket.socket:
    """Open a TCP connection, trying again while nobody listens yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic()))
        except OSError as e:
            if time.monotonic() + 0.05 >= deadline:
                raise NetworkError(
                    f"{what} at {host}:{port} does not answer: {e.strerror or e}",
                    why=f"nobody accepted a connection there for {timeout_s:g} s",
                    fix="look into its server.log; check that it runs and that the port is open between the machines",
                ) from e
            time.sleep(0.05)
        else:
            sock.settimeout(None)
            return wire.tune(sock)


def connect_near(host: str, port: int) -> socket.socket | None:
    """Open a Unix connection to a lane of this very machine and user; None where that is not so."""
    address = _own_address(host)
    for listening in (address, "0.0.0.0") if address else ():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(wire.near_name(listening, port))
            if wire.peer_user(sock) == os.geteuid():
                return wire.tune(sock)
        except OSError:
            pass  # nobody listens under that name
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

    def __init__(self, sock: socket.socket, part: Slice) -> None:
        self.sock = sock
        self.part = part
        self.unsent = b""
        """Pushes without a payload: they leave together with the pull that follows, and wake the lane once."""
        self.carrier: Carrier = "unix" if sock.family == socket.AF_UNIX else "tcp"

    def attach(self, memory: TrainerMemory, me: Identity) -> None:
        """Greet a lane on a Unix socket, offering to share memory where there is some to share."""
        fds = [memory.fd] if memory.is_shared else []
        body = msgspec.json.encode(Rows(memory.spans, 4 * memory.layout.size))
        head = Head(Kind.ATTACH, job=me.job, view=me.view, incarnation=me.incarnation, nbytes=len(body))
        wire.send_with(self.sock, fds, head, body)
        reply, given = wire.receive_with(self.sock)
        try:
            wire.raise_refusal(self.sock, reply)
            if reply.kind is not Kind.ATTACH:
                raise FrameError(f"the lane answered ATTACH with {reply.kind.name}")
            if given:
                check_segment(given[0], 2 * 4 * len(self.part))
                memory.adopt(self.part, given[0])
                self.carrier = "shm"
        finally:
            for fd in given:
                close_quietly(fd)


class Exchange:
    """Links to all dense lanes, in the order of the plan, over one trainer's memory."""

    def __init__(self, links: Sequence[Link], memory: TrainerMemory, me: Identity) -> None:
        self._links = list(links)
        self.memory = memory
        self._me = me
        try:
            for link in self._links:
                if link.sock.family == socket.AF_UNIX:
                    link.attach(memory, me)
        except BaseException:
            self.close()
            raise

    @property
    def carriers(self) -> list[Carrier]:
        """How each lane is reached."""
        return [link.carrier for link in self._links]

    def _head(self, kind: Kind, flags: Flag = Flag.NONE, **fields: int) -> Head:
        me = self._me
        return Head(kind, flags, job=me.job, view=me.view, incarnation=me.incarnation, **fields)

    def push(self, round_: int, span: Span, records: list[Record], *, is_empty: bool = False) -> None:
        """Send what the span's row holds to every lane, at the latest with the next pull; no row if `is_empty`."""
        packed = pack_records(records)
        row = self.memory.row(span)
        head = self._head(Kind.PUSH, round=round_, lo=span.lo, hi=span.hi, records=len(records))
        for link in self._links:
            nbytes = 0 if is_empty else 4 * len(link.part)
            if link.carrier == "shm":
                link.unsent += head._replace(flags=Flag.IN_PLACE, nbytes=nbytes).pack() + packed
            else:
                payload = row[link.part.begin : link.part.begin + nbytes // 4]
                wire.send(link.sock, head._replace(nbytes=nbytes), packed, payload)

    def set(self, values: NDArray[np.float32]) -> None:
        """Give every lane its first values."""
        for link in self._links:
            rows = values[link.part.begin : link.part.end]
            wire.send(link.sock, self._head(Kind.SET, nbytes=rows.nbytes), rows)

    def pull_round(self, round_: int) -> Position:
        """Wait for the parameters after this many rounds; they are then in `memory.values(round_)`."""
        return self._pull(self._head(Kind.PULL, round=round_))

    def pull_pass(self, pass_id: int) -> Position:
        """Wait for the parameters at the start of a pass, that is, until everybody has ended the one before."""
        return self._pull(self._head(Kind.PULL, Flag.AT_PASS, round=pass_id))

    def pull_now(self) -> Position:
        """Take whatever is current; lanes that are one round apart are brought to the older one."""
        at = self._pull(self._head(Kind.PULL, Flag.NOW), may_differ=True)
        return self.pull_round(at.round)

    def _pull(self, head: Head, *, may_differ: bool = False) -> Position:
        packed = head.pack()
        for link in self._links:
            wire.send_all(link.sock, [link.unsent, packed])
            link.unsent = b""
        found = {self._receive(link) for link in self._links}
        if len(found) > 1 and not may_differ:
            raise AssertionError(f"lanes answered from different rounds {sorted(found)}: this is a bug")
        return min(found)

    def _receive(self, link: Link) -> Position:
        reply = wire.expect(link.sock, Kind.SLICE)
        if reply.nbytes != 4 * len(link.part):
            raise FrameError(f"a slice of {reply.nbytes} bytes came, {4 * len(link.part)} were due")
        if not reply.flags & Flag.IN_PLACE:
            target = self.memory.values(reply.round)
            wire.receive_into(link.sock, target[link.part.begin : link.part.end])
        return Position(reply.round, reply.extra, reply.lo)

    def close(self) -> None:
        """Hang up; a thread that waits for a slice gets a NetworkError."""
        for link in self._links:
            with contextlib.suppress(OSError):  # it is down already
                link.sock.shutdown(socket.SHUT_RDWR)
            link.sock.close()
        self.memory.close()
