"""Our own data plane under the peers' workloads: real pservers and lanes, real exchanges, real kernels."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.programs.bow import BagOfWords
from bireme.programs.columns import Column, Columns, InputType
from bireme.ps.client.carriers import connect, connect_near
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link
from bireme.ps.client.push_pull_rows import RowLinks
from bireme.ps.lanes.server import PServer, listen
from bireme.ps.plan import Layout
from bireme.ps.setup import Setup
from bireme.ps.sparse.row_sums import unique
from bireme.ps.tree import Span, share_out
from bireme.ps.wire.frames import HEAD_NBYTES, RECORD_NBYTES, Record
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Optimizer, Parameter, Rows
from engines import workloads as w
from engines.facts import FACTS
from engines.process import Task, answer, begin, time_steps

ME = Identity(job=1, view=1, incarnation=1)


def parameters_of(work: str) -> tuple[tuple[Parameter, ...], Optimizer]:
    """What a job of this work would say of its parameters."""
    if work == "bow":
        found = (Parameter(name="weight", shape=(w.WORDS, w.CLASSES)), Parameter(name="bias", shape=(w.CLASSES,)))
        return found, Optimizer(method="adam", learning_rate=w.BOW_RATE, schedule="constant")
    if work == "sparse":
        table = Parameter(name="table", shape=(w.ROWS, w.WIDTH), rows=Rows())
        return (table,), Optimizer(method="adagrad", learning_rate=w.SPARSE_RATE, schedule="constant")
    flat = Parameter(name="w", shape=(w.DENSE_SIZES[work],))
    return (flat,), Optimizer(method="momentum", learning_rate=w.DENSE_RATE, schedule="constant")


def open_exchange(task: Task, layout: Layout) -> Exchange:
    """Connect to all lanes as trainers do; the library chooses the carrier.

    task.options["place"] is "tcp" (as between machines) or "local" (whatever is best on one machine).
    """
    is_near = task.options["place"] == "local"
    sockets = [_connect(port, is_near=is_near) for port in task.ports[: w.SERVERS]]
    links = [Link(sock, part) for sock, part in zip(sockets, layout.slices(len(sockets)), strict=True)]
    memory = TrainerMemory(layout, [_span(task.rank)], is_shared=is_near)
    tables = [p for p in parameters_of(task.work)[0] if p.is_sparse]
    far = [_connect(port, is_near=is_near) for port in task.ports[w.SERVERS : 2 * w.SERVERS]] if tables else []
    return Exchange(links, memory, ME, RowLinks(far, tables) if tables else None)


def _connect(port: int, *, is_near: bool) -> socket.socket:
    far = connect("127.0.0.1", port, timeout_s=60, what="a pserver")
    if not is_near:
        return far
    far.close()
    for _ in range(6000):
        # A pserver opens its Unix sockets after its ports: when its kernels are compiled.
        if (near := connect_near("127.0.0.1", port)) is not None:
            return near
        time.sleep(0.01)
    raise SystemExit("the pserver has no Unix socket")


def _span(rank: int) -> Span:
    return Span(rank, rank + 1)


def serve(task: Task) -> None:
    """Be a pserver until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parameters, optimizer = parameters_of(task.work)
    sockets = [listen("127.0.0.1", task.ports[rank]) for rank in (task.rank, w.SERVERS + task.rank)]
    server = PServer(sockets, 1, lambda *_: None, lambda *_: None)
    facts = msgspec.structs.replace(
        FACTS,
        pservers=w.SERVERS,
        ports_num_for_sparse=1,
        parameters=parameters,
        optimizer=optimizer,
        shards=w.TRAINERS,
        trainers=w.TRAINERS,
    )
    shares = share_out(w.TRAINERS, w.TRAINERS)
    setup = Setup(job=ME.job, view=ME.view, pserver=task.rank, facts=facts, shares=shares)
    server.set_up(setup, lambda *_: None)
    server.start()
    signal.sigwait({signal.SIGTERM})
    server.stop()


def train(task: Task) -> None:
    """Be a trainer: do the steps, check the result, report the figures."""
    layout = Layout([p for p in parameters_of(task.work)[0] if not p.is_sparse])
    exchange = open_exchange(task, layout)
    exchange.pull_now()
    if task.work == "bow":
        watch = w.CostWatch(_bow_step(task, exchange, layout))
        timing = time_steps(task, watch)
        watch.check(task.rank)
    elif task.work == "sparse":
        timing = _sparse(task, exchange)
    else:
        exchange.memory.row(_span(task.rank))[:] = w.dense_gradient(task.rank)
        timing = time_steps(task, lambda index: _round(exchange, task.rank, index))
        w.check_dense(exchange.memory.values(task.total)[: w.DENSE_SIZES[task.work]], task.total)
    carriers = exchange.carriers
    exchange.close()
    carrier = "+".join(sorted(set(carriers)))
    answer(task, {"wire_bytes_per_step": wire_bytes(layout, carriers), "carrier": carrier, **timing})


def _round(exchange: Exchange, rank: int, index: int) -> None:
    exchange.push(index, _span(rank), [Record(rank, False, 1)])
    exchange.pull_round(index + 1)


def _sparse(task: Task, exchange: Exchange) -> dict[str, Any]:
    """Push the batch's rows, find the next batch's while the lanes work, and pull those."""
    batches = [w.sparse_batches(rank) for rank in range(w.TRAINERS)]
    target = np.zeros((max(len(ids) for ids in batches[task.rank]), w.WIDTH), np.float32)
    found = [_unique(batches[task.rank][0])]
    exchange.pull_round(0, [found[0].ids], [target])

    def step(index: int) -> None:
        exchange.push(index, _span(task.rank), [Record(task.rank, False, w.SAMPLES)], [found[0]])
        found[0] = _unique(batches[task.rank][(index + 1) % w.SPARSE_POOL])
        exchange.pull_round(index + 1, [found[0].ids], [target])

    timing = time_steps(task, step)
    truth = w.sparse_truth(batches, task.total)
    rows = np.zeros((len(truth.rows), w.WIDTH), np.float32)
    exchange.pull_round(task.total, [truth.rows.astype(np.uint64)], [rows])
    truth.check(rows)
    each = sum(len(_unique(ids).ids) for mine in batches for ids in mine) / w.SPARSE_POOL
    # Ids go out twice, with the gradient and with the request; rows go out and come back.
    control = w.TRAINERS * w.SERVERS * (3 * HEAD_NBYTES + RECORD_NBYTES + 2 * 8)
    carrier = "unix" if task.options["place"] == "local" else "tcp"
    return {**timing, "wire_bytes_per_step": int(each * (2 * 8 + 2 * 4 * w.WIDTH)) + control, "carrier": carrier}


def _unique(ids: NDArray[np.int64]) -> Block:
    rows, positions = unique(ids)
    counts = np.bincount(positions, minlength=len(rows)).astype(np.float32)
    grads = np.empty((len(rows), w.WIDTH), np.float32)
    grads[:] = (np.float32(w.SPARSE_GRADIENT) * counts)[:, None]
    return Block(rows, grads)


def _bow_step(task: Task, exchange: Exchange, layout: Layout) -> Callable[[int], float]:
    memory = exchange.memory
    grads = layout.views(memory.row(_span(task.rank)))
    # Shared memory has two sets of parameters, which take turns; otherwise both of these are one.
    programs = [
        BagOfWords(("word", "label"), ("weight", "bias"), {}, (layout.views(memory.values(r)), grads)) for r in (0, 1)
    ]
    batches = [_columns(batch) for batch in w.bow_batches(task.rank)]

    def step(index: int) -> float:
        cost = programs[index % 2].step(batches[index % len(batches)]).cost
        _round(exchange, task.rank, index)
        return cost

    return step


def _columns(batch: w.Batch) -> Columns:
    words = InputType(name="word", dim=w.WORDS, kind="sparse_binary")
    label = InputType(name="label", dim=w.CLASSES, kind="index")
    offsets = np.arange(w.TEXTS + 1, dtype=np.int64) * w.IDS_PER_TEXT
    ids = Column(words, ids=batch.ids.reshape(-1).astype(np.int32), offsets=offsets)
    return Columns({"word": ids, "label": Column(label, ids=batch.labels.astype(np.int32))}, w.TEXTS)


def wire_bytes(layout: Layout, carriers: Sequence[str]) -> int:
    """Bytes that one step moves through sockets between all trainers and pservers, counted from its frames."""
    control = HEAD_NBYTES + RECORD_NBYTES + 2 * HEAD_NBYTES  # PUSH with one record, PULL, SLICE
    parts = zip(layout.slices(len(carriers)), carriers, strict=True)
    payload = sum(2 * 4 * len(part) for part, carrier in parts if carrier != "shm")
    return w.TRAINERS * (control * len(carriers) + payload)


def main() -> None:
    """Do the task."""
    task = begin()
    (serve if task.role == "pserver" else train)(task)


if __name__ == "__main__":
    main()
