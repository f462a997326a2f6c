"""A pserver's sockets: one listening port per lane, one thread per connection.

Data frames go to the lane that owns the port. Control frames go to the callback `on_control`,
together with the connection; peers and the command line connect to the first port. A frame that is
wrong is refused with its reason, and its connection closed: what follows it on the stream cannot be
trusted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bireme.core import faults
from bireme.core.errors import BiremeError, FrameError, NetworkError, PortInUseError, ProcessError, StaleError
from bireme.ps.lanes.authority import Authority
from bireme.ps.lanes.lane import Lane, OnPass, Store
from bireme.ps.setup import Setup
from bireme.ps.snapshot.snapshot_files import read_part
from bireme.ps.snapshot.writer import FileWritten, SnapshotWriter
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind
from bireme.ps.wire.gate import ConnectionGate
from bireme.ps.wire.shared_memory import close_quietly

log = logging.getLogger(__name__)
DRAIN_S = 5.0
OnPart = Callable[[FileWritten], None]
OnControl = Callable[[socket.socket, Head], None]
OnClosed = Callable[[socket.socket], None]


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes any free one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A restarted pserver gets its port back while connections of the one before are still in TIME_WAIT.
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
        self,
        sockets: Sequence[socket.socket],
        dense_lanes: int,
        on_control: OnControl,
        on_closed: OnClosed,
        authority: Authority | None = None,
    ) -> None:
        self._sockets = list(sockets)
        self._dense_lanes = dense_lanes
        self._on_control = on_control
        self._on_closed = on_closed
        self.lanes: list[Lane] = []
        self.authority = authority or Authority()
        self._writer: SnapshotWriter | None = None
        self._names_cuts: Lane | None = None
        self._data: dict[socket.socket, int] = {}
        """Connections that gradients and parameters go through, and to which lane."""
        self._is_changing = False
        self._near: list[socket.socket] = []
        # Every accepted connection, also in a handshake or for control: `stop` wakes their threads.
        self._connections: set[socket.socket] = set()
        # Guards `_data`, `_connections`, `_is_changing` and `_is_stopping`. A lane's own lock is never
        # taken while this one is held, so the two cannot deadlock.
        self._lock = threading.Lock()
        self._gate = ConnectionGate()
        self._is_stopping = False
        self.failure: BiremeError | None = None  # a bug in a lane, after which nothing here can be trusted

    @property
    def ports(self) -> list[int]:
        """The ports that are open: dense lanes first, then sparse lanes."""
        return [sock.getsockname()[1] for sock in self._sockets]

    def start(self) -> None:
        near = [(i, sock) for i, sock in enumerate(map(_listen_near, self._sockets)) if sock is not None]
        self._near = [sock for _, sock in near]
        for index, sock in [*enumerate(self._sockets), *near]:
            name = f"accept-{index}"
            # Daemons: accept() returns only when its socket is shut, and a process that exits by an error shuts none.
            threading.Thread(target=self._accept, args=(sock, index), name=name, daemon=True).start()

    def set_up(self, setup: Setup, on_pass: OnPass, on_part: OnPart | None = None) -> None:
        """Take this part of a job's parameters, in place of what was kept in an earlier view.

        `on_part` gets each part of a cut that was written; without it there are no cuts.
        """
        self.authority.check_set_up(setup.job, setup.view)
        opened = (self._dense_lanes, len(self._sockets) - self._dense_lanes)
        wanted = (setup.facts.ports_num, setup.facts.ports_num_for_sparse)
        if wanted != opened:
            raise FrameError(
                "the job wants {} dense and {} sparse lanes, this pserver opened {} and {}".format(*wanted, *opened),
                fix="give the same --ports_num and --ports_num_for_sparse to pservers and trainers",
            )
        with self._changing(setup.view):
            self._drop_lanes()
            faults.at("view.set-up")
            self._make_lanes(setup, on_pass, on_part)

    def enter(self, view: int, history: int) -> None:
        """Continue in a later view of the history that is kept here; its trainers connect anew."""
        self.authority.check_enter(view, history)
        with self._changing(view):
            faults.at("view.enter")
            for lane in self.lanes:
                lane.enter(view)

    def committed(self, history: int, round_: int, chain: int) -> None:
        if self._writer is not None and history == self.authority.history:
            self._writer.committed(round_, chain)

    def cut_soon(self) -> None:
        """Request a snapshot at the next round boundary."""
        writer, lane = self._writer, self._names_cuts  # each read once: a new view may take them away meanwhile
        if writer is not None:
            writer.hurry()
        if lane is not None:
            lane.cut_soon()

    @contextlib.contextmanager
    def _changing(self, view: int) -> Iterator[None]:
        """Between two views refuse data frames, and close the connections of the view before."""
        # One step under the lock, so that `_lane_for` cannot add a connection of the old view after the dict is taken.
        with self._lock:
            self._is_changing = True
            data, self._data = self._data, {}
        # Hang up first: a thread inside a receive holds its row until the connection ends; `lane.enter` waits for it.
        for sock, index in data.items():
            frame_io.hang_up(sock)
            self.lanes[index].detach(sock)
        try:
            yield
            self.authority.view = view
        finally:
            with self._lock:
                self._is_changing = False

    def _drop_lanes(self) -> None:
        """Drop the lanes of before, first of all: there may not be memory for both."""
        if self._writer is not None:
            self._writer.stop()
        for lane in self.lanes:
            lane.stop()
        # History 0 until set-up has succeeded: after a failed one `enter` must not keep half-made lanes.
        self.lanes, self._writer, self._names_cuts, self.authority.history = [], None, None, 0

    def _make_lanes(self, setup: Setup, on_pass: OnPass, on_part: OnPart | None) -> None:
        # Here: they bring Numba, which takes half a second to import, and ports are open before that.
        from bireme.ps.lanes.dense import DenseStore
        from bireme.ps.sparse.lane import SparseStore

        stores: list[Store] = [DenseStore(setup, i) for i in range(setup.facts.ports_num)]
        stores += [SparseStore(setup, i) for i in range(setup.facts.ports_num_for_sparse)]
        # Sparse lanes of a job without sparse parameters see no round.
        # The writer expects a capture from every active lane; one that sees no round would hand in none.
        active = len(stores) if setup.tables else setup.facts.ports_num
        writer = SnapshotWriter(setup, active, on_part) if setup.facts.snapshots.path and on_part else None
        is_first = setup.pserver == 0
        # Totals are the same on every lane: only the first one reports.
        lanes = [
            Lane(setup, store, on_pass if i == 0 and is_first else lambda totals: None, writer if i < active else None)
            for i, store in enumerate(stores)
        ]
        try:
            chain = [[read_part(Path(file), sha256=None) for file in files] for files in setup.base]
            for lane in lanes if chain else ():
                lane.restore(chain)
        except BaseException:
            if writer is not None:
                writer.stop()  # its threads would wait for ever: these lanes hand in no cut
            raise
        if writer is not None and is_first and not setup.cuts_only_at_passes:
            self._names_cuts = lanes[0]
            if setup.facts.snapshots.every_s:
                lanes[0].cut_every(setup.facts.snapshots.every_s)
        self.lanes, self._writer = lanes, writer
        self.authority.job, self.authority.history = setup.job, setup.view

    def stop(self, failure: BiremeError | None = None) -> None:
        """Close everything; threads that wait on a lane are woken and leave."""
        with self._lock:
            self._is_stopping = True
            # A copy, because each thread removes its own connection from the set while it ends.
            connections = list(self._connections)
        if self._writer is not None:
            self._writer.stop()
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
                log.warning("accept failed lane=%d cause=%r", index, e.strerror)
                # Out of descriptors, for example: accept() would fail again at once, and this loop would spin.
                time.sleep(0.1)
                continue
            log.debug("connected lane=%d peer=%s", index, peer[0] if peer else "on-this-machine")
            taken = self._gate.accept(frame_io.tune(sock))
            if taken is None:
                continue
            with self._lock:
                if self._is_stopping:
                    taken.close()
                    return
                self._connections.add(taken)
            # The handshake runs on the connection's own thread: a silent stranger must not block this loop.
            threading.Thread(target=self._receive, args=(taken, index), name=f"lane-{index}", daemon=True).start()

    def _receive(self, sock: frame_io.Buffered, index: int) -> None:
        """Serve a connection of the job; close any other before a frame of it is read."""
        if self._gate.admit(sock):
            self._serve(sock, index)
            return
        with self._lock:
            self._connections.discard(sock)
        _shut(sock)

    def _serve(self, sock: socket.socket, index: int) -> None:
        try:
            if sock.family == socket.AF_UNIX:
                self._attach(sock, index)
            while (head := frame_io.receive_head(sock)) is not None:
                self._dispatch(sock, head, index)
        except NetworkError as e:
            # Not a warning: trainers leave with every view. The coordinator logs the loss of a member.
            log.debug("connection ended lane=%d cause=%r", index, e.what)
        except BiremeError as e:
            log.warning("refused frame lane=%d peer=%s cause=%r", index, frame_io.peer_name(sock), e.what)
            frame_io.refuse(sock, e)
            largest = max((lane.largest_payload for lane in self.lanes), default=0)
            frame_io.drain(sock, seconds=DRAIN_S, nbytes=largest + (1 << 20))
        except Exception as e:
            log.exception("stopping pserver lane=%d cause=bug", index)
            bug = ProcessError(f"{type(e).__name__} in the pserver: {e}", why="this is a bug", fix="see its server.log")
            frame_io.refuse(sock, bug)
            self.failure = bug
            self.stop(bug)
        finally:
            # First: `on_closed` may lead to a view without this connection, in which its rows must be free.
            # Lanes may have been replaced since; detaching a connection that a lane never had does nothing.
            if index < len(self.lanes):
                self.lanes[index].detach(sock)
            with self._lock:
                self._connections.discard(sock)
                self._data.pop(sock, None)
            try:
                self._on_closed(sock)
            finally:
                _shut(sock)

    def _attach(self, sock: socket.socket, index: int) -> None:
        """A connection from this machine begins with an ATTACH, whether or not memory is shared."""
        # A name in the abstract namespace has no permissions: every local user can connect to it.
        if frame_io.peer_user(sock) not in (os.geteuid(), 0):
            raise FrameError("another user's process")
        head, fds = frame_io.receive_with(sock)
        try:
            if head.kind is not Kind.ATTACH:
                raise FrameError("a connection to a lane of this machine begins with ATTACH")
            self._lane_for(sock, index).attach(sock, head, fds)
        finally:
            close_quietly(*fds)

    def _dispatch(self, sock: socket.socket, head: Head, index: int) -> None:
        if head.kind is Kind.CONTROL:
            self._on_control(sock, head)
            return
        lane = self._lane_for(sock, index)
        if head.kind is Kind.PUSH:
            lane.push(sock, head)
        elif head.kind is Kind.PULL:
            lane.pull(sock, head)
        elif head.kind is Kind.SET:
            lane.set(sock, head)
        else:
            raise FrameError(f"a lane takes PUSH, PULL and SET, not {head.kind.name}")

    def _lane_for(self, sock: socket.socket, index: int) -> Lane:
        """The lane of a connection, which from now on is closed with the view."""
        with self._lock:
            if self._is_changing or not self.lanes:
                raise StaleError("this pserver has no job yet, or is about to enter another view")
            self._data[sock] = index
            return self.lanes[index]


def _listen_near(tcp: socket.socket) -> socket.socket | None:
    """Listen for this machine's own processes beside a TCP port; None where the name is taken."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(frame_io.near_name(*tcp.getsockname()))
        sock.listen(128)
    except OSError as e:
        log.warning("no Unix socket port=%d carrier=tcp cause=%r", tcp.getsockname()[1], e.strerror)
        sock.close()
        return None
    return sock


def _shut(sock: socket.socket) -> None:
    frame_io.hang_up(sock)
    sock.close()
