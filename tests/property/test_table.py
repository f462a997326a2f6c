"""Tables do what a plain dict of rows does, bit for bit, on any number of lanes and whatever happens between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.unit.ps.sparse.table_model import TableModel, state_of

from bireme.ps.optim.optimizers import ROW_METHODS as METHODS
from bireme.ps.snapshot.reassembly import join_states, part_of
from bireme.ps.sparse.row_sums import lane_of, mix64
from bireme.ps.sparse.table import Table
from bireme.spec.model import Init, Optimizer, Parameter, Rows

WIDTH, SEED = 3, 11
_COLLIDING = [i for i in range(40_000) if int(mix64(np.uint64(i))) % 1024 in (0, 1023)][:40]
"""Ids whose places in the index meet, some of them across its end."""
POOL = sorted({0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, *_COLLIDING})
ALL = np.array(POOL, np.uint64)


@dataclass(frozen=True)
class Job:
    parameter: Parameter
    optimizer: Optimizer
    rounds: list[tuple[frozenset[int], bool]]
    """The ids that each round touches, and whether it ends a pass."""

    def gradient(self, round_: int) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        ids = np.array(sorted(self.rounds[round_][0]), np.uint64)
        whole = np.random.default_rng(round_).standard_normal((len(POOL), WIDTH), np.float32)
        return ids, whole[np.searchsorted(ALL, ids)]

    def rate(self, round_: int) -> float:
        return 0.1 / (1 + round_ % 5)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    method = draw(st.sampled_from(METHODS))
    kind = draw(st.sampled_from(["plain", "l1", "l2", "both", "momentum"]))
    rules: dict[str, float] = {}
    if kind in ("l1", "both"):
        rules["l1"] = 0.03
    if kind in ("l2", "both"):
        rules["l2"] = 0.2
    if kind == "momentum" or (method == "sparse_momentum" and kind == "l2"):
        rules["momentum"] = draw(st.sampled_from([0.5, 0.01]))
    if draw(st.booleans()):
        rules["clip"] = 0.8
    parameter = Parameter(
        name="table",
        shape=(2**64, WIDTH),
        init=Init(
            kind=draw(st.sampled_from(["normal", "uniform"])), mean=0.1, spread=draw(st.sampled_from([0.0, 0.5]))
        ),
        learning_rate=draw(st.sampled_from([1.0, 0.3])),
        rows=Rows(admit_after=draw(st.sampled_from([0, 0, 1, 2])), evict_after=draw(st.sampled_from([0, 0, 2, 9]))),
        is_static=draw(st.integers(0, 19)) == 7,
        **rules,
    )
    rounds = draw(st.lists(st.tuples(st.frozensets(st.sampled_from(POOL)), st.booleans()), min_size=1, max_size=12))
    return Job(parameter, Optimizer(method=method), rounds)


def same(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return left.shape == right.shape and bool((left.view(np.uint32) == right.view(np.uint32)).all())


def same_state(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> bool:
    return left.keys() == right.keys() and all(left[k].tobytes() == right[k].tobytes() for k in left)


def run(job: Job, table: Table, begin: int = 0, end: int | None = None, *, skips: bool = False, lane: int = -1) -> None:
    """Apply a span of rounds, the rows of one lane of three if that is given."""
    for round_ in range(begin, len(job.rounds) if end is None else end):
        ids, rows = job.gradient(round_)
        if lane >= 0:
            is_own = lane_of(ids, 3) == lane
            ids, rows = ids[is_own], rows[is_own]
        if len(ids) or not skips:
            table.apply(ids, rows, job.rate(round_), round_)
        if job.rounds[round_][1]:
            table.end_pass(job.rate(round_), round_)


def new(job: Job) -> Table:
    return Table(job.parameter, job.optimizer, SEED)


@given(jobs())
def test_a_table_equals_a_dict_of_rows_after_every_round(job: Job) -> None:
    table, model = new(job), TableModel(job.parameter, job.optimizer, SEED)
    before = np.stack([model.read(i) for i in POOL])
    for round_ in range(len(job.rounds)):
        ids, rows = job.gradient(round_)
        run(job, table, round_, round_ + 1)
        model.apply({int(i): row for i, row in zip(ids, rows, strict=True)}, job.rate(round_), round_)
        if job.rounds[round_][1]:
            model.end_pass(job.rate(round_), round_)
        now = np.stack([model.read(i) for i in POOL])
        assert same(table.read(ALL), now)
        assert same(table.read(ALL[::-1]), now[::-1].copy())
        assert same(table.read_before(ALL), before)
        assert len(table) == len(model.rows)
        before = now
    found, values = table.rows()
    admitted = model.admitted()
    assert found.tolist() == list(admitted)
    assert not admitted or same(values, np.stack(list(admitted.values())))


@given(jobs())
def test_three_lanes_hold_what_one_would(job: Job) -> None:
    whole, lanes = new(job), [new(job) for _ in range(3)]
    run(job, whole)
    for lane, table in enumerate(lanes):
        run(job, table, lane=lane)
    assert same_state(join_states(state_of(table) for table in lanes), state_of(whole))


@given(jobs(), st.integers(1, 4), st.integers(0, 12))
def test_a_state_continues_on_any_number_of_lanes(job: Job, lanes: int, cut: int) -> None:
    quiet, first = new(job), new(job)
    run(job, quiet)
    cut = min(cut, len(job.rounds))
    run(job, first, 0, cut)
    saved = state_of(first)
    shuffled = np.random.default_rng(cut).permutation(len(saved["ids"]))
    saved = {name: part if name in ("rounds", "clock") else part[shuffled] for name, part in saved.items()}
    tables = []
    for lane in range(lanes):
        table = new(job)
        table.load_state(part_of(saved, lane, lanes))
        for round_ in range(cut, len(job.rounds)):
            ids, rows = job.gradient(round_)
            is_own = lane_of(ids, lanes) == lane
            table.apply(ids[is_own], rows[is_own], job.rate(round_), round_)
            if job.rounds[round_][1]:
                table.end_pass(job.rate(round_), round_)
        tables.append(table)
    assert same_state(join_states(state_of(table) for table in tables), state_of(quiet))


@given(jobs())
def test_rounds_that_touch_nothing_may_be_skipped(job: Job) -> None:
    # Where the clock depends on the learning rate, a skipped round does not say which one it had.
    job = Job(job.parameter, job.optimizer, [*job.rounds, (frozenset({1}), False)])
    if not (job.optimizer.method == "sparse_momentum" and job.parameter.momentum and job.parameter.l2):
        each, some = new(job), new(job)
        run(job, each)
        run(job, some, skips=True)
        assert same_state(state_of(some), state_of(each))
