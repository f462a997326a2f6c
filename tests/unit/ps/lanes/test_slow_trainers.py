from __future__ import annotations

from collections.abc import Sequence

import pytest

from bireme.ps.lanes.slow_trainers import STRAGGLES_ABOVE, WINDOW_S, Slowest, SlowTrainers
from bireme.ps.lanes.stream import LaneStream

UPDATE_S = 0.01
"""What a lane takes to apply a round."""


def run_rounds(waiting: SlowTrainers, now_s: float, count: int, *takes_s: float) -> float:
    """Rounds in which each trainer takes so long to push; returns when the last one closes."""
    for _ in range(count):
        for trainer, after_s in sorted(enumerate(takes_s), key=lambda one: one[1]):
            waiting.landed(trainer, now_s + after_s)
        waiting.closed(now_s + max(takes_s))
        now_s += max(takes_s) + UPDATE_S
    return now_s - UPDATE_S


def shares(found: Slowest | None) -> tuple[int, float]:
    assert found is not None
    return found.rank, round(found.share, 2)


def test_a_trainer_ten_times_slower_in_short_rounds_is_found() -> None:
    waiting = SlowTrainers()
    now_s = run_rounds(waiting, 1000.0, 40, 0.05, 0.5, 0.04)
    # All others are there after 0.05 s of 0.51 s.
    assert shares(waiting.slowest(now_s, [])) == (1, 0.88)


def test_of_trainers_of_one_speed_none_is_a_straggler() -> None:
    waiting, now_s = SlowTrainers(), 0.0
    for number in range(300):
        takes_s = [0.1, 0.1, 0.1]
        takes_s[number % 3] += 0.02
        now_s = run_rounds(waiting, now_s + UPDATE_S, 1, *takes_s)
    found = waiting.slowest(now_s, [])
    assert found is not None and found.share < 0.1


def test_one_with_twice_the_work_is_just_no_straggler() -> None:
    waiting = SlowTrainers()
    now_s = run_rounds(waiting, 0.0, 100, 0.1, 0.2)
    found = waiting.slowest(now_s, [])
    assert found is not None and 0.4 < found.share < STRAGGLES_ABOVE


def test_of_a_trainer_with_several_pushes_the_last_one_counts() -> None:
    waiting = SlowTrainers()
    for number in range(20):
        for trainer, after_s in ((1, 0.1), (0, 0.2), (1, 0.3), (1, 0.9)):
            waiting.landed(trainer, number + after_s)
        waiting.closed(number + 0.9)
    assert shares(waiting.slowest(19.9, [])) == (1, 0.7)


def test_who_was_slow_is_forgotten_when_it_is_no_more() -> None:
    waiting = SlowTrainers()
    now_s = run_rounds(waiting, 0.0, 20, 0.05, 0.5)
    assert shares(waiting.slowest(now_s, []))[1] > STRAGGLES_ABOVE
    now_s = run_rounds(waiting, now_s + UPDATE_S, 200, 0.05, 0.05)
    assert waiting.slowest(now_s, []) is None


def test_few_samples_name_no_laggard() -> None:
    waiting = SlowTrainers()
    assert waiting.slowest(50.0, []) is None
    now_s = run_rounds(waiting, 0.0, 9, 0.05, 0.5)
    assert now_s < WINDOW_S
    assert waiting.slowest(now_s, []) is None


def test_the_open_round_counts_where_it_lacks_one_trainer_only() -> None:
    waiting = SlowTrainers()
    now_s = run_rounds(waiting, 0.0, 60, 0.1, 0.1, 0.1)
    waiting.landed(0, now_s + 0.1)
    assert waiting.slowest(now_s + 9, [1, 2]) is None
    waiting.landed(2, now_s + 0.1)
    found = waiting.slowest(now_s + 9, [1])
    assert found is not None and found.rank == 1 and found.share > STRAGGLES_ABOVE


def test_what_passes_between_passes_counts_for_none() -> None:
    waiting, now_s = SlowTrainers(), 0.0
    for _ in range(10):
        now_s = run_rounds(waiting, now_s, 10, 0.1, 0.1)
        waiting.rest()
        # Trainer 0 tests and saves for a while, then the first round of the next pass waits for it.
        now_s = run_rounds(waiting, now_s, 1, 5.0, 0.1)
    found = waiting.slowest(now_s, [])
    assert found is None or found.share < 0.1


def test_a_view_begins_without_the_past() -> None:
    waiting = SlowTrainers()
    now_s = run_rounds(waiting, 0.0, 100, 0.05, 0.5)
    waiting.forget()
    assert waiting.slowest(now_s + 100, [1]) is None


def test_a_single_trainer_waits_for_none() -> None:
    waiting = SlowTrainers()
    assert waiting.slowest(run_rounds(waiting, 0.0, 100, 0.5), [0]) is None


def stream(next_q: Sequence[int], staleness: int | None, ended: Sequence[int] = ()) -> LaneStream:
    made = LaneStream(len(next_q), 4, job=1, view=1, staleness=staleness)
    made.next_q, made.ended = list(next_q), set(ended)
    return made


@pytest.mark.parametrize(
    ("next_q", "ended", "staleness", "found"),
    [
        ([0, 0, 0], (), None, None),
        ([9, 3, 10], (), None, None),
        ([10, 3, 10], (), None, (1, 7)),
        ([60, 12, 70], (), None, (1, 48)),
        ([60, 12, 40], (2,), None, (1, 28)),
        ([60, 12, 3], (2,), None, None),
        ([4, 2, 4], (), 2, None),
        ([5, 2, 5], (), 2, (1, 3)),
        ([5, 2, 4], (), 2, None),
        ([5, 2, 2], (2,), 2, (1, 3)),
        ([5, 2, 5], (0, 2), 2, None),
        ([1, 0, 1], (), 0, (1, 1)),
    ],
)
def test_a_laggard_is_far_behind_all_others(
    next_q: list[int], ended: tuple[int, ...], staleness: int | None, found: tuple[int, int] | None
) -> None:
    assert stream(next_q, staleness, ended).laggard([0, 1, 2]) == found


def test_a_laggard_is_judged_by_its_last_shard() -> None:
    assert stream([50, 20, 55, 54], None).laggard([0, 0, 1, 1]) == (0, 34)
    assert stream([50, 20, 55, 54], None).laggard([0, 0, 0, 0]) is None


def test_without_rounds_the_time_between_updates_counts() -> None:
    waiting = SlowTrainers()
    for number in range(60):
        # The others push at once and then wait for 0.2 s until trainer 2 does.
        waiting.updated(0.25 * number, lambda: 2)
        waiting.updated(0.25 * number + 0.0005, lambda: pytest.fail("so short a wait was counted"))
        waiting.updated(0.25 * number + 0.05, lambda: None)
    assert shares(waiting.slowest(15.0, [2])) == (2, 0.8)
