"""Cuts of lanes at work: they hold one round exactly while training continues, and lanes continue from them."""

from __future__ import annotations

import copy
import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.integration.test_rows import ALL, DENSE, SHARDS, TABLES, bits, open_exchange, records, tables_now
from tests.integration.test_server_and_client import WAIT_S, Cluster
from tests.integration.test_server_and_client import cluster as cluster  # a fixture
from tests.setups import make_setup

from bireme.core import faults
from bireme.core.errors import SnapshotError
from bireme.ps.client.push_pull import Exchange
from bireme.ps.plan import Layout
from bireme.ps.snapshot.snapshot_files import read_part
from bireme.ps.snapshot.writer import Capture, FileWritten, SnapshotWriter
from bireme.ps.tree import share_out
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Optimizer, Parameter, Snapshots, UpdateMode, Updates

WIDE = Parameter(name="a", shape=(3000,))
ROWS = (50, 40)
"""How many rows of each table the first round touches; later ones touch three."""
CUT_AFTER = 2
"""Lane 0 names the cut when it closes the round in which it is asked; it is taken when the next one closes."""
State = tuple[bytes, list[tuple[list[int], bytes]]]
Parts = queue.Queue[FileWritten]


def start(
    cluster: Cluster,
    place: Path,
    *,
    pservers: int = 2,
    lanes: int = 2,
    every_s: float = 0.0,
    every_rounds: int = 0,
    **changes: object,
) -> Parts:
    """Pservers with a dense lane and some sparse ones each, which report their parts of cuts."""
    parts: Parts = queue.Queue()
    cluster.start(pservers, 1, sparse_lanes=lanes)
    cluster.layout, cluster.shards = Layout([WIDE, DENSE]), SHARDS
    for rank, server in enumerate(cluster.servers):
        plain: dict[str, object] = {
            "job": 7, "view": 3, "pserver": rank, "pservers": pservers, "ports_num": 1, "ports_num_for_sparse": lanes,
            "parameters": (WIDE, DENSE, *TABLES), "seed": 1, "shards": SHARDS, "shares": share_out(SHARDS, 1),
            "optimizer": Optimizer(method="adagrad", learning_rate=0.5, schedule="constant"),
            "snapshots": Snapshots(path=str(place), every_s=every_s, every_rounds=every_rounds),
        }  # fmt: skip
        server.set_up(make_setup(**{**plain, **changes}), cluster.passes.append, parts.put)
    return parts


@pytest.fixture
def other() -> Iterator[Cluster]:
    """Pservers that continue from what others have left."""
    made = Cluster()
    yield made
    made.stop()


def push(exchange: Exchange, round_: int) -> None:
    draw = np.random.default_rng(round_)
    row = exchange.memory.row(ALL)
    row[:] = draw.standard_normal(len(row), np.float32)
    blocks = []
    for count, parameter, step in zip(ROWS, TABLES, (1, 2**33), strict=True):
        ids = np.arange(count) if round_ == 0 else np.sort(draw.choice(count, 3, replace=False))
        rows = draw.standard_normal((len(ids), parameter.shape[1]), np.float32)
        blocks.append(Block((ids * step).astype(np.uint64), rows))
    exchange.push(round_, ALL, records(ALL), blocks)


def train(cluster: Cluster, rounds: range, before: Callable[[int], None] = lambda _: None) -> list[State]:
    """Train without a rest; returns what all parameters are before each round and at the end."""
    exchange = open_exchange(cluster)
    assert exchange.pull_now().round == rounds.start
    found = [state_of(exchange, rounds.start)]
    for round_ in rounds:
        before(round_)
        push(exchange, round_)
        exchange.pull_round(round_ + 1)
        found.append(state_of(exchange, round_ + 1))
    exchange.close()
    return found


def state_of(exchange: Exchange, round_: int) -> State:
    return exchange.memory.values(round_).tobytes(), bits(tables_now(exchange))


def ask(cluster: Cluster) -> None:
    """Have lane 0 name a cut when it closes the next round."""
    cluster.servers[0].lanes[0].cut_every(0.0)


def all_parts(parts: Parts, pservers: int = 2) -> list[FileWritten]:
    """One cut's parts, as soon as they are written."""
    found = [parts.get(timeout=WAIT_S) for _ in range(pservers)]
    assert len({part.counts.round for part in found}) == 1
    return found


def base_of(chain: Sequence[Sequence[FileWritten]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(part.path) for part in parts) for parts in chain)


@pytest.mark.parametrize(("pservers", "lanes"), [(2, 2), (1, 3)], ids=["the same lanes", "others"])
def test_a_cut_holds_its_round_though_training_continues(
    cluster: Cluster, other: Cluster, tmp_path: Path, pservers: int, lanes: int
) -> None:
    parts = start(cluster, tmp_path)
    states = train(cluster, range(9), lambda round_: ask(cluster) if round_ == 3 else None)
    cut = all_parts(parts)
    at = cut[0].counts.round
    assert at == 3 + CUT_AFTER
    start(other, tmp_path / "more", pservers=pservers, lanes=lanes, base=base_of([cut]))
    assert train(other, range(at, 9)) == states[at:]


def test_a_lane_saves_what_it_overwrites_before_it_is_copied(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures: list[Capture] = []
    monkeypatch.setattr(
        SnapshotWriter, "give", lambda self, cut, capture: captures.append(capture)
    )  # the copier sleeps
    start(cluster, tmp_path, pservers=1, lanes=1)
    truth: dict[str, bytes] = {}

    def before(round_: int) -> None:
        if round_ == 1:
            ask(cluster)
        if len(captures) == 2 and not truth:  # its dense and its sparse lane have come to the cut: this is what it is
            for capture in captures:
                twin = copy.copy(capture)
                twin.make()
                truth.update({name: array.tobytes() for name, array in twin.arrays.items()})
                for array in capture.arrays.values():
                    if array.dtype == np.float32:
                        array.fill(0.0)  # as if nothing had been copied

    train(cluster, range(8), before)
    assert truth, "no cut was taken"
    for capture in captures:
        assert capture.is_made
        assert {n: a.tobytes() for n, a in capture.arrays.items()}.items() <= truth.items()


def test_lanes_continue_from_a_chain_of_cuts_unchanged(cluster: Cluster, other: Cluster, tmp_path: Path) -> None:
    parts = start(cluster, tmp_path)
    chain: list[list[FileWritten]] = []

    def before(round_: int) -> None:
        if round_ in (4, 8, 12):  # what was asked for before is cut by now: take it, and let it count
            chain.append(all_parts(parts))
            for server in cluster.servers:
                server.committed(3, chain[-1][0].counts.round, len(chain) - 1)
        if round_ in (1, 5, 9, 13):
            ask(cluster)

    states = train(cluster, range(17), before)
    chain.append(all_parts(parts))
    assert [{part.is_delta for part in level} for level in chain] == [{False}, {True}, {True}, {True}]
    at = chain[-1][0].counts.round
    start(other, tmp_path / "more", pservers=1, lanes=3, base=base_of(chain))
    assert train(other, range(at, 17)) == states[at:]


def test_a_commit_of_another_history_is_nothing_to_build_on(cluster: Cluster, tmp_path: Path) -> None:
    parts = start(cluster, tmp_path)

    def before(round_: int) -> None:
        if round_ == 4:
            at = all_parts(parts)[0].counts.round
            for server in cluster.servers:
                server.committed(2, at, 0)
        if round_ in (1, 5):
            ask(cluster)

    train(cluster, range(9), before)
    assert not any(part.is_delta for part in all_parts(parts))


@pytest.mark.parametrize("point", ["part.sync", "part.rename"])
def test_a_full_disk_neither_stops_training_nor_harms_snapshots(
    cluster: Cluster, other: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def refuse(at: str, *_: object) -> None:
        if at == point:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found: list[list[FileWritten]] = []
    parts = start(cluster, tmp_path / "cut")

    def before(round_: int) -> None:
        if round_ in (4, 8):
            found.append(all_parts(parts))
            monkeypatch.setattr(faults, "_armed", refuse if round_ == 4 else None)
        if round_ in (1, 5, 9):
            ask(cluster)

    states = train(cluster, range(13), before)
    found.append(all_parts(parts))
    assert [{part.written is None for part in level} for level in found] == [{False}, {True}, {False}]
    for part in found[0] + found[2]:
        assert part.written is not None
        read_part(part.path, sha256=part.written.sha256)
    start(other, tmp_path / "quiet")
    assert train(other, range(13)) == states


@pytest.mark.parametrize("every_s", [0.0, 3600.0], ids=["at passes only", "seldom"])
def test_a_requested_cut_is_made_two_rounds_later(
    cluster: Cluster, other: Cluster, tmp_path: Path, every_s: float
) -> None:
    parts = start(cluster, tmp_path, every_s=every_s)

    def before(round_: int) -> None:
        if round_ == 3:
            for server in cluster.servers:
                server.cut_soon()

    states = train(cluster, range(9), before)
    cut = all_parts(parts)
    at = cut[0].counts.round
    assert at == 3 + CUT_AFTER
    assert parts.empty(), "and no other"
    start(other, tmp_path / "more", base=base_of([cut]))
    assert train(other, range(at, 9)) == states[at:]


@pytest.mark.parametrize("begin", [0, 5], ids=["from the beginning", "from another cut"])
def test_every_lane_cuts_at_multiples_by_itself(cluster: Cluster, other: Cluster, tmp_path: Path, begin: int) -> None:
    base: tuple[tuple[str, ...], ...] = ()
    if begin:
        first = start(other, tmp_path / "first")
        train(other, range(begin), lambda round_: ask(other) if round_ == begin - CUT_AFTER else None)
        base = base_of([all_parts(first)])
    parts = start(cluster, tmp_path / "cuts", every_rounds=3, base=base)
    found: list[list[FileWritten]] = []
    train(cluster, range(begin, 13), lambda round_: found.append(all_parts(parts)) if is_due(round_, begin) else None)
    found.append(all_parts(parts))
    assert [cut[0].counts.round for cut in found] == [round_ for round_ in (3, 6, 9, 12) if round_ > begin]
    assert parts.empty(), "and no other"


def is_due(round_: int, begin: int) -> bool:
    """Whether a cut is taken at this round: it is waited for, as the next one would else be left out."""
    return round_ > begin and round_ % 3 == 0 and round_ < 12


def test_the_clock_or_the_rounds_make_a_cut_whichever_is_first(cluster: Cluster, tmp_path: Path) -> None:
    parts = start(cluster, tmp_path, every_rounds=10, every_s=3600.0)
    found: list[int] = []

    def before(round_: int) -> None:
        if round_ == 3:
            ask(cluster)  # as if the time had come
        if round_ in (3 + CUT_AFTER, 10):
            found.append(all_parts(parts)[0].counts.round)
            cluster.servers[0].lanes[0].cut_every(3600.0)

    train(cluster, range(12), before)
    assert found == [3 + CUT_AFTER, 10]
    assert parts.empty(), "and no other"


@pytest.mark.parametrize("mode", ["async", "local"])
def test_lanes_that_cut_at_passes_only_do_not_count_rounds(cluster: Cluster, tmp_path: Path, mode: UpdateMode) -> None:
    start(cluster, tmp_path, updates=Updates(mode=mode), every_rounds=1)
    lane = cluster.servers[0].lanes[0]
    lane.rounds.round = 1
    assert not lane._is_at_cut()


def test_lanes_that_cut_at_passes_only_are_not_made_to(cluster: Cluster, tmp_path: Path) -> None:
    start(cluster, tmp_path, updates=Updates(mode="async"))
    cluster.servers[0].cut_soon()
    assert cluster.servers[0].lanes[0].rounds.cut_at == 0


def test_an_unloadable_snapshot_leaves_no_thread_behind(cluster: Cluster, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(SnapshotError, match="part-0"):
        start(cluster, tmp_path, pservers=1, base=((str(tmp_path / "part-0.bin"),),))
    begun = {t for t in threading.enumerate() if t.name in ("copies", "cuts")} - before
    for thread in begun:
        thread.join(WAIT_S)
        assert not thread.is_alive()
