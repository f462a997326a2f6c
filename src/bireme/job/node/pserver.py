"""The pserver process: opens its ports, serves the lanes that the coordinator sets up, exits on its Stop.

Pserver 0 also runs the coordinator, from the first control message on. The other pservers keep serving
while there is no coordinator, and exit if no successor sets them up in time.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import socket
import struct
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bireme.core.errors import BiremeError, FrameError, NetworkError, UsageError
from bireme.job.coordination import messages as m
from bireme.job.coordination.cuts import part_of
from bireme.job.coordination.service import CoordinatorService
from bireme.job.node import incarnations
from bireme.job.node.discovery import Discovery
from bireme.job.node.entry import note_signals
from bireme.job.node.supervisor import put_mark
from bireme.ps.client.carriers import connect
from bireme.ps.lanes.authority import Authority
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.lanes.server import PServer, listen
from bireme.ps.lanes.slow_trainers import Awaited
from bireme.ps.setup import Setup
from bireme.ps.snapshot.writer import FileWritten
from bireme.ps.wire.frames import Head
from bireme.spec.job import Job

log = logging.getLogger(__name__)
_SIOCGIFADDR = 0x8915
SIGNAL_LOOK_S = 0.1
PATIENCE_S = 60.0
HERE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class PserverOptions:
    """A pserver's options at its start; the rest comes with SetUp."""

    trainers: int
    port: int | None = None
    """None: any free ports."""
    ports_num: int = 1
    ports_num_for_sparse: int = 0
    nics: str = ""
    rank: int = 0
    host: str = ""
    """The address to listen on and to announce; '' listens everywhere."""
    incarnation: int = 1
    run_incarnation: int = 0
    mark: Path | None = None
    """The file that exists while this pserver listens."""


def options_of_job(job: Job, rank: int, host: str | None, mark: Path | None) -> PserverOptions:
    """Options of a pserver that a runner or a pod has started; without a host of its own it shares a machine."""
    lanes = job.ports_num + job.ports_num_for_sparse
    # Pservers that share a machine have a block of ports each.
    first = None if job.port is None else job.port + rank * lanes
    if host and (job.port is not None or job.hosts):
        first = job.first_port
    return PserverOptions(
        job.trainers,
        first,
        job.ports_num,
        job.ports_num_for_sparse,
        rank=rank,
        host=host or "127.0.0.1",
        incarnation=incarnations.take(Path(job.output), f"pserver {rank}"),
        run_incarnation=job.run_incarnation,
        mark=mark,
    )


def address_of(nic: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            packed = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", nic.encode()[:15]))
        except OSError as e:
            names = ", ".join(name for _, name in socket.if_nameindex())
            fix = f"this machine has: {names}. Leave --nics empty to listen on all"
            raise NetworkError(f"network interface {nic!r} has no IPv4 address here: {e.strerror}", fix=fix) from e
    return socket.inet_ntoa(packed[20:24])


def open_ports(options: PserverOptions) -> list[socket.socket]:
    """Listen on every lane's port, or on none of them."""
    nics = [nic for nic in options.nics.split(",") if nic]
    if len(nics) > 1:
        raise UsageError("--nics with several interfaces is not supported", fix="name one, or leave it empty for all")
    host = address_of(nics[0]) if nics else options.host
    with contextlib.ExitStack() as opened:
        lanes = range(options.ports_num + options.ports_num_for_sparse)
        ports = [0 if options.port is None else options.port + lane for lane in lanes]
        sockets = [opened.enter_context(listen(host, port)) for port in ports]
        opened.pop_all()  # else they are closed here
    return sockets


class PserverProcess:
    """One pserver from start to end."""

    def __init__(self, options: PserverOptions) -> None:
        self._options = options
        authority = Authority.at_birth(options.rank, options.incarnation, options.run_incarnation)
        self._server = PServer(open_ports(options), options.ports_num, self._control, self._closed, authority)
        self._over = threading.Event()
        self._reason = ""
        self._rank = options.rank
        self._coordinating: CoordinatorService | None = None
        self._discovery: Discovery | None = None
        self._link: m.Line | None = None
        """The connection from the coordinator with the newest view."""
        self._patience_s = PATIENCE_S
        self._alone_since_s = math.inf
        self._say_again_s = time.monotonic() + HERE_EVERY_S
        self._changing = threading.Lock()
        """Held while lanes are made or enter a view: which waits for lanes, so lanes must never wait for it."""
        self._leading = threading.Lock()
        """Guards `_link` with `_alone_since_s`: an old connection may close while a new one brings a view."""
        self._founding = threading.Lock()  # several connections may bring the first message at once

    def run(self, discovery: Discovery | None = None) -> str:
        """Serve until a Stop, a signal or the loss of the coordinator; returns the reason."""
        ports = self._server.ports
        log.info("number of parameterServer instances: %d", len(ports))
        for i, port in enumerate(ports):
            kind = "dense" if i < self._options.ports_num else "sparse"
            log.info("Starting parameterServer[%d]: %s lane on port %d", i, kind, port)
        self._discovery = discovery
        self._server.start()
        if discovery is not None:
            discovery.announce(self._options.rank, self._address, self._options.incarnation)
        put_mark(self._options.mark)
        signals = note_signals()
        while not self._over.wait(SIGNAL_LOOK_S):
            if signals:
                self._leave("asked to stop by a signal")
            self._announce_again(time.monotonic())
            if self._server.failure is not None:
                raise self._server.failure
            if time.monotonic() - self._alone_since_s > self._patience_s:
                self._leave(f"the coordinator went away and did not come back within {self._patience_s:.0f} s")
        self._server.stop()
        log.info("leaving reason=%r", self._reason)
        if self._coordinating is not None:
            self._coordinating.stop()
            if self._coordinating.failure is not None:
                raise self._coordinating.failure
        return self._reason

    @property
    def _address(self) -> m.Address:
        return m.Address(host=self._options.host or "127.0.0.1", ports=tuple(self._server.ports))

    @property
    def _is_led(self) -> bool:
        """Whether a coordinator has set this pserver up and is still connected."""
        return self._link is not None and self._alone_since_s == math.inf

    def _announce_again(self, now_s: float) -> None:
        """Send the coordinator Here now and then, as long as none has set this pserver up."""
        discovery = self._discovery
        if discovery is not None and self._options.rank != 0 and not self._is_led and now_s >= self._say_again_s:
            self._say_again_s = now_s + HERE_EVERY_S
            # On a thread of its own: resolving a name may block for long, and this loop watches for signals.
            threading.Thread(target=self._send_here, args=(discovery,), name="here", daemon=True).start()

    def _send_here(self, discovery: Discovery) -> None:
        here = m.Here(pserver=self._rank, address=self._address, incarnation=self._options.incarnation)
        with contextlib.suppress(BiremeError):  # not there yet: it will connect by itself, or get the next Here
            address = discovery.look_up(0)
            if address is not None:
                with connect(address.host, address.ports[0], timeout_s=0.0, what="the coordinator") as sock:
                    m.send(sock, here)

    def _leave(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._over.set()

    def _control(self, sock: socket.socket, head: Head) -> None:
        message = m.receive(sock, head)
        match message:
            case m.SetUp():
                self._set_up(sock, message.setup)
            case m.ChangeView():
                with self._changing:
                    self._server.enter(message.view, message.history)
                    line = self._follow(sock)
                line.send(m.Ready(pserver=self._rank, view=message.view, incarnation=self._options.incarnation))
            case m.Committed():
                self._server.committed(message.history, message.round, message.chain)
            case m.CutSoon():
                self._server.cut_soon()
            case m.Stop():
                if self._is_led and self._link is not None and self._link.sock is not sock:
                    raise FrameError("only the coordinator may stop a pserver")
                self._leave(message.reason)
            case m.Begin() | m.PassClosed() | m.Status():
                raise FrameError(f"a pserver does not take {type(message).__name__}")
            case _:
                self._coordinator().handle(sock, message)

    def _set_up(self, sock: socket.socket, setup: Setup) -> None:
        if self._discovery is not None and setup.pserver != self._options.rank:
            raise NetworkError(f"this is pserver {self._options.rank}, not pserver {setup.pserver}")
        with self._changing:
            on_pass = partial(self._lane_passed, setup.view)
            self._server.set_up(setup, on_pass, partial(self._part_done, setup))
            line = self._follow(sock)
            self._rank, self._patience_s = setup.pserver, setup.facts.connect_timeout_s
        for index, lane in enumerate(self._server.lanes):
            log.info("set up lane=%d state=%r", index, lane.describe())
        line.send(m.Ready(pserver=setup.pserver, view=setup.view, incarnation=self._options.incarnation))

    def _follow(self, sock: socket.socket) -> m.Line:
        """Obey the coordinator on this connection from now on: the server has accepted its newer view."""
        with self._leading:
            if self._link is None or self._link.sock is not sock:
                self._link = m.Line(sock)
                self._link.beat()
            self._alone_since_s = math.inf
            return self._link

    def _coordinator(self) -> CoordinatorService:
        if self._discovery is not None and self._options.rank != 0:
            # The address was pserver 0's before: the peer looks it up again.
            raise NetworkError(f"this is pserver {self._options.rank}, which runs no coordinator")
        with self._founding:
            if self._coordinating is None:
                options = self._options
                log.info("coordinating trainers=%d", options.trainers)
                self._coordinating = CoordinatorService(
                    options.trainers, self._leave, self._discovery, options.incarnation, self._awaited
                )
            return self._coordinating

    def _awaited(self) -> Awaited | None:
        lanes = self._server.lanes  # read once: a SetUp in another thread replaces the list
        return lanes[0].awaited() if lanes else None

    def _closed(self, sock: socket.socket) -> None:
        with self._leading:
            is_ours = self._link is not None and sock is self._link.sock
            if is_ours:
                self._alone_since_s = time.monotonic()
        if is_ours:
            if not self._over.is_set():  # else it has closed the connection after its Stop
                log.warning("lost coordinator patience_s=%g", self._patience_s)
        elif self._coordinating is not None:
            self._coordinating.lost(sock)

    def _part_done(self, setup: Setup, part: FileWritten) -> None:
        """Report a written part of a cut to the coordinator; called on the writer's thread."""
        try:
            if self._link is not None:
                self._link.send(part_of(setup, part))
        except NetworkError as e:
            # The lost connection makes the coordinator rewind to a committed snapshot, so nothing else is due here.
            log.warning("unreported part round=%d cause=%r", part.counts.round, e.what)

    def _lane_passed(self, history: int, totals: PassTotals) -> None:
        self._coordinator().lane_passed(history, totals)
