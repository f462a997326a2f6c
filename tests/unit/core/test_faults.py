from __future__ import annotations

from collections.abc import Iterator

import pytest

from bireme.core import faults
from bireme.core.errors import UsageError


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.arm("")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(faults, "sleep", found.append)
    return found


def pass_points(count: int) -> None:
    for _ in range(count):
        faults.at("wire.send")


def test_an_unarmed_point_does_nothing(waits: list[float]) -> None:
    pass_points(100)
    assert waits == []


def test_the_same_seed_gives_the_same_delays(waits: list[float]) -> None:
    faults.arm("delay:seed=7,max_ms=5")
    pass_points(200)
    first = waits.copy()
    waits.clear()
    faults.arm("delay:seed=7,max_ms=5")
    pass_points(200)
    assert first == waits
    assert 20 < len(waits) < 100
    assert 0.0 < max(waits) <= 0.005


def test_another_seed_gives_other_delays(waits: list[float]) -> None:
    faults.arm("delay:seed=7")
    pass_points(50)
    first = waits.copy()
    waits.clear()
    faults.arm("delay:seed=8")
    pass_points(50)
    assert first != waits


def test_an_empty_plan_disarms(waits: list[float]) -> None:
    faults.arm("delay:seed=7")
    faults.arm("")
    pass_points(100)
    assert waits == []


@pytest.mark.parametrize(
    "plan",
    [
        "kill",
        "delay:foo=1",
        "delay:seed",
        "delay:seed=x",
        "delay:seed=1=2",
        "delay:seed=nan",
        "delay:seed=inf",
        "delay:max_ms=-5",
        "delay:max_ms=nan",
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_an_example(plan: str) -> None:
    with pytest.raises(UsageError, match="unknown fault plan") as caught:
        faults.arm(plan)
    assert "delay:seed=7,max_ms=5" in caught.value.fix
