from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from bireme.spec.model import Init, Optimizer

HEAD = "from paddle.trainer_config_helpers import *\n"
TAIL = """
word = data_layer(name='word', size=16)
outputs(fc_layer(input=word, size=4))
"""


def test_a_config_gives_the_originals_names_and_first_values(home: Any) -> None:
    program = home.load()
    weight, bias = program.parameters
    assert (weight.name, weight.shape) == ("___fc_layer_0__.w0", (10, 2))
    assert weight.init == Init(spread=1 / 10**0.5)
    assert (bias.name, bias.shape, bias.init) == ("___fc_layer_0__.wbias", (2,), Init())
    assert (weight.l2, weight.clip, bias.l2) == (8e-4, 25.0, 8e-4)
    assert program.optimizer == Optimizer(method="adam", learning_rate=0.1, epsilon=1e-8)
    assert (program.name, program.batch_size) == ("config.py", 4)


def test_training_config_predicts_what_its_cost_judges(home: Any) -> None:
    assert home.load().outputs == ("__fc_layer_0__",)
    assert home.load(args={"is_predict": "1"}).outputs == ("__maxid_layer_0__", "__fc_layer_0__")


def test_predict_source_exists_only_without_a_cost(home: Any) -> None:
    training, predicting = home.load(), home.load(args={"is_predict": "1"})
    assert training.source("predict") is None
    assert predicting.source("train") is None
    assert predicting.source("predict").facts(home.workdir).files == ("data/pred.txt",)


def test_parameters_are_in_creation_order_shared_and_tuned(home: Any) -> None:
    program = home.load(
        HEAD
        + """
settings(batch_size=1, learning_method=MomentumOptimizer(momentum=0.9))
a = data_layer('a', 4)
b = data_layer('b', 4)
shared = ParamAttr(name='shared', initial_max=3, initial_min=1, momentum=0.5, learning_rate=2, l1_rate=0.1)
first = fc_layer([a, b], 3, param_attr=[shared, ParamAttr(initial_std=0.2)], bias_attr=ParamAttr(name='b'))
second = fc_layer(a, 3, param_attr=shared, bias_attr=False, name='second')
outputs(addto_layer([first, second]))
"""
    )
    shared, own, bias = program.parameters
    assert [p.name for p in program.parameters] == ["shared", "___fc_layer_0__.w1", "b"]
    assert shared.init == Init(kind="uniform", mean=2, spread=1)
    assert (shared.momentum, shared.learning_rate, shared.l1) == (0.5, 2.0, 0.1)
    assert own.init == Init(spread=0.2)
    assert own.momentum == 0.9
    # As in the original: an attribute that does not say how a bias starts gives it spread 1.
    assert bias.init == Init(spread=1.0)


def test_inputs_are_ordered_depth_first_from_the_outputs(home: Any) -> None:
    program = home.load(
        HEAD
        + """
settings(batch_size=1)
unused, b, a = data_layer('unused', 2), data_layer('b', 2), data_layer('a', 2)
outputs(mse_cost(input=fc_layer([a, b], 2), label=a))
"""
    )
    assert program.graph.inputs == ("a", "b")


def test_settings_after_layers_do_not_reach_them_and_warn(home: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        program = home.load(HEAD + TAIL + "settings(batch_size=1, gradient_clipping_threshold=5)")
    assert program.parameters[0].clip == 0.0
    assert "settings() comes after layers" in caplog.text


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("MomentumOptimizer()", Optimizer(learning_rate=1e-3)),
        ("AdamaxOptimizer(0.8, 0.9)", Optimizer(method="adamax", beta1=0.8, beta2=0.9)),
        ("AdaGradOptimizer()", Optimizer(method="adagrad")),
        ("RMSPropOptimizer(rho=0.5)", Optimizer(method="rmsprop", rho=0.5)),
        ("DecayedAdaGradOptimizer(epsilon=1e-4)", Optimizer(method="decayed_adagrad", epsilon=1e-4)),
        ("AdaDeltaOptimizer()", Optimizer(method="adadelta")),
    ],
)
def test_every_optimizer_of_the_original_is_known(home: Any, word: str, expected: Optimizer) -> None:
    assert home.load(f"{HEAD}settings(batch_size=1, learning_method={word}){TAIL}").optimizer == expected


def test_user_modules_and_stand_ins_never_reach_sys_modules(home: Any) -> None:
    before = set(sys.modules)
    home.load()
    assert not {"reviews", "config", "paddle.trainer_config_helpers"} & (set(sys.modules) - before)


def test_every_way_to_import_the_original_works(home: Any) -> None:
    home.write("near_by.py", "SIZE = 16")
    home.load(
        """
import paddle.trainer_config_helpers.layers
import paddle.trainer.PyDataProvider2 as dp
from paddle import trainer_config_helpers
from paddle.trainer.config_parser import get_config_arg
from paddle.trainer_config_helpers.attrs import ParamAttr
from near_by import SIZE
import os.path
assert dp.integer_value(3).dim == 3
assert paddle.trainer_config_helpers.fc_layer is trainer_config_helpers.fc_layer
from paddle.trainer_config_helpers import *
settings(batch_size=1)
outputs(fc_layer(data_layer('word', SIZE), 4, param_attr=ParamAttr(name=os.path.basename('x/w'))))
"""
    )


def test_packages_next_to_the_config_can_be_imported(home: Any) -> None:
    (home.folder / "near").mkdir()
    home.write("near/__init__.py", "from . import sizes")
    home.write("near/sizes.py", "from .deep import WIDE")
    home.write("near/deep.py", "WIDE = 16")
    home.load(HEAD + "import near.sizes\nassert near.sizes.WIDE == 16\nsettings(batch_size=1)" + TAIL)


def test_config_runs_in_the_workdir_and_leaves_no_trace(home: Any) -> None:
    import random

    here, state = Path.cwd(), random.getstate()
    home.load(HEAD + "import random\nrandom.seed(1)\nopen('data/seen', 'w').close()\nsettings(batch_size=1)" + TAIL)
    assert (home.workdir / "data" / "seen").exists()
    assert Path.cwd() == here
    assert random.getstate() == state


def test_two_loads_share_nothing(home: Any) -> None:
    first, second = home.load(), home.load()
    assert [p.name for p in first.parameters] == [p.name for p in second.parameters]
    assert first.graph is not second.graph
