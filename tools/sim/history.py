"""One history from its seed: the job, its faults, and whether all invariants held."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from tools.sim.case import Mode, Shape, draw_shape
from tools.sim.faults import PROFILES, FaultInjector
from tools.sim.harness import Harness
from tools.sim.world.clocks import Clocks
from tools.sim.world.network import Broken, World

from bireme.core.files import mounted

BOUND_S = 120.0
"""A job of this size must be over so long after its last fault."""


@dataclass(slots=True)
class Outcome:
    """The result of a history."""

    seed: int
    broken: str
    """The invariant that did not hold, or what crashed; '' if all is well."""
    faults: Counter[str]
    events: int
    seconds: float
    """Virtual seconds."""
    commits: int
    shape: Shape
    is_crash: bool = False
    """Whether the product or the simulator raised, rather than an invariant failed."""
    trace: list[tuple[float, str, str]] = field(default_factory=list)


def run_history(seed: int, mode: Mode | None = None, profile: str = "mixed", shape: Shape | None = None) -> Outcome:
    """Run the history that a seed names; `shape` fixes the job, which is otherwise drawn too."""
    rng = random.Random(seed)
    drawn = draw_shape(seed, rng, mode)
    shape = shape or drawn
    world = World(rng, rng.choice(PROFILES[profile].slow), Clocks(seed))
    broken, is_crash = "", False
    with mounted(world.disk):
        harness = Harness(shape, world)
        injector = FaultInjector(harness, PROFILES[profile])
        try:
            _play(world, harness, injector)
        except Broken as e:
            broken = str(e)
        except Exception as e:
            broken, is_crash = f"{type(e).__name__}: {e}", True
            world.trace.append((world.now, "the simulator", _where(e)))
    return Outcome(
        seed, broken, world.faults, world.events, world.now, harness.checks.commits, shape,
        is_crash, list(world.trace),
    )  # fmt: skip


def _play(world: World, harness: Harness, injector: FaultInjector) -> None:
    harness.start_all()
    while not world.is_over:
        until_s = injector.last_s + BOUND_S
        world.run(until_s)
        if not world.is_over and injector.last_s + BOUND_S <= until_s:
            raise Broken(f"5: nothing has failed for {BOUND_S:.0f} s, and the job is not over")
    harness.checks.end()


def _where(error: Exception) -> str:
    """The innermost place that an exception came from."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return ""
    code = place.tb_frame.f_code
    return f"in {code.co_name}, {code.co_filename.rpartition('/')[2]}:{place.tb_lineno}"
