"""Random histories hold all invariants, and a seed names one history."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from tests.mutants import MUTANTS
from tools.sim.__main__ import main
from tools.sim.case import MODES, Mode, Reference, draw_shape, gradient, updated, usual_shape
from tools.sim.faults import PROFILES
from tools.sim.history import run_history


def test_the_same_seed_gives_the_same_history() -> None:
    first, again = run_history(11), run_history(11)
    assert (first.events, first.seconds, first.trace, first.faults) == (
        again.events, again.seconds, again.trace, again.faults,
    )  # fmt: skip
    assert run_history(12).trace != first.trace


@pytest.mark.parametrize("mode", MODES)
def test_random_histories_hold_all_invariants(mode: Mode) -> None:
    for seed in range(40):
        assert run_history(seed, mode).broken == ""


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_histories_of_every_profile_hold_all_invariants(profile: str) -> None:
    for seed in range(900, 920):
        assert run_history(seed, None, profile).broken == ""


def test_the_usual_jobs_reference_depends_on_all_20_rounds() -> None:
    shape = usual_shape()
    reference = Reference(shape)
    assert reference.ends == [10, 20]
    values = [reference.value(round_, lane) for round_ in range(21) for lane in range(shape.all_lanes)]
    assert len(set(values)) == len(values)


def test_a_trainers_own_state_shows_from_the_second_round_on() -> None:
    known, unknown = (Reference(replace(usual_shape(), mode=mode)) for mode in ("local", "sync"))
    assert known.value(1, 0) == unknown.value(1, 0)
    assert known.value(2, 0) != unknown.value(2, 0)


def test_histories_have_cuts_by_clock_rounds_both_and_neither() -> None:
    shapes = [draw_shape(seed, random.Random(seed), None) for seed in range(100)]
    assert len({(bool(shape.cut_every_s), bool(shape.cut_every_rounds)) for shape in shapes}) == 4
    assert {shape.mode for shape in shapes} == set(MODES)


def test_an_update_depends_on_its_terms_order_and_parameters() -> None:
    assert gradient(0, 0, 0, (1, 2)) != gradient(0, 0, 0, (2, 1))
    assert updated(0, 1, 2, 3, 0) != updated(0, 2, 1, 3, 0)
    assert updated(0, 1, None, 3, 0) != updated(0, 1, 2, 3, 0)


def test_the_command_counts_faults_and_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "5", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("5 histories in ")
    assert ", seeds 3 to 7: " in out
    assert re.search(r": [0-9.]+ a second, [0-9,]+ a minute and core; [0-9]+ faults: ", out)


def test_the_command_shows_a_broken_history_and_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    with MUTANTS["a cut holds the round before"]():
        assert main(["--histories", "50", "--mode", "async"]) == 1
    out = capsys.readouterr().out
    assert "BROKEN" in out
    assert "see it again: ./dev simulate --replay " in out
    assert out.rstrip().endswith("--mode async")
    assert "starts as incarnation" in out


def test_a_history_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "4"]) == 0
    assert "all invariants held" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seed", "mode", "profile"),
    [
        (50070475, None, "mixed"),  # what came while a process was paused was read after what came when it had woken up
        # an old coordinator, on a machine that was cut off, reached the new pserver 0 and set it up
        (40086568, None, "mixed"),
        # a coordinator of an earlier run, on a machine that was cut off, set up a pserver of the run that was resumed
        (40065468, None, "mixed"),
        (253, "async", "disk"),  # a pass was saved upon a snapshot that its writer had not synced yet
    ],
)
def test_histories_that_broke_once_hold(seed: int, mode: Mode | None, profile: str) -> None:
    assert run_history(seed, mode, profile).broken == ""
