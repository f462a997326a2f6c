"""The shell around the coordinator: connections, files and threads for coordinator.py.

It runs inside pserver 0, behind that pserver's first port. Each call into the machine and the effects it
returns are carried out under one lock, so messages go out in the order of decisions. One thread commits and
loads snapshots, one after the other: no commit is half done while a rewind chooses its snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bireme.core import faults
from bireme.core.errors import (
    BiremeError,
    DataError,
    NetworkError,
    ProcessError,
    RefusedError,
    StaleError,
    StorageError,
)
from bireme.core.files import write_atomic
from bireme.job.coordination import messages as m
from bireme.job.coordination.coordinator import Coordinator
from bireme.job.coordination.effects import (
    Base,
    Commit,
    Conclude,
    Effect,
    HangUp,
    Leave,
    Load,
    Reach,
    RefuseJoin,
    Send,
    Write,
)
from bireme.job.coordination.status import status_of
from bireme.job.node import incarnations
from bireme.job.node.discovery import Discovery
from bireme.job.node.failure_reports import STATUS_FILE
from bireme.job.output import journal, snapshots
from bireme.job.status import ENDED
from bireme.ps.client.carriers import connect
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.lanes.slow_trainers import Awaited
from bireme.ps.wire import frame_io
from bireme.spec.terms import Facts

log = logging.getLogger(__name__)
TICK_S = 0.1
REACH_S = 1.0


class CoordinatorService:
    """One coordinator with its connections."""

    def __init__(
        self,
        trainers: int,
        on_leave: Callable[[str], None],
        discovery: Discovery | None = None,
        incarnation: int = 1,
        awaited: Callable[[], Awaited | None] = lambda: None,
    ) -> None:
        """Lead a job of so many trainers; `awaited` says what the first lane waits for."""
        self._awaited = awaited
        self._machine = Coordinator(trainers, incarnation)
        self._on_leave = on_leave
        self._discovery = discovery
        # Guards the machine, which has no lock of its own, and the connections. Reentrant: carrying out an effect may
        # end the job (`_write`, `_fail`), which takes it again.
        self._lock = threading.RLock()
        self._connections: dict[int, socket.socket] = {}
        self._pserver_links: set[socket.socket] = set()
        # Snapshots have a thread of their own: a slow volume must not keep heartbeats and status requests waiting.
        self._disk_work: queue.SimpleQueue[Load | Commit | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._has_warned = False
        self._is_metrics_lost = False
        self.failure: BiremeError | None = None
        """An error of the coordinator itself; members report their own."""
        self._start("tick", self._tick)
        self._start("commits", self._work_on_disk)

    def _start(self, name: str, work: Callable[..., None], *args: object) -> None:
        # Daemons: one that waits in a receive or for a volume must not keep the process from exiting.
        threading.Thread(target=self._guarded, args=(work, *args), name=name, daemon=True).start()

    def _guarded(self, work: Callable[..., None], *args: object) -> None:
        """Run a thread's work; fail the job if it raises. A dead thread would leave all members waiting for it."""
        try:
            work(*args)
        except Exception as e:
            log.exception("coordinator failed thread=%s", threading.current_thread().name)
            kind, why = (StorageError, "") if isinstance(e, OSError) else (ProcessError, "this is a bug")
            self._fail(kind(f"{type(e).__name__} in the coordinator: {e}", why=why, fix="see node 0's server.log"))

    def stop(self) -> None:
        self._over.set()
        self._disk_work.put(None)

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            with self._lock:
                self._do(self._machine.tick(time.monotonic()))

    def handle(self, sock: socket.socket, message: m.Message) -> None:
        now, machine = time.monotonic(), self._machine
        # Read before taking our lock: lanes call `lane_passed` while they hold theirs, so the other order deadlocks.
        late = self._awaited() if isinstance(message, m.GetStatus | m.Cancel | m.SaveSoon) else None
        status = None
        with self._lock:
            match message:
                case m.Join():
                    self._connections[id(sock)] = sock
                    self._do(machine.joined(id(sock), message, now))
                # Parts are reported on the connection that we opened to a pserver: no other peer may claim one.
                case m.CutPart() if sock not in self._pserver_links:
                    log.warning("ignored CutPart cause=not-a-connected-pserver")
                case m.Cancel() | m.GetStatus() | m.SaveSoon():
                    if isinstance(message, m.Cancel):
                        self._do(machine.cancelled())
                    elif isinstance(message, m.SaveSoon):
                        self._do(machine.snapshot_wanted(now))
                    status = status_of(machine, now, late)
                case _:
                    if isinstance(message, m.LinkLost):
                        log.warning(
                            "lost link trainer=%d view=%d cause=%r", message.trainer, message.view, message.what
                        )
                    self._do(machine.receive(id(sock), message, now))
        if status is not None:  # outside the lock: a client that does not read must not block the job
            m.send(sock, m.Status(status=status))

    def lost(self, sock: socket.socket, cause: str = "connection closed") -> None:
        machine = self._machine
        with self._lock:
            if self._connections.pop(id(sock), None) is not None:
                # Before the machine forgets the member. After the end, members leave because they were asked to.
                if (member := machine.members.label(id(sock))) and machine.phase not in ENDED:
                    log.warning("lost %s view=%d cause=%r", member, machine.view, cause)
                self._do(machine.lost(id(sock), time.monotonic()))

    def lane_passed(self, history: int, totals: PassTotals) -> None:
        """Handle a pass that the first lane has closed. Called on a lane's thread: must not wait for a lane."""
        with self._lock:
            self._do(self._machine.lane_passed(history, totals, time.monotonic()))

    def _do(self, effects: list[Effect]) -> None:
        # Every caller holds the lock, so effects happen in the order in which the machine decided on them. What takes
        # long (Reach, Load, Commit) goes to other threads: heartbeats of all members wait for this lock.
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case RefuseJoin():
                    self._refuse(effect)
                case HangUp():
                    self._hang_up(effect.to)
                case Reach():
                    self._start("reach", self._reach, effect)
                case Load() | Commit():
                    self._disk_work.put(effect)
                case Write():
                    self._write(effect)
                case Conclude():
                    self._conclude(effect)
                case Leave():
                    log.info("leaving reason=%r", effect.reason)
                    self._on_leave(effect.reason)

    def _send(self, effect: Send) -> None:
        sock = self._connections.get(effect.to)
        if sock is None:
            return
        if isinstance(effect.message, m.Begin):
            log.info("began %s view=%d", self._machine.members.label(effect.to), effect.message.view)
        try:
            m.send(sock, effect.message)
        except NetworkError as e:
            log.warning("failed to send cause=%r", e.what)  # the connection's reading thread reports the loss

    def _refuse(self, effect: RefuseJoin) -> None:
        log.warning("refused join cause=%r", effect.reason)
        refused = self._connections.pop(effect.to)
        frame_io.refuse(refused, RefusedError(effect.reason, fix=effect.fix))
        with contextlib.suppress(OSError):
            # Our direction only: closing with its bytes unread would reset the connection, and lose the refusal.
            refused.shutdown(socket.SHUT_WR)

    def _hang_up(self, connection: int) -> None:
        sock = self._connections.pop(connection, None)
        if sock is not None:
            with contextlib.suppress(OSError):
                # The thread that reads it closes it: closed here, its descriptor might be another connection's by then.
                sock.shutdown(socket.SHUT_RDWR)

    def _reach(self, effect: Reach) -> None:
        rank, address = effect.pserver, effect.address
        try:
            if self._discovery is not None:
                address = self._discovery.look_up(rank)
            if address is None:
                raise NetworkError(self._discovery.why_missing(rank) if self._discovery else "no known address")
            sock = connect(address.host, address.ports[0], timeout_s=REACH_S, what=f"pserver {rank}")
        except BiremeError as e:
            with self._lock:
                self._do(self._machine.pserver_out_of_reach(rank, e.what))
            return
        with self._lock:
            self._connections[id(sock)] = sock
            self._pserver_links.add(sock)
            self._do(self._machine.pserver_reached(rank, id(sock), address, time.monotonic()))
        # Without the lock: this thread now blocks in receives until the pserver is gone.
        self._listen(rank, sock)

    def _listen(self, rank: int, sock: socket.socket) -> None:
        cause = "connection closed"
        try:
            while True:
                self.handle(sock, m.expect(sock))
        except StaleError as e:
            log.warning("superseded pserver=%d cause=%r", rank, e.what)
            with self._lock:
                self._do(self._machine.superseded())
        except RefusedError as e:
            self._fail(e)
        except BiremeError as e:
            cause = e.what
        with self._lock:
            self._pserver_links.discard(sock)
        self.lost(sock, cause)
        sock.close()

    def _work_on_disk(self) -> None:
        while (work := self._disk_work.get()) is not None:
            facts = self._machine.facts  # read without the lock: once there are cuts, facts are not cleared any more
            if isinstance(work, Commit):
                assert facts is not None
                self._commit(facts, work)
            elif facts is not None:  # else all trainers left meanwhile, and the job's facts with them
                self._load(facts, work)

    def _load(self, facts: Facts, effect: Load) -> None:
        try:
            base = self._find_base(facts, effect)
        except BiremeError as e:
            self._fail(e)
            return
        with self._lock:
            self._do(self._machine.loaded(effect.view, base, time.monotonic()))

    def _find_base(self, facts: Facts, effect: Load) -> Base:
        faults.at("snapshot.load")
        output = Path(facts.output) if facts.output else None
        place = Path(facts.snapshots.path) if facts.snapshots.path else None
        past = journal.JournalSummary()
        with self._lock:  # `_write` must not append to the files while they are repaired
            if output is not None:
                past = journal.repair_tail(output, facts.shards, facts.run_incarnation)
                if facts.stop_after:
                    past = past._replace(costs=journal.costs_in(output, past.saved))
        base, problems = snapshots.find_base(past, place, facts, effect)
        for problem in problems:
            log.warning("skipped snapshot=%s cause=%r", problem.name, problem.what)
        if (at := base.manifest) is not None:
            log.info("resuming round=%d batch=%d pass=%d", at.round, at.batch, at.pass_id)
        return base

    def _commit(self, facts: Facts, effect: Commit) -> None:
        place = Path(facts.snapshots.path)
        manifest = msgspec.structs.replace(effect.manifest, created=time.time())
        failure = ""
        try:
            snapshots.commit(place, manifest)
            log.info("committed snapshot round=%d", manifest.round)
        except BiremeError as e:
            log.error("lost snapshot round=%d cause=%r", manifest.round, e.what)
            failure = e.what
        with self._lock:
            self._do(self._machine.cut_settled(manifest, time.monotonic(), failure=failure))
        if not failure:  # after the report: members wait for the commit, not for the clean-up
            self._forget_old(place, facts.snapshots.keep)

    def _forget_old(self, place: Path, count: int) -> None:
        try:
            snapshots.keep(place, count)
        except BiremeError as e:
            log.error("failed to delete old snapshots cause=%r", e.what)

    def _write(self, effect: Write) -> None:
        facts = self._machine.facts
        if facts is None or not facts.output:
            return
        path = Path(facts.output) / effect.file
        if not path.parent.is_dir():
            # Started by hand without a shared volume: models are written on trainer 0's machine only.
            if not self._has_warned:
                log.warning("skipped metrics and ledger path=%s cause=not-on-this-machine", path.parent)
            self._has_warned = True
            return
        if effect.file == journal.LEDGER and self._is_superseded(path.parent):
            # The new coordinator writes this pass too; two copies of its rows would count it twice.
            self._do(self._machine.superseded())
            return
        faults.at(f"write.{path.stem}")
        stamp = {"unix": round(time.time(), 3)} if effect.file == journal.METRICS else {}
        try:
            journal.append(path, [{**line, **stamp} for line in effect.lines])
            self._is_metrics_lost = self._is_metrics_lost and effect.file != journal.METRICS
        except StorageError as e:
            if effect.file == journal.LEDGER:
                self.failure = self.failure or e  # `_fail` ignores it if this line ends the job
                self._fail(e)
            elif not self._is_metrics_lost:
                self._is_metrics_lost = True
                log.error("lost metrics effect=gap-in-curves cause=%r", e.what)

    def _fail(self, error: BiremeError) -> None:
        with self._lock:
            if self._machine.phase not in ENDED:  # errors after the end come from processes that exit
                self.failure = self.failure or error
            self._do(self._machine.failed(error.what))

    def _conclude(self, effect: Conclude) -> None:
        # Before the status is written: once it is there, a supervisor may kill this process at any moment.
        reason = self._machine.reason
        if effect.own_fault == "data":
            self.failure = self.failure or DataError(reason, fix="look into the shards' train.list")
        elif effect.own_fault == "storage":
            why = "where updates come one by one, a pass that is computed again comes out differently"
            self.failure = self.failure or StorageError(reason, why=why, fix="free some space; all that is saved stays")
        elif effect.own_fault == "process":
            self.failure = self.failure or ProcessError(reason, fix="look into the logs in node_*/")
        facts = self._machine.facts
        if facts is None or not Path(facts.output).is_dir() or self._is_superseded(Path(facts.output)):
            return
        status = status_of(self._machine, time.monotonic())
        try:
            write_atomic(Path(facts.output) / STATUS_FILE, msgspec.json.encode(status))
        except StorageError as e:
            log.error("lost final status cause=%r", e.what)

    def _is_superseded(self, output: Path) -> bool:
        """Whether pserver 0 has a later incarnation, whose coordinator has taken over."""
        newest = incarnations.newest_of(output, "pserver 0")
        if newest > self._machine.incarnation:
            log.warning("superseded coordinator=%d by=%d", self._machine.incarnation, newest)
        return newest > self._machine.incarnation
