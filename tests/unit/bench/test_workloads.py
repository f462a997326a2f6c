from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engines import workloads as w


def after(steps: int, size: int = 1000) -> Any:
    """Parameters as a right engine leaves them, summed in float32."""
    values = np.zeros(size, dtype=np.float32)
    for _ in range(steps):
        values -= np.float32(w.DENSE_RATE) * np.float32(3.0)
    return values


@pytest.mark.parametrize("steps", [1, 14, 3000])
def test_dense_check_passes_float32_rounding(steps: int) -> None:
    w.check_dense(after(steps), steps)


@pytest.mark.parametrize("steps", [2, 14, 3000])
def test_dense_check_catches_one_lost_step(steps: int) -> None:
    with pytest.raises(ValueError, match=f"element 0 of 1000 is .* after {steps} steps"):
        w.check_dense(after(steps - 1), steps)


@pytest.mark.parametrize("at", [0, 499, 500, 999])
def test_dense_check_looks_at_both_ends_and_the_middle(at: int) -> None:
    values = after(10)
    values[at] = 0.0
    with pytest.raises(ValueError, match=f"element {at} of 1000"):
        w.check_dense(values, 10)


def test_dense_check_catches_nan() -> None:
    values = after(3)
    values[-1] = np.nan
    with pytest.raises(ValueError, match="nan"):
        w.check_dense(values, 3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """A table of 50 rows and two trainers with two batches each."""
    monkeypatch.setattr(w, "ROWS", 50)
    monkeypatch.setattr(w, "SPARSE_POOL", 2)
    first = [np.array([1, 1, 2, 7]), np.array([2, 3])]
    second = [np.array([1, 4, 4, 4]), np.array([4, 5])]
    return [first, second]


def train(batches: list[list[Any]], steps: int, trainers: tuple[int, ...] = (0, 1)) -> Any:
    """Adagrad of summed gradients on the whole table."""
    table, squares = np.zeros((w.ROWS, w.WIDTH)), np.zeros((w.ROWS, w.WIDTH))
    for step in range(steps):
        total = np.zeros_like(table)
        for rank in trainers:
            rows, grads = w.unique_rows(batches[rank][step % 2])
            total[rows] += grads
        squares += total**2
        table -= np.where(total > 0, w.SPARSE_RATE * total / np.sqrt(np.maximum(squares, 1e-30)), 0)
    return table


def test_sparse_truth_is_adagrad_of_summed_gradients(small: list[list[Any]]) -> None:
    truth = w.sparse_truth(small, 5)
    assert sorted(truth.rows) == [1, 2, 3, 4, 5, 7]
    truth.check(train(small, 5)[truth.rows])


def test_sparse_check_catches_a_trainer_that_was_not_heard(small: list[list[Any]]) -> None:
    truth = w.sparse_truth(small, 5)
    with pytest.raises(ValueError, match="of the table is"):
        truth.check(train(small, 5, trainers=(0,))[truth.rows])


def test_sparse_checks_without_sums_skip_rows_of_two_trainers(small: list[list[Any]]) -> None:
    assert sorted(w.sparse_truth(small, 5, is_joint=False).rows) == [2, 3, 4, 5, 7]


def test_unique_rows_count_every_occurrence() -> None:
    rows, grads = w.unique_rows(np.array([9, 3, 9, 9]))
    assert rows.tolist() == [3, 9]
    np.testing.assert_allclose(grads[:, 0], [0.01, 0.03], rtol=1e-6)
    assert grads.shape == (2, w.WIDTH) and grads.dtype == np.float32


def test_zipf_ids_stay_in_the_table_and_favour_a_few() -> None:
    ids = w._zipf_ids(np.random.Generator(np.random.PCG64(1)), 20_000)
    assert ids.min() >= 0 and ids.max() < w.ROWS
    _, counts = np.unique(ids, return_counts=True)
    assert counts.max() > 500


def test_bow_batches_repeat_and_differ_between_trainers() -> None:
    one, again, other = w.bow_batches(0)[0], w.bow_batches(0)[0], w.bow_batches(1)[0]
    assert np.array_equal(one.ids, again.ids) and not np.array_equal(one.ids, other.ids)
    assert one.ids.shape == (w.TEXTS, w.IDS_PER_TEXT) and one.ids.max() < w.WORDS
    assert set(one.labels.tolist()) == {0, 1}


@pytest.mark.parametrize("cost", [float("nan"), 0.693, 0.104])
def test_the_bow_check_refuses_a_cost_of_other_gradients(cost: float) -> None:
    with pytest.raises(ValueError, match="cost at step 100"):
        w.check_bow(cost, 0)


def test_the_bow_check_without_sums_needs_a_falling_cost_only() -> None:
    w.check_bow(0.104, 0, is_joint=False)
    with pytest.raises(ValueError, match="must be below"):
        w.check_bow(0.3, 0, is_joint=False)


def test_cost_is_watched_at_the_agreed_step_alone() -> None:
    watch = w.CostWatch(lambda index: w.TEXTS * w.BOW_COSTS[1] if index == w.BOW_STEP else 1e9)
    for index in range(w.BOW_STEP + 5):
        watch(index)
    watch.check(1)
