"""How a program is updated: what the job says, what the program says, and what cannot go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from bireme.core.errors import SpecError
from bireme.job.preflight import check_lanes, check_stop, updates_of
from bireme.programs.program import Program
from bireme.spec.model import Parameter, Rows, Updates, Wire

DENSE = Parameter(name="w", shape=(4,))
TABLE = Parameter(name="emb", shape=(9, 2), rows=Rows())
LOCAL = Updates(mode="local")


def program(*parameters: Parameter, wants_async: bool = False) -> Program:
    return cast(Program, SimpleNamespace(name="config.py", parameters=parameters, wants_async=wants_async))


@pytest.mark.parametrize(
    ("asked", "wants_async", "mode"),
    [(None, False, "sync"), (None, True, "async"), (Updates(), True, "sync"), (LOCAL, True, "local")],
)
def test_the_job_wins_over_the_program(asked: Updates | None, wants_async: bool, mode: str) -> None:
    assert updates_of(program(DENSE, wants_async=wants_async), asked, Wire()).mode == mode


def test_local_training_of_a_sparse_parameter_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="`mode: local` cannot train the sparse parameter emb") as caught:
        updates_of(program(DENSE, TABLE), LOCAL, Wire())
    assert "sparse_update" in caught.value.fix


@pytest.mark.parametrize("gradients", ["float16", "bfloat16", "top_k"])
def test_local_training_with_coded_gradients_is_refused(gradients: str) -> None:
    with pytest.raises(SpecError, match=f"`mode: local` cannot send {gradients}"):
        updates_of(program(DENSE), LOCAL, Wire(gradients=gradients))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
def test_all_other_modes_take_sparse_and_coded_gradients(mode: str) -> None:
    asked = Updates(mode=mode)  # type: ignore[arg-type]
    assert updates_of(program(DENSE, TABLE), asked, Wire(gradients="top_k")) is asked


def test_sparse_parameters_without_a_lane_have_two_fixes() -> None:
    refusal = "config.py has a sparse parameter, emb, and pservers have no sparse lane"
    with pytest.raises(SpecError, match=refusal) as caught:
        check_lanes(program(DENSE, TABLE), 0)
    assert "lanes.ports_num_for_sparse" in caught.value.fix and "--ports_num_for_sparse" in caught.value.fix
    check_lanes(program(DENSE, TABLE), 1)
    check_lanes(program(DENSE), 0)


def test_a_job_that_stops_by_test_costs_needs_test_data() -> None:
    without = cast(Program, SimpleNamespace(name="config.py", source=lambda role: None))
    with pytest.raises(SpecError, match=r"`stop_when` is about the test cost, and config\.py defines no test data"):
        check_stop(without, 3)
    check_stop(without, 0)
