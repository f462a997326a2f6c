"""Pservers and trainers of any number as real processes that stay, and do rounds on command.

The bench holds a `Cluster`; each of its processes reads commands from standard input and answers each with
one line of JSON. So starting is paid once, and several clusters can take turns under the same conditions.
Gradients are whole numbers and the learning rate is a power of two, so that every sum is exact in float32, float16
and bfloat16 alike: after any number of rounds all parameters are known to the last bit. With top_k, what was
applied and what trainers still hold back must add up to what was computed. Adagrad's rows are checked within rounding.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

import bireme
from bireme.core.processes import die_with
from bireme.ps.client.carriers import connect, connect_near
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link
from bireme.ps.lanes.server import PServer, listen
from bireme.ps.plan import Layout
from bireme.ps.setup import Setup
from bireme.ps.tree import Span, share_out
from bireme.ps.wire import security
from bireme.ps.wire.frames import Record
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Coding, Optimizer, Parameter, Rows, Snapshots, Wire
from engines.cut_parts import PartsOf
from engines.facts import FACTS
from engines.process import call_me
from engines.running import BENCH, RunFailedError

if TYPE_CHECKING:
    from bireme.ps.client.coder import Coder

Floats = NDArray[np.float32]
RATE = 2.0**-10
CYCLE = 251
"""Different gradients; a prime, so that no slice looks like another, and below 256, so that bfloat16 has them all."""
MOST_ROUNDS = 1500
"""More, and a sum of many trainers would leave float32's whole numbers."""
TABLE_ROWS, TABLE_WIDTH = 1_000_000, 16
TABLE_RATE, TABLE_TOLERANCE = 0.05, 2e-3
BATCHES = 4
CHECKED_ROWS = 64
ANSWER_S = 120.0
ME = Identity(job=1, view=1, incarnation=1)


@dataclass(frozen=True)
class Shape:
    """How large a cluster is and what it trains."""

    trainers: int
    pservers: int
    floats: int
    rows: int = 0
    """Rows of the table that each trainer touches in a round; 0: there is no table."""
    coding: Coding = "float32"
    place: Literal["local", "tcp"] = "local"
    method: str = "momentum"
    """Only momentum's rounds can be checked by arithmetic; with a table it is always adagrad."""
    has_cuts: bool = False
    """Pservers write parts of cuts, on command."""
    tls: str = ""
    """A directory with certificates; without one, connections are plain."""


@dataclass(frozen=True)
class Seat:
    """Where a process runs: the address it has there, and the command that brings it there."""

    host: str = "127.0.0.1"
    prefix: Sequence[str] = ()


@dataclass(frozen=True)
class Member:
    """The arguments of one process."""

    role: str
    rank: int
    host: str
    root: int
    folder: str
    shape: Shape


def pattern() -> Floats:
    """A gradient's values, over and over: each of 1 … CYCLE once in a cycle, about a megabyte of them."""
    return np.tile(1.0 + np.arange(CYCLE) * 97 % CYCLE, 1000).astype(np.float32)


def factor(rank: int) -> float:
    """What a trainer multiplies the pattern with."""
    return float(1 + rank % 2)


def pieces(flat: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """A long vector piece by piece: where it begins, the piece, and its part of the pattern."""
    one = pattern()
    for begin in range(0, len(flat), len(one)):
        piece = flat[begin : begin + len(one)]
        yield begin, piece, one[: len(piece)]


def check_dense(values: Floats, shape: Shape, rounds: int, held_back: Floats) -> None:
    """Raise ValueError unless every element is what the arithmetic says; `held_back` is what top_k has not sent."""
    total = rounds * sum(factor(rank) for rank in range(shape.trainers))
    for begin, found, one in pieces(values):
        due = -np.float32(RATE) * (np.float32(total) * one - held_back[begin : begin + len(one)])
        wrong = np.flatnonzero(found != due)
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(f"element {begin + at} is {found[at]!r} after {rounds} rounds, {due[at]!r} was due")


def row_ids(rank: int, batch: int, count: int) -> NDArray[np.uint64]:
    """The rows that a trainer touches with one of its batches; half of them are its neighbour's too."""
    first = rank * count // 2 + batch * count
    # The step has no factor in common with the table's length: no row comes twice in a batch.
    found = np.sort((np.arange(first, first + count, dtype=np.int64) * 387_911 + 17) % TABLE_ROWS)
    return found.astype(np.uint64)


def row_gradient(rank: int, round_: int) -> float:
    """What every element of a trainer's gradient rows is in a round; changing, or Adagrad would not show a loss."""
    return float(1 + (round_ + rank) % 3)


def row_truth(shape: Shape, rounds: int, rows: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Adagrad by hand for some rows."""
    ranks, batches = range(shape.trainers), range(BATCHES)
    touched = [[np.isin(rows, row_ids(rank, batch, shape.rows)) for batch in batches] for rank in ranks]
    value, squares = np.zeros(len(rows)), np.zeros(len(rows))
    for round_ in range(rounds):
        grad = sum(row_gradient(rank, round_) * touched[rank][round_ % BATCHES] for rank in ranks)
        squares += np.square(grad)
        value -= TABLE_RATE * grad / np.sqrt(np.maximum(squares, 1e-12))
    return value


class Process:
    """One member as the bench sees it: started, asked, and ended."""

    def __init__(self, member: Member, seat: Seat, environment: Mapping[str, str]) -> None:
        self.name = f"{member.role}-{member.rank}"
        self._log = Path(member.folder) / f"{self.name}.log"
        with self._log.open("wb") as log:
            self._popen = subprocess.Popen(
                [*seat.prefix, sys.executable, "-m", "engines.local_cluster", json.dumps(asdict(member))],
                env=dict(environment),
                cwd=member.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                bufsize=0,
            )
        self._unread = b""

    def ask(self, **command: object) -> None:
        """Send a command; the answer is to be fetched."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            raise RunFailedError(f"{self.name} is gone; {self._last_words()}") from None

    def fetch(self) -> dict[str, Any]:
        """Wait for an answer."""
        assert self._popen.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._popen.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise RunFailedError(f"{self.name} did not answer within {ANSWER_S:.0f} s; {self._last_words()}")
            more = os.read(self._popen.stdout.fileno(), 1 << 20)
            if not more:
                raise RunFailedError(f"{self.name} ended; {self._last_words()}")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"it said last: {lines[-1][:300]}" if lines else "it said nothing"

    def end(self) -> None:
        """It has nothing to put away: kill it."""
        with self._popen:
            self._popen.kill()


@dataclass
class Cluster:
    """All processes of one shape; a context manager that leaves no process behind."""

    shape: Shape
    environment: Mapping[str, str]
    seat: Callable[[str, int], Seat] = lambda _role, _rank: Seat()
    trainers: list[Process] = field(default_factory=list)
    pservers: list[Process] = field(default_factory=list)
    rounds_done: int = 0

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bireme-bench-"))
            processes: list[Process] = []
            for role, count in (("pserver", self.shape.pservers), ("trainer", self.shape.trainers)):
                for rank in range(count):
                    processes.append(self._start(role, rank, folder))
                    stack.callback(processes[-1].end)
            self.pservers, self.trainers = processes[: self.shape.pservers], processes[self.shape.pservers :]
            ports = [process.fetch()["ports"] for process in self.pservers]
            hosts = [self.seat("pserver", rank).host for rank in range(self.shape.pservers)]
            carriers = {c for reply in self._command(do="join", hosts=hosts, ports=ports) for c in reply["carriers"]}
            if carriers != {"shm" if self.shape.place == "local" else "tcp"}:
                raise RunFailedError(f"lanes are reached by {sorted(carriers)}, which is not what {self.shape} means")
            self._stack = stack.pop_all()
        return self

    def _start(self, role: str, rank: int, folder: str) -> Process:
        seat = self.seat(role, rank)
        sources = (BENCH, Path(bireme.__file__).resolve().parent.parent)
        variables = {**self.environment, "PYTHONPATH": os.pathsep.join(map(str, sources))}
        return Process(Member(role, rank, seat.host, os.getpid(), folder, self.shape), seat, variables)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _command(self, **command: object) -> list[dict[str, Any]]:
        for trainer in self.trainers:
            trainer.ask(**command)
        return [trainer.fetch() for trainer in self.trainers]

    def rounds(self, count: int) -> list[float]:
        """Do that many rounds; seconds of each, all trainers taken together."""
        answers = self._command(do="rounds", first=self.rounds_done, count=count)
        self.rounds_done += count
        return [statistics.mean(taken) for taken in zip(*(reply["seconds"] for reply in answers), strict=True)]

    def check(self) -> None:
        """Raise RunFailedError unless every trainer has the parameters that the rounds must lead to."""
        self._command(do="settle")
        for reply in self._command(do="check", rounds=self.rounds_done):
            if reply["wrong"]:
                raise RunFailedError(f"a wrong result: {reply['wrong']}")


class Trainer:
    """A trainer's side of the commands."""

    def __init__(self, member: Member, addresses: Sequence[tuple[str, Sequence[int]]]) -> None:
        self._member, self._shape = member, member.shape
        self._span = Span(member.rank, member.rank + 1)
        self.exchange, self._coder = _open_exchange(member, addresses)
        for _, piece, one in pieces(self.exchange.memory.row(self._span)[: self._shape.floats]):
            np.multiply(one, factor(member.rank), out=piece)
        count = self._shape.rows
        ids = [row_ids(member.rank, batch, count) for batch in range(BATCHES if count else 0)]
        self._blocks = [Block(own, np.empty((count, TABLE_WIDTH), np.float32)) for own in ids]
        self._pulled = np.empty((max(count, CHECKED_ROWS), TABLE_WIDTH), np.float32)
        self.exchange.pull_now()

    def rounds(self, first: int, count: int) -> dict[str, Any]:
        """Do rounds, and time each."""
        seconds = []
        for round_ in range(first, first + count):
            if self._blocks:
                self._blocks[round_ % BATCHES].rows[:] = row_gradient(self._member.rank, round_)
            begun = time.perf_counter()
            self._round(round_)
            seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds}

    def _round(self, round_: int) -> None:
        blocks = [self._blocks[round_ % BATCHES]] if self._blocks else []
        wanted = [self._blocks[(round_ + 1) % BATCHES].ids] if self._blocks else []
        self.exchange.push(round_, self._span, [Record(self._member.rank, False, 1)], blocks)
        self.exchange.pull_round(round_ + 1, wanted, [self._pulled])

    def settle(self) -> dict[str, Any]:
        """Put what top_k holds back where the others find it."""
        if self._coder is not None and self._shape.coding == "top_k":
            np.save(self._residual(self._member.rank), self._coder._residuals[self._span]._left)
        return {}

    def _residual(self, rank: int) -> Path:
        return Path(self._member.folder) / f"residual-{rank}.npy"

    def check(self, rounds: int) -> dict[str, Any]:
        """Compare everything with what the arithmetic says."""
        try:
            (self._check_rows if self._shape.rows else self._check_floats)(rounds)
        except ValueError as e:
            return {"wrong": str(e)}
        return {"wrong": ""}

    def _check_floats(self, rounds: int) -> None:
        floats, ranks = self._shape.floats, range(self._shape.trainers if self._shape.coding == "top_k" else 0)
        held = sum((np.load(self._residual(rank))[:floats] for rank in ranks), np.zeros(floats, np.float32))
        check_dense(self.exchange.memory.values(rounds)[:floats], self._shape, rounds, held)

    def _check_rows(self, rounds: int) -> None:
        ids = self._blocks[0].ids[:: max(1, self._shape.rows // CHECKED_ROWS)][:CHECKED_ROWS].copy()
        self.exchange.pull_round(rounds, [ids], [self._pulled])
        due = row_truth(self._shape, rounds, ids)
        off = np.abs(self._pulled[: len(ids)] - due[:, None]).max(axis=1)
        worst = int(off.argmax())
        if not off[worst] <= TABLE_TOLERANCE * np.abs(due).max():
            raise ValueError(f"row {ids[worst]} is {self._pulled[worst].tolist()}, {float(due[worst])!r} was due")


def _open_exchange(member: Member, addresses: Sequence[tuple[str, Sequence[int]]]) -> tuple[Exchange, Coder | None]:
    """Connect to all lanes as trainers of a job do."""
    setup = setup_of(member.shape, 0, member.folder)
    layout, is_near, wire = Layout(setup.dense), member.shape.place == "local", setup.facts.wire

    def reach(lane: int) -> list[socket.socket]:
        near = [connect_near(host, ports[lane]) if is_near else None for host, ports in addresses]
        where = zip(near, addresses, strict=True)
        return [sock or connect(host, ports[lane], timeout_s=30, what="a lane") for sock, (host, ports) in where]

    sockets, rows, coder = reach(0), None, None
    links = [Link(sock, part) for sock, part in zip(sockets, layout.slices(len(sockets)), strict=True)]
    memory = TrainerMemory(layout, [Span(member.rank, member.rank + 1)], is_shared=is_near and wire.is_exact)
    if setup.tables or not wire.is_exact:
        # Only here: they bring Numba, which takes half a second to import.
        from bireme.ps.client.coder import Coder
        from bireme.ps.client.push_pull_rows import RowLinks

        coder = None if wire.is_exact else Coder(wire, layout)
        rows = RowLinks(reach(1), setup.tables) if setup.tables else None
    return Exchange(links, memory, ME, rows, coder), coder


def setup_of(shape: Shape, pserver: int, folder: str) -> Setup:
    """What a coordinator would send a pserver."""
    parameters = [Parameter(name="w", shape=(shape.floats,))]
    optimizer = Optimizer(method=shape.method, learning_rate=RATE, schedule="constant")
    if shape.rows:
        parameters.append(Parameter(name="table", shape=(TABLE_ROWS, TABLE_WIDTH), rows=Rows()))
        optimizer = Optimizer(method="adagrad", learning_rate=TABLE_RATE, schedule="constant")
    facts = msgspec.structs.replace(
        FACTS,
        pservers=shape.pservers,
        ports_num_for_sparse=1 if shape.rows else 0,
        parameters=tuple(parameters),
        optimizer=optimizer,
        shards=shape.trainers,
        trainers=shape.trainers,
        wire=Wire(gradients=shape.coding),
        snapshots=Snapshots(path=f"{folder}/snapshots" if shape.has_cuts else "", every_s=0.0),
    )
    shares = share_out(shape.trainers, shape.trainers)
    return Setup(job=ME.job, view=ME.view, pserver=pserver, facts=facts, shares=shares)


def serve(member: Member) -> None:
    """Be a pserver until standard input closes."""
    lanes = 2 if member.shape.rows else 1
    server = PServer([listen(member.host, 0) for _ in range(lanes)], 1, lambda *_: None, lambda *_: None)
    setup, parts = setup_of(member.shape, member.rank, member.folder), PartsOf(server, ME.view)
    server.set_up(setup, lambda *_: None, parts.done if member.shape.has_cuts else None)
    server.start()
    print(json.dumps({"ports": server.ports}), flush=True)
    for line in sys.stdin:
        reply = parts.answer(json.loads(line)["do"], is_first=member.rank == 0)
        print(json.dumps(reply), flush=True)


def train(member: Member) -> None:
    """Be a trainer: carry out commands until standard input closes."""
    trainer: Trainer | None = None
    for line in sys.stdin:
        command = json.loads(line)
        what = command.pop("do")
        if what == "join":
            trainer = Trainer(member, list(zip(command["hosts"], command["ports"], strict=True)))
            reply = {"carriers": trainer.exchange.carriers}
        else:
            reply = getattr(trainer, what)(**command)
        print(json.dumps(reply), flush=True)


def main() -> None:
    """Do what the argument says, and end with the process that gave it."""
    given = json.loads(sys.argv[1])
    member = Member(**{**given, "shape": Shape(**given["shape"])})
    die_with(member.root)
    call_me(f"{member.role}-{member.rank}")
    security.use(Path(member.shape.tls) if member.shape.tls else None)
    (serve if member.role == "pserver" else train)(member)


if __name__ == "__main__":
    main()
