"""How the frames of a lane travel, one class for each way: shared memory, a Unix socket, TCP with or without TLS.

Frames and bits are the same. `connect` and `connect_near` open connections, `open_carrier` chooses the class for one: a
new way over such a connection is one more class with the members of `Carrier`, and its case there. One that needs
another kind of connection also has an end in lanes/server.py, where pservers listen.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
from numpy.typing import NDArray

from bireme.core.errors import FrameError, NetworkError
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.slow_pservers import SlowPservers
from bireme.ps.plan import Slice
from bireme.ps.wire import frame_io, security
from bireme.ps.wire.frame_io import Buffer
from bireme.ps.wire.frames import Flag, Head, Kind
from bireme.ps.wire.row_frames import Floats
from bireme.ps.wire.shared_memory import Offer, check_segment, close_quietly

CarrierName = Literal["shm", "unix", "tcp"]


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
            # A name in the abstract namespace has no permissions: any local user can listen under it.
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


def is_near(sock: socket.socket) -> bool:
    return sock.family == socket.AF_UNIX


class Carrier(Protocol):
    """Moves the frames of one lane."""

    name: CarrierName
    is_in_place: bool  # whether payloads stay where they are

    def push(self, head: Head, records: bytes, parts: Sequence[NDArray[Any]] | None) -> None:
        """Send a gradient, at the latest with the next `send`; None where the shards have no sample."""

    def send(self, *parts: Buffer) -> None:
        """Send these bytes, and before them what pushes held back."""

    def expect(self) -> Head:
        """Wait for the head of an answer."""

    def take(self, target: bytearray | Floats) -> None:
        """Bring an answer's payload, or the next part of it, to where it belongs."""


class Tcp:
    """A stream of frames, encrypted between machines where the job has certificates; also through a Unix socket."""

    is_in_place = False

    def __init__(self, sock: socket.socket, name: CarrierName = "tcp") -> None:
        self.name = name
        self._sock = sock
        self._held = b""
        """Pushes without a payload leave together with the pull that follows, and wake the lane once."""

    def push(self, head: Head, records: bytes, parts: Sequence[NDArray[Any]] | None) -> None:
        """Send the payload at once: the lane adds while the other lanes are sent theirs."""
        if parts is None:
            self._held += head.pack() + records
        else:
            self.send(head._replace(nbytes=_nbytes(parts)).pack(), records, *parts)

    def send(self, *parts: Buffer) -> None:
        if self._held or parts:
            frame_io.send_all(self._sock, [self._held, *parts])
            self._held = b""

    def expect(self) -> Head:
        head = frame_io.expect(self._sock, Kind.SLICE)
        if bool(head.flags & Flag.IN_PLACE) != self.is_in_place:
            raise FrameError(f"a lane that is reached by {self.name} answered for another carrier")
        return head

    def take(self, target: bytearray | Floats) -> None:
        frame_io.receive_into(self._sock, target)


class SharedMemory(Tcp):
    """The lane reads the trainer's gradient and writes its parameters in place: heads and records alone are sent."""

    is_in_place = True

    def push(self, head: Head, records: bytes, parts: Sequence[NDArray[Any]] | None) -> None:
        self._held += head._replace(flags=Flag.IN_PLACE, nbytes=_nbytes(parts or ())).pack() + records

    def take(self, target: bytearray | Floats) -> None:
        """The lane has written to the target."""


def _nbytes(parts: Sequence[NDArray[Any]]) -> int:
    return sum([part.nbytes for part in parts])


def open_carrier(
    sock: socket.socket, greeting: Head, memory: TrainerMemory | None = None, part: Slice | None = None
) -> Carrier:
    """Choose the carrier for a connection; on this machine greet the lane and offer to share memory."""
    if not is_near(sock):
        return Tcp(sock)
    fds = [memory.fd] if memory is not None and memory.is_shared else []
    body = b"" if memory is None else msgspec.json.encode(Offer(memory.spans, 4 * memory.layout.size))
    frame_io.send_with(sock, fds, greeting._replace(nbytes=len(body)), body)
    reply, shared = frame_io.receive_with(sock)
    try:
        frame_io.raise_refusal(sock, reply)
        if reply.kind is not Kind.ATTACH:
            raise FrameError(f"the lane answered ATTACH with {reply.kind.name}")
        if not shared or memory is None or part is None:
            return Tcp(sock, "unix")
        check_segment(shared[0], 2 * 4 * len(part))
        memory.adopt(part, shared[0])
        return SharedMemory(sock, "shm")
    finally:
        close_quietly(*shared)


class Watched:
    """A carrier whose times are counted for its pserver."""

    def __init__(self, carrier: Carrier, pserver: int, seen: SlowPservers) -> None:
        self.name, self.is_in_place = carrier.name, carrier.is_in_place
        self.carrier = carrier
        self._pserver = pserver
        self._seen = seen
        self.send = carrier.send  # not timed, and bound once: called for every lane and round

    def push(self, head: Head, records: bytes, parts: Sequence[NDArray[Any]] | None) -> None:
        if parts is None or self.is_in_place:
            self.carrier.push(head, records, parts)
        else:
            began_s = time.monotonic()
            self.carrier.push(head, records, parts)
            self._seen.moved(self._pserver, time.monotonic() - began_s)

    def expect(self) -> Head:
        began_s = time.monotonic()
        head = self.carrier.expect()
        self._seen.begun(self._pserver, time.monotonic() - began_s)
        return head

    def take(self, target: bytearray | Floats) -> None:
        if self.is_in_place:
            return
        began_s = time.monotonic()
        self.carrier.take(target)
        self._seen.moved(self._pserver, time.monotonic() - began_s)
