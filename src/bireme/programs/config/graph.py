"""The network that a config describes, as plain values: no framework, no user code.

Layers refer to each other by name and know the names of their parameters. What a data layer holds
(ids, sparse or dense numbers, a sequence or not) is the provider's word, not the config's, so
`check_inputs` joins the two and refuses what cannot be computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from bireme import __version__
from bireme.core.errors import ConfigScriptError
from bireme.programs.columns import InputType
from bireme.programs.lookups import Lookup
from bireme.spec.model import Parameter

LayerKind = Literal["data", "fc", "embedding", "pool", "addto", "concat", "maxid", "classification_cost", "mse_cost"]
COSTS = ("classification_cost", "mse_cost")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """One layer; user scripts hold these as handles and may read `name` and `size`."""

    name: str
    kind: LayerKind
    size: int
    inputs: tuple[str, ...] = ()
    activation: str = "linear"
    weights: tuple[str, ...] = ()
    """One parameter per input, where the kind has weights."""
    bias: str | None = None
    pooling: str = ""
    where: str = ""
    """The user's file and line, for messages."""

    @property
    def is_cost(self) -> bool:
        return self.kind in COSTS


@dataclass(frozen=True, slots=True)
class Graph:
    """All layers in creation order, and which of them are wanted."""

    layers: Mapping[str, Layer]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    """Data layers in the order in which a provider yields their values."""
    sparse: frozenset[str] = frozenset()
    """Names of sparse parameters. Not in the fingerprint: they change where rows are kept, not what is computed."""

    @property
    def costs(self) -> tuple[Layer, ...]:
        """The outputs that training lowers; none means that the graph is for predicting."""
        return tuple(self.layers[name] for name in self.outputs if self.layers[name].is_cost)

    def fingerprint(self, args: Mapping[str, str]) -> str:
        """Hash what is computed, and by which version of us; not where in the user's file it was declared."""
        layers = [replace(layer, where="") for layer in self.layers.values()]
        content = f"{__version__}\0{layers!r}\0{self.outputs!r}\0{sorted(args.items())!r}"
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def predictions(self) -> tuple[str, ...]:
        """What people look at: outputs that are no costs, else what the costs judge."""
        plain = tuple(name for name in self.outputs if not self.layers[name].is_cost)
        return plain or tuple(dict.fromkeys(cost.inputs[0] for cost in self.costs))

    def below(self, names: Iterable[str]) -> tuple[Layer, ...]:
        """The layers that these need, themselves included, inputs before users: depth first, left to right."""
        below: dict[str, Layer] = {}
        pending = [(name, False) for name in reversed(tuple(names))]
        while pending:
            name, is_ready = pending.pop()
            if name in below:
                continue
            layer = self.layers[name]
            if is_ready:
                below[name] = layer
            else:
                pending.append((name, True))
                pending.extend((parent, False) for parent in reversed(layer.inputs))
        return tuple(below.values())


def check_inputs(graph: Graph, inputs: Sequence[InputType], wanted: Sequence[str] = ()) -> None:
    """Refuse data that the graph cannot compute with, naming the user's layer."""
    types = {slot.name: slot for slot in inputs}
    sequences: dict[str, bool] = {}
    for layer in graph.below(wanted or graph.outputs):
        if layer.kind == "data":
            if layer.name not in types:
                refuse_at(layer, f"data layer {layer.name!r} gets no values from the data provider")
            slot = types[layer.name]
            # Fewer ids than the layer has rows does no harm; more would read beyond its weights.
            if slot.dim != layer.size if slot.kind == "dense" else slot.dim > layer.size:
                what = (
                    f"data layer {layer.name!r} has size {layer.size}, but its data provider gives {slot.kind} values"
                )
                refuse_at(layer, f"{what} of dimension {slot.dim}")
            sequences[layer.name] = slot.is_sequence
        else:
            parents = [(graph.layers[name], types.get(name)) for name in layer.inputs]
            _check_kinds(layer, parents)
            _check_lookups(layer, parents, graph.sparse)
            sequences[layer.name] = _is_sequence(layer, [sequences[name] for name in layer.inputs])
    for name in wanted or graph.outputs:
        if sequences[name]:
            refuse_at(graph.layers[name], f"an output for every step of a sequence ({name!r}) is not supported yet")


def _check_kinds(layer: Layer, parents: Sequence[tuple[Layer, InputType | None]]) -> None:
    """Check what a layer reads directly from data layers; computed layers are always dense."""
    for position, (parent, slot) in enumerate(parents):
        is_label = layer.kind == "classification_cost" and position == 1
        wants_ids = layer.kind == "embedding" or is_label
        has_ids = slot is not None and slot.kind == "index"
        if wants_ids and not has_ids:
            refuse_at(layer, f"{layer.kind} needs integer ids from {parent.name!r}")
        if has_ids and not wants_ids:
            fix = "yield dense_vector values" if layer.is_cost else "put an embedding_layer between them"
            refuse_at(layer, f"{layer.kind} cannot use the integer ids of {parent.name!r}", fix)
        is_sparse = slot is not None and slot.kind.startswith("sparse")
        if is_sparse and layer.kind != "fc":
            fix = "put an fc_layer between them"
            refuse_at(layer, f"{layer.kind} cannot use the sparse values of {parent.name!r}", fix)


def _check_lookups(layer: Layer, parents: Sequence[tuple[Layer, InputType | None]], sparse: frozenset[str]) -> None:
    for weight, (parent, slot) in zip(layer.weights, parents, strict=False):
        if weight in sparse and slot is not None and slot.kind == "dense":
            what = f"{layer.kind} layer {layer.name!r} cannot have a weight with sparse_update=True on {parent.name!r}"
            fix = "leave sparse_update out, or let the data provider give sparse values"
            refuse_at(layer, f"{what}: dense values use all of its rows", fix)


def _is_sequence(layer: Layer, parents: Sequence[bool]) -> bool:
    if layer.kind == "pool":
        if not parents[0]:
            refuse_at(layer, f"pooling_layer needs a sequence, but {layer.inputs[0]!r} is not one")
        return False
    if len(set(parents)) > 1:
        refuse_at(layer, f"{layer.kind} mixes sequences and single values: {', '.join(layer.inputs)}")
    if layer.is_cost and parents[0]:
        fix = "put a pooling_layer before it"
        refuse_at(layer, f"a cost for every step of the sequence {layer.inputs[0]!r} is not supported yet", fix)
    return parents[0]


def find_lookups(graph: Graph, parameters: Sequence[Parameter]) -> tuple[Lookup, ...]:
    """Group data layers with the sparse parameters that they pick rows of, in the order of the parameters."""
    order = [parameter.name for parameter in parameters if parameter.is_sparse]
    picks = _picks(graph)
    groups = _connect(picks)
    idle = set(order).difference(*(names for _, names in groups))
    lookups = [
        Lookup(
            tuple(name for name in graph.inputs if name in columns),
            tuple(name for name in order if name in names),
        )
        for columns, names in [*groups, *((set(), {name}) for name in idle)]
    ]
    return tuple(sorted(lookups, key=lambda lookup: order.index(lookup.parameters[0])))


def _picks(graph: Graph) -> dict[str, set[str]]:
    """For each data layer that looks up sparse rows, of which parameters; refuses other uses of it.

    The ids of such a layer are renumbered for each batch, and whatever else reads the layer would read these numbers.
    """
    picks: dict[str, set[str]] = {}
    others: dict[str, tuple[Layer, str]] = {}
    for layer in graph.below(graph.outputs):
        if layer.kind == "data" and layer.name in graph.outputs:
            others[layer.name] = (layer, "")
        for position, name in enumerate(layer.inputs):
            weight = layer.weights[position] if layer.weights else ""
            if graph.layers[name].kind != "data":
                continue
            if weight in graph.sparse:
                picks.setdefault(name, set()).add(weight)
            else:
                others.setdefault(name, (layer, weight))
    for name in picks:
        if name in others:
            _refuse_mixture(name, min(picks[name]), *others[name])
    return picks


def _refuse_mixture(column: str, sparse: str, layer: Layer, weight: str) -> None:
    if weight:
        what = f"data layer {column!r} picks rows of {sparse!r}, which has sparse_update=True, and of {weight!r}"
        refuse_at(layer, f"{what}, which has not", "set sparse_update=True on both")
    use = "be an output" if layer.kind == "data" else f"be read by {layer.kind} layer {layer.name!r}"
    what = f"data layer {column!r} picks rows of {sparse!r}, which has sparse_update=True, so it cannot also {use}"
    refuse_at(layer, what, "let the data provider give these values a second time, for a data_layer of their own")


def _connect(picks: dict[str, set[str]]) -> list[tuple[set[str], set[str]]]:
    """Join layers that share a parameter, directly or through others."""
    groups: list[tuple[set[str], set[str]]] = []
    for column, names in picks.items():
        joined = ({column}, set(names))
        apart = []
        for group in groups:
            if group[1] & joined[1]:
                joined = (joined[0] | group[0], joined[1] | group[1])
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups


def refuse_at(layer: Layer, what: str, fix: str = "") -> NoReturn:
    raise ConfigScriptError(f"{layer.where}: {what}" if layer.where else what, fix=fix)
