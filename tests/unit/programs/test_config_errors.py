from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import ConfigScriptError, DataError

HEAD = "from paddle.trainer_config_helpers import *\n"


@pytest.mark.parametrize(
    ("line", "said", "fix"),
    [
        ("y = nowhere", "NameError: name 'nowhere' is not defined", ""),
        ("for i in xrange(3): pass", "NameError: name 'xrange' is not defined", "Python 3 calls it range"),
        ("print 'hello'", "SyntaxError: Missing parentheses", "this is Python 2: write print(...)"),
        ("import cPickle", "ModuleNotFoundError", "Python 3 calls it pickle"),
        ("raise SystemExit(3)", "SystemExit: 3", ""),
        ("fc_layer(sise=3)", "fc_layer(): missing a required argument: 'input'", "did you mean 'size'?"),
        ("settings(4, learning_rat=1)", "unexpected keyword argument", "did you mean 'learning_rate'?"),
        ("fc_layer(3, 4)", "fc_layer(): expected a layer, got 3", ""),
        ("fc_layer(data_layer('x', 3), 0)", "size must be a whole number from 1, not 0", ""),
        ("fc_layer(data_layer('x', 3), 2, act='tanh')", "act must be an activation", ""),
        ("lstmemory(3)", "lstmemory is not supported yet", ""),
        ("settings(4, model_average=ModelAverage(0.5))", "ModelAverage is not supported yet", ""),
        ("settings(4, learning_rate_schedule='step')", "there is no schedule 'step'", "use constant"),
        ("ExtraAttr(drop_rate=0.5)", "dropout is not supported yet", ""),
        ("ParamAttr(initial_max=1)", "initial_max and initial_min go together", ""),
        ("get_config_arg('n', int)", "config argument n must be int, not 'many'", ""),
        ("get_config_arg('n', bool)", "config argument n must be True or False", ""),
        ("define_py_data_sources2('l', None, 'gone', 'x')", "there is no module 'gone'", "put gone.py into"),
        ("define_py_data_sources2('l', None, 'reviews', 'gone')", "reviews has no 'gone'", "@provider"),
        ("define_py_data_sources2('l', None, 'reviews', 'hook')", "is not a data provider", "@provider"),
    ],
)
def test_failing_line_of_a_config_is_named_and_shown(home: Any, line: str, said: str, fix: str) -> None:
    with pytest.raises(ConfigScriptError) as caught:
        home.load(HEAD + line, {"n": "many"})
    message = str(caught.value)
    assert message.startswith(f"{home.folder / 'config.py'}:2: ")
    assert said in message
    assert f"\n    2 | {line}" in message
    assert fix in caught.value.fix
    assert caught.value.__cause__ is not None


def test_error_in_an_imported_file_names_that_file(home: Any) -> None:
    home.write("reviews.py", "import json\njson.loads('{')\n")
    with pytest.raises(ConfigScriptError, match=r"reviews\.py:2: JSONDecodeError"):
        home.load()


def test_syntax_error_in_an_imported_file_names_that_file(home: Any) -> None:
    home.write("reviews.py", "def f(:\n    pass\n")
    with pytest.raises(ConfigScriptError, match=r"reviews\.py:1: SyntaxError"):
        home.load()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("settings(batch_size=1)", "never calls outputs()"),
        ("outputs(data_layer('x', 3))", "never calls settings()"),
    ],
)
def test_config_that_says_too_little_is_refused(home: Any, text: str, said: str) -> None:
    with pytest.raises(ConfigScriptError) as caught:
        home.load(HEAD + text)
    assert said in str(caught.value)


def test_missing_config_is_refused(home: Any) -> None:
    (home.folder / "config.py").unlink()
    with pytest.raises(ConfigScriptError, match="there is no config"):
        home.load()


def test_cost_needs_a_softmax(home: Any) -> None:
    with pytest.raises(ConfigScriptError, match="must be a softmax layer"):
        home.load(HEAD + "x = data_layer('x', 2)\nclassification_cost(fc_layer(x, 2), x)")


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ("[sparse_binary_vector(11), integer_value(2)]", "has size 10, but its data provider gives"),
        ("[integer_value(10), integer_value(2)]", "fc cannot use the integer ids of 'word'"),
        ("[sparse_binary_vector(10), dense_vector(2)]", "needs integer ids from 'label'"),
        ("[sparse_binary_vector(10)]", "has 1 input_types, but the network has 2 inputs: word, label"),
        ("{'word': sparse_binary_vector(10)}", "input_types lacks label"),
        ("[3, 4]", "which is no type such as integer_value(2)"),
        ("None", "does not say its input_types"),
        ("[sparse_binary_vector_sequence(10), integer_value(2)]", "is not supported yet"),
    ],
)
def test_types_that_do_not_fit_the_network_are_refused(home: Any, types: str, said: str) -> None:
    home.write(
        "reviews.py",
        f"""
        from paddle.trainer.PyDataProvider2 import *
        def hook(settings, **kwargs):
            settings.input_types = {types}
        @provider(init_hook=hook)
        def process(settings, name):
            yield [1], 1
        """,
    )
    with pytest.raises(ConfigScriptError) as caught:
        home.load().source("train").facts(home.workdir)
    assert said in str(caught.value)
    assert ".py:" in str(caught.value)


def test_pooling_of_something_that_is_no_sequence_is_refused(home: Any) -> None:
    program = home.load(
        HEAD
        + """
define_py_data_sources2('data/train.list', None, 'reviews', 'process', {'size': 10})
settings(batch_size=1)
steps = fc_layer(data_layer('word', 10), 2)
out = fc_layer(pooling_layer(steps), 2, act=SoftmaxActivation())
outputs(classification_cost(out, data_layer('label', 2)))
"""
    )
    with pytest.raises(ConfigScriptError, match=r"config\.py:6: pooling_layer needs a sequence"):
        program.source("train").facts(home.workdir)


def test_missing_list_file_is_the_datas_fault(home: Any) -> None:
    (home.workdir / "data" / "train.list").unlink()
    with pytest.raises(DataError, match=r"cannot read train list data/train\.list"):
        home.load().source("train").facts(home.workdir)
