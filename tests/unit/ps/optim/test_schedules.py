from __future__ import annotations

import pytest

from bireme.core.errors import SpecError
from bireme.ps.optim.schedules import check_schedule, learning_rate, parse_rates
from bireme.spec.model import Optimizer, Schedule


@pytest.mark.parametrize(
    ("schedule", "a", "b", "samples", "expected"),
    [
        ("constant", 0.5, 0.5, 1000, 0.1),
        ("poly", 0.0, 0.0, 1000, 0.1),
        ("poly", 0.01, 0.5, 300, 0.05),
        ("caffe_poly", 1000.0, 2.0, 500, 0.025),
        ("caffe_poly", 1000.0, 0.0, 1000, 0.1),
        ("caffe_poly", 1000.0, 2.0, 1001, 0.0),
        ("exp", 0.25, 100.0, 50, 0.05),
        ("discexp", 0.5, 100.0, 99, 0.1),
        ("discexp", 0.5, 100.0, 100, 0.05),
        ("discexp", 0.5, 100.0, 299, 0.025),
        ("linear", 1e-4, 0.02, 500, 0.05),
        ("linear", 1e-4, 0.02, 900, 0.02),
    ],
)
def test_schedule_has_the_value_worked_out_by_hand(
    schedule: Schedule, a: float, b: float, samples: int, expected: float
) -> None:
    opt = Optimizer(learning_rate=0.1, schedule=schedule, decay_a=a, decay_b=b)
    assert learning_rate(opt, samples, 0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("samples", "factor"), [(1, 1.0), (100, 1.0), (101, 0.5), (200, 0.5), (999, 0.5)])
def test_a_manual_rate_holds_to_its_bound_and_the_last_beyond(samples: int, factor: float) -> None:
    opt = Optimizer(learning_rate=0.1, schedule="manual", schedule_args="100:1.0,200:0.5")
    assert learning_rate(opt, samples, 7) == 0.1 * factor


@pytest.mark.parametrize(("pass_id", "factor"), [(0, 1.0), (1, 0.5), (2, 0.5), (3, 0.25), (9, 0.25)])
def test_pass_manual_goes_by_the_pass_not_by_samples(pass_id: int, factor: float) -> None:
    opt = Optimizer(learning_rate=0.1, schedule="pass_manual", schedule_args="0:1, 2:0.5, 3:0.25")
    assert learning_rate(opt, 10**9, pass_id) == 0.1 * factor


@pytest.mark.parametrize("method", ["adagrad", "adam", "adamax"])
def test_adagrad_adam_and_adamax_ignore_the_schedule(method: str) -> None:
    opt = Optimizer(method=method, learning_rate=0.1, schedule="exp", decay_a=0.5, decay_b=10.0)
    assert learning_rate(opt, 1000, 3) == 0.1


def test_rates_are_read_as_rising_pairs() -> None:
    assert parse_rates("0:1,20:0.5, 300:1e-2") == ((0, 1.0), (20, 0.5), (300, 0.01))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("", "not a number, a colon and a factor"),
        ("100", '"100" is not a number'),
        ("100:", '"100:" is not a number'),
        ("x:1", '"x:1" is not a number'),
        ("1.5:1", '"1.5:1" is not a number'),
        ("100:1,", '"" is not a number'),
        ("100:1:2", '"100:1:2" is not a number'),
        ("-1:1", "0 or more"),
        ("10:-1", "0 or more"),
        ("10:nan", "0 or more"),
        ("10:inf", "0 or more"),
        ("10:1,10:2", "10 does not come after 10"),
        ("20:1,10:2", "10 does not come after 20"),
    ],
)
def test_bad_rates_are_refused_with_the_reason_and_an_example(args: str, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_rates(args)
    assert why in caught.value.why
    assert f'"{args}"' in caught.value.what
    assert "1000:1.0" in caught.value.fix


@pytest.mark.parametrize(
    ("schedule", "a", "b"),
    [
        ("poly", -0.1, 1.0),
        ("caffe_poly", 0.0, 1.0),
        ("exp", 0.5, 0.0),
        ("exp", 0.0, 5.0),
        ("discexp", -0.5, 5.0),
        ("linear", float("nan"), 0.0),
    ],
)
def test_a_schedule_without_a_value_for_a_round_is_refused(schedule: Schedule, a: float, b: float) -> None:
    with pytest.raises(SpecError, match=f"learning_rate_schedule {schedule} cannot use"):
        check_schedule(Optimizer(schedule=schedule, decay_a=a, decay_b=b))


def test_manual_schedule_without_rates_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        learning_rate(Optimizer(schedule="manual"), 1, 0)
