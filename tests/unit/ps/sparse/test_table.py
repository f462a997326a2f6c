from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.core.errors import ModelError, SpecError
from bireme.ps.optim import methods
from bireme.ps.optim.optimizers import FOLD_PERIOD, Segment, SliceOptimizer, check_sparse
from bireme.ps.optim.optimizers import ROW_METHODS as METHODS
from bireme.ps.snapshot.reassembly import join_states
from bireme.ps.sparse.table import Table, warm
from bireme.spec.model import Init, Optimizer, Parameter, Rows

from .table_model import TableModel, first_values, state_of

Floats = NDArray[np.float32]
Ids = NDArray[np.uint64]
EXTREMES = np.array([0, 1, 2**31, 2**63, 2**64 - 1], np.uint64)
NONE = np.empty(0, np.uint64)


def parameter(width: int = 4, rows: Rows | None = None, **rules: Any) -> Parameter:
    init = Init(spread=0.3)
    return Parameter(name="t", shape=(2**64, width), init=init, rows=rows or Rows(), **rules)


def table(method: str = "adagrad", *, rows: Rows | None = None, **rules: Any) -> Table:
    return Table(parameter(rows=rows, **rules), Optimizer(method=method), 5)


def ids_of(*numbers: int) -> Ids:
    return np.array(numbers, np.uint64)


def push(to: Table, round_: int, *numbers: int, rate: float = 0.1) -> None:
    ids = ids_of(*sorted(numbers))
    to.apply(ids, np.ones((len(ids), to.width), np.float32), rate, round_)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("width", [1, 16, 33])
def test_first_values_are_those_of_core_draws(kind: str, width: int) -> None:
    init = Init(kind=kind, mean=0.25, spread=1.5)  # type: ignore[arg-type]
    p = Parameter(name="t", shape=(2**64, width), init=init, rows=Rows())
    ids = np.concatenate([EXTREMES, np.arange(300, dtype=np.uint64)])
    read = Table(p, Optimizer(), 5).read(ids)
    expected = np.stack([first_values(p, 5, int(i)) for i in ids])
    assert np.array_equal(read.view(np.uint32), expected.view(np.uint32))


def test_first_values_depend_on_seed_name_and_id() -> None:
    drawn = [
        Table(Parameter(name=name, shape=(9, 4), init=Init(spread=1.0), rows=Rows()), Optimizer(), seed).read(
            ids_of(id_)
        )
        for name, seed, id_ in [("a", 1, 0), ("a", 1, 1), ("a", 2, 0), ("b", 1, 0)]
    ]
    assert all(not np.array_equal(x, y) for x, y in itertools.combinations(drawn, 2))


def test_without_spread_rows_start_at_the_mean() -> None:
    p = Parameter(name="t", shape=(9, 3), init=Init(mean=0.5), rows=Rows())
    assert (Table(p, Optimizer(), 5).read(EXTREMES) == 0.5).all()


def test_reading_makes_no_rows() -> None:
    one = table()
    one.read(EXTREMES)
    assert len(one) == 0 and one.rows()[0].tolist() == []


@pytest.mark.parametrize("method", METHODS)
def test_many_rows_grow_the_table_and_stay_what_they_were(method: str) -> None:
    p = parameter(momentum=0.9 if method == "sparse_momentum" else 0.0)
    one, model = Table(p, Optimizer(method=method), 5), TableModel(p, Optimizer(method=method), 5)
    draw = np.random.default_rng(3)
    for round_ in range(6):
        ids = np.unique(draw.integers(0, 2**64, 900, np.uint64) >> np.uint64(52))
        rows = draw.standard_normal((len(ids), 4), np.float32)
        one.apply(ids, rows, 0.1, round_)
        model.apply({int(i): row for i, row in zip(ids, rows, strict=True)}, 0.1, round_)
    found, values = one.rows()
    assert found.tolist() == sorted(model.rows)
    assert np.array_equal(values.view(np.uint32), np.stack(list(model.admitted().values())).view(np.uint32))


def test_rows_wider_than_a_chunk_are_updated_whole() -> None:
    p = parameter(5000, l2=0.1)
    one, model = Table(p, Optimizer(method="rmsprop"), 5), TableModel(p, Optimizer(method="rmsprop"), 5)
    ids, rows = ids_of(*range(9)), np.random.default_rng(0).standard_normal((9, 5000), np.float32)
    for round_ in range(3):
        one.apply(ids, rows, 0.1, round_)
        model.apply(dict(enumerate(rows)), 0.1, round_)
    assert np.array_equal(one.read(ids), np.stack([model.read(i) for i in range(9)]))


@pytest.mark.parametrize("method", ["momentum", "adagrad", "rmsprop", "decayed_adagrad"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rows_touched_in_every_round_have_a_dense_ones_bits(method: str, momentum: float) -> None:
    p, o = parameter(4, momentum=momentum, clip=1.0), Optimizer(method=method)
    one, ids = Table(p, o, 5), ids_of(3, 4)
    dense = SliceOptimizer(o, [Segment(Parameter(name="t", shape=(2, 4), momentum=momentum, clip=1.0), 0, 8)])
    w = one.read(ids).reshape(-1)
    for round_ in range(20):
        g = np.random.default_rng(round_).standard_normal((2, 4), np.float32)
        one.apply(ids, g, 0.1, round_)
        after = np.empty_like(w)
        dense.apply(g.reshape(1, -1), 0, np.empty((0, 2), np.int32), w, after, 0.1)
        w = after
    assert np.array_equal(one.read(ids).reshape(-1), w)


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_touched_sparse_momentum_catches_up_with_dense(l2: float) -> None:
    """Across restarts of its clock, in rounds with and without a gradient."""
    one = table("sparse_momentum", momentum=0.8, l2=l2)
    w, velocity = one.read(ids_of(9))[0].astype(np.float64), np.zeros(4)
    for round_ in range(150):
        g = np.zeros(4, np.float32)
        is_touched = round_ % 7 == 0 or round_ % 11 == 3
        if is_touched:
            g = np.random.default_rng(round_).standard_normal(4, np.float32)
        one.apply(ids_of(9) if is_touched else NONE, g[None] if is_touched else g[:0].reshape(0, 4), 0.05, round_)
        velocity = 0.8 * velocity - 0.05 * g
        w = w / (1.0 + 0.05 * l2) + velocity
        if is_touched:
            assert np.allclose(one.read(ids_of(9))[0], w, atol=0.02)


def test_l2_shrinks_for_all_rounds_since_the_last_touch_at_once() -> None:
    one = table("momentum", l2=0.5)
    zero = np.zeros((1, 4), np.float32)
    first = one.read(ids_of(3))
    one.apply(ids_of(3), zero, 0.1, 4)
    assert np.array_equal(one.read(ids_of(3)), first / np.float32(1 + 0.1 * 0.5))
    before = one.read(ids_of(3))
    one.apply(ids_of(3), zero, 0.1, 9)
    assert np.array_equal(one.read(ids_of(3)), before / np.float32(1 + 0.1 * 0.5 * 5))


def test_l1_holds_small_rows_at_zero() -> None:
    one = table("adagrad", l1=50.0)
    push(one, 0, 3)
    assert (one.read(ids_of(3)) == 0).all()


def test_the_end_of_a_pass_regularises_untouched_rows_once() -> None:
    one = table("momentum", l2=0.5)
    push(one, 0, 3, 4)
    before = one.read(ids_of(3))
    push(one, 2, 4)
    four = one.read(ids_of(4))
    one.end_pass(0.1, 2)
    assert np.array_equal(one.read(ids_of(3)), before / np.float32(1 + 0.1 * 0.5 * 2))
    assert np.array_equal(one.read(ids_of(4)), four)
    after = one.read(ids_of(3))
    one.end_pass(0.1, 2)
    assert np.array_equal(one.read(ids_of(3)), after)


def test_without_regularisation_a_passs_end_changes_nothing() -> None:
    one = table("adagrad")
    push(one, 0, 3)
    before = one.read(ids_of(3))
    one.end_pass(0.1, 5)
    assert np.array_equal(one.read(ids_of(3)), before)


def test_before_a_round_means_before_the_end_of_its_pass_too() -> None:
    one = table("momentum", l2=0.5)
    push(one, 0, 3, 4)
    before = one.read(ids_of(4, 3, 8))
    push(one, 1, 3, 8)
    one.end_pass(0.1, 1)
    assert np.array_equal(one.read_before(ids_of(4, 3, 8)), before)


def test_an_empty_round_leaves_the_same_before_and_after() -> None:
    one = table()
    push(one, 0, 3)
    push(one, 1)
    assert np.array_equal(one.read_before(ids_of(3)), one.read(ids_of(3)))


def test_the_first_pushes_only_count_until_a_row_is_admitted() -> None:
    one = table(rows=Rows(admit_after=2))
    first = one.read(ids_of(3))
    push(one, 0, 3)
    assert one.rows()[0].tolist() == [] and len(one) == 1
    push(one, 1, 3)
    assert one.rows()[0].tolist() == [3] and np.array_equal(one.read(ids_of(3)), first)
    push(one, 2, 3)
    assert not np.array_equal(one.read(ids_of(3)), first)


def test_a_row_without_pushes_is_forgotten_and_starts_anew() -> None:
    one = table(rows=Rows(evict_after=8))
    first = one.read(ids_of(3))
    push(one, 0, 3)
    trained = one.read(ids_of(3))
    for round_ in range(1, 8):
        push(one, round_, 4)
    assert np.array_equal(one.read(ids_of(3)), trained)
    push(one, 8, 4)
    assert np.array_equal(one.read(ids_of(3)), first) and np.array_equal(one.read_before(ids_of(3)), trained)
    push(one, 9, 3)
    assert np.array_equal(one.read(ids_of(3)), trained)


def test_a_row_is_forgotten_in_skipped_rounds_too() -> None:
    one = table(rows=Rows(evict_after=8))
    push(one, 0, 3)
    once = one.read(ids_of(3))
    push(one, 1, 3)
    twice = one.read(ids_of(3))
    push(one, 11, 3)
    assert np.array_equal(one.read(ids_of(3)), once) and np.array_equal(one.read_before(ids_of(3)), twice)


def test_rows_of_forgotten_ids_are_used_again() -> None:
    one = table(rows=Rows(evict_after=1))
    for round_ in range(40):
        push(one, round_, *range(50 * round_, 50 * round_ + 50))
    assert len(one) == 50 and one.rows()[0].tolist() == list(range(1950, 2000))
    assert len(one._arena.block) <= 100


def test_a_static_table_never_changes() -> None:
    one = table("adam", is_static=True, l2=0.1)
    first = one.read(EXTREMES)
    push(one, 0, 3)
    one.end_pass(0.1, 0)
    assert len(one) == 0 and np.array_equal(one.read(EXTREMES), first)
    one.put(ids_of(3), np.full((1, 4), 7.0, np.float32))
    push(one, 1, 3)
    assert (one.read(ids_of(3)) == 7).all()


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_a_saved_model_train_like_new_ones(method: str) -> None:
    rules: dict[str, Any] = {"momentum": 0.5} if method == "sparse_momentum" else {}
    trained, loaded = (table(method, rows=Rows(admit_after=0), **rules) for _ in range(2))
    loaded.put(EXTREMES[::-1], loaded.read(EXTREMES[::-1]))
    assert loaded.rows()[0].tolist() == EXTREMES.tolist()
    for round_ in range(3):
        for one in (trained, loaded):
            push(one, round_, *EXTREMES.tolist())
    assert np.array_equal(trained.read(EXTREMES), loaded.read(EXTREMES))


def test_rows_of_a_saved_model_may_replace_others() -> None:
    one = table(rows=Rows(admit_after=3))
    push(one, 0, 3)
    one.put(ids_of(9, 3), np.array([[9.0] * 4, [3.0] * 4], np.float32))
    ids, values = one.rows()
    assert ids.tolist() == [3, 9] and values[:, 0].tolist() == [3.0, 9.0]
    push(one, 1, 3)
    assert (one.read(ids_of(3)) < 3.0).all()


def test_a_touched_row_folds_its_recent_adagrad_sum() -> None:
    one = table("adagrad")
    push(one, FOLD_PERIOD - 1, 3)
    assert (state_of(one)["square_sum"] == 1).all()
    push(one, FOLD_PERIOD + 5, 3)
    assert (state_of(one)["square_sum_old"] == 1).all() and (state_of(one)["square_sum"] == 1).all()
    push(one, FOLD_PERIOD + 6, 3)
    assert (state_of(one)["square_sum_old"] == 1).all() and (state_of(one)["square_sum"] == 2).all()


def test_arrays_of_other_flags_need_no_new_compilation() -> None:
    from bireme.ps.optim.kernels import kernel_of
    from bireme.ps.sparse import table_kernels

    one, other = table(), table()
    push(one, 0, 3, 4)
    raw = bytearray(1) + ids_of(3, 4).tobytes()
    ids = np.frombuffer(bytes(raw), np.uint64, offset=1)
    assert not ids.flags.aligned
    other.apply(ids, np.ones((4, 2), np.float32).T, 0.1, 0)
    assert np.array_equal(other.read(ids), one.read(ids_of(3, 4)))
    code: list[Any] = [kernel_of(methods.METHODS["adagrad"])]
    code += [table_kernels.load, table_kernels.find, table_kernels.store, table_kernels.read]
    assert all(len(kernel.signatures) == 1 for kernel in code)


@pytest.mark.parametrize(
    ("ids", "count", "round_"), [((4, 3), 2, 1), ((3, 3), 2, 1), ((3,), 2, 1), ((3,), 1, 0)], ids=str
)
def test_rounds_out_of_order_are_a_bug(ids: tuple[int, ...], count: int, round_: int) -> None:
    one = table()
    push(one, 0, 3)
    with pytest.raises(AssertionError, match="this is a bug"):
        one.apply(ids_of(*ids), np.ones((count, 4), np.float32), 0.1, round_)
    with pytest.raises(AssertionError, match="this is a bug"):
        one.end_pass(0.1, -1)
    with pytest.raises(AssertionError, match="this is a bug"):
        one.put(ids_of(3, 3), np.ones((2, 4), np.float32))


def test_a_state_of_another_optimizer_is_refused() -> None:
    one = table("adagrad")
    push(one, 0, 3)
    with pytest.raises(ModelError, match="sparse parameter t lacks mean, mean_square"):
        table("rmsprop").load_state(state_of(one))
    with pytest.raises(ModelError, match="wrong shape for values"):
        Table(parameter(8), Optimizer(method="adagrad"), 5).load_state(state_of(one))


def test_the_state_of_an_empty_lane_joins_that_of_others() -> None:
    full, empty = table("adagrad"), table("adagrad")
    push(full, 0, 3, 5)
    empty.apply(ids_of(), np.empty((0, 4), np.float32), 0.1, 0)
    state, copies = empty.state_of(empty.changed_rows(None), 1 << 20)
    assert not copies
    assert join_states([state_of(full), state])["values"].shape == (2, 4)


def test_states_of_different_rounds_cannot_be_joined() -> None:
    one, other = table(), table()
    push(one, 0, 3)
    push(other, 1, 4)
    with pytest.raises(ModelError, match="different rounds"):
        join_states([state_of(one), state_of(other)])


@pytest.mark.parametrize("method", sorted(set(methods.METHODS) - set(METHODS)))
def test_methods_that_change_all_rows_each_round_are_refused(method: str) -> None:
    with pytest.raises(SpecError, match=f"{method} cannot update sparse parameter t\n") as refusal:
        check_sparse([parameter()], Optimizer(method=method))
    assert all(name in refusal.value.fix for name in METHODS)
    check_sparse([Parameter(name="dense", shape=(3,))], Optimizer(method=method))


@pytest.mark.parametrize("shape", [(9,), (2, 3, 4)])
def test_a_table_has_two_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="a table has rows of one width"):
        check_sparse([Parameter(name="t", shape=shape, rows=Rows())], Optimizer())


@pytest.mark.parametrize("rules", [{"l1": 0.1}, {"l2": 0.1}])
def test_momentum_and_regularisation_do_not_go_together_on_rows(rules: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"has momentum 0\.9 and regularisation"):
        check_sparse([parameter(momentum=0.9, **rules)], Optimizer(method="adagrad"))


def test_sparse_momentum_may_decay_but_not_grow() -> None:
    check_sparse([parameter(momentum=0.9, l2=0.1)], Optimizer(method="sparse_momentum"))
    with pytest.raises(SpecError, match="grow without bound"):
        check_sparse([parameter(momentum=1.0)], Optimizer(method="sparse_momentum"))


def test_sparse_momentum_on_dense_parameters_is_plain_momentum() -> None:
    found = []
    for method in ("momentum", "sparse_momentum"):
        dense = SliceOptimizer(Optimizer(method=method), [Segment(Parameter(name="w", shape=(4,), momentum=0.9), 0, 4)])
        w = np.ones(4, np.float32)
        for _ in range(3):
            after = np.empty_like(w)
            dense.apply(np.ones((1, 4), np.float32), 0, np.empty((0, 2), np.int32), w, after, 0.1)
            w = after
        found.append((w, dense.state()["velocity"]))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_warm_table_compiles_nothing_in_its_first_round(method: str) -> None:
    from bireme.ps.optim import kernels
    from bireme.ps.sparse import table_kernels

    p = parameter(l1=0.1)
    warm(p, Optimizer(method=method))
    code: list[Any] = [c for m in (kernels, table_kernels) for c in vars(m).values() if hasattr(c, "signatures")]
    code += [kernels.kernel_of(methods.METHODS[method]), kernels.kernel_of(methods.LAZY_MOMENTUM)]
    before = [len(c.signatures) for c in code]
    push(Table(p, Optimizer(method=method), 5), 0, 3)
    assert [len(c.signatures) for c in code] == before
