"""Every rule that rows live by, over two passes: the same bits as one table by itself, however they are spread."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from tests.integration.test_rows import DENSE, Floats, add, bits, sparse_ports
from tests.integration.test_server_and_client import ME, Cluster, run_all
from tests.integration.test_server_and_client import cluster as cluster  # a fixture

from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Link, Position
from bireme.ps.client.push_pull_rows import RowLinks
from bireme.ps.sparse.row_sums import combine
from bireme.ps.sparse.table import Table
from bireme.ps.tree import Span, cover, fold, reduction, share_out
from bireme.ps.wire.frames import Record
from bireme.ps.wire.row_frames import Block, Ids
from bireme.spec.model import Init, Optimizer, Parameter, Rows

Bits = list[tuple[list[int], bytes]]
BATCHES = [5, 2, 3]
"""Of each shard in a pass: rounds of one pass have three, two and one live shard."""
SHARDS, ROUNDS, PASSES, RATE = len(BATCHES), max(BATCHES), 2, 0.25


class Rules(NamedTuple):
    """Two tables and how they are updated."""

    tables: tuple[Parameter, ...]
    optimizer: Optimizer
    shares_columns: bool = False
    """Both tables are read by the same ids."""


KEPT = Rows()


def rules(method: str = "momentum", *, rows: Rows = KEPT, **changes: float) -> Rules:
    tables = (
        Parameter(name="emb", shape=(40, 5), init=Init(spread=0.5), rows=rows, **changes),  # type: ignore[arg-type]
        Parameter(name="wide", shape=(2**63, 3), init=Init(mean=0.5), rows=rows, **changes),  # type: ignore[arg-type]
    )
    return Rules(tables, Optimizer(method=method, learning_rate=RATE, schedule="constant", rho=0.8))


def static() -> Rules:
    plain = rules()
    kept = Parameter(name="emb", shape=(40, 5), init=Init(spread=0.5), rows=Rows(), is_static=True)
    return plain._replace(tables=(kept, plain.tables[1]))


RULES = {
    "plain": rules(),
    "L2": rules(l2=0.1),
    "L1": rules(l1=0.05),
    "L1 and L2": rules(l1=0.02, l2=0.1),
    "sparse momentum": rules("sparse_momentum", momentum=0.9),
    "sparse momentum and L2": rules("sparse_momentum", momentum=0.9, l2=0.05),
    "rmsprop": rules("rmsprop"),
    "rmsprop and L1": rules("rmsprop", l1=0.02),
    "adagrad and L2": rules("adagrad", l2=0.1),
    "decayed adagrad": rules("decayed_adagrad"),
    "admission": rules(rows=Rows(admit_after=2), l2=0.1),
    "eviction": rules(rows=Rows(evict_after=2), l2=0.1),
    "admission and eviction": rules("sparse_momentum", rows=Rows(admit_after=1, evict_after=3), momentum=0.5),
    "a static table": static(),
    "two tables with the same columns": rules(l2=0.1)._replace(shares_columns=True),
}


def ids_of(how: Rules, shard: int, round_: int) -> list[Ids]:
    """What a shard's batch touches; now and then a table is left alone."""
    draw = np.random.default_rng([shard, round_, 5])
    emb = np.unique(draw.integers(0, 40, draw.integers(0, 8))).astype(np.uint64)
    if how.shares_columns:
        return [emb, emb]
    wide = np.unique(draw.integers(0, 12, draw.integers(0, 6))).astype(np.uint64)
    return [emb, wide * np.uint64(2**59 + 1)]


def gradient(shard: int, round_: int, lists: list[Ids], held: list[Floats]) -> list[Block]:
    """Rows that depend on the parameters, so that one wrong bit anywhere shows at the end."""
    blocks = []
    for number, (ids, values) in enumerate(zip(lists, held, strict=True)):
        drawn = np.random.default_rng([shard, round_, number]).standard_normal(values.shape, dtype=np.float32)
        blocks.append(Block(ids, drawn + np.float32(0.1) * values))
    return blocks


def rounds_of_job() -> list[tuple[int, int, int]]:
    return [(pass_id * ROUNDS + batch, pass_id, batch) for pass_id in range(PASSES) for batch in range(ROUNDS)]


def plain_tables(how: Rules, *, ends_passes: bool = True) -> list[Bits]:
    """What one table each comes to after each pass, without a lane or a socket."""
    tables, found = [Table(p, how.optimizer, 1) for p in how.tables], []
    for round_, _, batch in rounds_of_job():
        live = [shard for shard in range(SHARDS) if batch < BATCHES[shard]]
        parts = []
        for shard in live:
            lists = ids_of(how, shard, round_)
            held = [table.read(ids) for table, ids in zip(tables, lists, strict=True)]
            parts.append(gradient(shard, round_, lists, held))
        root, steps = reduction(tuple(Span(s, s + 1) for s in live), SHARDS)
        is_last = batch + 1 == ROUNDS
        for number, table in enumerate(tables):
            table.apply(*combine([part[number] for part in parts], root, steps), RATE, round_)
            if is_last and ends_passes:
                table.end_pass(RATE, round_)
        if is_last:
            found.append(bits([Block(*table.rows()) for table in tables]))
    return found


def open_exchange(cluster: Cluster, how: Rules, share: Span) -> Exchange:
    ports = [server.ports[0] for server in cluster.servers]
    parts = cluster.layout.slices(len(ports))
    links = [Link(cluster.connect(port), part) for port, part in zip(ports, parts, strict=True)]
    rows = RowLinks([cluster.connect(port) for port in sparse_ports(cluster)], how.tables)
    return Exchange(links, TrainerMemory(cluster.layout, cover(share, SHARDS), is_shared=False), ME, rows)


def push(exchange: Exchange, how: Rules, share: Span, at: Position) -> None:
    """Pull a round's rows and push those of every live shard in the share."""
    live = [shard for shard in share.shards if at.batch < BATCHES[shard]]
    lists = {shard: ids_of(how, shard, at.round) for shard in live}
    wanted = [np.unique(np.concatenate(columns)) for columns in zip(*lists.values(), strict=True)]
    if how.shares_columns:
        wanted = [wanted[0]] * 2  # the very same array, as a worker asks for it
    held = [np.empty((len(ids), p.shape[1]), np.float32) for ids, p in zip(wanted, how.tables, strict=True)]
    assert exchange.pull_round(at.round, wanted, held) == at

    def leaf(shard: int) -> list[Block] | None:
        if shard not in lists:
            return None
        own = [h[np.searchsorted(w, ids)] for h, w, ids in zip(held, wanted, lists[shard], strict=True)]
        return gradient(shard, at.round, lists[shard], own)

    for span in exchange.memory.spans:
        records = [Record(s, at.batch + 1 == BATCHES[s], 10, 1.0) for s in span.shards if s in lists]
        if records:
            exchange.push(at.round, span, records, fold(span, leaf, add))


def train(cluster: Cluster, how: Rules, share: Span, ends: list[list[Bits]]) -> None:
    exchange, found = open_exchange(cluster, how, share), []
    exchange.pull_now()
    for round_, pass_id, batch in rounds_of_job():
        if any(batch < BATCHES[shard] for shard in share.shards):
            push(exchange, how, share, Position(round_, pass_id, batch))
        if batch + 1 == ROUNDS:
            assert exchange.pull_pass(pass_id + 1) == Position(round_ + 1, pass_id + 1, 0)
            found.append(bits(exchange.pull_tables(pass_id + 1)))
    exchange.close()
    ends.append(found)


LAYOUTS = {"one of each": (1, 1, 1), "two trainers, four lanes": (2, 2, 2), "three trainers, three lanes": (3, 1, 3)}


@pytest.mark.parametrize(("trainers", "pservers", "lanes"), LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("how", RULES.values(), ids=RULES.keys())
def test_rows_are_the_same_bits_on_every_layout_under_every_rule(
    cluster: Cluster, how: Rules, trainers: int, pservers: int, lanes: int
) -> None:
    shares = share_out(SHARDS, trainers)
    cluster.start(pservers, 1, sparse_lanes=lanes)
    cluster.set_up(parameters=(DENSE, *how.tables), shards=SHARDS, optimizer=how.optimizer, shares=shares)
    ends: list[list[Bits]] = []
    run_all(*(partial(train, cluster, how, share, ends) for share in shares))
    assert ends == [plain_tables(how)] * trainers


def test_every_rule_leaves_other_rows_than_every_other() -> None:
    ends = [str(plain_tables(how)[-1]) for how in RULES.values()]
    assert len(set(ends)) == len(RULES)


@pytest.mark.parametrize(
    "name", ["L2", "L1", "L1 and L2", "sparse momentum and L2", "rmsprop and L1", "adagrad and L2"]
)
def test_the_end_of_a_pass_brings_regularisation_up_to_date(name: str) -> None:
    assert plain_tables(RULES[name])[0] != plain_tables(RULES[name], ends_passes=False)[0]
