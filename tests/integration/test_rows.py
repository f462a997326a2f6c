"""Sparse parameters over real sockets: the same rows however they are spread, and nothing wrong gets into them."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.integration.test_carriers import near
from tests.integration.test_server_and_client import ME, WAIT_S, Cluster, run_all
from tests.integration.test_server_and_client import cluster as cluster  # a fixture

from bireme.core.errors import RefusedError
from bireme.ps.client.memory import TrainerMemory
from bireme.ps.client.push_pull import Exchange, Identity, Link, Position
from bireme.ps.client.push_pull_rows import RowLinks
from bireme.ps.sparse.row_sums import combine, lane_of
from bireme.ps.sparse.table import Table
from bireme.ps.tree import Span, cover, fold, reduction, share_out
from bireme.ps.wire import frame_io
from bireme.ps.wire.frames import Flag, Head, Kind, Record, pack_records
from bireme.ps.wire.row_frames import Block, Ids, no_rows, pack_blocks, pack_ids
from bireme.spec.model import Init, Optimizer, Parameter, Rows

Floats = NDArray[np.float32]
Reach = Callable[[Cluster, int], socket.socket]
DENSE = Parameter(name="b", shape=(5,))
TABLES = (
    Parameter(name="emb", shape=(50, 5), init=Init(spread=0.1), rows=Rows()),
    Parameter(name="wide", shape=(2**40, 3), init=Init(mean=0.5), rows=Rows()),
)
OPTIMIZER = Optimizer(learning_rate=0.5, schedule="constant")
SHARDS, ROUNDS = 3, 3
ALL = Span(0, SHARDS)
REACHES: dict[str, Reach] = {"unix": near, "tcp": Cluster.connect}


def start(cluster: Cluster, pservers: int = 1, lanes: int = 1, **changes: object) -> None:
    cluster.start(pservers, 1, sparse_lanes=lanes)
    cluster.set_up(parameters=(DENSE, *TABLES), shards=SHARDS, optimizer=OPTIMIZER, **changes)


def sparse_ports(cluster: Cluster) -> list[int]:
    return [port for server in cluster.servers for port in server.ports[server._dense_lanes :]]


def open_exchange(cluster: Cluster, share: Span = ALL, reach: Reach = Cluster.connect, me: Identity = ME) -> Exchange:
    """A trainer's exchange with dense and sparse lanes."""
    ports = [server.ports[0] for server in cluster.servers]
    parts = cluster.layout.slices(len(ports))
    links = [Link(reach(cluster, port), part) for port, part in zip(ports, parts, strict=True)]
    rows = RowLinks([reach(cluster, port) for port in sparse_ports(cluster)], TABLES)
    return Exchange(links, TrainerMemory(cluster.layout, cover(share, SHARDS), is_shared=False), me, rows)


def ids_of(shard: int, round_: int) -> list[Ids]:
    """What a shard's batch touches; shard 1 leaves a table alone in round 1, and no shard touches one in round 2."""
    draw = np.random.default_rng([shard, round_])
    emb, wide = draw.integers(0, 50, 12), draw.integers(0, 30, 6) * 2**33
    if (shard, round_) == (1, 1):
        emb = emb[:0]
    if round_ == 2:
        wide = wide[:0]
    return [np.unique(emb).astype(np.uint64), np.unique(wide).astype(np.uint64)]


def gradient(shard: int, round_: int, values: Sequence[Floats]) -> list[Block]:
    """Rows that depend on the parameters, so that one wrong bit anywhere shows at the end."""
    blocks = []
    for number, (ids, held) in enumerate(zip(ids_of(shard, round_), values, strict=True)):
        drawn = np.random.default_rng([shard, round_, number]).standard_normal(held.shape, dtype=np.float32)
        blocks.append(Block(ids, drawn + np.float32(0.1) * held))
    return blocks


def add(left: list[Block], right: list[Block]) -> list[Block]:
    return [Block(*combine([a, b], 0, [(0, 1)])) for a, b in zip(left, right, strict=True)]


def records(span: Span, *, is_last: bool = False) -> list[Record]:
    return [Record(shard, is_last, 10, 1.0) for shard in span.shards]


def pull(exchange: Exchange, round_: int, wanted: list[Ids]) -> list[Floats]:
    """The wanted rows; targets are longer than needed, as a trainer's are."""
    targets = [np.full((len(ids) + 3, p.shape[1]), np.nan, np.float32) for ids, p in zip(wanted, TABLES, strict=True)]
    assert exchange.pull_round(round_, wanted, targets).round == round_
    assert all(np.isnan(target[len(ids) :]).all() for ids, target in zip(wanted, targets, strict=True))
    return [target[: len(ids)] for ids, target in zip(wanted, targets, strict=True)]


def push(exchange: Exchange, span: Span, round_: int = 0, *, is_last: bool = False) -> None:
    """Pull and push one round of a span."""
    wanted = [np.unique(np.concatenate(lists)) for lists in zip(*(ids_of(s, round_) for s in span.shards), strict=True)]
    held = pull(exchange, round_, wanted)

    def leaf(shard: int) -> list[Block]:
        own = [h[np.searchsorted(w, ids)] for h, w, ids in zip(held, wanted, ids_of(shard, round_), strict=True)]
        return gradient(shard, round_, own)

    for part in cover(span, SHARDS):
        total = fold(part, leaf, add)
        assert total is not None
        exchange.push(round_, part, records(part, is_last=is_last), total)


def plain_tables(rounds: int = ROUNDS) -> list[Block]:
    """What one table each comes to, without a lane or a socket."""
    tables = [Table(p, OPTIMIZER, 1) for p in TABLES]
    root, steps = reduction(tuple(Span(s, s + 1) for s in range(SHARDS)), SHARDS)
    for round_ in range(rounds):
        parts = []
        for shard in range(SHARDS):
            held = [table.read(ids) for table, ids in zip(tables, ids_of(shard, round_), strict=True)]
            parts.append(gradient(shard, round_, held))
        for number, table in enumerate(tables):
            table.apply(*combine([part[number] for part in parts], root, steps), 0.5, round_)
    return [Block(*table.rows()) for table in tables]


def bits(blocks: Sequence[Block]) -> list[tuple[list[int], bytes]]:
    return [(block.ids.tolist(), block.rows.tobytes()) for block in blocks]


@pytest.fixture(scope="module")
def wanted() -> list[tuple[list[int], bytes]]:
    return bits(plain_tables())


@pytest.mark.parametrize("reach", REACHES.values(), ids=REACHES.keys())
@pytest.mark.parametrize("trainers", [1, 2, 3])
@pytest.mark.parametrize(("pservers", "lanes"), list(itertools.product([1, 2, 3], [1, 2, 3])))
def test_rows_are_the_same_bits_on_every_layout(
    cluster: Cluster, wanted: list[tuple[list[int], bytes]], pservers: int, lanes: int, trainers: int, reach: Reach
) -> None:
    shares = share_out(SHARDS, trainers)
    start(cluster, pservers, lanes, shares=shares)
    ends: list[list[tuple[list[int], bytes]]] = []

    def train(share: Span) -> None:
        exchange = open_exchange(cluster, share, reach)
        assert exchange.pull_now() == Position(0, 0, 0)
        for round_ in range(ROUNDS):
            push(exchange, share, round_, is_last=round_ + 1 == ROUNDS)
        assert exchange.pull_pass(1) == Position(ROUNDS, 1, 0)
        ends.append(bits(exchange.pull_tables(1)))
        exchange.close()

    run_all(*(partial(train, share) for share in shares))
    assert ends == [wanted] * trainers


def test_a_row_without_a_push_reads_as_its_first_values(cluster: Cluster) -> None:
    start(cluster, 2, 2)
    exchange = open_exchange(cluster)
    asked = [np.array([49, 3, 49, 0], np.uint64), np.array([2**40 - 1], np.uint64)]
    found = pull(exchange, 0, asked)
    first = [Table(p, OPTIMIZER, 1).read(ids) for p, ids in zip(TABLES, asked, strict=True)]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in first]
    assert bits(exchange.pull_tables(0)) == bits([no_rows(5), no_rows(3)])


def test_rows_of_the_round_before_can_still_be_had(cluster: Cluster) -> None:
    start(cluster, 1, 2, shares=share_out(SHARDS, 1))
    exchange, asked = open_exchange(cluster), ids_of(0, 0)
    before = pull(exchange, 0, asked)
    push(exchange, ALL)
    after, again = pull(exchange, 1, asked), pull(exchange, 0, asked)
    assert [a.tobytes() for a in again] == [a.tobytes() for a in before]
    assert all((a != b).any() for a, b in zip(after, before, strict=True))


def tables_now(exchange: Exchange) -> list[Block]:
    """Every row that exists, whatever round is current."""
    assert exchange._rows is not None
    return exchange._rows.pull_all(exchange._head(Kind.PULL, Flag.NOW))


def test_every_row_of_a_round_that_is_over_cannot_be_had(cluster: Cluster) -> None:
    start(cluster, shares=share_out(SHARDS, 1))
    exchange = open_exchange(cluster)
    push(exchange, ALL)
    exchange.pull_round(1)
    with pytest.raises(RefusedError, match="every row of round 0, which is over"):
        exchange.pull_tables(0)


def test_a_repeat_counts_once_and_other_rows_are_refused(cluster: Cluster) -> None:
    start(cluster, 1, 2, shares=share_out(SHARDS, 3))
    first, second = open_exchange(cluster, Span(0, 1)), open_exchange(cluster, Span(0, 1))
    for exchange in (first, second):
        push(exchange, Span(0, 1))
        pull(exchange, 0, ids_of(0, 0))  # so the push has landed
    other = gradient(0, 0, pull(first, 0, ids_of(0, 0)))
    other[1].rows[0, 0] += 1.0
    second.push(0, Span(0, 1), records(Span(0, 1)), other)
    with pytest.raises(RefusedError, match="two different gradients for round 0, first in wide"):
        second.pull_round(0)
    for shard in (1, 2):
        exchange = open_exchange(cluster, Span(shard, shard + 1))
        push(exchange, Span(shard, shard + 1))
    first.pull_round(1)
    first.push(0, Span(0, 1), records(Span(0, 1)), other)  # late: it counted before
    assert first.pull_round(1).round == 1
    assert bits(tables_now(first)) == bits(plain_tables(1))


def test_a_trainer_dead_in_mid_rows_is_replaced_and_repeated(cluster: Cluster) -> None:
    start(cluster, shares=share_out(SHARDS, 3))
    payload = b"".join(p.tobytes() for p in pack_blocks(gradient(0, 0, pull(open_exchange(cluster), 0, ids_of(0, 0)))))
    dying = cluster.connect(sparse_ports(cluster)[0])
    head = Head(Kind.PUSH, job=7, view=3, hi=1, nbytes=len(payload), records=1)
    frame_io.send(dying, head, pack_records(records(Span(0, 1))), payload[:-4])
    dying.close()
    cluster.closed.get(timeout=WAIT_S)
    for shard in range(SHARDS):
        exchange = open_exchange(cluster, Span(shard, shard + 1))
        push(exchange, Span(shard, shard + 1))
    exchange.pull_round(1)
    assert bits(tables_now(exchange)) == bits(plain_tables(1))


def block(ids: Sequence[int], width: int) -> Block:
    return Block(np.array(ids, np.uint64), np.ones((len(ids), width), np.float32))


ELSEWHERE = next(i for i in range(50) if lane_of(np.array([i], np.uint64), 2)[0] == 1)
HERE = [i for i in range(50) if lane_of(np.array([i], np.uint64), 2)[0] == 0][:3]
WRONG = {
    "an id that does not exist": ([block([50], 5), no_rows(3)], "row 50 of emb, which has 50"),
    "the largest id of all": ([no_rows(5), block([2**64 - 1], 3)], "row 18446744073709551615 of wide"),
    "a row of another lane": ([block([ELSEWHERE], 5), no_rows(3)], "rows of emb that belong to another lane than 0"),
    "ids that fall": ([block(HERE[:2][::-1], 5), no_rows(3)], "ids of emb that do not rise"),
    "an id twice": ([block([HERE[0], HERE[0]], 5), no_rows(3)], "ids of emb that do not rise"),
    "one table too few": ([block(HERE, 5)], "bytes"),
    "rows too narrow": ([block(HERE, 4), no_rows(3)], r"rows of widths \[5, 3\] need"),
    "nothing": ([], "begin with 16 bytes of counts, 0 came"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.PUSH, Kind.SET])
@pytest.mark.parametrize(("blocks", "message"), WRONG.values(), ids=WRONG.keys())
def test_rows_that_are_wrong_are_refused_and_change_nothing(
    cluster: Cluster, blocks: list[Block], message: str, kind: Kind
) -> None:
    start(cluster, 1, 2, is_set_by_trainer=kind is Kind.SET, shares=share_out(SHARDS, 1))
    sock = cluster.connect(sparse_ports(cluster)[0])
    parts = pack_blocks(blocks) if blocks else []
    head = Head(kind, job=7, view=3, nbytes=sum(part.nbytes for part in parts))
    if kind is Kind.PUSH:
        head = head._replace(hi=SHARDS, records=SHARDS)
    frame_io.send(sock, head, pack_records(records(ALL)) if kind is Kind.PUSH else b"", *parts)
    with pytest.raises(RefusedError, match=message):
        frame_io.expect(sock, Kind.SLICE)
    friend = open_exchange(cluster)
    if kind is Kind.SET:
        friend.set(cluster.zeros(), [no_rows(5), no_rows(3)])
    push(friend, ALL)
    friend.pull_round(1)
    assert bits(tables_now(friend)) == bits(plain_tables(1))


def test_a_set_with_one_wrong_table_sets_none_of_them(cluster: Cluster) -> None:
    start(cluster, is_set_by_trainer=True)
    sock, parts = cluster.connect(sparse_ports(cluster)[0]), pack_blocks([block([1, 2], 5), block([2**40], 3)])
    frame_io.send(sock, Head(Kind.SET, job=7, view=3, nbytes=sum(part.nbytes for part in parts)), *parts)
    with pytest.raises(RefusedError, match=f"row {2**40} of wide"):
        frame_io.expect(sock, Kind.SLICE)
    friend, saved = open_exchange(cluster), [block([7], 5), no_rows(3)]
    friend.set(cluster.zeros(), saved)
    assert bits(friend.pull_tables(0)) == bits(saved)


REQUESTS = {
    "an id that does not exist": (pack_ids([np.array([50], np.uint64), np.empty(0, np.uint64)]), "row 50 of emb"),
    "a row of another lane": (pack_ids([np.array([ELSEWHERE], np.uint64), np.empty(0, np.uint64)]), "another lane"),
    "a count that lies": ([np.array([2**63, 2**63], np.uint64)], "ids need"),
    "half an id": ([np.array([1, 0], np.uint64), np.zeros(4, np.uint8)], "ids need"),
    "too much": ([np.array([0, 0, 1], np.uint64)], "8 bytes too many after the ids"),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "message"), REQUESTS.values(), ids=REQUESTS.keys())
def test_a_request_that_is_wrong_is_refused(cluster: Cluster, parts: list[NDArray[np.uint64]], message: str) -> None:
    start(cluster, 1, 2)
    sock = cluster.connect(sparse_ports(cluster)[0])
    frame_io.send(sock, Head(Kind.PULL, job=7, view=3, nbytes=sum(part.nbytes for part in parts)), *parts)
    with pytest.raises(RefusedError, match=message):
        frame_io.expect(sock, Kind.SLICE)
    assert open_exchange(cluster).pull_now() == Position(0, 0, 0)


def test_a_dense_lane_takes_no_list_of_rows(cluster: Cluster) -> None:
    start(cluster)
    sock = cluster.connect()
    frame_io.send(sock, Head(Kind.PULL, job=7, view=3, nbytes=16), np.zeros(2, np.uint64))
    with pytest.raises(RefusedError, match="a PULL from a dense lane has no payload, this one has 16 bytes"):
        frame_io.expect(sock, Kind.SLICE)


HEADS = {
    "too long": (
        Head(Kind.PULL, job=7, view=3, nbytes=(1 << 40) + 1),
        f"PULL frame of {(1 << 40) + 1} bytes .* too long",
    ),
    "ids with every row": (Head(Kind.PULL, Flag.ALL, job=7, view=3, nbytes=16), "a PULL for every row names none"),
    "of another job": (Head(Kind.PULL, job=8, view=3, nbytes=1 << 34), "the frame is of job"),
    "of an older view": (Head(Kind.PULL, job=7, view=2, nbytes=1 << 34), "view 2 is not the current view 3"),
    "a set of another job": (Head(Kind.SET, job=8, view=3, nbytes=1 << 34), "the frame is of job"),
    "shared memory": (Head(Kind.PUSH, Flag.IN_PLACE, job=7, view=3, hi=3), "a sparse lane shares no memory"),
}


@pytest.mark.parametrize(("head", "message"), HEADS.values(), ids=HEADS.keys())
def test_a_wrong_head_is_refused_before_its_rows_are_read(cluster: Cluster, head: Head, message: str) -> None:
    start(cluster)
    sock = cluster.connect(sparse_ports(cluster)[0])
    frame_io.send(sock, head)
    with pytest.raises(RefusedError, match=message):
        frame_io.expect(sock, Kind.SLICE)


def test_a_refused_push_of_many_rows_brings_its_reason_back(cluster: Cluster) -> None:
    start(cluster)
    stale = open_exchange(cluster, me=Identity(job=7, view=2, incarnation=1))
    ids = np.arange(1 << 20, dtype=np.uint64)
    many = [no_rows(5), Block(ids, np.zeros((len(ids), 3), np.float32))]  # 20 MiB: more than the kernel keeps
    with pytest.raises(RefusedError, match="view 2 is not the current view 3"):
        stale._rows.push(stale._head(Kind.PUSH, hi=SHARDS), b"", many)  # type: ignore[union-attr]
        frame_io.expect(stale._rows.sockets[0], Kind.SLICE)  # type: ignore[union-attr]


def test_rows_set_by_one_trainer_reach_all_who_wait_for_them(cluster: Cluster) -> None:
    start(cluster, 2, 2, is_set_by_trainer=True, start_pass=2)
    saved = plain_tables()
    exchange, found = open_exchange(cluster), []

    def wait() -> None:
        waiting = open_exchange(cluster)
        assert waiting.pull_now() == Position(0, 2, 0)
        found.append([a.tobytes() for a in pull(waiting, 0, [b.ids for b in saved])])
        assert bits(waiting.pull_tables(2)) == bits(saved)

    run_all(wait, wait, lambda: exchange.set(cluster.zeros(), saved))
    assert found == [[block.rows.tobytes() for block in saved]] * 2
