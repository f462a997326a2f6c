"""A pserver's sockets: one listening port per lane, one thread per connection.

Data frames go to the lane that owns the port. Control frames are handed to whoever runs this
server (`on_control`), together with the connection; the first port is where people and peers
knock. A frame that is wrong is refused with its reason, and its connection closed: what
follows it on the stream cannot be trusted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bireme.core.errors import BiremeError, FrameError, NetworkError, PortInUseError, ProcessError
from bireme.ps import wire
from bireme.ps.cutting import Cutter, PartDone
from bireme.ps.frames import Head, Kind
from bireme.ps.lane import Lane, OnPass, Store
from bireme.ps.parts import read_part
from bireme.ps.rounds import PassTotals
from bireme.ps.segments import close_quietly
from bireme.ps.setup import Setup

log = logging.getLogger(__name__)
DRAIN_S = 5.0
OnPart = Callable[[PartDone], None]
OnControl = Callable[[socket.socket, Head], None]
OnClosed = Callable[[socket.socket], None]


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes any free one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OverflowError as e:
        sock.close()
        raise NetworkError(f"port {port} does not exist: ports end at 65535") from e
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host or 'this machine'} is in use",
                why="another pserver or another program listens there",
                fix="stop it, or choose another `port` (without one, local runs take free ports)",
            ) from e
        raise NetworkError(f"cannot listen on {host or 'any address'}:{port}: {e.strerror}") from e
    return sock


class PServer:
    """Lanes of one pserver process: opened at once, given parameters when a job sets them up."""

    def __init__(
        self, sockets: Sequence[socket.socket], dense_lanes: int, on_control: OnControl, on_closed: OnClosed
    ) -> None:
        self._sockets = list(sockets)
        self._dense_lanes = dense_lanes
        self._on_control = on_control
        self._on_closed = on_closed
        self.lanes: list[Lane] = []
        self._near: list[socket.socket] = []
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    @property
    def ports(self) -> list[int]:
        """The ports that are open: dense lanes first, then sparse lanes."""
        return [sock.getsockname()[1] for sock in self._sockets]

    def start(self) -> None:
        """Accept connections on every port from now on."""
        near = [(i, sock) for i, sock in enumerate(map(_listen_near, self._sockets)) if sock is not None]
        self._near = [sock for _, sock in near]
        for index, sock in [*enumerate(self._sockets), *near]:
            name = f"accept-{index}"
            threading.Thread(target=self._accept, args=(sock, index), name=name, daemon=True).start()

    def set_up(self, setup: Setup, on_pass: OnPass, on_part: OnPart | None = None) -> None:
        """Take this part of a job's parameters; a pserver serves one job in its life.

        `on_part` is told of parts of cuts that were written; without it there are no cuts.
        """
        if self.lanes:
            raise FrameError("this pserver already serves a job", fix="start a fresh pserver for another job")
        # Here: they bring Numba, which takes half a second to import, and ports are open before that.
        from bireme.ps.dense import DenseStore
        from bireme.ps.sparse import SparseStore

        opened = (self._dense_lanes, len(self._sockets) - self._dense_lanes)
        wanted = (setup.dense_lanes, setup.sparse_lanes)
        if wanted != opened:
            raise FrameError(
                "the job wants {} dense and {} sparse lanes, this pserver opened {} and {}".format(*wanted, *opened),
                fix="give the same --ports_num and --ports_num_for_sparse to pservers and trainers",
            )

        def ignore(totals: PassTotals) -> None:
            """Totals are the same on every lane: the first one tells."""

        stores: list[Store] = [DenseStore(setup, i) for i in range(setup.dense_lanes)]
        stores += [SparseStore(setup, i) for i in range(setup.sparse_lanes)]
        # Sparse lanes of a job without sparse parameters see no round.
        active = len(stores) if setup.tables else setup.dense_lanes
        cutter = Cutter(setup, active, on_part) if setup.snapshots and on_part else None
        is_first = setup.pserver == 0
        lanes = [
            Lane(setup, store, on_pass if i == 0 and is_first else ignore, cutter if i < active else None)
            for i, store in enumerate(stores)
        ]
        if setup.base:
            chain = [[read_part(Path(file), sha256=None) for file in files] for files in setup.base]
            for lane in lanes:
                lane.restore(chain)
        if cutter is not None and is_first and setup.cut_every_s and not setup.cuts_only_at_passes:
            lanes[0].cut_every(setup.cut_every_s)
        self.lanes = lanes

    @property
    def _largest_payload(self) -> int:
        return max((lane.largest_payload for lane in self.lanes), default=0) + (1 << 20)

    def stop(self, failure: BiremeError | None = None) -> None:
        """Close everything; threads that wait on a lane are woken and leave."""
        with self._lock:
            self._is_stopping = True
            connections = list(self._connections)
        for lane in self.lanes:
            lane.stop(failure)
        for sock in [*self._sockets, *self._near, *connections]:
            _shut(sock)

    def _accept(self, listening: socket.socket, index: int) -> None:
        while True:
            try:
                sock, peer = listening.accept()
            except OSError as e:
                if self._is_stopping or listening.fileno() < 0:
                    return
                log.warning("cannot accept a connection right now: %s", e.strerror)
                time.sleep(0.1)
                continue
            log.debug("worker started, peer = %s", peer[0] if peer else "on this machine")
            sock = wire.Buffered.over(wire.tune(sock))
            with self._lock:
                if self._is_stopping:
                    sock.close()
                    return
                self._connections.add(sock)
            threading.Thread(target=self._serve, args=(sock, index), name=f"lane-{index}", daemon=True).start()

    def _serve(self, sock: socket.socket, index: int) -> None:
        try:
            if sock.family == socket.AF_UNIX:
                self._attach(sock, index)
            while (head := wire.receive_head(sock)) is not None:
                self._dispatch(sock, head, index)
        except NetworkError as e:
            log.debug("connection ended: %s", e.what)
        except BiremeError as e:
            log.warning("refused a frame from %s: %s", wire.peer_name(sock), e.what)
            wire.refuse(sock, e.what, why=e.why, fix=e.fix)
            wire.drain(sock, seconds=DRAIN_S, nbytes=self._largest_payload)
        except Exception as e:
            log.exception("a bug in the lane: the job cannot go on")
            wire.refuse(sock, f"{type(e).__name__} in the pserver: {e}", why="this is a bug", fix="see its server.log")
            self.stop(ProcessError(f"{type(e).__name__} in the pserver: {e}"))
        finally:
            with self._lock:
                self._connections.discard(sock)
            self._on_closed(sock)
            if index < len(self.lanes):
                self.lanes[index].detach(sock)
            _shut(sock)

    def _attach(self, sock: socket.socket, index: int) -> None:
        """A connection from this machine begins with an ATTACH, whether or not memory is shared."""
        if wire.peer_user(sock) not in (os.geteuid(), 0):
            raise FrameError("another user's process")
        head, fds = wire.receive_with(sock)
        try:
            if head.kind is not Kind.ATTACH or index >= len(self.lanes):
                raise FrameError("a connection to a lane of this machine begins with ATTACH, once the lane has a job")
            self.lanes[index].attach(sock, head, fds)
        finally:
            for fd in fds:
                close_quietly(fd)

    def _dispatch(self, sock: socket.socket, head: Head, index: int) -> None:
        if head.kind is Kind.CONTROL:
            self._on_control(sock, head)
            return
        if not self.lanes:
            raise FrameError("this pserver has no job yet")
        lane = self.lanes[index]
        if head.kind is Kind.PUSH:
            lane.push(sock, head)
        elif head.kind is Kind.PULL:
            lane.pull(sock, head)
        elif head.kind is Kind.SET:
            lane.set(sock, head)
        else:
            raise FrameError(f"a lane takes PUSH, PULL and SET, not {head.kind.name}")


def _listen_near(tcp: socket.socket) -> socket.socket | None:
    """Listen for this machine's own processes beside a TCP port; None where the name is taken."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(wire.near_name(*tcp.getsockname()))
        sock.listen(128)
    except OSError as e:
        log.warning("no Unix socket beside the port, so all goes by TCP: %s", e.strerror)
        sock.close()
        return None
    return sock


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
