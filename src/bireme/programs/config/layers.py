"""The helpers that build a network, with the original's names, arguments and defaults.

Each method checks its arguments, adds one layer to the draft and returns it as the user's handle.
Signatures follow the original, which is why some are longer than we would make them.
"""
# ruff: noqa: A002 - `input` is the original's word

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bireme.programs.columns import MAX_DIM, MAX_NARROW_DIM
from bireme.programs.config.draft import ZERO, Draft
from bireme.programs.config.graph import Layer, LayerKind
from bireme.programs.config.scripts import Complaint
from bireme.programs.config.values import Activation, ParamAttr, Pooling, refuse, whole_number

Act = Activation | None
Attr = ParamAttr | None
Bias = ParamAttr | bool | None
Name = str | None
_TANH, _LINEAR = Activation("tanh"), Activation("linear")
_LOOKING_UP = ("embedding_layer", "fc_layer", "inputs")


class LayerWords:
    """The layer helpers of one config."""

    def __init__(self, draft: Draft, line: Callable[[], str]) -> None:
        self._draft = draft
        self._line = line

    def data_layer(self, name: str, size: int, height: Any = None, width: Any = None, layer_attr: Any = None) -> Layer:
        """An input; `size` is its width, or its number of ids."""
        if not isinstance(name, str):
            raise Complaint(f"data_layer(): name must be text, not {name!r}")
        width = _size("data_layer", size)
        if width > MAX_DIM:
            raise Complaint(f"data_layer(): size must be at most {MAX_DIM}, not {width}")
        return self._add("data", name, width, ())

    def fc_layer(
        self,
        input: Any,
        size: int,
        act: Act = None,
        name: Name = None,
        param_attr: Attr | Sequence[Attr] = None,
        bias_attr: Bias = None,
        layer_attr: Any = None,
    ) -> Layer:
        """Sum of inputs times weights, plus a bias, through an activation (tanh)."""
        inputs = self._layers("fc_layer", input)
        size = _size("fc_layer", size)
        name = self._draft.name("fc_layer", name)
        attrs = _attrs("fc_layer", param_attr, len(inputs))
        weights = tuple(
            self._weight(f"_{name}.w{index}", layer, size, attr)
            for index, (layer, attr) in enumerate(zip(inputs, attrs, strict=True))
        )
        bias = self._bias("fc_layer", name, size, True if bias_attr is None else bias_attr)
        activation = _activation("fc_layer", act, _TANH)
        return self._add("fc", name, size, inputs, weights=weights, bias=bias, activation=activation)

    def embedding_layer(
        self, input: Any, size: int, name: Name = None, param_attr: Attr = None, layer_attr: Any = None
    ) -> Layer:
        """One row of a table per id."""
        (ids,) = self._layers("embedding_layer", input, count=1)
        size = _size("embedding_layer", size)
        name = self._draft.name("embedding", name)
        (attr,) = _attrs("embedding_layer", param_attr, 1)
        table = self._weight(f"_{name}.w0", ids, size, attr)
        return self._add("embedding", name, size, (ids,), weights=(table,))

    def pooling_layer(
        self,
        input: Any,
        pooling_type: Pooling | None = None,
        name: Name = None,
        bias_attr: Bias = None,
        agg_level: Any = None,
        layer_attr: Any = None,
    ) -> Layer:
        """One value per sequence: the largest (by default), average or sum of its steps."""
        if bias_attr:
            refuse("pooling_layer(bias_attr=...)")
        if agg_level is not None:
            refuse("pooling_layer(agg_level=...)")
        (steps,) = self._layers("pooling_layer", input, count=1)
        pooling = Pooling("max") if pooling_type is None else pooling_type
        if not isinstance(pooling, Pooling):
            raise Complaint("pooling_layer(): pooling_type must be a pooling such as AvgPooling()")
        name = self._draft.name("seq_pooling", name)
        return self._add("pool", name, steps.size, (steps,), pooling=pooling.name)

    def addto_layer(
        self, input: Any, act: Act = None, name: Name = None, bias_attr: Bias = None, layer_attr: Any = None
    ) -> Layer:
        """The sum of layers of one size."""
        inputs = self._layers("addto_layer", input)
        if len({layer.size for layer in inputs}) > 1:
            raise Complaint(f"addto_layer(): sizes differ: {', '.join(str(layer.size) for layer in inputs)}")
        name = self._draft.name("addto", name)
        bias = self._bias("addto_layer", name, inputs[0].size, bias_attr or False)
        activation = _activation("addto_layer", act, _LINEAR)
        return self._add("addto", name, inputs[0].size, inputs, bias=bias, activation=activation)

    def concat_layer(
        self, input: Any, act: Act = None, name: Name = None, layer_attr: Any = None, bias_attr: Bias = None
    ) -> Layer:
        """Layers side by side."""
        if bias_attr:
            refuse("concat_layer(bias_attr=...)")
        inputs = self._layers("concat_layer", input)
        name = self._draft.name("concat", name)
        activation = _activation("concat_layer", act, _LINEAR)
        return self._add("concat", name, sum(layer.size for layer in inputs), inputs, activation=activation)

    def maxid_layer(self, input: Any, name: Name = None, layer_attr: Any = None) -> Layer:
        """The position of the largest value; the first one where several are."""
        inputs = self._layers("maxid_layer", input, count=1)
        return self._add("maxid", self._draft.name("maxid_layer", name), 1, inputs)

    def classification_cost(
        self,
        input: Any,
        label: Any,
        weight: Any = None,
        name: Name = None,
        evaluator: Any = None,
        layer_attr: Any = None,
    ) -> Layer:
        """Minus the log of the probability given to the right class; also counts wrong answers."""
        if weight is not None:
            refuse("classification_cost(weight=...)")
        if evaluator is not None:
            refuse("classification_cost(evaluator=...)")
        guess, truth = self._judged("classification_cost", input, label)
        if guess.activation != "softmax":
            fix = "give that layer act=SoftmaxActivation()"
            raise Complaint(f"classification_cost(): {guess.name!r} must be a softmax layer", fix=fix)
        if truth.kind != "data":
            raise Complaint(f"classification_cost(): label {truth.name!r} must be a data_layer")
        if truth.size > guess.size:
            raise Complaint(f"classification_cost(): {truth.size} labels, but {guess.name!r} has {guess.size} classes")
        return self._add("classification_cost", self._draft.name("cost", name), 1, (guess, truth))

    def mse_cost(
        self, input: Any, label: Any, weight: Any = None, name: Name = None, coeff: float = 1.0, layer_attr: Any = None
    ) -> Layer:
        """The summed square of the difference, without a half."""
        if weight is not None:
            refuse("mse_cost(weight=...)")
        if coeff != 1.0:
            refuse("mse_cost(coeff=...)")
        guess, truth = self._judged("mse_cost", input, label)
        if guess.size != truth.size:
            raise Complaint(f"mse_cost(): {guess.name!r} has size {guess.size}, but {truth.name!r} {truth.size}")
        return self._add("mse_cost", self._draft.name("mse_cost", name), 1, (guess, truth))

    def outputs(self, layers: Any, *more: Any) -> None:
        """What the config is about: costs to train on, or values to predict."""
        if self._draft.outputs:
            raise Complaint("outputs() may be called only once")
        self._draft.outputs = tuple(layer.name for layer in self._layers("outputs", [*_listed(layers), *more]))

    def inputs(self, layers: Any, *more: Any) -> None:
        """The order in which the data provider yields, where it is not the natural one."""
        self._draft.inputs = tuple(layer.name for layer in self._layers("inputs", [*_listed(layers), *more]))

    def _add(self, kind: LayerKind, name: str, size: int, inputs: Sequence[Layer], **rest: Any) -> Layer:
        names = tuple(layer.name for layer in inputs)
        return self._draft.add(Layer(name=name, kind=kind, size=size, inputs=names, where=self._line(), **rest))

    def _weight(self, name: str, source: Layer, size: int, attr: ParamAttr) -> str:
        if attr.sparse_update and source.kind != "data":
            what = f"sparse_update=True needs a data_layer as input, but {source.name!r} is computed and uses all rows"
            raise Complaint(what, fix="leave sparse_update out here")
        if source.size > MAX_NARROW_DIM and not attr.sparse_update:
            what = f"data layer {source.name!r} has size {source.size}, but a weight that is kept whole has at most"
            fix = "give the layer param_attr=ParamAttr(sparse_update=True)"
            raise Complaint(f"{what} {MAX_NARROW_DIM} rows", fix=fix)
        return self._draft.parameter(name, (source.size, size), attr)

    def _bias(self, helper: str, layer: str, size: int, attr: Bias) -> str | None:
        if attr is False:
            return None
        if attr is not True and not isinstance(attr, ParamAttr):
            raise Complaint(f"{helper}(): bias_attr must be True, False or ParamAttr(...), not {attr!r}")
        if attr is not True and attr.sparse_update:
            what = f"{helper}(): a bias cannot have sparse_update=True, as every sample uses all of it"
            raise Complaint(what, fix="leave sparse_update out of bias_attr")
        return self._draft.parameter(f"_{layer}.wbias", (size,), ZERO if attr is True else attr)

    def _layers(self, helper: str, value: Any, count: int = 0) -> tuple[Layer, ...]:
        layers = tuple(_listed(value))
        for layer in layers:
            if not isinstance(layer, Layer):
                raise Complaint(f"{helper}(): expected a layer, got {layer!r}")
            if layer.is_cost and helper != "outputs":
                raise Complaint(f"{helper}(): {layer.name!r} is a cost and cannot be an input")
            if layer.kind == "data" and layer.size > MAX_NARROW_DIM and helper not in _LOOKING_UP:
                what = f"{helper}(): data layer {layer.name!r} has size {layer.size}"
                fix = "use an embedding_layer or fc_layer with ParamAttr(sparse_update=True)"
                raise Complaint(f"{what}, and more than {MAX_NARROW_DIM} ids can only be looked up", fix=fix)
        if not layers or (count and len(layers) != count):
            raise Complaint(f"{helper}(): expected {count or 'at least one'} layer, got {len(layers)}")
        return layers

    def _judged(self, helper: str, guess: Any, truth: Any) -> tuple[Layer, Layer]:
        return self._layers(helper, guess, count=1)[0], self._layers(helper, truth, count=1)[0]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _size(helper: str, size: Any) -> int:
    result = whole_number(size)
    if result is None:
        raise Complaint(f"{helper}(): size must be a whole number from 1, not {size!r}")
    return result


def _activation(helper: str, value: Any, default: Activation) -> str:
    chosen = default if value is None else value
    if not isinstance(chosen, Activation):
        raise Complaint(f"{helper}(): act must be an activation such as TanhActivation(), not {value!r}")
    return chosen.name


def _attrs(helper: str, value: Any, count: int) -> list[ParamAttr]:
    attrs = list(value) if isinstance(value, list | tuple) else [value] * count
    attrs = [ParamAttr() if attr is None else attr for attr in attrs]
    if len(attrs) != count or not all(isinstance(attr, ParamAttr) for attr in attrs):
        raise Complaint(f"{helper}(): param_attr must be one ParamAttr(...), or {count} of them in a list")
    return attrs
