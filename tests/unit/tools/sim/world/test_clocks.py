"""Every simulated process has clocks of its own, and clocks change nothing else that a seed says."""

from __future__ import annotations

import random
from collections import Counter
from unittest.mock import patch

import pytest
from tools.sim import history
from tools.sim.history import Outcome, run_history
from tools.sim.world.clocks import FASTEST, Clock, Clocks
from tools.sim.world.network import End, Process, World

CALM = next(seed for seed in range(100) if Clocks(seed).is_calm)
WILD = next(seed for seed in range(100) if abs(Clocks(seed).draw().rate - 1.0) > 0.01)


def world_of(seed: int) -> World:
    return World(random.Random(0), 0.0, Clocks(seed))


def run_with_clocks_of(seed: int, clocks: int) -> Outcome:
    with patch.object(history, "Clocks", lambda _: Clocks(clocks)):
        return run_history(seed)


def test_no_two_processes_have_the_same_clock() -> None:
    world = world_of(WILD)
    shown = {(p.monotonic(), p.clock.rate, p.wall()) for p in (Process(world, str(i)) for i in range(20))}
    assert len(shown) == 20


@pytest.mark.parametrize("seed", range(40))
def test_clocks_go_forward_and_not_too_fast(seed: int) -> None:
    clock = Clocks(seed).draw()
    assert clock.monotonic(0.0) >= 0.0
    assert 2.0 - FASTEST <= clock.monotonic(1.0) - clock.monotonic(0.0) <= FASTEST + 1e-6
    assert clock.rate * clock.pace == pytest.approx(1.0)


def test_a_date_that_is_set_changes_no_wait() -> None:
    clock = Clock()
    before, date = clock.monotonic(5.0), clock.wall(5.0)
    clock.set_wall(-1000.0)
    assert clock.monotonic(5.0) == before
    assert clock.wall(5.0) == date - 1000.0


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_what_a_process_does_later_it_does_by_its_own_clock(rate: float) -> None:
    world, done = world_of(CALM), []
    process = Process(world, "a")
    process.clock = Clock(7.0, rate)
    process.later(3.0, lambda: done.append((world.now, process.monotonic())))
    world.run(10.0)
    assert done == [(3.0 / rate, 10.0)]


def stopped_for_a_while(*, with_its_clock: bool) -> tuple[list[float], list[float], Process]:
    """Times of the world at which a process has done what it wanted to do after 1 s, and got mail of after 0.5 s."""
    world, done, got = world_of(CALM), [], []
    process, other = Process(world, "a"), Process(world, "b")
    here, there = End(process), End(other)
    here.peer, there.peer = there, here
    here.on_message = lambda end, message: got.append(world.now)
    process.clock = Clock()
    process.later(1.0, lambda: done.append(world.now))
    world.at(0.5, (world.suspend if with_its_clock else world.pause), process)
    world.at(0.6, there.send, "mail")
    world.at(4.5, world.wake, process)
    world.run(10.0)
    return done, got, process


def test_a_suspended_process_waits_its_usual_time() -> None:
    done, got, process = stopped_for_a_while(with_its_clock=True)
    assert done == [5.0]
    assert got == [pytest.approx(4.5, abs=0.01)]
    assert process.clock.monotonic(5.0) == pytest.approx(1.0)


def test_the_clock_of_a_paused_process_advances() -> None:
    done, got, process = stopped_for_a_while(with_its_clock=False)
    assert done == [pytest.approx(4.5, abs=0.01)]
    assert got == [pytest.approx(4.5, abs=0.01)]
    assert process.clock.monotonic(5.0) == 5.0


def test_a_suspended_process_that_is_killed_never_wakes_up() -> None:
    world, done = world_of(CALM), []
    process = Process(world, "a")
    process.later(1.0, lambda: done.append(world.now))
    world.suspend(process)
    world.kill(process, "killed")
    world.wake(process)
    world.run(10.0)
    assert not done


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_clocks_that_differ_in_display_change_nothing_else(seed: int) -> None:
    others = [other for other in range(100) if Clocks(other).is_calm][:3]
    first, *rest = [run_with_clocks_of(seed, other) for other in others]
    for again in rest:
        assert [(who, what) for _, who, what in again.trace] == [(who, what) for _, who, what in first.trace]
        assert (again.events, again.faults) == (first.events, first.faults)


def test_clocks_are_set_and_stand_still_in_some_histories() -> None:
    faults = sum((run_history(seed, None, "clocks").faults for seed in range(100, 180)), start=Counter[str]())
    assert faults["set a clock"] > 5
    assert faults["suspend"] > 5
