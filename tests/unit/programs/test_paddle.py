from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

from bireme.core.errors import MissingError
from bireme.programs.columns import InputType
from bireme.programs.packing import pack
from bireme.programs.paddle_ import PaddleGraph, import_paddle

HEAD = "from paddle.trainer_config_helpers import *\nsettings(batch_size=4)\n"
EMB = """
steps = embedding_layer(data_layer('word', 10), 3)
answer = fc_layer(pooling_layer(steps, {pooling}), 2, act=SoftmaxActivation())
outputs(classification_cost(answer, data_layer('label', 2)))
"""
TEXT = InputType(name="word", dim=10, kind="index", is_sequence=True)
LABEL = InputType(name="label", dim=2, kind="index")
SAMPLES: list[tuple[object, ...]] = [([1, 2, 2], 1), ([], 0), ([9], 0), ([], 1)]


@pytest.fixture(autouse=True)
def paddle() -> Any:
    try:
        return import_paddle()
    except MissingError:
        pytest.skip("PaddlePaddle is not installed")


def numeric(bound: Any, batch: Any, values: Any, name: str) -> Any:
    """The gradient by central differences."""
    flat, found = values[name].reshape(-1), []
    for i in range(flat.size):
        kept, costs = flat[i], []
        for change in (1e-2, -1e-2):
            flat[i] = kept + np.float32(change)
            costs.append(bound.evaluate(batch).cost)
        flat[i] = kept
        found.append((costs[0] - costs[1]) / 2e-2)
    return np.reshape(found, values[name].shape)


def check_gradients(bound: Any, batch: Any, values: Any, grads: Any) -> None:
    bound.step(batch)
    got = {name: grad.copy() for name, grad in grads.items()}
    for name in values:
        np.testing.assert_allclose(got[name], numeric(bound, batch, values, name), rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize("pooling", ["MaxPooling()", "AvgPooling()", "SumPooling()", "SquareRootNPooling()"])
def test_gradients_of_an_embedding_are_right_for_every_pooling(home: Any, start: Any, pooling: str) -> None:
    program = home.load(HEAD + EMB.format(pooling=pooling))
    bound, values, grads = start(program)
    check_gradients(bound, pack(SAMPLES, (TEXT, LABEL)), values, grads)


def test_gradients_of_mixed_layers_are_right(home: Any, start: Any) -> None:
    program = home.load(
        HEAD
        + """
bag, dense, weighted = data_layer('bag', 6), data_layer('dense', 2), data_layer('weighted', 5)
left = fc_layer([bag, dense, weighted], 3)
right = fc_layer(dense, 3, act=STanhActivation(), param_attr=ParamAttr(name='shared'))
both = concat_layer([addto_layer([left, right], act=SigmoidActivation(), bias_attr=True), right])
again = fc_layer(dense, 3, act=SoftReluActivation(), param_attr=ParamAttr(name='shared'), bias_attr=False)
outputs(mse_cost(fc_layer([both, again], 2, act=LinearActivation()), data_layer('label', 2)))
"""
    )
    inputs = (
        InputType(name="bag", dim=6, kind="sparse_binary"),
        InputType(name="dense", dim=2, kind="dense"),
        InputType(name="weighted", dim=5, kind="sparse_float"),
        InputType(name="label", dim=2, kind="dense"),
    )
    rows = [([0, 0, 5], [0.5, -1], [(1, 2.0), (4, -0.5)], [1, 2]), ([], [1, 1], [], [0.5, 0])]
    bound, values, grads = start(program)
    check_gradients(bound, pack(rows, inputs), values, grads)


def test_square_error_is_summed_without_a_half(home: Any, start: Any) -> None:
    program = home.load(
        HEAD
        + """
x = data_layer('x', 1)
guess = fc_layer(x, 1, act=LinearActivation(), param_attr=ParamAttr(name='w'), bias_attr=ParamAttr(name='b'))
outputs(regression_cost(guess, data_layer('y', 1)))
"""
    )
    bound, values, grads = start(program)
    values["w"][:], values["b"][:] = 2, 0
    slots = tuple(InputType(name=name, dim=1, kind="dense") for name in ("x", "y"))
    sums = bound.step(pack([([1.0], [5.0]), ([0.0], [1.0])], slots))
    assert (sums.cost, sums.evals) == (10.0, {})
    assert (grads["w"].item(), grads["b"].item()) == (-6.0, -8.0)


def test_parameters_share_memory_with_the_given_arrays(home: Any) -> None:
    program = home.load(HEAD + EMB.format(pooling="AvgPooling()"))
    # One buffer for all, as a training loop has: arrays begin at any multiple of four bytes.
    buffer = np.zeros(1 + sum(p.size for p in program.parameters), dtype=np.float32)
    values, at = {}, 1
    for parameter in program.parameters:
        values[parameter.name] = buffer[at : at + parameter.size].reshape(parameter.shape)
        at += parameter.size
    bound = program.bind(values, {name: np.zeros_like(value) for name, value in values.items()})
    batch = pack(SAMPLES, (TEXT, LABEL))
    assert bound.evaluate(batch).cost == pytest.approx(4 * np.log(2))
    (computation,) = bound._computations.values()
    assert isinstance(computation, PaddleGraph)
    for name, value in values.items():
        assert computation._tensors[name].data_ptr() == value.ctypes.data
    buffer[:] = np.linspace(-1, 1, buffer.size)
    assert bound.evaluate(batch).cost != pytest.approx(4 * np.log(2))


@pytest.mark.parametrize("pooling", ["MaxPooling()", "AvgPooling()"])
def test_same_batch_gives_the_same_bits_after_other_batches(home: Any, start: Any, pooling: str) -> None:
    text = EMB.format(pooling=pooling).replace("10)", "500)").replace(", 3)", ", 32)")
    program = home.load(HEAD + text)
    bound, _, grads = start(program)
    rng = np.random.default_rng(0)
    rows = [(rng.integers(0, 500, rng.integers(0, 60)).tolist(), int(rng.integers(2))) for _ in range(64)]
    slots = (InputType(name="word", dim=500, kind="index", is_sequence=True), LABEL)
    batch, other = pack(rows, slots), pack(rows[:7], slots)

    def bits() -> tuple[Any, ...]:
        return (bound.step(batch), *(grad.tobytes() for grad in grads.values()))

    first = bits()
    assert bits() == first
    bound.step(other)
    assert bits() == first


def test_both_engines_agree_on_a_bag_of_words(home: Any, start: Any) -> None:
    program = home.load()
    bound, values, grads = start(program)
    batch = pack(SAMPLES, (InputType(name="word", dim=10, kind="sparse_binary"), LABEL))
    ours = bound.step(batch)
    kept = {name: grad.copy() for name, grad in grads.items()}
    theirs = PaddleGraph(program.graph, program.parameters, (values, grads)).step(batch)
    assert theirs.evals == ours.evals
    assert theirs.cost == pytest.approx(ours.cost, rel=1e-6)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, kept[name], rtol=1e-5, atol=1e-6)


def test_static_and_idle_parameters_get_zero_gradients(home: Any, start: Any) -> None:
    text = EMB.format(pooling="MaxPooling()").replace(", 3)", ", 3, param_attr=ParamAttr(is_static=True))")
    program = home.load(HEAD + "fc_layer(data_layer('idle', 2), 2)\n" + text)
    bound, _, grads = start(program)
    bound.step(pack(SAMPLES, (TEXT, LABEL)))
    assert [bool(grad.any()) for grad in grads.values()] == [False, False, False, True, True]


def test_predict_gives_one_row_a_sample(home: Any, start: Any) -> None:
    text = EMB.format(pooling="AvgPooling()").splitlines()[:-1]
    program = home.load(HEAD + "\n".join(text) + "\noutputs(maxid_layer(answer), answer)")
    bound, *_ = start(program)
    found = bound.predict(pack([([1],), ([],), ([3, 4],)], (TEXT,)))
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "__maxid_layer_0__": ((3, 1), np.float32),
        "__fc_layer_0__": ((3, 2), np.float32),
    }


def test_batch_of_empty_sequences_and_empty_batch_work(home: Any, start: Any) -> None:
    program = home.load(HEAD + EMB.format(pooling="AvgPooling()"))
    bound, _, grads = start(program)
    assert bound.step(pack([([], 1)], (TEXT, LABEL))).samples == 1
    assert not grads["___embedding_0__.w0"].any()
    assert bound.step(pack([], (TEXT, LABEL))).cost == 0.0
    assert not any(grad.any() for grad in grads.values())


def test_missing_paddle_is_reported_when_the_config_is_loaded(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paddle", None)
    with pytest.raises(MissingError) as caught:
        home.load(HEAD + EMB.format(pooling="AvgPooling()"))
    assert "-m pip install paddlepaddle==" in caught.value.fix
    assert "config.py:4: this network needs PaddlePaddle" in caught.value.what


def test_importing_paddle_is_quiet() -> None:
    with warnings.catch_warnings(record=True) as seen:
        import_paddle()
    assert not seen


SPARSE_EMB = """
sparse = ParamAttr(name='table', sparse_update=True)
text, title, bag = data_layer('text', 500), data_layer('title', 500), data_layer('bag', 300)
parts = [pooling_layer(embedding_layer(text, 8, param_attr=sparse), {pooling}),
         pooling_layer(embedding_layer(title, 8, param_attr=sparse), AvgPooling()),
         fc_layer([bag, data_layer('dense', 2)], 4, param_attr=[ParamAttr(sparse_update=True), ParamAttr()])]
answer = fc_layer(concat_layer(parts), 2, act=SoftmaxActivation())
outputs(classification_cost(answer, data_layer('label', 2)))
"""


@pytest.mark.parametrize("pooling", ["MaxPooling()", "SquareRootNPooling()"])
@pytest.mark.parametrize("kind", ["sparse_binary", "sparse_float"])
def test_compact_tables_give_the_bits_of_whole_ones(
    home: Any, start: Any, check_compact: Any, kind: Any, pooling: str
) -> None:
    program = home.load(HEAD + SPARSE_EMB.format(pooling=pooling))
    assert [lookup.columns for lookup in program.lookups] == [("text", "title"), ("bag",)]
    inputs = (
        InputType(name="text", dim=500, kind="index", is_sequence=True),
        InputType(name="title", dim=400, kind="index", is_sequence=True),
        InputType(name="bag", dim=300, kind=kind),
        InputType(name="dense", dim=2, kind="dense"),
        LABEL,
    )
    rng = np.random.default_rng(5)

    def sample() -> tuple[object, ...]:
        text, title, bag = (rng.integers(0, top, rng.integers(0, 30)).tolist() for top in (500, 400, 300))
        if kind == "sparse_float":
            bag = [(id_, float(rng.normal())) for id_ in bag]
        return text, title, bag, rng.normal(size=2), int(rng.integers(2))

    batch = pack([sample() for _ in range(40)], inputs)
    for spare in (0, 13):
        check_compact(program, start(program), batch, spare)


def test_batch_that_needs_no_row_works_on_any_table(home: Any, start: Any, check_compact: Any) -> None:
    program = home.load(
        HEAD
        + EMB.format(pooling="MaxPooling()")
        .replace(", 3)", ", 3, param_attr=SPARSE)")
        .replace("steps", "SPARSE = ParamAttr(sparse_update=True)\nsteps", 1)
    )
    check_compact(program, start(program), pack([([], 1)], (TEXT, LABEL)), 1)
