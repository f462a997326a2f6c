"""The trainer process: loads the program, joins the job, runs the loop, and saves models if it is trainer 0.

A second thread listens to the coordinator. When it says stop, the lanes' connections are closed
under the loop, which ends there.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bireme.core.errors import BiremeError, Cancelled, DataError, NetworkError, ProcessError, SpecError
from bireme.job import messages as m
from bireme.job.discover import Discovery, await_pservers
from bireme.job.model import load_into, load_trained
from bireme.job.preflight import check_lanes, updates_of
from bireme.job.telling import ModelPlace, Teller
from bireme.programs.config import load_config
from bireme.programs.program import Program, Role
from bireme.ps.client import Exchange, Identity, Link, connect, connect_near
from bireme.ps.coder import Coder
from bireme.ps.memory import TrainerMemory
from bireme.ps.plan import aligned_zeros, check_names
from bireme.ps.rowclient import RowLinks
from bireme.ps.setup import is_apart
from bireme.ps.tree import Span, rows_of, share_out
from bireme.spec.job import CarrierChoice
from bireme.spec.model import Snapshots, Updates, Wire
from bireme.train.local import LocalLoop, LocalRule
from bireme.train.loop import ApartLoop, Loop
from bireme.train.reader import ShardReader
from bireme.train.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """Everything a trainer is told when it starts."""

    name: str
    trainer: int
    trainers: int
    """0: as many as pserver 0 was started for (`--num_gradient_servers`)."""
    shards: int
    config: Path
    config_args: Mapping[str, str]
    workdirs: Callable[[int], Path]
    """The working directory that holds a shard's `data/`."""
    ports_num: int
    ports_num_for_sparse: int
    passes: int
    seed: int
    output: Path | None
    cache: Path | None
    log_period: int = 100
    connect_timeout_s: float = 60.0
    start_pass: int = 0
    init_model: Path | None = None
    carrier: CarrierChoice = "auto"
    updates: Updates | None = None
    """None leaves it to the program."""
    wire: Wire = field(default_factory=Wire)
    snapshots: Snapshots = field(default_factory=Snapshots)
    is_resumed: bool = False
    accepts_changes: bool = False
    data: str = ""
    """Fingerprint of the shards."""


class TrainerProcess:
    """One trainer from start to end."""

    def __init__(self, options: TrainerOptions) -> None:
        self._options = options
        self._stop: m.Stop | None = None
        self._stopped = threading.Event()
        self._control: socket.socket | None = None
        self._exchange: Exchange | None = None
        self._updates = Updates()

    def run(self, discovery: Discovery) -> None:
        """Train until the coordinator says it is over; a stop on request raises Cancelled."""
        options = self._options
        own = self._own_shards()
        program = load_config(options.config, options.workdirs(own.lo), options.config_args)
        if not program.parameters:
            raise SpecError(f"{program.name} defines nothing to train: no layer has a parameter")
        # Shard 0's owner tests for everybody: as in the original, every shard carries the same test files.
        tester = self._open(program, "test", 0) if own.lo == 0 else None
        self._updates = updates_of(program, options.updates, options.wire)
        check_lanes(program, options.ports_num_for_sparse)
        check_names(program.parameters)
        worker = Worker(program, self._readers(program, own), tester)
        worker.rehearse(options.start_pass)
        pservers = await_pservers(discovery, options.connect_timeout_s)
        begin = self._join(program, pservers)
        if begin.shares[options.trainer] != own:
            raise AssertionError(f"told to own {begin.shares[options.trainer]}, prepared {own}: this is a bug")
        try:
            self._train(program, worker, pservers, begin)
        except BiremeError as e:
            self._explain(e)

    def _own_shards(self) -> Span:
        options = self._options
        if options.trainers == 0:
            return Span(options.trainer, options.trainer + 1)
        return share_out(options.shards, options.trainers)[options.trainer]

    def _open(self, program: Program, role: Role, shard: int) -> ShardReader | None:
        """A reader of one shard, or None where the program defines no such data."""
        options = self._options
        source = program.source(role)
        if source is None:
            return None
        return ShardReader(
            source,
            options.workdirs(shard),
            shard,
            seed=options.seed,
            batch_size=program.batch_size,
            cache=options.cache,
        )

    def _readers(self, program: Program, own: Span) -> list[ShardReader]:
        """Readers of the shards this trainer owns, their samples packed and ready."""
        readers = [reader for shard in own.shards if (reader := self._open(program, "train", shard)) is not None]
        if not readers:
            raise DataError(f"{program.name} defines no training data", fix="give define_py_data_sources2 a train_list")
        found = sum(reader.open(self._options.start_pass) for reader in readers)
        log.info("shards %d to %d: %d samples", own.lo, own.hi - 1, found)
        return readers

    def _facts(self, program: Program, pservers: tuple[m.Address, ...]) -> m.Facts:
        options = self._options
        return m.Facts(
            name=options.name,
            program=program.name,
            fingerprint=program.fingerprint,
            parameters=program.parameters,
            optimizer=program.optimizer,
            batch_size=program.batch_size,
            evals=program.evaluators,
            shards=options.shards,
            trainers=options.trainers,
            passes=options.passes,
            seed=options.seed,
            pservers=pservers,
            dense_lanes=options.ports_num,
            sparse_lanes=options.ports_num_for_sparse,
            updates=self._updates,
            wire=options.wire,
            data=options.data,
            snapshots=options.snapshots,
            is_resumed=options.is_resumed,
            accepts_changes=options.accepts_changes,
            output=str(options.output or ""),
            is_set_by_trainer=options.init_model is not None,
            start_pass=options.start_pass,
            start_samples=_samples_before(options.init_model) if options.init_model else 0,
        )

    def _join(self, program: Program, pservers: tuple[m.Address, ...]) -> m.Begin:
        options = self._options
        for rank, address in enumerate(pservers):
            for port in address.ports:
                log.info("pserver %d %s:%d", rank, address.host, port)
        where = pservers[0]
        self._control = connect(where.host, where.ports[0], timeout_s=options.connect_timeout_s, what="pserver 0")
        facts = self._facts(program, pservers)
        m.send(
            self._control,
            m.Join(trainer=options.trainer, pid=os.getpid(), host=socket.gethostname(), facts=facts),
        )
        reply = m.expect(self._control)
        if isinstance(reply, m.Stop):
            kind = ProcessError if reply.how == "failed" else Cancelled
            raise kind(f"the job ended before it began: {reply.reason}")
        if not isinstance(reply, m.Begin):
            raise AssertionError(f"expected Begin, got {type(reply).__name__}: this is a bug")
        return reply

    def _train(self, program: Program, worker: Worker, pservers: tuple[m.Address, ...], begin: m.Begin) -> None:
        options = self._options
        assert self._control is not None
        exchange = self._open_exchange(worker, pservers, begin)
        self._exchange = exchange
        log.info("carriers: %s", ", ".join(exchange.carriers))
        model = ModelPlace(worker.layout, worker.tables, options.seed, options.output, options.config)
        teller = Teller(self._control, options.trainer, options.log_period, model)
        threading.Thread(target=self._listen, args=(teller,), name="control", daemon=True).start()
        if options.init_model is not None and options.trainer == 0:
            values = aligned_zeros(worker.layout.size)
            load_into(options.init_model, worker.layout.parameters, worker.layout.views(values))
            tables = [load_trained(options.init_model, table, options.seed) for table in worker.tables]
            exchange.set(values, tables)
        self._loop(program, worker, teller, begin).run(options.start_pass + options.passes, begin.saved)
        self._stopped.wait()  # trainer 0 may test and save for as long as it likes
        if self._stop is None:
            raise NetworkError("the coordinator went away before it had ended the job")

    def _loop(self, program: Program, worker: Worker, teller: Teller, begin: m.Begin) -> Loop:
        assert self._exchange is not None
        if self._updates.mode == "local":
            how = LocalRule(
                self._updates,
                program.optimizer,
                begin.shares[-1].hi,
                self._options.start_pass,
                begin.start_samples,
            )
            return LocalLoop(worker, self._exchange, teller, how)
        kind = ApartLoop if self._updates.is_streamed else Loop
        return kind(worker, self._exchange, teller)

    def _open_exchange(self, worker: Worker, pservers: tuple[m.Address, ...], begin: m.Begin) -> Exchange:
        options = self._options
        dense = self._connect_all(pservers, range(options.ports_num))
        links = [Link(sock, part) for sock, part in zip(dense, worker.layout.slices(len(dense)), strict=True)]
        is_exact = options.wire.is_exact and not self._updates.is_streamed
        is_shared = is_exact and options.carrier == "auto" and any(link.carrier == "unix" for link in links)
        spans = rows_of(worker.share, begin.shares[-1].hi, is_apart=is_apart(self._updates, options.wire))
        memory = TrainerMemory(worker.layout, spans, is_shared=is_shared)
        rows = self._open_rows(worker, pservers) if worker.tables else None
        coder = None if options.wire.is_exact else Coder(options.wire, worker.layout)
        return Exchange(links, memory, Identity(begin.job, begin.view, 1), rows, coder, self._updates.is_streamed)

    def _open_rows(self, worker: Worker, pservers: tuple[m.Address, ...]) -> RowLinks:
        options = self._options
        lanes = range(options.ports_num, options.ports_num + options.ports_num_for_sparse)
        return RowLinks(self._connect_all(pservers, lanes), worker.tables)

    def _connect_all(self, pservers: tuple[m.Address, ...], lanes: range) -> list[socket.socket]:
        return [self._connect(pservers, rank, lane) for rank in range(len(pservers)) for lane in lanes]

    def _connect(self, pservers: tuple[m.Address, ...], rank: int, lane: int) -> socket.socket:
        options = self._options
        host, port = pservers[rank].host, pservers[rank].ports[lane]
        near = connect_near(host, port) if options.carrier != "tcp" else None
        what = f"pserver {rank}, lane {lane}"
        return near or connect(host, port, timeout_s=options.connect_timeout_s, what=what)

    def _listen(self, teller: Teller) -> None:
        assert self._control is not None
        try:
            while True:
                message = m.expect(self._control)
                if isinstance(message, m.Stop):
                    self._stop = message
                    break
                if isinstance(message, m.PassClosed):
                    teller.closed.put(message)
        except BiremeError as e:
            log.debug("control connection ended: %s", e.what)
        finally:
            self._stopped.set()
            teller.closed.put(None)
            if (self._stop is None or self._stop.how != "finished") and self._exchange is not None:
                self._exchange.close()

    def _explain(self, error: BiremeError) -> None:
        """Say why the loop ended: on request, because of somebody else, or through a fault of our own."""
        if isinstance(error, NetworkError):
            self._stopped.wait(2.0)  # the coordinator's word, if there is one, is on its way
        if self._stop is not None and self._stop.how == "failed":
            raise ProcessError(f"stopped because the job failed: {self._stop.reason}") from error
        if self._stop is not None:
            raise Cancelled(self._stop.reason) from error
        if self._control is not None:
            failed = m.Failed(trainer=self._options.trainer, what=error.what, why=error.why, fix=error.fix)
            try:
                m.send(self._control, failed)
            except NetworkError:
                log.warning("the coordinator is gone too")
        raise error


def _samples_before(model: Path) -> int:
    """How many samples a saved model has seen, where it says so: schedules count on from there."""
    try:
        told = msgspec.json.decode((model / "metrics.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError):
        return 0
    samples = told.get("samples_so_far", 0)
    return samples if isinstance(samples, int) else 0
