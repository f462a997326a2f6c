"""Frames over sockets: the only place that moves bytes.

Blocking calls, and no buffers but a small one for heads: payloads go from the array they live in to the array
they belong in (`sendmsg` and `recv_into` release the interpreter lock). A peer that stops in the
middle of a frame is given `STALL_S`, so junk or a half-open connection cannot hold a thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core import faults
from bireme.core.errors import BiremeError, FrameError, NetworkError, RefusedError, StaleError
from bireme.ps.wire.frames import HEAD_NBYTES, Head, Kind, unpack_head

STALL_S = 60.0
SILENCE_S = 15  # after so many seconds without a sign of the peer's machine a connection is given up
MAX_FDS = 4
READ_AHEAD = 4096
LARGE = 1 << 20
GULP = 1 << 20  # payloads from LARGE bytes on are received in pieces of at most GULP
Buffer = bytes | bytearray | memoryview | NDArray[Any]


class Refusal(msgspec.Struct, frozen=True):
    """The payload of a REFUSE frame."""

    reason: str
    why: str = ""
    fix: str = ""
    is_stale: bool = False


class Buffered(socket.socket):
    """A connection that reads ahead a little: heads and records of frames come out of one system call, not three.

    Every system call gives up the interpreter lock and must get it back, which costs more than the call.
    """

    # No lock: only the connection's own thread receives on it.
    _ahead: memoryview

    @classmethod
    def over(cls, sock: socket.socket) -> Buffered:
        """Take over a connection that nothing has been read from."""
        # `detach`: with two objects on one descriptor, collecting the first would close the second's connection.
        buffered = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        buffered._ahead = memoryview(b"")
        return buffered

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As the plain one does; a large target is filled past the buffer."""
        view = memoryview(buffer).cast("B")
        if not self._ahead:
            # A payload goes straight into its array: through the buffer each byte would cross memory twice.
            if len(view) >= READ_AHEAD:
                return super().recv_into(view, 0, flags)
            ahead = bytearray(READ_AHEAD)
            self._ahead = memoryview(ahead)[: super().recv_into(ahead)]
        size = min(len(view), len(self._ahead))
        view[:size] = self._ahead[:size]
        self._ahead = self._ahead[size:]
        return size

    @property
    def is_ahead(self) -> bool:
        """Whether bytes were read that no call has asked for yet."""
        return len(self._ahead) > 0


def near_name(address: str, port: int) -> str:
    """The name under which a lane that listens on this address and port is reached from its own machine.

    It is in Linux's abstract namespace: no file that could be left behind, and not visible from
    another network namespace, which is just how far memory can be shared.
    """
    return f"\0bireme-lane-{address}-{port}"


def peer_user(sock: socket.socket) -> int:
    # Recorded by the kernel when the connection was made: the peer cannot forge it.
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def send_with(sock: socket.socket, fds: list[int], head: Head, body: bytes) -> None:
    faults.at("wire.send")
    try:
        sent = socket.send_fds(sock, [head.pack()], fds)
    except OSError as e:
        raise NetworkError(f"the connection to {peer_name(sock)} broke while sending: {e.strerror or e}") from e
    # The peer takes head and descriptors in one receive, so a head that left in part cannot be completed.
    if sent != HEAD_NBYTES:
        raise NetworkError(f"the connection to {peer_name(sock)} took only {sent} bytes of a frame")
    send_all(sock, [body])


def receive_with(sock: socket.socket) -> tuple[Head, list[int]]:
    """Receive a head on a Unix socket and the descriptors beside it; the caller closes these."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, HEAD_NBYTES, MAX_FDS)
    except BlockingIOError as e:
        raise NetworkError(f"{peer_name(sock)} sent nothing for {STALL_S:.0f} s") from e
    except OSError as e:
        raise NetworkError(f"the connection to {peer_name(sock)} broke: {e.strerror or e}") from e
    if not data:
        raise NetworkError(f"{peer_name(sock)} closed the connection")
    try:
        return unpack_head(data), fds
    except FrameError:
        for fd in fds:
            os.close(fd)
        raise


def tune(sock: socket.socket) -> socket.socket:
    # The kernel's own limit on one receive: a Python timeout would cost four system calls for each.
    seconds, rest = divmod(STALL_S, 1.0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
    if sock.family == socket.AF_UNIX:
        return sock
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that loses power sends nothing, nor does a cut cable: probe after a few seconds of silence. The peer's
    # kernel answers, so a process that is merely stopped is not taken for dead.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
    return sock


def is_gone(sock: socket.socket) -> bool:
    """Whether the peer has closed; looks without taking anything from the stream."""
    if isinstance(sock, Buffered) and sock.is_ahead:
        return False
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def send(sock: socket.socket, head: Head, *parts: Buffer) -> None:
    """Send one frame; head and parts leave in one system call where the kernel takes them."""
    send_all(sock, [head.pack(), *parts])


def send_all(sock: socket.socket, parts: Sequence[Buffer]) -> None:
    """Send buffers one after the other without joining them."""
    faults.at("wire.send")
    views = [_bytes_of(p) for p in parts if len(p)]
    try:
        while views:
            # One system call for head and payload, and no joined copy. It may take only a part of them.
            sent = sock.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]
    except OSError as e:
        raise NetworkError(f"the connection to {peer_name(sock)} broke while sending: {e.strerror or e}") from e


def receive_head(sock: socket.socket) -> Head | None:
    """Wait for the next frame's head, as long as it takes; None when the peer has closed."""
    buffer = bytearray(HEAD_NBYTES)
    got = -1
    while got < 0:
        try:
            got = sock.recv_into(buffer)
        except BlockingIOError:
            continue  # between frames a peer may be silent for as long as it likes
        except OSError as e:
            raise NetworkError(f"the connection to {peer_name(sock)} broke: {e.strerror or e}") from e
    if got == 0:
        return None
    if got < HEAD_NBYTES:
        receive_into(sock, memoryview(buffer)[got:])
    return unpack_head(buffer)


def receive_into(sock: socket.socket, target: bytearray | memoryview | NDArray[Any]) -> None:
    faults.at("wire.receive")
    if not len(target):
        return
    view = _bytes_of(target)
    try:
        if len(view) >= LARGE and sock.family == socket.AF_INET:
            view = _receive_in_gulps(sock, view)
        while view:
            got = sock.recv_into(view, 0, socket.MSG_WAITALL)
            if got == 0:
                raise NetworkError(f"{peer_name(sock)} closed the connection in the middle of a frame")
            view = view[got:]
    except (BlockingIOError, TimeoutError) as e:
        raise NetworkError(f"{peer_name(sock)} stopped in the middle of a frame for {STALL_S:.0f} s") from e
    except OSError as e:
        raise NetworkError(f"the connection to {peer_name(sock)} broke: {e.strerror or e}") from e


def _receive_in_gulps(sock: socket.socket, view: memoryview) -> memoryview:
    """Fill all but the end of a large target, and return the end.

    The kernel is asked to wake us only for a good piece at a time: being woken for each packet cost a sixth of a
    round's time. What is asked for must still be to come, or the kernel would not wake us; hence the end is left.
    """
    gulp = min(len(view) // 8, GULP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, gulp)
    try:
        while len(view) > 2 * gulp:
            got = sock.recv_into(view[: len(view) - 2 * gulp], 0, socket.MSG_WAITALL)
            if got == 0:
                break  # the peer has gone; reading the end raises
            view = view[got:]
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return view


def _bytes_of(buffer: Buffer) -> memoryview:
    raw = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    return raw.cast("B")


def receive_bytes(sock: socket.socket, nbytes: int) -> bytearray:
    buffer = bytearray(nbytes)
    receive_into(sock, buffer)
    return buffer


def refuse(sock: socket.socket, error: BiremeError) -> None:
    """Send the peer a refusal with its reason; a peer that has gone already is ignored."""
    body = msgspec.json.encode(Refusal(error.what, error.why, error.fix, isinstance(error, StaleError)))
    try:
        send(sock, Head(Kind.REFUSE, nbytes=len(body)), body)
    except NetworkError:
        return


def hang_up(sock: socket.socket) -> None:
    """End a connection without taking its descriptor from the thread that reads it, which a close would not wake."""
    with contextlib.suppress(OSError):  # not connected any more
        sock.shutdown(socket.SHUT_RDWR)


def drain(sock: socket.socket, *, seconds: float, nbytes: int) -> None:
    """Read and forget what a refused peer still sends, so that it gets to reading the refusal.

    Closing with bytes unread would reset the connection and take the refusal with it.
    """
    scratch = bytearray(1 << 16)
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while nbytes > 0 and (left := deadline - time.monotonic()) > 0:
            # The peer may trickle bytes: only a deadline for the whole bounds this thread.
            sock.settimeout(left)
            got = sock.recv_into(scratch)
            if got == 0:
                return
            nbytes -= got


def raise_refusal(sock: socket.socket, head: Head) -> None:
    """Turn a received REFUSE frame into an error; other kinds pass."""
    if head.kind is Kind.REFUSE:
        try:
            refusal = msgspec.json.decode(receive_bytes(sock, head.nbytes), type=Refusal)
        except msgspec.MsgspecError as e:
            raise FrameError(f"{peer_name(sock)} refused, for a reason that cannot be read") from e
        kind = StaleError if refusal.is_stale else RefusedError
        raise kind(f"{peer_name(sock)} refused: {refusal.reason}", why=refusal.why, fix=refusal.fix)


def expect(sock: socket.socket, kind: Kind) -> Head:
    """Wait for a frame of this kind; a refusal or a closed connection becomes an error."""
    head = receive_head(sock)
    if head is None:
        raise NetworkError(f"{peer_name(sock)} closed the connection")
    raise_refusal(sock, head)
    if head.kind is not kind:
        raise FrameError(f"{peer_name(sock)} sent {head.kind.name} where {kind.name} was due")
    return head


def peer_name(sock: socket.socket) -> str:
    try:
        peer = sock.getpeername()
    except OSError:
        return "the peer"
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "the local peer"
