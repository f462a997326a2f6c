"""Graphs computed by PaddlePaddle, for everything that our own kernels do not cover.

Parameters are tensors over the very memory that the training loop owns, so fresh values need no copy
to be used. One thread, and only operations whose sums run in a fixed order: the same batch gives the
same bits. A sequence is its steps end to end plus offsets, never padded. Costs are summed, never averaged.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import MissingError
from bireme.programs.columns import Column, Columns, narrow_ids
from bireme.programs.config.graph import Graph, Layer
from bireme.programs.program import ERROR_EVALUATOR, Arrays, Sums
from bireme.spec.model import Parameter

Tensor = Any  # PaddlePaddle has no usable type information.


@functools.cache
def import_paddle() -> Any:
    """Import PaddlePaddle, once and quietly; raises MissingError where it is not installed."""
    with warnings.catch_warnings():
        # It warns about a missing ccache, which only matters to those who compile extensions.
        warnings.simplefilter("ignore")
        try:
            import paddle
        except ImportError as error:
            raise MissingError(
                "this config needs PaddlePaddle to be computed, and it is not installed",
                fix=f"{sys.executable} -m pip install paddlepaddle==3.3.1",
            ) from error
    paddle.set_device("cpu")
    paddle.framework.core.set_num_threads(1)  # with more, the order of a sum would depend on timing
    return paddle


@dataclass(frozen=True, slots=True)
class _Value:
    """A layer's result: one row per sample, or per step where there are offsets."""

    data: Tensor
    offsets: NDArray[np.int64] | None = None
    logits: Tensor | None = None
    """What a softmax was taken of: costs are computed from these without overflow."""
    column: Column | None = None


class PaddleGraph:
    """Computes step, evaluate and predict of a graph."""

    def __init__(self, graph: Graph, parameters: Sequence[Parameter], arrays: tuple[Arrays, Arrays]) -> None:
        self._paddle = import_paddle()
        self._graph = graph
        self._grads = arrays[1]
        self._tensors: dict[str, Tensor] = {}
        for parameter in parameters:
            tensor = self._paddle.utils.dlpack.from_dlpack(arrays[0][parameter.name])
            tensor.stop_gradient = parameter.is_static
            self._tensors[parameter.name] = tensor

    def step(self, batch: Columns) -> Sums:
        if not len(batch):
            self._write_grads([], [])
            return Sums(samples=0, cost=0.0)
        sums, total = self._judge(batch)
        # A cost without a gradient depends on static parameters only.
        moving = [name for name, t in self._tensors.items() if not t.stop_gradient and not total.stop_gradient]
        grads = self._paddle.grad(total, [self._tensors[name] for name in moving], allow_unused=True) if moving else []
        self._write_grads(moving, grads)
        return sums

    def evaluate(self, batch: Columns) -> Sums:
        if not len(batch):
            return Sums(samples=0, cost=0.0)
        with self._paddle.no_grad():
            return self._judge(batch)[0]

    def predict(self, batch: Columns) -> Mapping[str, NDArray[np.float32]]:
        wanted = self._graph.predictions
        if not len(batch):
            return {name: np.zeros((0, self._graph.layers[name].size), dtype=np.float32) for name in wanted}
        with self._paddle.no_grad():
            values = self._forward(batch, wanted)
        return {name: values[name].data.numpy().astype(np.float32, copy=False) for name in wanted}

    def _judge(self, batch: Columns) -> tuple[Sums, Tensor]:
        """Compute the costs; returns what to report, and the tensor to go back from."""
        costs = self._graph.costs
        values = self._forward(batch, [cost.name for cost in costs])
        cost = sum(float(values[layer.name].data.numpy().sum(dtype=np.float64)) for layer in costs)
        evals: dict[str, float] = {}
        for layer in costs:
            if layer.kind == "classification_cost":
                guess = values[layer.inputs[0]].data.numpy().argmax(axis=1)
                wrong = np.count_nonzero(guess != batch.columns[layer.inputs[1]].ids)
                evals[ERROR_EVALUATOR] = evals.get(ERROR_EVALUATOR, 0.0) + float(wrong)
        total = sum(values[layer.name].data.sum() for layer in costs)
        return Sums(samples=len(batch), cost=cost, evals=evals), total

    def _write_grads(self, names: Sequence[str], grads: Sequence[Tensor | None]) -> None:
        fresh = dict(zip(names, grads, strict=True))
        for name, grad in self._grads.items():
            tensor = fresh.get(name)
            if tensor is None:
                grad.fill(0.0)
            else:
                np.copyto(grad, np.from_dlpack(tensor).reshape(grad.shape))

    def _forward(self, batch: Columns, wanted: Sequence[str]) -> dict[str, _Value]:
        values: dict[str, _Value] = {}
        for layer in self._graph.below(wanted):
            if layer.kind == "data":
                values[layer.name] = self._input(batch.columns[layer.name])
            else:
                values[layer.name] = self._compute(layer, [values[name] for name in layer.inputs])
        return values

    def _input(self, column: Column) -> _Value:
        if column.type.kind == "dense":
            return _Value(self._paddle.to_tensor(column.values))
        ids = self._paddle.to_tensor(narrow_ids(column))
        # The offsets of a sparse vector delimit its entries; only those of a sequence are steps.
        return _Value(ids, offsets=column.offsets if column.type.is_sequence else None, column=column)

    def _compute(self, layer: Layer, inputs: Sequence[_Value]) -> _Value:
        if layer.kind == "pool":
            return _Value(self._pool(inputs[0], layer.pooling))
        if layer.kind == "classification_cost":
            labels = inputs[1].data.astype("int64")
            return _Value(self._paddle.nn.functional.cross_entropy(inputs[0].logits, labels, reduction="none"))
        if layer.kind == "mse_cost":
            return _Value(((inputs[0].data - inputs[1].data) ** 2).sum(axis=1))
        if layer.kind == "maxid":
            return _Value(inputs[0].data.argmax(axis=1, keepdim=True), offsets=inputs[0].offsets)
        data, offsets = self._combine(layer, inputs), inputs[0].offsets
        if layer.activation == "softmax":
            return _Value(self._paddle.nn.functional.softmax(data, axis=1), offsets=offsets, logits=data)
        return _Value(_ACTIVATIONS[layer.activation](self._paddle, data), offsets=offsets)

    def _combine(self, layer: Layer, inputs: Sequence[_Value]) -> Tensor:
        if layer.kind == "embedding":
            return self._lookup(inputs[0].data, self._tensors[layer.weights[0]])
        if layer.kind == "concat":
            return self._paddle.concat([value.data for value in inputs], axis=1)
        if layer.kind == "fc":
            weights = [self._tensors[name] for name in layer.weights]
            terms = [self._times(value, weight) for value, weight in zip(inputs, weights, strict=True)]
        else:
            terms = [value.data for value in inputs]
        if layer.bias is not None:
            terms.append(self._tensors[layer.bias])
        return functools.reduce(lambda left, right: left + right, terms)

    def _times(self, value: _Value, weight: Tensor) -> Tensor:
        """Multiply by a weight; a sparse vector picks rows of it and adds them up."""
        column = value.column
        if column is None:
            return value.data @ weight
        assert column.offsets is not None, "a sparse column has offsets: this is a bug"
        rows = self._lookup(value.data, weight)
        if column.values is not None and column.values.size:
            rows = rows * self._paddle.to_tensor(column.values).unsqueeze(1)
        return self._pool(_Value(rows, offsets=column.offsets), "sum")

    def _lookup(self, ids: Tensor, table: Tensor) -> Tensor:
        if ids.shape[0] == 0:
            return self._paddle.zeros([0, table.shape[1]])
        return self._paddle.nn.functional.embedding(ids, table)

    def _pool(self, value: _Value, pooling: str) -> Tensor:
        """Bring the steps of each sequence together; an empty sequence gives zeros."""
        paddle, offsets = self._paddle, value.offsets
        assert offsets is not None, "pooling needs a sequence: this is a bug"
        lengths = np.diff(offsets)
        if not offsets[-1]:
            return paddle.zeros([len(lengths), value.data.shape[1]])
        if pooling == "max":
            return self._pick_largest(value.data, offsets)
        segments = paddle.to_tensor(np.repeat(np.arange(len(lengths)), lengths))
        combine = paddle.geometric.segment_mean if pooling == "avg" else paddle.geometric.segment_sum
        pooled = combine(value.data, segments)
        if (missing := len(lengths) - pooled.shape[0]) > 0:
            # Segments end with the last one that has a step; the sequences after it are empty.
            pooled = paddle.concat([pooled, paddle.zeros([missing, pooled.shape[1]])])
        if pooling == "sqrtn":
            scale = 1.0 / np.sqrt(np.maximum(lengths, 1), dtype=np.float32)
            pooled = pooled * paddle.to_tensor(scale).unsqueeze(1)
        return pooled

    def _pick_largest(self, data: Tensor, offsets: NDArray[np.int64]) -> Tensor:
        """Take each sequence's largest step, column by column; of equal ones only the first.

        PaddlePaddle's own operation passes the whole gradient to every equal step, which counts a
        word twice that a text has twice.
        """
        paddle = self._paddle
        steps = data.detach().numpy()
        lengths = np.diff(offsets)
        filled = np.flatnonzero(lengths)
        largest = np.maximum.reduceat(steps, offsets[filled], axis=0)
        is_largest = steps == np.repeat(largest, lengths[filled], axis=0)
        row = np.where(is_largest, np.arange(len(steps))[:, None], len(steps) - 1)
        picked = np.zeros((len(lengths), steps.shape[1]), dtype=np.int64)
        picked[filled] = np.minimum.reduceat(row, offsets[filled], axis=0)
        pooled = paddle.take_along_axis(data, paddle.to_tensor(picked), axis=0, broadcast=False)
        if len(filled) == len(lengths):
            return pooled
        return pooled * paddle.to_tensor((lengths > 0).astype(np.float32)).unsqueeze(1)


# The constants of brelu, softrelu and stanh are the original's.
_ACTIVATIONS: dict[str, Any] = {
    "linear": lambda _, x: x,
    "tanh": lambda p, x: p.tanh(x),
    "sigmoid": lambda p, x: p.nn.functional.sigmoid(x),
    "relu": lambda p, x: p.nn.functional.relu(x),
    "brelu": lambda p, x: p.clip(x, 0.0, 24.0),
    "softrelu": lambda p, x: p.log1p(p.exp(p.clip(x, -40.0, 40.0))),
    "stanh": lambda p, x: 1.7159 * p.tanh(x * (2.0 / 3.0)),
    "abs": lambda p, x: p.abs(x),
    "square": lambda p, x: p.square(x),
    "exp": lambda p, x: p.exp(x),
    "log": lambda p, x: p.log(x),
}
