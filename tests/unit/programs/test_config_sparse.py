from __future__ import annotations

from typing import Any

import pytest

from bireme.core.errors import ConfigScriptError, SpecError
from bireme.programs.columns import InputType
from bireme.programs.lookups import Lookup
from bireme.spec.model import Init, Rows

HEAD = "from paddle.trainer_config_helpers import *\nsettings(batch_size=4)\n"
SPARSE = "ParamAttr(sparse_update=True)"


def lookups_of(home: Any, text: str) -> tuple[Lookup, ...]:
    found: tuple[Lookup, ...] = home.load(HEAD + text).lookups
    return found


def refusal(home: Any, text: str) -> ConfigScriptError:
    with pytest.raises(ConfigScriptError) as caught:
        home.load(HEAD + text)
    return caught.value


def typed_provider(home: Any, types: str) -> str:
    home.write(
        "typed.py",
        f"""
        from paddle.trainer.PyDataProvider2 import *
        @provider(input_types={types})
        def process(settings, name):
            yield [1], 1
        """,
    )
    return "define_py_data_sources2('data/train.list', None, 'typed', 'process')\n"


def test_sparse_update_makes_rows_and_changes_nothing_else(home: Any) -> None:
    text = "outputs(fc_layer(data_layer('x', 16), 4, param_attr={}))"
    plain, sparse = home.load(HEAD + text.format("ParamAttr()")), home.load(HEAD + text.format(SPARSE))
    assert plain.parameters[0].rows is None
    assert sparse.parameters[0].rows == Rows()
    assert sparse.parameters[0].init == plain.parameters[0].init == Init(spread=0.25)
    assert not sparse.parameters[1].is_sparse
    assert sparse.fingerprint == plain.fingerprint
    assert (plain.lookups, plain.wants_async) == ((), False)


def test_rows_may_be_admitted_late_and_evicted(home: Any) -> None:
    attr = "ParamAttr(sparse_update=True, admit_after=2, evict_after=100)"
    program = home.load(HEAD + f"outputs(embedding_layer(data_layer('x', 16), 4, param_attr={attr}))")
    assert program.parameters[0].rows == Rows(admit_after=2, evict_after=100)


@pytest.mark.parametrize(
    ("attr", "said", "fix"),
    [
        ("admit_after=1", "admit_after is about rows of sparse parameters", "add sparse_update=True"),
        ("evict_after=1", "evict_after is about rows of sparse parameters", "add sparse_update=True"),
        ("sparse_update=True, evict_after=-1", "evict_after must be a whole number from 0 to 2147483647, not -1", ""),
        ("sparse_update=True, admit_after=0.5", "admit_after must be a whole number from 0 to 2147483647, not 0.5", ""),
        ("sparse_update=True, admit_after=True", "admit_after must be a whole number", ""),
        ("sparse_update=True, admit_after=2**31", "admit_after must be a whole number", ""),
        ("sparse_updat=True", "unexpected keyword argument", "did you mean 'sparse_update'?"),
    ],
)
def test_wrong_row_rules_are_refused_at_their_line(home: Any, attr: str, said: str, fix: str) -> None:
    error = refusal(home, f"ParamAttr({attr})")
    assert "config.py:3: ParamAttr(): " in str(error)
    assert said in error.what
    assert fix in error.fix


@pytest.mark.parametrize(
    ("rows", "attr", "init"),
    [
        (2**31 - 1, "", Init(spread=(2**31 - 1) ** -0.5)),
        (2**31, "", Init(spread=0.01)),
        (2**64 - 1, "", Init(spread=0.01)),
        (2**64 - 1, ", initial_std=0.5", Init(spread=0.5)),
        (2**64 - 1, ", initial_max=2, initial_min=0", Init(kind="uniform", mean=1, spread=1)),
    ],
)
def test_unbounded_table_starts_with_a_small_spread_by_default(home: Any, rows: int, attr: str, init: Init) -> None:
    weight = f"param_attr=ParamAttr(sparse_update=True{attr})"
    (table,) = home.load(HEAD + f"outputs(embedding_layer(data_layer('x', {rows}), 4, {weight}))").parameters
    assert (table.shape, table.init) == ((rows, 4), init)


def test_columns_and_parameters_that_meet_form_one_lookup(home: Any) -> None:
    found = lookups_of(
        home,
        """
sparse = ParamAttr(sparse_update=True)
shared = ParamAttr(name='shared', sparse_update=True)
idle = fc_layer(data_layer('nowhere', 5), 2, name='idle', param_attr=sparse)
user, left, right, plain = [data_layer(name, 10) for name in ('user', 'left', 'right', 'plain')]
parts = [
    fc_layer(user, 2, name='u', param_attr=sparse),
    fc_layer(right, 2, name='r', param_attr=shared),
    fc_layer([left, plain], 2, name='l', param_attr=[shared, ParamAttr()]),
    fc_layer(left, 2, name='again', param_attr=sparse),
]
outputs(concat_layer(parts))
""",
    )
    assert found == (
        Lookup((), ("_idle.w0",)),
        Lookup(("user",), ("_u.w0",)),
        Lookup(("right", "left"), ("shared", "_again.w0")),
    )


def test_lookups_joined_by_a_later_layer_become_one(home: Any) -> None:
    found = lookups_of(
        home,
        f"""
a, b = data_layer('a', 10), data_layer('b', 10)
one, two = ParamAttr(name='one', sparse_update=True), ParamAttr(name='two', sparse_update=True)
outputs(concat_layer([embedding_layer(a, 2, param_attr=one), embedding_layer(b, 2, param_attr=two),
                      embedding_layer(b, 2, param_attr=one), embedding_layer(a, 2, param_attr={SPARSE})]))
""",
    )
    assert found == (Lookup(("a", "b"), ("one", "two", "___embedding_3__.w0")),)


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        (
            "outputs(fc_layer(fc_layer(data_layer('x', 3), 2, name='low'), 2, param_attr={sparse}))",
            "sparse_update=True needs a data_layer as input, but 'low' is computed and uses all rows",
            "leave sparse_update out here",
        ),
        (
            "outputs(embedding_layer(maxid_layer(data_layer('x', 3), name='low'), 2, param_attr={sparse}))",
            "sparse_update=True needs a data_layer as input, but 'low' is computed and uses all rows",
            "leave sparse_update out here",
        ),
        (
            "outputs(fc_layer(data_layer('x', 3), 2, bias_attr={sparse}))",
            "fc_layer(): a bias cannot have sparse_update=True, as every sample uses all of it",
            "leave sparse_update out of bias_attr",
        ),
        (
            "outputs(fc_layer(data_layer('x', 2**40), 2))",
            "data layer 'x' has size 1099511627776, but a weight that is kept whole has at most 2147483647 rows",
            "param_attr=ParamAttr(sparse_update=True)",
        ),
        (
            "outputs(maxid_layer(data_layer('x', 2**31)))",
            "maxid_layer(): data layer 'x' has size 2147483648, and more than 2147483647 ids can only be looked up",
            "embedding_layer or fc_layer with ParamAttr(sparse_update=True)",
        ),
        ("data_layer('x', 2**64)", f"data_layer(): size must be at most {2**64 - 1}, not {2**64}", ""),
        (
            "x = data_layer('x', 3); fc_layer([x, x], 2, param_attr=[{named}, ParamAttr(name='w')])",
            "parameter 'w' is shared, but with different sparse_update, admit_after or evict_after",
            "give these in every ParamAttr(...) with that name, and alike",
        ),
    ],
)
def test_weights_that_look_up_no_rows_are_refused_at_their_line(home: Any, text: str, said: str, fix: str) -> None:
    error = refusal(home, text.format(sparse=SPARSE, named="ParamAttr(name='w', sparse_update=True)"))
    assert error.what.startswith(f"{home.folder / 'config.py'}:3: {said}")
    assert fix in error.fix


@pytest.mark.parametrize(
    ("use", "said", "fix"),
    [
        (
            "fc_layer(x, 2, name='other')",
            "data layer 'x' picks rows of '_table.w0', which has sparse_update=True, and of '_other.w0', which has not",
            "set sparse_update=True on both",
        ),
        (
            "maxid_layer(x, name='top')",
            "which has sparse_update=True, so it cannot also be read by maxid layer 'top'",
            "a second time, for a data_layer of their own",
        ),
        ("x", "which has sparse_update=True, so it cannot also be an output", "a data_layer of their own"),
    ],
)
def test_looked_up_column_may_be_used_for_nothing_else(home: Any, use: str, said: str, fix: str) -> None:
    error = refusal(
        home,
        f"x = data_layer('x', 3)\nused = {use}\n"
        f"table = embedding_layer(x, 2, name='table', param_attr={SPARSE})\noutputs(table, used)",
    )
    line = 3 if use == "x" else 4
    assert error.what.startswith(f"{home.folder / 'config.py'}:{line}: ")
    assert said in error.what
    assert fix in error.fix


def test_label_cannot_be_looked_up_too(home: Any) -> None:
    error = refusal(
        home,
        f"x = data_layer('x', 2)\nout = fc_layer(x, 2, act=SoftmaxActivation(), param_attr={SPARSE})\n"
        "outputs(classification_cost(out, x))",
    )
    assert "config.py:5: data layer 'x' picks rows of '___fc_layer_0__.w0'" in error.what
    assert "it cannot also be read by classification_cost layer '__cost_0__'" in error.what


def test_layers_that_no_output_needs_do_not_disturb_a_lookup(home: Any) -> None:
    text = f"x = data_layer('x', 3)\nfc_layer(x, 2)\noutputs(embedding_layer(x, 2, param_attr={SPARSE}))"
    assert lookups_of(home, text) == (Lookup(("x",), ("___embedding_0__.w0",)),)


def test_a_sparse_weight_of_dense_values_is_refused(home: Any) -> None:
    sources = typed_provider(home, "[dense_vector(3)]")
    program = home.load(HEAD + sources + f"outputs(fc_layer(data_layer('x', 3), 2, param_attr={SPARSE}))")
    with pytest.raises(ConfigScriptError) as caught:
        program.source("train").facts(home.workdir)
    assert "config.py:4: fc layer '__fc_layer_0__' cannot have a weight with sparse_update=True on 'x': " in str(
        caught.value
    )
    assert "leave sparse_update out, or let the data provider give sparse values" in caught.value.fix


def test_wide_slot_is_read_into_wide_ids(home: Any) -> None:
    sources = typed_provider(home, f"[sparse_binary_vector({2**64 - 1})]")
    text = f"outputs(fc_layer(data_layer('x', {2**64 - 1}), 2, param_attr={SPARSE}))"
    facts = home.load(HEAD + sources + text).source("train").facts(home.workdir)
    assert facts.inputs == (InputType(name="x", dim=2**64 - 1, kind="sparse_binary"),)
    assert facts.inputs[0].is_wide


def test_slot_with_more_ids_than_there_are_numbers_is_refused(home: Any) -> None:
    sources = typed_provider(home, f"[integer_value({2**64})]")
    with pytest.raises(ConfigScriptError, match=f"a whole number from 1 to {2**64 - 1}, not {2**64}"):
        home.load(HEAD + sources + "outputs(fc_layer(data_layer('x', 3), 2))")


def test_sparse_momentum_and_async_are_passed_on(home: Any) -> None:
    program = home.load(
        "from paddle.trainer_config_helpers import *\n"
        "settings(4, learning_method=MomentumOptimizer(0.9, sparse=True), is_async=True)\n"
        f"outputs(fc_layer(data_layer('x', 3), 2, param_attr={SPARSE}))"
    )
    assert program.optimizer.method == "sparse_momentum"
    assert [parameter.momentum for parameter in program.parameters] == [0.9, 0.9]
    assert program.wants_async


@pytest.mark.parametrize(
    "settings",
    [
        "learning_method=AdamOptimizer()",
        "learning_method=AdamaxOptimizer(0.9, 0.99)",
        "learning_method=AdaDeltaOptimizer()",
        "learning_method=MomentumOptimizer(0.9), regularization=L2Regularization(0.1)",
    ],
)
def test_methods_that_move_untouched_rows_are_refused_at_load(home: Any, settings: str) -> None:
    text = "from paddle.trainer_config_helpers import *\nsettings(4, {})\noutputs(fc_layer(data_layer('x', 3), 2{}))"
    home.load(text.format(settings, ""))
    with pytest.raises(SpecError, match=r"sparse parameter ___fc_layer_0__\.w0"):
        home.load(text.format(settings, f", param_attr={SPARSE}"))
