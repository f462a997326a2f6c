from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bireme.core.errors import ConfigScriptError, DataError
from bireme.programs.bow import BagOfWords
from bireme.programs.columns import Columns, InputType
from bireme.programs.packing import pack

WORD = InputType(name="word", dim=10, kind="sparse_binary")
WEIGHTED = InputType(name="word", dim=10, kind="sparse_float")
LABEL = InputType(name="label", dim=2, kind="index")
SAMPLES: list[tuple[object, ...]] = [([1, 2, 2], 1), ([7, 8], 0), ([], 1), ([9], 0)]
WEIGHT, BIAS = "___fc_layer_0__.w0", "___fc_layer_0__.wbias"


def by_hand(batch: Columns, weight: Any, bias: Any) -> tuple[float, Any, Any]:
    """The same computation with dense float64 matrices."""
    arrays = batch.to_arrays()
    rows = np.repeat(np.arange(len(batch)), np.diff(arrays["word.offsets"]))
    dense = np.zeros((len(batch), 10))
    np.add.at(dense, (rows, arrays["word.ids"]), arrays.get("word.values", 1.0))
    logits = dense @ weight + bias
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    hot = np.eye(2)[arrays["label.ids"]]
    return -np.log((chances * hot).sum(axis=1)).sum(), dense.T @ (chances - hot), (chances - hot).sum(axis=0)


@pytest.mark.parametrize("kind", ["sparse_binary", "sparse_float"])
def test_step_is_the_summed_cost_and_its_gradient(home: Any, start: Any, kind: str) -> None:
    program = home.load()
    bound, values, grads = start(program)
    samples = SAMPLES
    if kind == "sparse_float":
        samples = [([(id_, 0.5 + id_) for id_ in ids], label) for ids, label in SAMPLES]  # type: ignore[attr-defined]
    batch = pack(samples, (WORD if kind == "sparse_binary" else WEIGHTED, LABEL))
    sums = bound.step(batch)
    cost, weight_grad, bias_grad = by_hand(batch, values[WEIGHT], values[BIAS])
    assert sums.samples == 4
    assert sums.cost == pytest.approx(cost)
    np.testing.assert_allclose(grads[WEIGHT], weight_grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads[BIAS], bias_grad, rtol=1e-5, atol=1e-6)
    assert bound.evaluate(batch) == sums


def test_own_kernel_is_chosen_for_a_bag_of_words(home: Any, start: Any) -> None:
    program = home.load()
    bound, *_ = start(program)
    bound.step(pack(SAMPLES, (WORD, LABEL)))
    (computation,) = bound._computations.values()
    assert isinstance(computation, BagOfWords)


def test_errors_are_counted(home: Any, start: Any) -> None:
    program = home.load()
    bound, values, _ = start(program)
    values[WEIGHT][:] = 0
    values[BIAS][:] = [0, 1]
    assert bound.evaluate(pack(SAMPLES, (WORD, LABEL))).evals == {"classification_error_evaluator": 2.0}


def test_huge_logits_overflow_nowhere(home: Any, start: Any) -> None:
    program = home.load()
    bound, values, grads = start(program)
    values[WEIGHT][:] = [[3e38, -3e38]] * 10
    sums = bound.step(pack(SAMPLES, (WORD, LABEL)))
    assert np.isfinite(sums.cost)
    assert all(np.isfinite(grad).all() for grad in grads.values())


def test_same_batch_gives_the_same_bits_after_other_batches(home: Any, start: Any) -> None:
    program = home.load()
    bound, _, grads = start(program)
    batch, other = pack(SAMPLES, (WORD, LABEL)), pack(SAMPLES[1:2], (WORD, LABEL))
    first = bound.step(batch), grads[WEIGHT].tobytes(), grads[BIAS].tobytes()
    bound.step(other)
    assert (bound.step(batch), grads[WEIGHT].tobytes(), grads[BIAS].tobytes()) == first


def test_layer_without_bias_has_one_parameter(home: Any, start: Any) -> None:
    text = (home.folder / "config.py").read_text().replace("size=2, act", "size=2, bias_attr=False, act")
    program = home.load(text)
    bound, values, grads = start(program)
    batch = pack(SAMPLES, (WORD, LABEL))
    sums = bound.step(batch)
    cost, weight_grad, _ = by_hand(batch, values[WEIGHT], 0.0)
    assert list(grads) == [WEIGHT]
    assert sums.cost == pytest.approx(cost)
    np.testing.assert_allclose(grads[WEIGHT], weight_grad, rtol=1e-5, atol=1e-6)


def test_predict_gives_classes_and_probabilities(home: Any, start: Any) -> None:
    program = home.load(args={"is_predict": "1"})
    bound, values, _ = start(program)
    found = bound.predict(pack([([1],), ([8],)], (WORD,)))
    logits = values[WEIGHT][[1, 8]] + values[BIAS]
    assert list(found) == list(program.outputs)
    assert found["__maxid_layer_0__"].tolist() == [[float(k)] for k in logits.argmax(axis=1)]
    np.testing.assert_allclose(found["__fc_layer_0__"].sum(axis=1), 1, rtol=1e-6)


def test_predict_without_labels_works_on_the_training_config(home: Any, start: Any) -> None:
    program = home.load()
    bound, *_ = start(program)
    assert bound.predict(pack([([1],)], (WORD,)))["__fc_layer_0__"].shape == (1, 2)


def test_config_without_a_cost_cannot_train(home: Any, start: Any) -> None:
    program = home.load(args={"is_predict": "1"})
    bound, *_ = start(program)
    with pytest.raises(ConfigScriptError, match="can only predict"):
        bound.step(pack([([1],)], (WORD,)))


def test_ids_beyond_the_weights_are_refused_before_any_access(home: Any, start: Any) -> None:
    program = home.load()
    bound, *_ = start(program)
    batch = pack(SAMPLES, (WORD, LABEL))
    batch.to_arrays()["word.ids"][0] = 10
    with pytest.raises(DataError, match=r"'word' holds an id that is not in 0\.\.9"):
        bound.step(batch)


def test_empty_batch_has_no_cost_and_zero_gradients(home: Any, start: Any) -> None:
    program = home.load()
    bound, _, grads = start(program)
    assert bound.step(pack([], (WORD, LABEL))).cost == 0.0
    assert not any(grad.any() for grad in grads.values())


def test_plain_descent_lowers_the_cost(home: Any, start: Any) -> None:
    program = home.load()
    bound, values, grads = start(program)
    source = program.source("train")
    shard = pack(source.samples(home.workdir, 0), source.facts(home.workdir).inputs)
    before = bound.evaluate(shard).cost
    for _ in range(20):
        bound.step(shard.take(np.arange(len(shard))))
        for name, value in values.items():
            value -= 0.1 * grads[name]
    assert bound.evaluate(shard).cost < before / 2


@pytest.mark.parametrize("spare", [0, 7])
@pytest.mark.parametrize("kind", ["sparse_binary", "sparse_float"])
def test_compact_table_gives_the_bits_of_the_whole_one(
    home: Any, start: Any, check_compact: Any, kind: str, spare: int
) -> None:
    text = (home.folder / "config.py").read_text().replace("AdamOptimizer", "AdaGradOptimizer")
    text = text.replace("size=10)", "size=500)")
    program = home.load(text.replace("size=2, act", "size=2, param_attr=ParamAttr(sparse_update=True), act"))
    rng = np.random.default_rng(3)
    rows = [(rng.integers(0, 500, rng.integers(0, 40)).tolist(), int(rng.integers(2))) for _ in range(50)]
    if kind == "sparse_float":
        rows = [([(id_, float(rng.normal())) for id_ in ids], label) for ids, label in rows]
    word = InputType(name="word", dim=500, kind=kind)  # type: ignore[arg-type]
    whole = start(program)
    check_compact(program, whole, pack(rows, (word, LABEL)), spare)
    (computation,) = whole[0]._computations.values()
    assert isinstance(computation, BagOfWords)


def test_unbounded_table_is_computed_from_its_rows(home: Any) -> None:
    text = (home.folder / "config.py").read_text().replace("AdamOptimizer", "AdaGradOptimizer")
    text = text.replace("data_layer(name='word', size=10)", "data_layer(name='word', size=2**64 - 1)")
    program = home.load(text.replace("size=2, act", "size=2, param_attr=ParamAttr(sparse_update=True), act"))
    wide = InputType(name="word", dim=2**64 - 1, kind="sparse_binary")
    batch = pack([([2**64 - 2, 5], 1), ([2**63], 0)], (wide, LABEL))
    part = batch.compact(program.lookups)
    values = {WEIGHT: np.arange(10, dtype=np.float32).reshape(5, 2) / 10, BIAS: np.zeros(2, dtype=np.float32)}
    grads = {name: np.full_like(value, np.nan) for name, value in values.items()}
    bound = program.bind(values, grads)
    sums = bound.step(part.batch)
    narrow = pack([([2, 0], 1), ([1], 0)], (InputType(name="word", dim=10, kind="sparse_binary"), LABEL))
    padded = np.concatenate([values[WEIGHT], np.zeros((5, 2))])
    cost, weight_grad, _ = by_hand(narrow, padded, values[BIAS])
    assert sums.cost == pytest.approx(cost)
    np.testing.assert_allclose(grads[WEIGHT], weight_grad[:5], rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError, match="slot 'word' was not made compact: this is a bug"):
        bound.step(batch)
