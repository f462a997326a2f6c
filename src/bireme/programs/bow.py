"""Softmax regression on bags of words, by our own kernels.

One walk over the ids of a batch computes cost and gradient. Sums run in sample order in one thread, logits and cost in
float64, so the result is a function of the batch alone. The gradient is written in full: rows of words that the batch
lacks are zero. The weight may be whole or a compact table of the batch's words: the walk is the same, so the bits are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import DataError
from bireme.programs.columns import Columns, narrow_ids
from bireme.programs.program import ERROR_EVALUATOR, Arrays, Sums
from bireme.ps.optim.kernels import jit

_Floats = NDArray[np.float32]
_Doubles = NDArray[np.float64]
_Ids = NDArray[np.int32]
_Bags = tuple[_Ids, NDArray[np.int64], _Floats]
"""Ids, offsets, and one value per id; no values at all means that each counts as 1."""
_Model = tuple[_Floats, _Floats]
"""Weight and bias; an empty bias means none."""


class BagOfWords:
    """Computes step, evaluate and predict of one softmax layer on one sparse input."""

    def __init__(
        self,
        columns: tuple[str, str | None],
        parameters: tuple[str, str | None],
        outputs: Mapping[str, bool],
        arrays: tuple[Arrays, Arrays],
    ) -> None:
        """Columns are words and label, parameters weight and bias; outputs say whether they are the class."""
        self._words, self._label = columns
        weight, bias = parameters
        values, grads = arrays
        self._outputs = dict(outputs)
        self._weight, self._weight_grad = values[weight], grads[weight]
        nothing = np.zeros(0, dtype=np.float32)
        self._bias = values[bias] if bias else nothing
        self._bias_grad = grads[bias] if bias else nothing
        # Parameters that no output needs are part of the model all the same; they never move.
        self._idle = [grad for name, grad in grads.items() if name not in parameters]

    def step(self, batch: Columns) -> Sums:
        words, labels = self._arrays(batch)
        for grad in self._idle:
            grad.fill(0.0)
        cost, wrong = _step((self._weight, self._bias), words, labels, (self._weight_grad, self._bias_grad))
        return Sums(samples=len(batch), cost=cost, evals={ERROR_EVALUATOR: float(wrong)})

    def evaluate(self, batch: Columns) -> Sums:
        words, labels = self._arrays(batch)
        cost, wrong = _evaluate((self._weight, self._bias), words, labels)
        return Sums(samples=len(batch), cost=cost, evals={ERROR_EVALUATOR: float(wrong)})

    def predict(self, batch: Columns) -> Mapping[str, _Floats]:
        """Class probabilities, or the most probable class."""
        chances = np.zeros((len(batch), self._weight.shape[1]), dtype=np.float32)
        _predict((self._weight, self._bias), self._bags(batch), chances)
        classes = chances.argmax(axis=1).astype(np.float32)[:, None]
        return {name: classes if is_class else chances for name, is_class in self._outputs.items()}

    def _arrays(self, batch: Columns) -> tuple[_Bags, _Ids]:
        assert self._label is not None, "a graph without a cost cannot be trained: this is a bug"
        labels = narrow_ids(batch.columns[self._label])
        _check_range(self._label, labels, self._weight.shape[1])
        return self._bags(batch), labels

    def _bags(self, batch: Columns) -> _Bags:
        column = batch.columns[self._words]
        ids = narrow_ids(column)
        assert column.offsets is not None, "sparse columns have offsets: this is a bug"
        _check_range(self._words, ids, self._weight.shape[0])
        values = np.zeros(0, dtype=np.float32) if column.values is None else column.values
        return ids, column.offsets, values


def _check_range(slot: str, ids: _Ids, limit: int) -> None:
    # Kernels do not check: an id out of range would write over other memory.
    if ids.size and (ids.min() < 0 or ids.max() >= limit):
        raise DataError(f"slot {slot!r} holds an id that is not in 0..{limit - 1}")


@jit
def _fill_logits(model: _Model, bags: _Bags, sample: int, logits: _Doubles) -> None:
    weight, bias = model
    ids, offsets, values = bags
    for k in range(logits.size):
        logits[k] = bias[k] if bias.size else 0.0
    for at in range(offsets[sample], offsets[sample + 1]):
        value = np.float64(values[at]) if values.size else 1.0
        for k in range(logits.size):
            logits[k] += weight[ids[at], k] * value


@jit
def _to_chances(logits: _Doubles) -> float:
    """Turn logits into probabilities in place; returns the log of the sum of their exponentials."""
    top = logits.max()
    total = 0.0
    for k in range(logits.size):
        # The largest exponent is 0, so nothing overflows.
        logits[k] = np.exp(logits[k] - top)
        total += logits[k]
    for k in range(logits.size):
        logits[k] /= total
    return float(top + np.log(total))


@jit
def _step(model: _Model, bags: _Bags, labels: _Ids, grads: _Model) -> tuple[float, int]:
    weight_grad, bias_grad = grads
    ids, offsets, values = bags
    weight_grad[:] = 0.0
    bias_grad[:] = 0.0
    work = np.empty(weight_grad.shape[1], dtype=np.float64)
    cost, wrong = 0.0, 0
    for sample in range(labels.size):
        label = labels[sample]
        _fill_logits(model, bags, sample, work)
        wrong += work.argmax() != label
        right = work[label]
        cost += _to_chances(work) - right
        work[label] -= 1.0
        for at in range(offsets[sample], offsets[sample + 1]):
            value = np.float64(values[at]) if values.size else 1.0
            for k in range(work.size):
                weight_grad[ids[at], k] += np.float32(work[k] * value)
        for k in range(bias_grad.size):
            bias_grad[k] += np.float32(work[k])
    return cost, wrong


@jit
def _evaluate(model: _Model, bags: _Bags, labels: _Ids) -> tuple[float, int]:
    work = np.empty(model[0].shape[1], dtype=np.float64)
    cost, wrong = 0.0, 0
    for sample in range(labels.size):
        _fill_logits(model, bags, sample, work)
        wrong += work.argmax() != labels[sample]
        right = work[labels[sample]]
        cost += _to_chances(work) - right
    return cost, wrong


@jit
def _predict(model: _Model, bags: _Bags, chances: _Floats) -> None:
    work = np.empty(chances.shape[1], dtype=np.float64)
    for sample in range(chances.shape[0]):
        _fill_logits(model, bags, sample, work)
        _to_chances(work)
        chances[sample] = work


def warm() -> None:
    """Compile the kernels, or load them from Numba's cache."""
    weight, bias = np.zeros((2, 2), np.float32), np.zeros(2, np.float32)
    bags = (np.zeros(1, np.int32), np.array([0, 1], np.int64), np.zeros(0, np.float32))
    labels, model = np.zeros(1, np.int32), (weight, bias)
    _step(model, bags, labels, (weight.copy(), bias.copy()))
    _evaluate(model, bags, labels)
    _predict(model, bags, np.zeros((1, 2), np.float32))
