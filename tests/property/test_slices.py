"""Lanes put together from any cutting of a snapshot's parts hold what they would have held all along."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.setups import make_setup
from tests.unit.ps.sparse.table_model import state_of

from bireme.core.errors import SnapshotError
from bireme.ps.lanes.progress import COUNTS, agreed_counts, pack_counts, unpack_counts
from bireme.ps.lanes.rounds import Closing, LaneCounts, Totals
from bireme.ps.optim.optimizers import Segment, SliceOptimizer
from bireme.ps.plan import Layout, Slice
from bireme.ps.snapshot.reassembly import (
    apply_delta,
    chained_rows,
    dense_slice,
    join_states,
    pack_dense,
    pack_table,
    part_of,
)
from bireme.ps.snapshot.snapshot_files import SnapshotFile, read_part, write_part
from bireme.ps.sparse.lane import SparseStore
from bireme.ps.sparse.row_sums import lane_of
from bireme.ps.sparse.table import IDS, ROUNDS
from bireme.ps.tree import share_out
from bireme.ps.wire.row_frames import Block
from bireme.spec.model import Init, Optimizer, Parameter, Rows

State = Mapping[str, NDArray[Any]]
TABLE = "emb.w"


def same_bits(a: State, b: State) -> bool:
    return set(a) == set(b) and all((a[n].dtype, a[n].tobytes()) == (b[n].dtype, b[n].tobytes()) for n in a)


def spread(arrays: Sequence[Mapping[str, NDArray[Any]]], pservers: int) -> list[SnapshotFile]:
    """Lanes' arrays, a run of lanes in each pserver's part."""
    per = -(-len(arrays) // pservers)
    groups = [arrays[i : i + per] for i in range(0, len(arrays), per)]
    return [
        SnapshotFile({}, {k: v for g in group for k, v in g.items()}, f"part-{i}") for i, group in enumerate(groups)
    ]


def size_of(layout: Layout, part: Slice) -> int:
    pieces = layout.pieces(part)
    return pieces[-1].end if pieces else 0


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=5))
    return Layout([Parameter(name=f"p{i}", shape=(size,)) for i, size in enumerate(sizes)])


def dense_parts(
    layout: Layout, flat: Mapping[str, NDArray[np.float32]], lanes: int, still: set[int], pservers: int = 1
) -> list[SnapshotFile]:
    """A cut of the flat arrays as so many lanes make it; lanes in `still` have no velocity."""
    found = []
    for lane, part in enumerate(layout.slices(lanes)):
        size = size_of(layout, part)
        cut = {name: array[part.begin : part.end] for name, array in flat.items()}
        state: dict[str, NDArray[Any]] = {
            name: array[:size]
            for name, array in cut.items()
            if name != "w" and not (name == "velocity" and lane in still)
        }
        state["updates"] = np.array([17], np.int64)
        found.append(pack_dense(lane, part, cut["w"], state))
    return spread(found, pservers)


@given(
    layout=layouts(),
    before=st.integers(1, 9),
    after=st.integers(1, 9),
    pservers=st.integers(1, 3),
    still=st.sets(st.integers(0, 8)),
    order=st.randoms(use_true_random=False),
)
@example(  # the cut between the lanes lies in the padding between two parameters
    layout=Layout([Parameter(name="p0", shape=(1009,)), Parameter(name="p1", shape=(1,))]),
    before=2,
    after=1,
    pservers=1,
    still=set(),
    order=random.Random(0),
)
def test_dense_lanes_are_the_same_from_any_cutting(
    layout: Layout, before: int, after: int, pservers: int, still: set[int], order: random.Random
) -> None:
    draw = np.random.default_rng(layout.size)
    flat = {name: draw.standard_normal(layout.size, np.float32) for name in ("w", "mean_square", "velocity")}
    flat["w"][::3] = -0.0
    is_padding = np.ones(layout.size, np.bool_)
    for piece in layout.pieces(Slice(0, layout.size)):
        is_padding[piece.begin : piece.end] = False
    for name in ("mean_square", "velocity"):
        flat[name][is_padding] = 0.0  # no kernel ever writes to the state there
    still = set(sorted(lane for lane in still if lane < before)[: before - 1])  # one lane moves at least
    for lane in still:
        part = layout.slices(before)[lane]
        flat["velocity"][part.begin : part.end] = 0.0
    parts = dense_parts(layout, flat, before, still, pservers)
    for part in layout.slices(after):
        size = size_of(layout, part)
        order.shuffle(parts)
        state = dense_slice(parts, part, size=size)
        assert int(state.pop("updates")[0]) == 17
        wanted = {name: array[part.begin : part.end][: None if name == "w" else size] for name, array in flat.items()}
        assert same_bits(state, wanted)


@pytest.mark.parametrize("method", ["momentum", "adagrad", "adam"])
def test_an_optimizer_keeps_its_bits_on_other_lanes(method: Any) -> None:
    momentum = 0.0 if method == "adam" else 0.9
    layout = Layout([Parameter(name="a", shape=(1500,)), Parameter(name="b", shape=(900,), momentum=momentum)])
    flat = np.random.default_rng(1).standard_normal(layout.size, np.float32)
    gradients = np.random.default_rng(2).standard_normal((4, layout.size), np.float32)

    def optimizers(lanes: int) -> list[tuple[Slice, SliceOptimizer]]:
        return [
            (
                s,
                SliceOptimizer(
                    Optimizer(method=method), [Segment(p.parameter, p.begin, p.end) for p in layout.pieces(s)]
                ),
            )
            for s in layout.slices(lanes)
        ]

    def train(lanes: list[tuple[Slice, SliceOptimizer]], w: NDArray[np.float32], rounds: range) -> NDArray[np.float32]:
        for r in rounds:
            after = np.zeros_like(w)
            for s, optimizer in lanes:
                row = gradients[r : r + 1, s.begin : s.end].copy()
                optimizer.apply(row, 0, np.empty((0, 2), np.int32), w[s.begin : s.end], after[s.begin : s.end], 0.1)
            w = after
        return w

    wanted = train(optimizers(1), flat, range(4))
    three = optimizers(3)
    half = train(three, flat, range(2))
    parts = spread([pack_dense(i, s, half[s.begin : s.end], o.state()) for i, (s, o) in enumerate(three)], 2)
    two = optimizers(2)
    for s, optimizer in two:
        found = dense_slice(parts, s, size=size_of(layout, s))
        half[s.begin : s.end] = found.pop("w")
        optimizer.load_state(found)
    assert train(two, half, range(2, 4)).tobytes() == wanted.tobytes()


def test_a_missing_or_doubled_dense_part_is_named_with_its_place() -> None:
    layout = Layout([Parameter(name="a", shape=(4096,))])
    parts = dense_parts(layout, {"w": np.zeros(4096, np.float32)}, 4, set(), pservers=4)
    with pytest.raises(SnapshotError, match="no part holds elements 1024 to 2047"):
        dense_slice(parts[:1] + parts[2:], Slice(0, 4096))
    with pytest.raises(SnapshotError, match="no part holds elements 3072 to 4095"):
        dense_slice(parts[:3], Slice(2048, 4096))
    with pytest.raises(SnapshotError, match="several parts hold elements 1024 to 2047"):
        dense_slice([*parts, parts[1]], Slice(0, 4096))
    with pytest.raises(SnapshotError, match="holds no dense parameters"):
        dense_slice([], Slice(0, 0))


def test_dense_lanes_of_different_moments_are_refused() -> None:
    zeros = np.zeros(1024, np.float32)
    lanes = [pack_dense(k, Slice(1024 * k, 1024 * k + 1024), zeros, {"updates": np.array([k])}) for k in (0, 1)]
    with pytest.raises(SnapshotError, match="had 0 to 1 updates"):
        dense_slice(spread(lanes, 2), Slice(0, 2048))


def test_a_dense_lane_without_its_state_is_refused() -> None:
    zeros, one = np.zeros(1024, np.float32), np.array([1])
    lanes = [
        pack_dense(0, Slice(0, 1024), zeros, {"mean": zeros, "updates": one}),
        pack_dense(1, Slice(1024, 2048), zeros, {"updates": one}),
    ]
    with pytest.raises(SnapshotError, match="part-1, lane1 lacks mean"):
        dense_slice(spread(lanes, 2), Slice(0, 2048))
    with pytest.raises(SnapshotError, match=r"part-0 lacks lane0\.updates"):
        dense_slice(spread([pack_dense(0, Slice(0, 1024), zeros, {})], 1), Slice(0, 1024))
    with pytest.raises(SnapshotError, match="has a wrong length for w"):
        dense_slice(spread([pack_dense(0, Slice(0, 1024), zeros[:9], {"updates": one})], 1), Slice(0, 1024))


def table_state(ids: Sequence[int], round_: int = 5) -> dict[str, NDArray[Any]]:
    count = len(ids)
    return {
        IDS: np.array(sorted(ids), np.uint64),
        "values": np.arange(3 * count, dtype=np.float32).reshape(count, 3),
        "touched": np.arange(count, dtype=np.int64),
        "pushes": np.ones(count, np.uint32),
        ROUNDS: np.array([round_, -1], np.int64),
    }


def table_parts(
    state: State, lanes: int, pservers: int = 1, gone: NDArray[np.uint64] | None = None
) -> list[SnapshotFile]:
    def gone_of(lane: int) -> NDArray[np.uint64] | None:
        return None if gone is None else part_of({IDS: gone}, lane, lanes)[IDS]

    cuts = [pack_table(lane, TABLE, part_of(state, lane, lanes), gone_of(lane)) for lane in range(lanes)]
    return spread(cuts, pservers)


IDS_OF = st.lists(st.integers(0, 2**64 - 1), max_size=40, unique=True)


@given(ids=IDS_OF, before=st.integers(1, 6), after=st.integers(1, 6), pservers=st.integers(1, 3), data=st.data())
def test_rows_are_the_same_from_any_cutting(
    ids: list[int], before: int, after: int, pservers: int, data: st.DataObject
) -> None:
    state = table_state(ids)
    parts = data.draw(st.permutations(table_parts(state, before, pservers)))
    for lane in range(after):
        assert same_bits(chained_rows([parts], TABLE, lane, after), part_of(state, lane, after))


def test_tables_whose_names_begin_alike_are_distinguished() -> None:
    one, two = table_state([1, 2]), table_state([3])
    arrays = pack_table(0, "emb", one) | pack_table(0, "emb.w", two) | pack_table(1, "w", two)
    assert same_bits(chained_rows([[SnapshotFile({}, arrays)]], "emb", 0, 1), one)
    assert same_bits(chained_rows([[SnapshotFile({}, arrays)]], "emb.w", 0, 1), two)


def test_rows_that_none_or_several_hold_are_named() -> None:
    parts = table_parts(table_state([1, 2, 3]), 1)
    with pytest.raises(SnapshotError, match="no part holds rows of other"):
        chained_rows([parts], "other", 0, 1)
    with pytest.raises(SnapshotError, match=r"several lanes hold the same rows of emb\.w"):
        chained_rows([parts * 2], TABLE, 0, 1)
    del parts[0].arrays[f"rows0.{TABLE}.{IDS}"]
    with pytest.raises(SnapshotError, match="lacks arrays"):
        chained_rows([parts], TABLE, 0, 1)


@given(old=IDS_OF, changed=IDS_OF, data=st.data())
def test_a_delta_does_what_a_plain_dict_does(old: list[int], changed: list[int], data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(old), unique=True)) if old else []
    full, delta = table_state(old, 5), table_state(changed, 9)
    delta["values"] += 1000.0
    wanted = {int(i): v.tolist() for i, v in zip(full[IDS], full["values"], strict=True) if int(i) not in gone}
    wanted |= {int(i): v.tolist() for i, v in zip(delta[IDS], delta["values"], strict=True)}
    found = apply_delta(full, delta, np.array(gone, np.uint64))
    assert found[IDS].tolist() == sorted(wanted)
    assert found["values"].tolist() == [wanted[i] for i in sorted(wanted)]
    assert found[ROUNDS].tolist() == [9, -1]


class Stores:
    """The sparse lanes of a job, their cuts, and which of these count; a whole table's state beside each cut."""

    def __init__(self, lanes: int, parameter: Parameter, method: str) -> None:
        self.setup = make_setup(
            job=1, view=1, pserver=0, pservers=1, ports_num=1, ports_num_for_sparse=lanes, parameters=(parameter,),
            seed=3, optimizer=Optimizer(method=method, learning_rate=0.1, schedule="constant"), shards=1,
            shares=share_out(1, 1),
        )  # fmt: skip
        self.stores = [SparseStore(self.setup, lane) for lane in range(lanes)]
        self.round = 0
        self.committed: list[int] = []
        self.newest: list[list[SnapshotFile]] = []
        """The chain of the newest cut that counts."""

    def step(self, touched: set[int], *, ends_pass: bool = False) -> None:
        ids = np.array(sorted(touched), np.uint64)
        rows = np.random.default_rng(self.round).standard_normal((len(ids), 3), np.float32)
        for lane, store in enumerate(self.stores):
            is_own = lane_of(ids, len(self.stores)) == lane
            store._inbox[0] = [Block(ids[is_own], rows[is_own])]
            store.apply(Closing(self.round, 0, 0, (), 1, ends_pass), 0.1)
        self.round += 1

    def cut(self, bases: Sequence[int], *, counts: bool) -> list[list[SnapshotFile]]:
        """Take a cut based, for each lane, on one that counts, maybe not the newest; returns its chain."""
        captures = [store.capture(self.round, base) for store, base in zip(self.stores, bases, strict=True)]
        for capture in captures:
            capture.make(self.round)
        arrays = [{name: array.copy() for name, array in capture.arrays.items()} for capture in captures]
        is_delta = any(capture.is_delta for capture in captures)
        chain = [*(self.newest if is_delta else []), spread(arrays, 2)]
        if counts:
            self.newest = chain
            self.committed.append(self.round)
        return chain

    def state(self) -> State:
        return join_states([state_of(store._tables[0]) for store in self.stores])


def table_of(method: str, l2: float, lives: Rows) -> Parameter:
    momentum = 0.9 if method == "sparse_momentum" else 0.0
    return Parameter(name=TABLE, shape=(2**64, 3), init=Init(spread=0.5), rows=lives, l2=l2, momentum=momentum)


@pytest.mark.parametrize("after", [1, 3])
def test_a_cut_with_a_lane_that_never_had_a_row_is_loaded(after: int) -> None:
    job = Stores(2, table_of("adagrad", 0.0, Rows()), "adagrad")
    job.step({next(i for i in range(100) if lane_of(np.array([i], np.uint64), 2)[0] == 0)})
    (parts,) = job.cut([-1, -1], counts=True)
    loaded = [chained_rows([parts], TABLE, lane, after) for lane in range(after)]
    assert sum(len(state[IDS]) for state in loaded) == 1
    assert {state["values"].shape[1] for state in loaded} == {3}


STEP = st.tuples(
    st.sets(st.integers(0, 40), max_size=6),
    st.sampled_from(["", "", "ends", "cut", "cut", "lost"]),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
)


@settings(max_examples=80, deadline=None)
@given(
    first=st.sets(st.integers(0, 40), min_size=20),
    steps=st.lists(STEP, min_size=2, max_size=25),
    lives=st.sampled_from([Rows(), Rows(admit_after=1, evict_after=4), Rows(evict_after=8)]),
    rule=st.sampled_from([("adagrad", 0.0), ("momentum", 0.25), ("sparse_momentum", 0.0)]),
    lanes=st.integers(1, 3),
    after=st.integers(1, 3),
)
def test_a_chain_of_cuts_holds_what_a_whole_cut_would(
    first: set[int],
    steps: list[tuple[set[int], str, list[int]]],
    lives: Rows,
    rule: tuple[str, float],
    lanes: int,
    after: int,
) -> None:
    job = Stores(lanes, table_of(rule[0], rule[1], lives), rule[0])
    job.step(first)
    for touched, what, behind in steps:
        job.step(touched, ends_pass=what == "ends")
        if what in ("cut", "lost"):
            bases = [job.committed[-1 - n] if n < len(job.committed) else -1 for n in behind[:lanes]]
            # What a lane has heard of never becomes older.
            bases = [max(base, old) for base, old in zip(bases, job_bases(job), strict=True)]
            chain = job.cut(bases, counts=what == "cut")
            for lane in range(after):
                assert same_bits(chained_rows(chain, TABLE, lane, after), part_of(job.state(), lane, after))


def job_bases(job: Stores) -> list[int]:
    return [min((r for r in store._cuts if r in job.committed), default=-1) for store in job.stores]


def few(job: Stores, rounds: int = 1) -> None:
    for _ in range(rounds):
        job.step({job.round % 7})


def made(method: str = "adagrad", l2: float = 0.0, lives: Rows | None = None) -> Stores:
    """One lane with a hundred rows and a cut that counts."""
    job = Stores(1, table_of(method, l2, lives or Rows()), method)
    job.step(set(range(100)))
    job.cut([-1], counts=True)
    return job


def held(chain: list[list[SnapshotFile]]) -> int:
    """How many rows the last snapshot of a chain holds."""
    return len(chain[-1][0].arrays[f"rows0.{TABLE}.{IDS}"])


def test_a_cut_holds_rows_changed_since_the_last_that_counts() -> None:
    job = made()
    few(job, 3)
    assert held(job.cut(job.committed[-1:], counts=False)) == 3
    few(job, 2)
    assert held(job.cut(job.committed[-1:], counts=True)) == 5
    few(job)
    assert held(job.cut(job.committed[-1:], counts=True)) == 1


def test_a_chain_ends_at_half_the_size_of_its_table() -> None:
    job = made()
    few(job)
    assert len(job.cut(job.committed[-1:], counts=True)) == 2
    few(job)
    assert len(job.cut([-1], counts=True)) == 1
    job.step(set(range(51)))
    assert len(job.cut(job.committed[-1:], counts=True)) == 1
    for sizes, length in ((range(30), 2), (range(20), 3), (range(1), 1)):
        job.step(set(sizes))
        assert len(job.cut(job.committed[-1:], counts=True)) == length


@pytest.mark.parametrize(("method", "l2"), [("sparse_momentum", 0.0), ("momentum", 0.1)])
def test_rows_that_change_without_a_push_are_all_written(method: str, l2: float) -> None:
    job = made(method, l2)
    job.step({1}, ends_pass=True)
    assert held(job.cut(job.committed[-1:], counts=True)) == 100


def test_too_many_forgotten_rows_make_a_whole_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.ps.sparse.table.MOST_EVICTED", 0)
    job = made(lives=Rows(evict_after=4))
    for round_ in range(8):
        job.step({200 + round_ % 2})
    chain = job.cut(job.committed[-1:], counts=True)
    assert len(chain) == 1
    assert chained_rows(chain, TABLE, 0, 1)[IDS].tolist() == [200, 201]


def test_a_chain_headless_or_out_of_order_is_refused() -> None:
    nothing = np.empty(0, np.uint64)
    full = table_parts(table_state([1, 2], 9), 1)
    delta = table_parts(table_state([2], 5), 1, gone=nothing)
    with pytest.raises(SnapshotError, match="build on a snapshot that is not there"):
        chained_rows([delta], TABLE, 0, 1)
    with pytest.raises(SnapshotError, match="does not follow the one that it builds on"):
        chained_rows([full, delta], TABLE, 0, 1)
    with pytest.raises(SnapshotError, match="there is no snapshot of the rows"):
        chained_rows([], TABLE, 0, 1)
    assert same_bits(chained_rows([full, full], TABLE, 0, 1), table_state([1, 2], 9))


FLOATS = st.floats(width=64)


@settings(max_examples=60)
@given(costs=st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=4), ended=st.sets(st.integers(0, 3)))
def test_counts_survive_a_part_to_the_bit(costs: list[tuple[float, float]], ended: set[int]) -> None:
    totals = {s: Totals(s + 2**53, cost, [value, -0.0, 0.0]) for s, (cost, value) in enumerate(costs)}
    counts = LaneCounts(7, 1, 4, 2**40, frozenset(ended), totals, (3, 4), {0: 5, 2: 1})
    with TemporaryDirectory() as place:
        path = Path(place) / "part-0.bin"
        write_part(path, {}, {COUNTS: pack_counts(counts)})
        found = agreed_counts([read_part(path, sha256=None)])
    assert repr(found) == repr(counts)  # equal to the sign of zero, and NaN like NaN


def test_parts_of_different_moments_do_not_agree() -> None:
    def part(name: str, round_: int, samples: int = 10, ended: Sequence[int] = ()) -> SnapshotFile:
        return SnapshotFile({COUNTS: pack_counts(LaneCounts(round_, 0, 0, samples, frozenset(ended), {}))}, {}, name)

    with pytest.raises(SnapshotError, match="part-1 was cut at round 8, part-0 at round 7"):
        agreed_counts([part("part-0", 7), part("part-1", 8)])
    with pytest.raises(SnapshotError, match="part-1 has counted 11 samples, part-0 10"):
        agreed_counts([part("part-0", 7), part("part-1", 7, samples=11)])
    with pytest.raises(SnapshotError, match="part-1 has seen the end of other shards"):
        agreed_counts([part("part-0", 7), part("part-1", 7, ended=[1])])
    with pytest.raises(SnapshotError, match="without parts"):
        agreed_counts([])


@pytest.mark.parametrize("value", [None, {}, {"round": "x"}])
def test_counts_that_make_no_sense_are_refused_by_name(value: object) -> None:
    with pytest.raises(SnapshotError, match="part-0 does not say where its lanes were"):
        unpack_counts(value, "part-0")
