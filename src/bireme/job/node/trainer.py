"""The trainer process: loads the program, joins the job, runs the loop, and saves models if it is trainer 0.

A second thread listens to the coordinator. On a new view, a Stop or a lost connection it closes the lanes'
connections, which ends the loop with an error. The main thread then follows the newest order: train in the new view,
exit, or look for the coordinator's successor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from pathlib import Path

from bireme.core import faults
from bireme.core.errors import (
    BiremeError,
    Cancelled,
    DataError,
    NetworkError,
    ProcessError,
    RefusedError,
    StaleError,
)
from bireme.job.coordination import messages as m
from bireme.job.node.discovery import Discovery, reach_coordinator
from bireme.job.node.failure_reports import last_status
from bireme.job.node.orders import Orders
from bireme.job.node.pass_reporter import PassReporter
from bireme.job.node.supervisor import put_mark, take_mark
from bireme.job.node.trainer_options import TrainerOptions
from bireme.job.output.inputs import ensure_origin
from bireme.job.output.kept import summary_of
from bireme.job.output.model import load_into, load_trained
from bireme.job.preflight import check_parameters
from bireme.programs.loading import ProgramSpec, load_program
from bireme.programs.program import Program, Reader, Role
from bireme.ps.client.carriers import connect, connect_near, is_near
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link
from bireme.ps.client.slow_pservers import SlowPservers
from bireme.ps.plan import aligned_zeros
from bireme.ps.setup import is_apart
from bireme.ps.tree import Span, rows_of, share_out
from bireme.spec.load import places
from bireme.spec.model import Updates
from bireme.spec.terms import Facts, terms_in
from bireme.train.local import LocalLoop, LocalRule
from bireme.train.loop import ApartLoop, Loop
from bireme.train.worker import Worker

log = logging.getLogger(__name__)
LANE_S = 5.0
"""How long a lane may take to accept a connection; the coordinator has just seen it ready."""


class TrainerProcess:
    """One trainer from start to end."""

    def __init__(self, options: TrainerOptions) -> None:
        self._options = options
        self._job = options.job
        self._lock = threading.Lock()
        """Guards the two below: the main thread sets them, the listening thread closes them."""
        self._exchange: Exchange | None = None
        self._reporter: PassReporter | None = None
        self._updates = Updates()

    def run(self, discovery: Discovery) -> None:
        """Train until the coordinator's Stop; one on request raises Cancelled."""
        job, mark, rank = self._job, self._options.mark, self._options.trainer
        # Started by hand, it owns the shard of its own number.
        own = share_out(job.shards, job.trainers)[rank] if job.trainers else Span(rank, rank + 1)
        program = load_program(ProgramSpec.of_job(job, self._options.workdirs(own.lo)))
        self._updates = check_parameters(program, job)
        # Shard 0's owner tests for all trainers: as in the original, every shard carries the same test files.
        tester = self._open(program, "test", 0) if own.lo == 0 else None
        if rank == 0:
            ensure_origin(job, program)
        worker = Worker(program, self._readers(program, own), tester)
        worker.rehearse(job.start_pass)
        while True:
            try:
                line, orders = self._join(program, discovery)
            except NetworkError:
                if (stop := self._final_stop()) is None:
                    raise
            else:
                put_mark(mark)
                try:
                    stop = self._follow(program, worker, line, orders)
                finally:
                    take_mark(mark)
                    line.close()
            if stop is not None:
                _raise_unless_finished(stop)
                return
            log.warning("lost coordinator action=look-for-successor")

    def _follow(self, program: Program, worker: Worker, line: m.Line, orders: Orders) -> m.Stop | None:
        """Train in view after view; returns the coordinator's Stop, or None if the connection is lost."""
        view = 0
        while isinstance(order := orders.wait(view), m.Begin):
            view = order.view
            log.info("entered view=%d", view)
            try:
                self._train(program, worker, line, order, orders)
            except (NetworkError, StaleError) as e:
                if not orders.has_newer(view):  # else `_close` has caused the error
                    log.warning("lost lane view=%d cause=%r", view, e.what)
                    self._send(line, m.LinkLost(trainer=self._options.trainer, view=view, what=e.what))
            except BiremeError as e:
                if not orders.has_newer(view):
                    self._send(line, m.Failed(trainer=self._options.trainer, what=e.what, why=e.why, fix=e.fix))
                    raise
                log.warning("ignored error of an ended view=%d cause=%r", view, e.what)
            finally:
                self._close()
        return order

    def _final_stop(self) -> m.Stop | None:
        """The Stop that follows from the final status on disk; by hand, that may be an earlier job's: None."""
        if not self._options.incarnation:
            return None
        status = last_status(Path(self._job.output))
        return m.Stop(reason=status.reason, how=status.ending) if status.ending else None

    def _send(self, line: m.Line, message: m.Message) -> None:
        try:
            line.send(message)
        except NetworkError as e:
            log.warning("lost coordinator cause=%r", e.what)

    def _open(self, program: Program, role: Role, shard: int) -> Reader | None:
        """A reader of one shard, or None where the program defines no such data."""
        source = program.source(role)
        if source is None:
            return None
        workdir, cache = self._options.workdirs(shard), places().cache / "packed"
        return source.reader(workdir, shard, seed=self._job.seed, batch_size=program.batch_size, cache=cache)

    def _readers(self, program: Program, own: Span) -> list[Reader]:
        readers = [reader for shard in own.shards if (reader := self._open(program, "train", shard)) is not None]
        if not readers:
            raise DataError(f"{program.name} defines no training data", fix="give define_py_data_sources2 a train_list")
        samples = sum(reader.open(self._job.start_pass) for reader in readers)
        log.info("reading shards=%d-%d samples=%d", own.lo, own.hi - 1, samples)
        return readers

    def _facts(self, program: Program, pservers: int) -> Facts:
        model = self._job.init_model
        summary = summary_of(Path(model)) if model else None
        terms = terms_in(self._job) | {"pservers": pservers, "updates": self._updates}
        return Facts(
            **terms,  # type: ignore[arg-type]
            program=program.name,
            fingerprint=program.fingerprint,
            parameters=program.parameters,
            optimizer=program.optimizer,
            batch_size=program.batch_size,
            evals=program.evaluators,
            is_set_by_trainer=bool(model),
            start_samples=summary.samples_so_far if summary else 0,  # schedules continue from there
        )

    def _join(self, program: Program, discovery: Discovery) -> tuple[m.Line, Orders]:
        options = self._options
        addresses = discovery.find()
        join = m.Join(
            trainer=options.trainer,
            pid=os.getpid(),
            host=socket.gethostname(),
            facts=self._facts(program, len(addresses)),
            pservers=tuple(address for address in addresses if address is not None) if all(addresses) else (),
            incarnation=options.incarnation,
        )
        while True:
            sock = reach_coordinator(discovery, self._job.connect_timeout_s, lambda: self._final_stop() is not None)
            line = m.Line(sock)
            try:
                line.send(join)
                break
            except NetworkError as e:
                log.warning("lost coordinator before Join cause=%r", e.what)
        line.beat()
        orders = Orders(self._close)
        # The main thread trains and may block in a lane's receive, so another one reads the orders, and wakes it by
        # closing the lanes' connections (`Orders` calls `_close`).
        threading.Thread(target=self._listen, args=(line, orders), name="control", daemon=True).start()
        return line, orders

    def _train(self, program: Program, worker: Worker, line: m.Line, begin: m.Begin, orders: Orders) -> None:
        job, rank = self._job, self._options.trainer
        if begin.shares[rank] != worker.share:
            raise AssertionError(f"Begin gives {begin.shares[rank]}, prepared {worker.share}: this is a bug")
        faults.at("view.begin")
        exchange = self._open_exchange(worker, begin)
        is_exact = not self._updates.is_streamed
        reporter = PassReporter(line, self._options, begin, worker, lambda: exchange.slowest_pserver, is_exact=is_exact)
        with self._lock:
            self._exchange, self._reporter = exchange, reporter
        # An order that came before these two were set found nothing to close: the loop could block forever.
        if orders.has_newer(begin.view):
            raise NetworkError("the view ended while its lanes were being opened")
        log.info("connected carriers=%s", ",".join(exchange.carriers))
        if begin.wants_values and job.init_model and rank == 0:
            model, values = Path(job.init_model), aligned_zeros(worker.layout.size)
            load_into(model, worker.layout.parameters, worker.layout.views(values))
            exchange.set(values, [load_trained(model, table, job.seed) for table in worker.tables])
        self._loop(program, worker, exchange, reporter, begin).run(job.passes, begin.saved)

    def _close(self) -> None:
        """Close the connections to the lanes, and wake a main thread that waits for the end of a pass."""
        with self._lock:
            # The main and the control thread both call this: the lock lets one of them close, once.
            exchange, reporter = self._exchange, self._reporter
            self._exchange = self._reporter = None
        if exchange is not None:
            exchange.close()
        if reporter is not None:
            reporter.closed.put(None)

    def _loop(
        self, program: Program, worker: Worker, exchange: Exchange, reporter: PassReporter, begin: m.Begin
    ) -> Loop:
        worker.forget()
        if self._updates.mode == "local":
            shards = begin.shares[-1].hi
            how = LocalRule(self._updates, program.optimizer, shards, self._job.start_pass, begin.start_samples)
            return LocalLoop(worker, exchange, reporter, how)
        return (ApartLoop if self._updates.is_streamed else Loop)(worker, exchange, reporter)

    def _open_exchange(self, worker: Worker, begin: m.Begin) -> Exchange:
        job, pservers = self._job, begin.pservers
        lanes, wire = job.ports_num, job.wire
        dense = self._connect(pservers, range(lanes))
        faults.on_cut(lambda peer: _cut(dense, int(peer.partition(":")[2]), lanes))
        parts = worker.layout.slices(len(dense))
        links = [Link(sock, parts[i], i // lanes) for i, sock in enumerate(dense)]
        is_exact = wire.is_exact and not self._updates.is_streamed
        is_shared = is_exact and job.carrier == "auto" and any(map(is_near, dense))
        spans = rows_of(worker.share, begin.shares[-1].hi, is_apart=is_apart(self._updates, wire))
        memory = TrainerMemory(worker.layout, spans, is_shared=is_shared)
        slow_pservers = SlowPservers(len(pservers), worker.share.lo)
        # Imported where they are used: both load Numba, which a dense program of PaddlePaddle does not need.
        rows = coder = None
        if worker.tables:
            from bireme.ps.client.push_pull_rows import RowLinks

            connections = self._connect(pservers, range(lanes, lanes + job.ports_num_for_sparse))
            owners = [i // job.ports_num_for_sparse for i in range(len(connections))]
            rows = RowLinks(connections, worker.tables, owners, slow_pservers)
        if not wire.is_exact:
            from bireme.ps.client.coder import Coder

            coder = Coder(wire, worker.layout)
        me = Identity(begin.job, begin.view, self._options.incarnation)
        return Exchange(links, memory, me, rows, coder, self._updates.is_streamed, slow_pservers)

    def _connect(self, pservers: tuple[m.Address, ...], lanes: range) -> list[socket.socket]:
        """Connections to these lanes of all pservers, one pserver's after the other's."""
        connections = []
        for rank, address in enumerate(pservers):
            for lane in lanes:
                host, port = address.host, address.ports[lane]
                near = connect_near(host, port) if self._job.carrier != "tcp" else None
                connections.append(near or connect(host, port, timeout_s=LANE_S, what=f"pserver {rank}, lane {lane}"))
        return connections

    def _listen(self, line: m.Line, orders: Orders) -> None:
        try:
            while True:
                message = m.expect(line.sock)
                if isinstance(message, m.Begin | m.Stop):
                    orders.put(message)
                elif isinstance(message, m.PassClosed | m.Counted):
                    # The main thread may take the reporter away at this moment, with the view it belongs to.
                    with self._lock:
                        if self._reporter is not None:
                            self._reporter.closed.put(message)
        except RefusedError as e:
            orders.refuse(e)
        except BiremeError as e:
            log.debug("disconnected coordinator cause=%r", e.what)
            orders.put(None)


def _cut(connections: list[socket.socket], pserver: int, lanes: int) -> None:
    for sock in connections[pserver * lanes : (pserver + 1) * lanes]:
        # `shutdown` wakes the thread that receives, which `close` would not.
        with contextlib.suppress(OSError):  # it is down already
            sock.shutdown(socket.SHUT_RDWR)


def _raise_unless_finished(stop: m.Stop) -> None:
    if stop.how == "failed":
        raise ProcessError(f"stopped because the job failed: {stop.reason}")
    if stop.how == "cancelled":
        raise Cancelled(stop.reason)
