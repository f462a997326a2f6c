"""What a config's sparse parameters come to: which data layers look up rows of them, and whether that can work.

A data layer that looks up rows of a sparse parameter has its ids renumbered for each batch. Whatever
else reads that layer would read these numbers, so all that reads it must look up sparse rows too.
"""

from __future__ import annotations

from collections.abc import Sequence

from bireme.programs.config.graph import Graph, Layer, refuse_at
from bireme.programs.lookups import Lookup
from bireme.spec.model import Optimizer, Parameter


def check_methods(parameters: Sequence[Parameter], optimizer: Optimizer) -> None:
    """Refuse an update rule that would have to visit rows that no gradient touches."""
    if any(parameter.is_sparse for parameter in parameters):
        # Brings compiled kernels with it, which a config without sparse parameters does not need.
        from bireme.ps.sparse.table import check_sparse

        check_sparse(parameters, optimizer)


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
    """For each data layer that looks up sparse rows, of which parameters; refuses other uses of it."""
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
