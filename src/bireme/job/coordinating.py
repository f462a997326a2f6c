"""The shell around the coordinator: connections, files and threads for coordinator.py.

It lives inside pserver 0 and is reached through that pserver's first port. Each call into the
machine and the effects it returns are carried out under one lock, so what members are told has
one order.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bireme.core.errors import BiremeError, DataError, NetworkError, StorageError
from bireme.core.files import storage_errors, write_atomic
from bireme.job import messages as m
from bireme.job import snapshots
from bireme.job.coordinator import Coordinator
from bireme.job.effects import Base, Commit, Effect, Leave, Load, RefuseJoin, Send, SetUpPservers, Write
from bireme.job.model import last_kept_pass
from bireme.ps import wire
from bireme.ps.client import connect
from bireme.ps.rounds import PassTotals

log = logging.getLogger(__name__)
SET_UP_TIMEOUT_S = 300.0
"""Long: with an empty cache pservers compile their kernels here, all of them at the same time."""
STATUS_FILE = "status.json"
"""In the output tree: the coordinator's last word, for whoever asks after it has left."""


class Coordinating:
    """One coordinator with its connections."""

    def __init__(self, trainers: int, on_leave: Callable[[str], None]) -> None:
        self._machine = Coordinator(trainers)
        self._on_leave = on_leave
        self._lock = threading.RLock()
        self._members: dict[int, socket.socket] = {}
        self._pservers: dict[int, socket.socket] = {}
        self._has_warned = False
        self.failure: BiremeError | None = None
        """What went wrong here, as opposed to in a member, who tells by itself."""

    def handle(self, sock: socket.socket, message: m.Message) -> None:
        """Act on a message from a trainer or a visitor."""
        now = time.monotonic()
        with self._lock:
            match message:
                case m.Join():
                    self._members[id(sock)] = sock
                    self._do(self._machine.joined(id(sock), message, now))
                case m.Progress():
                    self._do(self._machine.progressed(id(sock), message, now))
                case m.PassDone():
                    self._do(self._machine.pass_done(id(sock), message, now))
                case m.Saved():
                    self._do(self._machine.model_saved(id(sock), message))
                case m.Failed():
                    self._do(self._machine.trainer_failed(id(sock), message))
                case m.CutPart() if sock in self._pservers.values():
                    self._do(self._machine.part_done(message, now))
                case m.Cancel():
                    self._do(self._machine.cancelled())
                    m.send(sock, m.Status(status=self._machine.status(now)))
                case m.GetStatus():
                    m.send(sock, m.Status(status=self._machine.status(now)))
                case _:
                    log.warning("a message that a coordinator does not expect: %s", type(message).__name__)

    def lost(self, sock: socket.socket) -> None:
        """A connection has closed."""
        with self._lock:
            if self._members.pop(id(sock), None) is not None:
                self._do(self._machine.lost(id(sock)))

    def lane_passed(self, totals: PassTotals) -> None:
        """The first lane has closed a pass. Called on a lane's thread: must not wait for one."""
        with self._lock:
            self._do(self._machine.lane_passed(totals, time.monotonic()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case RefuseJoin():
                    log.warning("refused to let a trainer join: %s", effect.reason)
                    refused = self._members.pop(effect.to)
                    wire.refuse(refused, effect.reason, fix=effect.fix)
                    with contextlib.suppress(OSError):
                        refused.shutdown(socket.SHUT_WR)
                case SetUpPservers():
                    threading.Thread(target=self._set_up, args=(effect,), name="set-up", daemon=True).start()
                case Load():
                    threading.Thread(target=self._load, args=(effect,), name="load", daemon=True).start()
                case Commit():
                    threading.Thread(target=self._commit, args=(effect,), name="commit", daemon=True).start()
                case Write():
                    self._write(effect)
                case Leave():
                    self._leave(effect)

    def _send(self, effect: Send) -> None:
        sock = self._members.get(effect.to)
        if sock is None:
            return
        try:
            m.send(sock, effect.message)
        except NetworkError as e:
            log.warning("cannot reach a trainer: %s", e.what)  # its connection's thread will tell us it is lost

    def _set_up(self, effect: SetUpPservers) -> None:
        try:
            for rank, (address, setup) in enumerate(zip(effect.addresses, effect.setups, strict=True)):
                what = f"pserver {rank}"
                sock = connect(address.host, address.ports[0], timeout_s=SET_UP_TIMEOUT_S, what=what)
                self._pservers[rank] = sock
                m.send(sock, m.SetUp(setup=setup))
            for rank, sock in self._pservers.items():
                sock.settimeout(SET_UP_TIMEOUT_S)
                m.expect(sock)
                sock.settimeout(None)
                threading.Thread(target=self._listen, args=(sock,), name=f"pserver-{rank}", daemon=True).start()
        except BiremeError as e:
            self._fail(e)
            return
        with self._lock:
            self._do(self._machine.pservers_ready(time.monotonic()))

    def _listen(self, sock: socket.socket) -> None:
        """Take what a pserver tells by itself."""
        with contextlib.suppress(NetworkError):
            while True:
                self.handle(sock, m.expect(sock))

    def _load(self, effect: Load) -> None:
        facts = self._machine.facts
        assert facts is not None
        place = Path(facts.snapshots.path)
        try:
            manifest, problems = snapshots.load_newest(place, effect.inputs)
        except BiremeError as e:
            self._fail(e)
            return
        for problem in problems:
            log.warning("snapshot %s cannot be used: %s", problem.name, problem.what)
        log.info("going on from round %d, batch %d of pass %d", manifest.round, manifest.batch, manifest.pass_id)
        files = snapshots.files_of(place, manifest)
        saved = last_kept_pass(Path(facts.output))
        with self._lock:
            self._do(self._machine.loaded(Base(manifest, files, saved)))

    def _commit(self, effect: Commit) -> None:
        facts = self._machine.facts
        assert facts is not None
        place = Path(facts.snapshots.path)
        manifest = msgspec.structs.replace(effect.manifest, created=time.time())
        try:
            snapshots.commit(place, manifest)
            log.info("snapshot of round %d", manifest.round)
            snapshots.keep(place, facts.snapshots.keep)
        except BiremeError as e:
            log.error("the snapshot of round %d: %s", manifest.round, e)
        with self._lock:
            self._do(self._machine.cut_settled(manifest, time.monotonic()))

    def _write(self, effect: Write) -> None:
        facts = self._machine.facts
        if facts is None or not facts.output:
            return
        path = Path(facts.output) / effect.file
        if not path.parent.is_dir():
            # Started by hand without a shared volume: the models are on trainer 0's machine, the books nowhere.
            if not self._has_warned:
                log.warning("%s is not on this machine: metrics and ledger are not written", path.parent)
            self._has_warned = True
            return
        try:
            with storage_errors(str(path)), path.open("ab") as f:
                f.write(msgspec.json.encode(effect.line) + b"\n")
        except StorageError as e:
            self._fail(e)

    def _fail(self, error: BiremeError) -> None:
        with self._lock:
            self.failure = self.failure or error
            self._do(self._machine.failed(error.what))

    def _leave(self, effect: Leave) -> None:
        log.info("leaving: %s", effect.reason)
        facts = self._machine.facts
        if effect.is_own:
            self.failure = self.failure or DataError(effect.reason, fix="look into the shards' train.list")
        if facts is not None and Path(facts.output).is_dir():
            try:
                write_atomic(
                    Path(facts.output) / STATUS_FILE,
                    msgspec.json.encode(self._machine.status(time.monotonic())),
                )
            except StorageError as e:
                log.error("the last status is lost: %s", e)
        # Pserver 0 is this process, which leaves last: `_on_leave` tells it.
        for rank, address in enumerate(facts.pservers if facts is not None else ()):
            if rank > 0:
                self._tell_to_stop(rank, address, m.Stop(reason=effect.reason, how=effect.how))
        self._on_leave(effect.reason)

    def _tell_to_stop(self, rank: int, address: m.Address, stop: m.Stop) -> None:
        try:
            sock = self._pservers.get(rank)
            if sock is None:  # the job ends before this pserver was given its part
                sock = connect(address.host, address.ports[0], timeout_s=1.0, what=f"pserver {rank}")
            m.send(sock, stop)
        except NetworkError as e:
            log.warning("pserver %d cannot be told to stop: %s", rank, e.what)
