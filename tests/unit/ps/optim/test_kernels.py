from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.core.errors import ModelError, SpecError
from bireme.ps.optim import methods
from bireme.ps.optim.optimizers import FOLD_PERIOD, Segment, SliceOptimizer, warm
from bireme.ps.optim.schedules import learning_rate
from bireme.spec.model import Optimizer, Parameter, Schedule

from .float64_reference import scheduled_rate, train

Floats = NDArray[np.float32]
METHODS = tuple(methods.METHODS)
SIZE = 9001  # more than two chunks, and no multiple of a vector
STEPS = np.array([[0, 1], [0, 2]], np.int32)
NO_STEPS = np.empty((0, 2), np.int32)

RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "l2": {"l2": 0.02},
    "l1": {"l1": 0.05},
    "l1+l2": {"l1": 0.05, "l2": 0.02},
    "clip": {"clip": 0.7},
    "multiplier": {"learning_rate": 0.3},
}
SCHEDULES: dict[Schedule, dict[str, float | str]] = {
    "constant": {},
    "poly": {"decay_a": 0.001, "decay_b": 0.7},
    "caffe_poly": {"decay_a": 18000.0, "decay_b": 2.0},
    "exp": {"decay_a": 0.5, "decay_b": 9000.0},
    "discexp": {"decay_a": 0.5, "decay_b": 5000.0},
    "linear": {"decay_a": 1e-6, "decay_b": 0.004},
    "manual": {"schedule_args": "6000:1,12000:0.5,18000:0.1"},
    "pass_manual": {"schedule_args": "0:1,1:0.3"},
}


def optimizer(method: str) -> Optimizer:
    return Optimizer(method=method, learning_rate=0.01, schedule="constant", epsilon=1e-6)


def parameter(**rules: float) -> Parameter:
    return Parameter(name="w", shape=(SIZE,), **rules)  # type: ignore[arg-type]


@cache
def random_rows(seed: int, rows: int = 3, size: int = SIZE) -> Floats:
    values: Floats = np.random.default_rng(seed).standard_normal((rows, size), np.float32)
    return values


def start_values(size: int = SIZE) -> Floats:
    (values,) = random_rows(12345, 1, size).copy()
    return np.asarray(values, np.float32)


def run(slice_: SliceOptimizer, w: Floats, rounds: Sequence[int], *, rates: Sequence[float] | None = None) -> Floats:
    """Apply the rounds whose gradients these seeds name, in two buffers, and return the last."""
    now, after = w.copy(), np.zeros_like(w)
    for k, seed in enumerate(rounds):
        rate = 0.01 if rates is None else rates[k]
        slice_.apply(random_rows(seed, size=w.size), 0, STEPS, now, after, rate)
        now, after = after, now
    return now


def whole(method: str, **rules: float) -> SliceOptimizer:
    return SliceOptimizer(optimizer(method), [Segment(parameter(**rules), 0, SIZE)])


@cache
def sum64(seed: int) -> NDArray[np.float64]:
    a, b, c = random_rows(seed).astype(np.float64)
    return np.asarray(a + b + c, np.float64)


def relative_error(ours: Floats, reference: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
def test_200_rounds_of_three_summed_rows_agree_with_float64(method: str, rule: str) -> None:
    par = parameter(**RULES[rule])
    ours = run(whole(method, **RULES[rule]), start_values(), range(200))
    rounds = [(sum64(seed), 0.01) for seed in range(200)]
    reference = train(optimizer(method), par, start_values().astype(np.float64), rounds)
    # Centred: the difference of two nearly equal numbers costs digits.
    assert relative_error(ours, reference) < (1e-3 if method == "rmsprop" else 1e-5)
    if par.l1:
        assert np.mean((ours == 0) == (reference == 0)) > 0.99


@pytest.mark.parametrize("method", ["momentum", "adadelta", "adam"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_200_scheduled_rounds_agree_with_float64(schedule: Schedule, method: str) -> None:
    opt = Optimizer(method=method, learning_rate=0.02, schedule=schedule, **SCHEDULES[schedule])  # type: ignore[arg-type]
    where = [(100 * (k + 1), k // 70) for k in range(200)]
    ours = run(
        SliceOptimizer(opt, [Segment(parameter(), 0, SIZE)]),
        start_values(),
        range(200),
        rates=[learning_rate(opt, n, p) for n, p in where],
    )
    rounds = [(sum64(seed), scheduled_rate(opt, *where[seed])) for seed in range(200)]
    assert relative_error(ours, train(opt, parameter(), start_values().astype(np.float64), rounds)) < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_cutting_the_slice_anywhere_changes_no_bit(method: str) -> None:
    rules = [{"momentum": 0.9, "l2": 0.01}, {"l1": 0.05, "l2": 0.01}, {"clip": 0.5, "learning_rate": 2.0}]
    borders = [(0, 1700), (1700, 1703), (1703, SIZE)]
    segments = [Segment(parameter(**r), *b) for r, b in zip(rules, borders, strict=True)]
    once = run(SliceOptimizer(optimizer(method), segments), start_values(), range(5))
    pieces = []
    for begin, end in [(0, 3), (3, 2500), (2500, SIZE)]:
        cut = [
            Segment(s.parameter, max(s.begin, begin) - begin, min(s.end, end) - begin)
            for s in segments
            if max(s.begin, begin) < min(s.end, end)
        ]
        slice_, now = SliceOptimizer(optimizer(method), cut), start_values()[begin:end].copy()
        for seed in range(5):
            after = np.zeros_like(now)
            slice_.apply(np.ascontiguousarray(random_rows(seed)[:, begin:end]), 0, STEPS, now, after, 0.01)
            now = after
        pieces.append(now)
    assert np.concatenate(pieces).tobytes() == once.tobytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", ["plain", "momentum"])
def test_saving_and_restoring_between_rounds_changes_no_bit(method: str, rule: str) -> None:
    straight = run(whole(method, **RULES[rule]), start_values(), range(20))
    first, second = whole(method, **RULES[rule]), whole(method, **RULES[rule])
    half = run(first, start_values(), range(10))
    saved = {name: array.copy() for name, array in first.state().items()}
    run(first, half, range(10, 20))
    second.load_state(saved)
    assert run(second, half, range(10, 20)).tobytes() == straight.tobytes()


@pytest.mark.parametrize(
    ("rows", "root", "steps"),
    [
        (1, 0, []),
        (2, 1, [(1, 0)]),
        (3, 0, [(0, 1), (0, 2)]),
        (4, 0, [(0, 1), (2, 3), (0, 2)]),
        (5, 0, [(0, 1), (2, 3), (0, 2), (0, 4)]),
        (5, 3, [(3, 4), (3, 1)]),  # rows 0 and 2 belong to shards that have run out of data
        (4, 2, []),
    ],
)
def test_rows_are_summed_in_the_order_of_the_steps(rows: int, root: int, steps: list[tuple[int, int]]) -> None:
    inbox = random_rows(3, rows)
    before, expected = inbox.copy(), inbox.copy()
    for a, b in steps:
        expected[a] += expected[b]
    w, w_next = start_values(), np.zeros(SIZE, np.float32)
    order = np.array(steps, np.int32).reshape(len(steps), 2)
    whole("momentum").apply(inbox, root, order, w, w_next, 1.0)
    assert w_next.tobytes() == (w - expected[root]).tobytes()
    assert inbox.tobytes() == before.tobytes()


def test_arithmetic_is_plain_float32_on_every_processor() -> None:
    opt, par = optimizer("adam"), parameter(l2=0.02)
    w, w_next = start_values(), np.zeros(SIZE, np.float32)
    SliceOptimizer(opt, [Segment(par, 0, SIZE)]).apply(random_rows(0), 0, STEPS, w, w_next, 0.01)
    f = np.float32
    rows = random_rows(0)
    g = rows[0] + rows[1] + rows[2] + f(0.02) * w
    mean = f(0.9) * f(0) + f(1 - 0.9) * g
    square = f(0.999) * f(0) + f(1 - 0.999) * (g * g)
    rate = f(0.01 * (np.sqrt(1 - 0.999**1) / (1 - 0.9**1)))
    assert w_next.tobytes() == (w - rate * (mean / (np.sqrt(square) + f(1e-6)))).tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_static_parameters_and_padding_are_left_alone(method: str) -> None:
    still = Parameter(name="s", shape=(100,), is_static=True, momentum=0.9)
    moving = Parameter(name="m", shape=(100,))
    slice_ = SliceOptimizer(optimizer(method), [Segment(still, 0, 100), Segment(moving, 128, 228)])
    w = start_values(256)
    w[100:128] = w[228:] = 0.0
    w_next = np.full(256, 7.0, np.float32)
    slice_.apply(random_rows(0, size=256), 0, STEPS, w, w_next, 0.01)
    assert (w_next[:100] == w[:100]).all()
    assert (w_next[100:128] == 0).all()
    assert (w_next[228:] == 0).all()
    assert (w_next[128:228] != w[128:228]).all()
    assert "velocity" not in slice_.state()


def test_slice_of_static_parameters_only_is_copied() -> None:
    still = Parameter(name="s", shape=(9,), is_static=True)
    slice_ = SliceOptimizer(optimizer("adam"), [Segment(still, 0, 9)])
    w, w_next = start_values(9), np.zeros(9, np.float32)
    slice_.apply(random_rows(0, size=9), 0, STEPS, w, w_next, 0.01)
    assert w_next.tobytes() == w.tobytes()


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("momentum", set()),
        ("adagrad", {"square_sum_old", "square_sum"}),
        ("adadelta", {"mean_square", "mean_square_step"}),
        ("rmsprop", {"mean_square", "mean"}),
        ("decayed_adagrad", {"mean_square"}),
        ("adam", {"mean", "mean_square"}),
        ("adamax", {"mean", "largest"}),
    ],
)
def test_state_exists_only_where_the_method_needs_it(method: str, names: set[str]) -> None:
    assert set(whole(method).state()) == names | {"updates"}
    has_velocity = "velocity" in whole(method, momentum=0.9).state()
    assert has_velocity == (method not in ("adam", "adamax"))


def test_adagrad_folds_its_recent_sum_every_16384_updates() -> None:
    slice_ = whole("adagrad")
    run(slice_, start_values(), range(3))
    saved = slice_.state()
    saved["updates"] = np.array([FOLD_PERIOD - 1], np.int64)
    recent = saved["square_sum"].copy()
    slice_.load_state(saved)
    run(slice_, start_values(), [3])
    folded = slice_.state()
    assert (folded["square_sum"] == 0).all()
    g = (random_rows(3)[0] + random_rows(3)[1]) + random_rows(3)[2]
    assert (folded["square_sum_old"] == recent + g * g).all()
    assert folded["updates"] == FOLD_PERIOD


def test_adamax_takes_no_step_where_every_gradient_was_zero() -> None:
    slice_, w, w_next = whole("adamax"), start_values(), np.zeros(SIZE, np.float32)
    rows = random_rows(0, 1).copy()
    rows[0, :100] = 0.0
    slice_.apply(rows, 0, NO_STEPS, w, w_next, 0.01)
    assert (w_next[:100] == w[:100]).all()
    assert (w_next[100:] != w[100:]).all()


def test_rmsprop_stays_finite_when_rounding_eats_the_variance() -> None:
    slice_, now = whole("rmsprop"), start_values()
    level = np.linspace(1.0, 1000.0, SIZE, dtype=np.float32)[None, :]
    saw_negative = False
    for k in range(400):
        after = np.zeros(SIZE, np.float32)
        # Falling to a lower level, both means stop a few roundings above it, the plain one relatively higher.
        slice_.apply(level * np.float32(2.0 if k < 100 else 1.0), 0, NO_STEPS, now, after, 1e-6)
        now, state = after, slice_.state()
        saw_negative |= bool((state["mean_square"] - state["mean"] ** 2 < -1e-6).any())
    assert saw_negative, "this data no longer reaches the guard"
    assert np.isfinite(now).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", RULES)
def test_nan_in_a_gradient_is_never_hidden(method: str, rule: str) -> None:
    rows = random_rows(0, 1).copy()
    rows[0, 17] = np.nan
    w, w_next = start_values(), np.zeros(SIZE, np.float32)
    whole(method, **RULES[rule]).apply(rows, 0, NO_STEPS, w, w_next, 0.01)
    assert np.isnan(w_next[17])
    assert np.isfinite(np.delete(w_next, 17)).all()


def test_l1_with_momentum_is_refused() -> None:
    with pytest.raises(SpecError, match="parameter w has L1"):
        whole("momentum", l1=0.1, momentum=0.9)


def test_state_of_another_method_is_refused() -> None:
    with pytest.raises(ModelError, match="lacks mean, mean_square"):
        whole("adam").load_state(whole("momentum").state())


def test_state_of_another_length_is_refused() -> None:
    short = SliceOptimizer(optimizer("adam"), [Segment(parameter(), 0, 10)])
    with pytest.raises(ModelError, match="wrong length for mean"):
        whole("adam").load_state(short.state())


def test_state_without_velocity_continues_from_standstill() -> None:
    slice_ = whole("momentum", momentum=0.9)
    run(slice_, start_values(), range(2))
    slice_.load_state(whole("momentum").state())
    assert (slice_.state()["velocity"] == 0).all()


def test_arrays_that_would_compile_another_kernel_are_a_bug() -> None:
    w = np.zeros(SIZE)
    with pytest.raises(AssertionError, match="this is a bug"):
        whole("momentum").apply(random_rows(0), 0, STEPS, w, w.copy(), 0.01)  # type: ignore[arg-type]
    single = start_values()
    with pytest.raises(AssertionError, match="this is a bug"):
        whole("momentum").apply(random_rows(0, 2), 0, STEPS, single, single.copy(), 0.01)


def test_each_kernel_is_compiled_for_one_set_of_types_only() -> None:
    from bireme.ps.optim.kernels import kernel_of

    for method in METHODS:
        warm(optimizer(method))
        run(whole(method, momentum=0.9), start_values(), range(2))
        assert len(kernel_of(methods.METHODS[method]).signatures) == 1  # type: ignore[attr-defined]


FORMULA = """
from bireme.ps.optim.methods import ONE, Method

def _half(g, w, first, second, k):
    return k.lr * FACTOR * g, first, second, ONE

METHOD = Method("half", _half)
"""
LOAD = """
import sys
import numpy as np
from bireme.ps.optim.kernels import Inbox, kernel_of
from bireme.ps.optim.optimizers import NO_CLOCK
sys.path.insert(0, sys.argv[1])
import formula
rules = np.array([[1, 0, 0, 0, 1, np.inf, 0, 0, 0, 0, 0]], np.float32)
inbox = Inbox(np.ones((1, 4), np.float32), np.empty((0, 2), np.int32), 0)
w, after = np.ones(4, np.float32), np.ones(4, np.float32)
kernel = kernel_of(formula.METHOD)
kernel(inbox, w, after, np.empty((0, 4), np.float32), np.array([[0, 4, 0]]), rules, NO_CLOCK)
print(after[0], sum(kernel.stats.cache_hits.values()))
"""


def test_a_kernel_is_loaded_from_disk_until_its_formula_changes(tmp_path: Path) -> None:
    def load(factor: str) -> list[str]:
        (tmp_path / "formula.py").write_text(FORMULA.replace("FACTOR", factor))
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert load("ONE") == ["0.0", "0"]
    assert load("ONE") == ["0.0", "1"]
    assert load("(ONE + ONE)") == ["-1.0", "0"]
