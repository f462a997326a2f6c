"""Decides who computes a graph: our own kernel where it fits, else PaddlePaddle.

The choice depends on the graph and the types of the data alone, so that every trainer of a job makes
the same one: another engine would mean other bits.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from bireme.core.errors import MissingError
from bireme.programs.columns import Columns, InputType
from bireme.programs.config.graph import Graph, Layer, check_inputs
from bireme.programs.program import Arrays, Computation
from bireme.spec.model import Parameter


def compile_graph(
    graph: Graph, parameters: Sequence[Parameter], inputs: Sequence[InputType], arrays: tuple[Arrays, Arrays]
) -> Computation[Columns]:
    """Make the computation that fits this graph and this data; `arrays` are values and gradients."""
    slots = {slot.name: slot for slot in inputs}
    check_inputs(graph, inputs, graph.outputs if set(graph.inputs) <= slots.keys() else graph.predictions)
    fc = bag_of_words(graph)
    if fc is not None and slots[fc.inputs[0]].kind.startswith("sparse"):
        from bireme.programs.bow import BagOfWords

        label = graph.costs[0].inputs[1] if graph.costs else None
        outputs = {name: graph.layers[name].kind == "maxid" for name in graph.predictions}
        return BagOfWords((fc.inputs[0], label), (fc.weights[0], fc.bias), outputs, arrays)
    from bireme.programs.paddle_ import PaddleGraph

    return PaddleGraph(graph, parameters, arrays)


def require_engine(graph: Graph) -> None:
    """Fail now rather than at the first batch when PaddlePaddle will be needed and is not installed."""
    if bag_of_words(graph) is None and not _is_installed("paddle"):
        layers = [layer for layer in graph.layers.values() if layer.kind != "data"]
        where = layers[0].where if layers else "the config"
        raise MissingError(
            f"{where}: this network needs PaddlePaddle to be computed, and it is not installed",
            why="without it, only a softmax layer directly on a bag of words can be trained",
            fix=f"{sys.executable} -m pip install paddlepaddle==3.3.1",
        )


def _is_installed(module: str) -> bool:
    """Whether a module could be imported, without paying for it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # something imported it and took it out of sys.modules again
        return False


def bag_of_words(graph: Graph) -> Layer | None:
    """Find the softmax layer of a graph that is nothing but a softmax regression on one input."""
    layers = [layer for layer in graph.below((*graph.outputs, *graph.predictions)) if layer.kind != "data"]
    softmaxes = [layer for layer in layers if layer.kind == "fc"]
    others = [layer for layer in layers if layer.kind not in ("fc", "maxid", "classification_cost")]
    if len(softmaxes) != 1 or others or len(graph.costs) > 1:
        return None
    fc = softmaxes[0]
    reads_data = len(fc.inputs) == 1 and graph.layers[fc.inputs[0]].kind == "data"
    is_judged = all(layer.inputs[0] == fc.name for layer in layers if layer is not fc)
    return fc if reads_data and is_judged and fc.activation == "softmax" else None
