"""Whole loops over real lanes: a sparse parameter trains to what the same parameter comes to as a dense one."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.integration.test_carriers import near
from tests.integration.test_server_and_client import ME, Cluster, run_all
from tests.integration.test_server_and_client import cluster as cluster  # a fixture

from bireme.programs.columns import Columns, InputType
from bireme.programs.lookups import Lookup
from bireme.programs.program import Arrays, Computation, Role, Source, SourceFacts, Sums
from bireme.programs.readers import PackedReader
from bireme.ps.client.coder import Coder
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Link, Position
from bireme.ps.client.push_pull_rows import RowLinks
from bireme.ps.setup import is_apart
from bireme.ps.tree import Span, rows_of, share_out
from bireme.spec.model import Coding, Optimizer, Parameter, Rows, Updates, Wire
from bireme.train.loop import ApartLoop, Loop, PassResult, Tables
from bireme.train.worker import Running, Worker

Floats = NDArray[np.float32]
DIM, WIDTH = 40, 2
COUNTS = [25, 0, 31, 12]
SYNC, EXACT = Updates(), Wire()
INPUTS = (InputType(name="words", dim=DIM, kind="sparse_binary"),)


class Words:
    """A source of so many samples of a few ids each; some have none."""

    def __init__(self, shard: int, count: int) -> None:
        self.shard, self.count = shard, count

    def facts(self, workdir: Path) -> SourceFacts:
        return SourceFacts((), should_shuffle=True, is_cacheable=True, fingerprint="words", inputs=INPUTS)

    def samples(self, workdir: Path, seed: int) -> Iterator[tuple[list[int]]]:
        draw = np.random.default_rng([self.shard, 9])
        for _ in range(self.count):
            yield (sorted(set(draw.integers(0, DIM, draw.integers(0, 5)).tolist())),)


class WordProgram:
    """Each occurrence of a word adds 1 to the gradient of its row, and `pull` of the row itself."""

    name = fingerprint = "words.py"
    optimizer = Optimizer(learning_rate=0.5, schedule="constant")
    batch_size = 10
    evaluators: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    wants_async = False

    def __init__(self, *, is_sparse: bool, pull: float = 0.0) -> None:
        table = Parameter(name="emb", shape=(DIM, WIDTH), rows=Rows() if is_sparse else None)
        self.parameters: tuple[Parameter, ...] = (Parameter(name="b", shape=(1,)), table)
        self.lookups: tuple[Lookup, ...] = (Lookup(("words",), ("emb",)),) if is_sparse else ()
        self.pull = np.float32(pull)

    def source(self, role: Role) -> Source | None:
        return None

    def bind(self, values: Arrays, grads: Arrays) -> Computation[Columns]:
        return WordComputation(self.pull, values, grads)


class WordComputation:
    def __init__(self, pull: np.float32, values: Arrays, grads: Arrays) -> None:
        self._pull, self._values, self._grads = pull, values, grads

    def step(self, batch: Columns) -> Sums:
        ids, emb = batch.columns["words"].ids, self._grads["emb"]
        assert ids is not None
        emb[...] = 0.0
        np.add.at(emb, ids, np.float32(1.0) + self._pull * self._values["emb"][ids])
        self._grads["b"][...] = len(batch)
        return Sums(len(batch), float(len(ids)))

    def evaluate(self, batch: Columns) -> Sums:
        ids = batch.columns["words"].ids
        assert ids is not None
        return Sums(len(batch), float(self._values["emb"][ids].sum()))

    def predict(self, batch: Columns) -> Mapping[str, Floats]:
        return {}


class Notes:
    """A listener that fetches what is to be saved, as trainer 0 does."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.models: list[dict[str, list[object]]] = []
        self.tests: list[tuple[int, float]] = []
        self.errors: list[float] = []

    def round_done(self, at: Position, batches: int, totals: Running) -> None:
        pass

    def pass_done(self, result: PassResult, values: Floats, tables: Tables) -> None:
        found = {name: view.copy() for name, view in self._worker.layout.views(values).items()}
        for parameter, block in zip(self._worker.tables, tables(), strict=True):
            found[parameter.name] = np.zeros(parameter.shape, np.float32)
            found[parameter.name][block.ids.astype(np.int64)] = block.rows
        self.models.append({name: array.tolist() for name, array in found.items()})
        self.errors.append(result.wire_error)
        if result.test is not None:
            self.tests.append((result.test.samples, result.test.cost))


class Job:
    """One way of training the program over a cluster's lanes."""

    def __init__(
        self, program: WordProgram, shares: Sequence[Span], updates: Updates = SYNC, wire: Wire = EXACT
    ) -> None:
        self.program, self.shares, self.updates, self.wire = program, tuple(shares), updates, wire

    def open(self, cluster: Cluster, worker: Worker, carrier: str) -> Exchange:
        lanes: list[list[socket.socket]] = [[], []]
        for server in cluster.servers:
            for number, port in enumerate(server.ports):
                reach = cluster.connect if carrier == "tcp" else partial(near, cluster)
                lanes[number >= server._dense_lanes].append(reach(port))
        parts = worker.layout.slices(len(lanes[0]))
        links = [Link(sock, part) for sock, part in zip(lanes[0], parts, strict=True)]
        spans = rows_of(worker.share, len(COUNTS), is_apart=is_apart(self.updates, self.wire))
        memory = TrainerMemory(worker.layout, spans, is_shared=carrier == "shm")
        rows = RowLinks(lanes[1], worker.tables) if worker.tables else None
        coder = None if self.wire.is_exact else Coder(self.wire, worker.layout)
        return Exchange(links, memory, ME, rows, coder, self.updates.is_streamed)

    def train(self, cluster: Cluster, carrier: str = "tcp", passes: int = 2) -> list[Notes]:
        cluster.set_up(
            parameters=self.program.parameters, shards=len(COUNTS), shares=self.shares, updates=self.updates,
            optimizer=self.program.optimizer, wire=self.wire,
        )  # fmt: skip
        loops, notes = [], []
        for share in self.shares:
            readers = [reader(shard, COUNTS[shard]) for shard in share.shards]
            worker = Worker(self.program, readers, reader(0, 15) if share.lo == 0 else None)
            notes.append(Notes(worker))
            exchange = self.open(cluster, worker, carrier)
            loops.append((ApartLoop if self.updates.is_streamed else Loop)(worker, exchange, notes[-1]))
        run_all(*(partial(loop.run, passes) for loop in loops))
        for loop in loops:
            loop._exchange.close()
        return notes


def reader(shard: int, count: int) -> PackedReader:
    words = Words(shard, count)
    return PackedReader(words, words.facts(Path()), Path(), shard, seed=1, batch_size=10, cache=None)


@pytest.fixture(scope="module")
def dense() -> Notes:
    """What the program comes to when all its parameters are dense and one trainer has all shards."""
    made = Cluster()
    made.start(lanes=1)
    (only,) = Job(WordProgram(is_sparse=False, pull=0.25), share_out(4, 1)).train(made)
    made.stop()
    return only


@pytest.mark.parametrize("carrier", ["shm", "unix", "tcp"])
@pytest.mark.parametrize("trainers", [1, 2, 4])
@pytest.mark.parametrize(("pservers", "lanes"), [(1, 1), (2, 3)])
def test_a_sparse_parameter_trains_and_tests_as_a_dense_one(
    cluster: Cluster, dense: Notes, pservers: int, lanes: int, trainers: int, carrier: str
) -> None:
    cluster.start(pservers, 1, sparse_lanes=lanes)
    found = Job(WordProgram(is_sparse=True, pull=0.25), share_out(4, trainers)).train(cluster, carrier)
    assert [notes.models for notes in found] == [dense.models] * trainers
    assert found[0].tests == dense.tests
    assert dense.tests[0][1] != dense.tests[1][1] != 0.0


@pytest.mark.parametrize("carrier", ["shm", "unix", "tcp"])
def test_a_trainer_without_samples_delays_none_by_any_carrier(cluster: Cluster, dense: Notes, carrier: str) -> None:
    cluster.start(lanes=2)
    found = Job(WordProgram(is_sparse=False, pull=0.25), share_out(4, 4)).train(cluster, carrier)
    assert [notes.models for notes in found] == [dense.models] * 4


@pytest.mark.parametrize("updates", [Updates(mode="async"), Updates(mode="bounded", staleness=1)], ids=["async", "1"])
@pytest.mark.parametrize("trainers", [1, 3])
def test_rows_that_are_applied_on_arrival_are_all_applied(cluster: Cluster, updates: Updates, trainers: int) -> None:
    cluster.start(2, 1, sparse_lanes=2)
    found = Job(WordProgram(is_sparse=True), share_out(4, trainers), updates).train(cluster, passes=1)
    counted = np.zeros((DIM, WIDTH))
    for shard, count in enumerate(COUNTS):
        for (words,) in Words(shard, count).samples(Path(), 1):
            counted[words] -= 0.5
    assert found[0].models[0] == {"b": [-0.5 * sum(COUNTS)], "emb": counted.tolist()}


@pytest.mark.parametrize("gradients", ["float16", "bfloat16", "top_k"])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_coded_gradients_give_one_result_for_all_trainer_counts(gradients: Coding, is_sparse: bool) -> None:
    ends, how = [], Wire(gradients=gradients, top_k=0.25)
    for trainers, carrier in ((1, "tcp"), (2, "unix"), (4, "tcp")):
        made = Cluster()
        made.start(lanes=2, sparse_lanes=2)
        found = Job(WordProgram(is_sparse=is_sparse, pull=0.3), share_out(4, trainers), wire=how).train(made, carrier)
        ends.append([notes.models for notes in found])
        made.stop()
        assert all(0.0 <= error < 1.0 for notes in found for error in notes.errors)
        if gradients == "top_k" and not is_sparse:
            assert max(notes.errors[-1] for notes in found) > 0.0
    assert ends == [[ends[0][0]] * trainers for trainers in (1, 2, 4)]
