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
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bireme.core.errors import BiremeError, Cancelled, DataError, NetworkError, ProcessError, SpecError
from bireme.job import messages as m
from bireme.job.discover import Discovery, await_pservers
from bireme.job.model import load_into
from bireme.job.telling import ModelPlace, Teller
from bireme.programs.config import load_config
from bireme.programs.program import Program, Role
from bireme.ps.client import Exchange, Identity, Link, connect, connect_near
from bireme.ps.memory import TrainerMemory
from bireme.ps.plan import aligned_zeros
from bireme.ps.tree import Span, cover, share_out
from bireme.spec.job import CarrierChoice
from bireme.train.loop import Loop
from bireme.train.reader import ShardReader

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
    passes: int
    seed: int
    output: Path | None
    cache: Path | None
    log_period: int = 100
    connect_timeout_s: float = 60.0
    start_pass: int = 0
    init_model: Path | None = None
    carrier: CarrierChoice = "auto"


class TrainerProcess:
    """One trainer from start to end."""

    def __init__(self, options: TrainerOptions) -> None:
        self._options = options
        self._stop: m.Stop | None = None
        self._stopped = threading.Event()
        self._control: socket.socket | None = None
        self._exchange: Exchange | None = None

    def run(self, discovery: Discovery) -> None:
        """Train until the coordinator says it is over; a stop on request raises Cancelled."""
        options = self._options
        own = self._own_shards()
        program = load_config(options.config, options.workdirs(own.lo), options.config_args)
        if not program.parameters:
            raise SpecError(f"{program.name} defines nothing to train: no layer has a parameter")
        # Shard 0's owner tests for everybody: as in the original, every shard carries the same test files.
        tester = self._open(program, "test", 0) if own.lo == 0 else None
        loop = Loop(program, self._readers(program, own), tester)
        loop.rehearse(options.start_pass)
        pservers = await_pservers(discovery, options.connect_timeout_s)
        begin = self._join(program, pservers)
        if begin.shares[options.trainer] != own:
            raise AssertionError(f"told to own {begin.shares[options.trainer]}, prepared {own}: this is a bug")
        try:
            self._train(loop, pservers, begin)
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

    def _train(self, loop: Loop, pservers: tuple[m.Address, ...], begin: m.Begin) -> None:
        options = self._options
        assert self._control is not None
        self._exchange = self._open_exchange(loop, pservers, begin)
        log.info("carriers: %s", ", ".join(self._exchange.carriers))
        model = ModelPlace(loop.layout, options.output, options.config)
        teller = Teller(self._control, options.trainer, options.log_period, model)
        threading.Thread(target=self._listen, args=(teller,), name="control", daemon=True).start()
        if options.init_model is not None and options.trainer == 0:
            values = aligned_zeros(loop.layout.size)
            load_into(options.init_model, loop.layout.parameters, loop.layout.views(values))
            self._exchange.set(values)
        loop.run(self._exchange, options.passes, teller)
        self._stopped.wait()  # trainer 0 may test and save for as long as it likes
        if self._stop is None:
            raise NetworkError("the coordinator went away before it had ended the job")

    def _open_exchange(self, loop: Loop, pservers: tuple[m.Address, ...], begin: m.Begin) -> Exchange:
        options = self._options
        sockets = []
        for rank, address in enumerate(pservers):
            for lane, port in enumerate(address.ports[: options.ports_num]):
                near = connect_near(address.host, port) if options.carrier != "tcp" else None
                what = f"pserver {rank}, lane {lane}"
                sockets.append(near or connect(address.host, port, timeout_s=options.connect_timeout_s, what=what))
        links = [Link(sock, part) for sock, part in zip(sockets, loop.layout.slices(len(sockets)), strict=True)]
        is_shared = options.carrier == "auto" and any(link.carrier == "unix" for link in links)
        spans = cover(loop.share, begin.shares[-1].hi)
        memory = TrainerMemory(loop.layout, spans, is_shared=is_shared)
        return Exchange(links, memory, Identity(begin.job, begin.view, 1))

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
