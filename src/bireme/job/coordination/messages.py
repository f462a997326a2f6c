"""Control messages: all that processes of a job send each other besides gradients and parameters.

They travel as JSON in CONTROL frames on the first port of a pserver. Trainers connect to pserver 0,
which runs the coordinator; the coordinator connects to every pserver. Threads of a process that send
on the same connection share a `Line`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Union

import msgspec

from bireme.core.errors import FrameError, NetworkError
from bireme.job.status import Ending, JobStatus, PassSummary
from bireme.ps.client.carriers import connect
from bireme.ps.lanes.slow_trainers import Slowest
from bireme.ps.setup import Setup
from bireme.ps.tree import Span
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Head, Kind
from bireme.spec.terms import Facts

ALIVE_EVERY_S = 1.0
ASK_TIMEOUT_S = 2.0


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A control message; its docstring names sender, receiver and meaning."""


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a pserver listens: dense lanes' ports, then sparse lanes' ports."""

    host: str
    ports: tuple[int, ...]


class Join(Message, frozen=True):
    """Trainer: requests to join, with the job as it has read it."""

    trainer: int
    pid: int
    host: str
    facts: Facts
    pservers: tuple[Address, ...]
    """Addresses that the trainer has found, for a coordinator without discovery."""
    incarnation: int = 0


class Begin(Message, frozen=True):
    """Coordinator: all members are present; train in this view."""

    job: int
    view: int
    shares: tuple[Span, ...]
    pservers: tuple[Address, ...]
    wants_values: bool = False
    """Trainer 0 sends the values of a saved model first."""
    start_samples: int = 0
    """Samples that an earlier run trained, for schedules that trainers compute."""
    saved: int = -1
    """The last pass whose model is on disk: trainers test and save one that ended after it."""


class Progress(Message, frozen=True):
    """Trainer: its progress. Sums are over its own samples of this pass."""

    trainer: int
    pass_id: int
    batch: int
    batches: int
    samples: int
    cost: float
    evals: tuple[float, ...]
    rate: float
    """Samples per second since the last report."""
    view: int = 0
    round: int = 0
    closed: int = 0
    """Rounds that were closed while this trainer was in the view."""
    slowest_pserver: Slowest | None = None
    """The pserver whose answers this trainer waits for most."""


class Sum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Totals over a set of samples."""

    samples: int
    cost: float | None
    """None where it is not finite: JSON has no such number."""
    evals: dict[str, float]


class PassDone(Message, frozen=True):
    """Trainer: has pulled the parameters that end this pass. Counts are per shard."""

    trainer: int
    pass_id: int
    round: int
    read: dict[int, int]
    trained: dict[int, int]
    test: Sum | None = None
    wire_error: float = 0.0
    spent: dict[str, float] = {}
    """Seconds since the pass before, by what was done."""


class PassClosed(PassSummary, Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Coordinator to trainer 0: all trainers have ended this pass; its results."""


class Saved(Message, frozen=True):
    """Trainer 0: the pass's model is on disk."""

    trainer: int
    pass_id: int


class Counted(Message, frozen=True):
    """Coordinator to trainer 0: the pass is in the ledger, the next one may begin."""

    pass_id: int


class Failed(Message, frozen=True):
    """Trainer: fails with an error that a restart would repeat."""

    trainer: int
    what: str
    why: str = ""
    fix: str = ""


class LinkLost(Message, frozen=True):
    """Trainer: lost a connection to a lane in this view, and waits for the next view."""

    trainer: int
    view: int
    what: str


class Alive(Message, frozen=True):
    """Trainer or pserver, every second: heartbeat, however long its work takes."""


class Stop(Message, frozen=True):
    """Coordinator: exit now; `how` is the way in which the job ended."""

    reason: str
    how: Ending


class SetUp(Message, frozen=True):
    """Coordinator to pserver: keep this part of the parameters."""

    setup: Setup


class Here(Message, frozen=True):
    """Pserver without a coordinator, every few seconds: its address; that of the latest incarnation counts."""

    pserver: int
    address: Address
    incarnation: int


class ChangeView(Message, frozen=True):
    """Coordinator to pserver: enter this view and keep the lanes' state, if it is of this history."""

    view: int
    history: int


class Ready(Message, frozen=True):
    """Pserver: has entered this view."""

    pserver: int
    view: int
    incarnation: int = 0


class CutPart(Message, frozen=True):
    """Pserver: its part of a cut is on disk; with an empty hash, writing it failed."""

    pserver: int
    history: int
    """The view in which the pservers were last set up."""
    round: int
    pass_id: int
    batch: int
    samples: int
    ends_pass: bool
    file: str = ""
    sha256: str = ""
    nbytes: int = 0
    is_delta: bool = False
    """It holds of some tables only what has changed since an earlier cut that counts."""
    failure: str = ""
    """Why it could not be written."""


class Committed(Message, frozen=True):
    """Coordinator to pserver: the cut at this round is committed, so a later one may build on it."""

    history: int
    round: int
    chain: int = 0
    """How many other snapshots it builds on."""


class CutSoon(Message, frozen=True):
    """Coordinator to pserver: a snapshot was requested; cut at the next possible round."""


class SaveSoon(Message, frozen=True):
    """Any client: requests a snapshot before it leaves; answered with the status."""


class GetStatus(Message, frozen=True):
    """Any client: requests the status."""


class Cancel(Message, frozen=True):
    """Any client: requests a clean stop of the job."""


class Status(Message, frozen=True):
    """Coordinator: the job's current status."""

    status: JobStatus


MESSAGES = tuple(Message.__subclasses__())
"""All of them, in the order above."""
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Union[MESSAGES])  # noqa: UP007 - made at run time


def send(sock: socket.socket, message: Message) -> None:
    body = msgspec.json.encode(message)
    frame_io.send(sock, Head(Kind.CONTROL, nbytes=len(body)), body)


class Line:
    """A control connection on which several threads send."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()  # a heartbeat in the middle of another frame would corrupt the stream

    def send(self, message: Message) -> None:
        with self._lock:
            send(self.sock, message)

    def beat(self) -> None:
        threading.Thread(target=self._beat, name="alive", daemon=True).start()

    def _beat(self) -> None:
        with contextlib.suppress(NetworkError):
            while True:
                time.sleep(ALIVE_EVERY_S)
                self.send(Alive())

    def close(self) -> None:
        """Shut the connection down; a thread blocked in `expect` gets a NetworkError."""
        with contextlib.suppress(OSError):  # it is down already
            self.sock.shutdown(socket.SHUT_RDWR)


def receive(sock: socket.socket, head: Head) -> Message:
    try:
        return _decoder.decode(frame_io.receive_bytes(sock, head.nbytes))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise FrameError(f"malformed control message: {e}", fix="run the same bireme on every node") from e


def expect(sock: socket.socket) -> Message:
    """Wait for a control message; a refusal or a closed connection becomes an error."""
    return receive(sock, frame_io.expect(sock, Kind.CONTROL))


def ask(address: Address, message: GetStatus | SaveSoon | Cancel) -> JobStatus:
    """Send a job's coordinator one request and return the status it answers with."""
    with connect(address.host, address.ports[0], timeout_s=0.0, what="the coordinator") as sock:
        sock.settimeout(ASK_TIMEOUT_S)
        send(sock, message)
        reply = expect(sock)
    if not isinstance(reply, Status):
        raise AssertionError(f"expected Status, got {type(reply).__name__}: this is a bug")
    return reply.status
