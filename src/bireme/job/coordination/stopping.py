"""Early stopping: a pure function of the test costs of a job's passes.

So a job ends at the same pass in every layout, also if it was killed on the way and resumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def is_over(costs: Mapping[int, float | None], stop_after: int) -> bool:
    """Whether the last `stop_after` passes have no lower test cost than one before them; 0: never.

    A cost that is not a number (None) is no better than any.
    """
    if not stop_after or not costs:
        return False
    best = min(costs, key=lambda pass_id: (_or_infinite(costs[pass_id]), pass_id))
    return max(costs) - best >= stop_after


def _or_infinite(cost: float | None) -> float:
    return math.inf if cost is None else cost


def reason_of(stop_after: int) -> str:
    """The reason in the job's final status."""
    return f"no better test cost for {stop_after} {'pass' if stop_after == 1 else 'passes'}"
