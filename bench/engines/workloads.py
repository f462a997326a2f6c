"""The same work for every engine, and the arithmetic that proves it was done.

Runs in every engine's own environment, so it needs nothing but Python 3.11 and any numpy. Two trainers
and two servers, synchronous, float32. Gradients are constants and ids come from seeded streams, so the
final values are known beforehand: an engine that loses, repeats or skips an update fails its check
and gets no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TRAINERS = 2
SERVERS = 2
DENSE_SIZES = {"dense-1m": 1_000_000, "dense-10m": 10_000_000, "dense-50m": 50_000_000}
DENSE_RATE = 1e-3

ROWS = 1_000_000
WIDTH = 16
SAMPLES = 4096
IDS_PER_SAMPLE = 26
ZIPF = 1.05
SPARSE_RATE = 0.05
SPARSE_GRADIENT = 0.01
SPARSE_POOL = 8
SPARSE_TOLERANCE = 2e-3
"""Engines put Adagrad's epsilon in different places; one lost update is far more than this."""

WORDS = 30_001
CLASSES = 2
IDS_PER_TEXT = 80
TEXTS = 128
BOW_RATE = 2e-3
BOW_POOL = 16
BOW_STEP = 100
BOW_COSTS = (0.15926, 0.15461)
"""Cost per sample of each trainer's batch at step BOW_STEP, computed in float64; it starts at 0.693."""
BOW_TOLERANCE = 0.02
BOW_COST_BELOW = 0.20
"""For an engine that applies each trainer's gradient on its own, so that the path depends on who comes first."""

WORKS = (*DENSE_SIZES, "sparse", "bow")


@dataclass(frozen=True)
class Batch:
    """One trainer's texts: ids[TEXTS, IDS_PER_TEXT] and a class for each."""

    ids: Any
    labels: Any


def unit_of(work: str) -> str:
    """What a figure of this work counts, per second."""
    return {"sparse": "samples/s", "bow": "examples/s"}.get(work, "steps/s")


def count_per_step(work: str) -> int:
    """How much of that unit both trainers do in one step."""
    return {"sparse": TRAINERS * SAMPLES, "bow": TRAINERS * TEXTS}.get(work, 1)


def dense_gradient(rank: int) -> float:
    """What every element of a trainer's gradient is."""
    return float(rank + 1)


def dense_expected(steps: int) -> float:
    """What every element of the parameters must be after that many steps."""
    return -DENSE_RATE * sum(dense_gradient(rank) for rank in range(TRAINERS)) * steps


def check_dense(values: Any, steps: int) -> None:
    """Raise ValueError unless first, last and middle elements are what the arithmetic says.

    The tolerance is half a unit in the last place for each step, so a lost step is caught up to
    some four thousand of them.
    """
    n = len(values)
    wanted = dense_expected(steps)
    for at in sorted({0, 1, n // 3, n // 2 - 1, n // 2, n - 2, n - 1}):
        found = float(values[at])
        if not abs(found - wanted) <= abs(wanted) * (steps + 4) * 2.0**-24:
            raise ValueError(f"element {at} of {n} is {found!r} after {steps} steps, {wanted!r} was due")


def _zipf_ids(generator: np.random.Generator, count: int) -> Any:
    """Ranks by Zipf's law, scattered over the table as hashed ids would be."""
    weights = np.arange(1, ROWS + 1, dtype=np.float64) ** -ZIPF
    ladder = np.cumsum(weights)
    ranks = np.searchsorted(ladder, generator.random(count) * ladder[-1])
    # Odd and no multiple of 5, so it shares no factor with ROWS and no two ranks meet.
    return (np.minimum(ranks, ROWS - 1).astype(np.int64) * 387_911 + 17) % ROWS


def sparse_batches(rank: int) -> list[Any]:
    """A trainer's batches of ids, duplicates included; step k uses batch k modulo their number."""
    generator = np.random.Generator(np.random.PCG64(1000 + rank))
    drawn = _zipf_ids(generator, SPARSE_POOL * SAMPLES * IDS_PER_SAMPLE)
    return list(drawn.reshape(SPARSE_POOL, -1))


def unique_rows(ids: Any) -> tuple[Any, Any]:
    """A batch's rows, sorted, and the gradient of each: every occurrence adds SPARSE_GRADIENT."""
    rows, counts = np.unique(ids, return_counts=True)
    grads = np.empty((len(rows), WIDTH), dtype=np.float32)
    grads[:] = (SPARSE_GRADIENT * counts).astype(np.float32)[:, None]
    return rows, grads


@dataclass(frozen=True)
class SparseTruth:
    """What some rows of the table must be, and the rows themselves."""

    rows: Any
    values: Any

    def check(self, found: Any) -> None:
        """Raise ValueError unless the found rows [len(rows), WIDTH] are right in every column."""
        found = np.asarray(found, dtype=np.float64)
        off = np.abs(found - self.values[:, None]).max(axis=1)
        worst = int(off.argmax())
        if not off[worst] <= SPARSE_TOLERANCE * abs(self.values).max():
            row, due = int(self.rows[worst]), float(self.values[worst])
            raise ValueError(f"row {row} of the table is {found[worst].tolist()}, {due!r} was due")


def sparse_truth(batches: Sequence[Sequence[Any]], steps: int, *, is_joint: bool = True) -> SparseTruth:
    """Adagrad by hand for some rows, given every trainer's batches.

    An engine that applies each trainer's gradient on its own (is_joint false) is checked on rows
    that only one trainer touches: for others the result would depend on who came first.
    """
    counts = np.array([[np.bincount(ids, minlength=ROWS) for ids in mine] for mine in batches])
    touched = counts.sum(axis=1)
    fit = touched.sum(axis=0) > 0 if is_joint else (touched > 0).sum(axis=0) == 1
    order = np.argsort(-touched.sum(axis=0) * fit, kind="stable")
    eligible = int(fit.sum())
    rows = order[np.unique(np.linspace(0, eligible - 1, 24).astype(int))]
    value, squares = np.zeros(len(rows)), np.zeros(len(rows))
    for step in range(steps):
        grad = SPARSE_GRADIENT * counts[:, step % SPARSE_POOL, rows].sum(axis=0)
        squares += grad**2
        value -= np.where(grad > 0, SPARSE_RATE * grad / np.sqrt(np.maximum(squares, 1e-30)), 0.0)
    return SparseTruth(rows, value)


def bow_batches(rank: int) -> list[Batch]:
    """A trainer's texts: a hidden sign per word decides the class, so there is something to learn."""
    signs = np.random.Generator(np.random.PCG64(7)).choice(np.array([-1.0, 1.0]), size=WORDS)
    generator = np.random.Generator(np.random.PCG64(2000 + rank))
    found = []
    for _ in range(BOW_POOL):
        ids = (generator.random((TEXTS, IDS_PER_TEXT)) * WORDS).astype(np.int64)
        found.append(Batch(ids, (signs[ids].sum(axis=1) > 0).astype(np.int64)))
    return found


def check_bow(cost: float, rank: int, *, is_joint: bool = True) -> None:
    """Raise ValueError unless the cost per sample is what the sum of both trainers' gradients leads to."""
    if not cost < BOW_COST_BELOW:
        raise ValueError(f"the cost at step {BOW_STEP} is {cost:.4f}, it must be below {BOW_COST_BELOW}")
    if is_joint and not abs(cost - BOW_COSTS[rank]) <= BOW_TOLERANCE * BOW_COSTS[rank]:
        raise ValueError(f"trainer {rank}'s cost at step {BOW_STEP} is {cost:.4f}, {BOW_COSTS[rank]:.4f} was due")


class CostWatch:
    """Wraps the steps of a bag-of-words run and checks the cost at step BOW_STEP.

    `step(k)` returns the summed cost of a batch, or something that float() turns into it.
    """

    def __init__(self, step: Callable[[int], Any]) -> None:
        self._step = step
        self.cost = float("nan")

    def __call__(self, index: int) -> None:
        cost = self._step(index)
        if index == BOW_STEP:
            self.cost = float(cost) / TEXTS

    def check(self, rank: int, *, is_joint: bool = True) -> None:
        """Judge the run once it is over."""
        check_bow(self.cost, rank, is_joint=is_joint)
