"""A trainer's stories of rounds with pservers that answer after so many seconds each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bireme.ps.lagging import Lagging
from bireme.ps.waiting import STRAGGLES_ABOVE, WINDOW_S


def run_rounds(
    lagging: Lagging, now_s: float, count: int, answers: Sequence[float], compute_s: float = 0.0, move_s: float = 0.0
) -> float:
    """Rounds in which each pserver's answer comes so long after the push; returns when they are over."""
    pservers = len(answers)
    for turn in range(count):
        now_s += compute_s
        pushed_s, last = now_s, turn % pservers
        for pserver in sorted(range(pservers), key=lambda p: (p - last - 1) % pservers):
            there_s = max(now_s, pushed_s + answers[pserver])
            if pserver == last:
                lagging.awaited(pserver, there_s - now_s)
            lagging.moved(pserver, move_s)
            now_s = there_s + move_s
        lagging.answered(now_s)
    return now_s


def share(lagging: Lagging, rank: int) -> float:
    found = lagging.slowest()
    assert found is not None
    return found.share if found.rank == rank else 0.0


@pytest.mark.parametrize("pservers", [2, 3, 7])
def test_a_pserver_that_answers_late_is_waited_for_by_as_much(pservers: int) -> None:
    lagging = Lagging(pservers)
    run_rounds(lagging, 100.0, 40 * pservers, [0.02] * (pservers - 1) + [0.1], compute_s=0.02)
    assert share(lagging, pservers - 1) == pytest.approx(0.08 / 0.12, abs=0.02)


def test_pservers_that_are_all_slow_are_none_slower_than_the_others() -> None:
    lagging = Lagging(3)
    run_rounds(lagging, 0.0, 60, [0.5, 0.5, 0.5], move_s=0.1)
    assert share(lagging, 0) + share(lagging, 1) + share(lagging, 2) < 0.05


def test_a_trainer_that_is_slow_itself_waits_for_nobody() -> None:
    lagging = Lagging(2)
    run_rounds(lagging, 0.0, 60, [0.01, 0.1], compute_s=1.0)
    assert share(lagging, 1) < 0.1


def test_bytes_that_trickle_count_beside_late_answers() -> None:
    lagging = Lagging(2)
    now_s = 0.0
    for _ in range(20):
        lagging.moved(0, 0.05)
        lagging.moved(1, 0.45)
        now_s += 0.5
        lagging.answered(now_s)
    assert share(lagging, 1) == pytest.approx(0.8, abs=0.05)


def test_who_was_slow_and_is_not_any_more_is_forgotten() -> None:
    lagging = Lagging(2)
    now_s = run_rounds(lagging, 0.0, 100, [0.01, 0.1])
    assert share(lagging, 1) > STRAGGLES_ABOVE
    run_rounds(lagging, now_s, int(2 * WINDOW_S / 0.01) + 2, [0.01, 0.01])
    assert share(lagging, 1) < 0.05


def test_before_there_is_much_to_tell_nothing_is_told() -> None:
    lagging = Lagging(2)
    run_rounds(lagging, 0.0, 10, [0.01, 0.1])
    assert lagging.slowest() is None


def test_a_single_pserver_is_not_slower_than_others() -> None:
    lagging = Lagging(1)
    run_rounds(lagging, 0.0, 100, [1.0])
    assert lagging.slowest() is None
