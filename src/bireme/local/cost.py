"""What a drill's faults cost, from the lines that the job left in metrics.jsonl. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bireme.local.drilling import Struck


def cost_of(struck: Sequence[Struck], metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each fault: when it happened, how long it was until the next new round, how many rounds were redone."""
    begun = next((row["unix"] for row in metrics if row.get("event") == "view"), 0.0)
    costs = []
    for one in sorted(struck, key=lambda s: s.unix):
        cost: dict[str, Any] = {"fault": str(one.fault), "at_s": round(one.unix - begun, 2)}
        cost |= _return(one, metrics)
        costs.append(cost)
    return costs


def _return(one: Struck, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When rounds went on after a fault, and from where."""
    later = [row for row in metrics if row.get("unix", 0.0) >= one.unix]
    lost = next((row for row in later if row.get("event") == "lost"), None)
    back = next((row for row in later if row.get("event") == "recovered"), None)
    if back is None or (one.fault.action == "pause" and (lost is None or lost["unix"] > one.unix + one.fault.seconds)):
        # No process was declared lost, or only after the pause: the others have waited.
        return {"back_s": None, "redone": 0}
    view = next((row for row in reversed(later) if row.get("event") == "view" and row["unix"] <= back["unix"]), None)
    redone = _taken_back(one, view, metrics) + 1 if view is not None and view["kind"] == "rewind" else 1
    return {"back_s": round(back["unix"] - one.unix, 2), "redone": redone, "kind": view["kind"] if view else ""}


def _taken_back(one: Struck, view: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> int:
    """Rounds that were done since the view before this one, and that this one begins before."""
    before = [row for row in metrics if row["unix"] < view["unix"]]
    last = max((place for place, row in enumerate(before) if row["event"] == "view"), default=0)
    reached = [row["round"] for row in before[last:] if row["event"] == "progress"]
    if reached or one.fault.is_inside:  # a strike from outside carries the round of an older status
        reached.append(one.round)
    return max(max(reached, default=0) - int(view["round"]), 0)


def summary(costs: Sequence[dict[str, Any]], undisturbed_s: float | None, disturbed_s: float) -> dict[str, Any]:
    """Medians over all faults, and the share of the time that was not lost."""
    back = [row["back_s"] for row in costs if row["back_s"] is not None]
    return {
        "faults": len(costs),
        "back_s_median": round(statistics.median(back), 2) if back else None,
        "back_s_worst": max(back, default=None),
        "redone": sum(row["redone"] for row in costs),
        "goodput": round(min(undisturbed_s / disturbed_s, 1.0), 4) if undisturbed_s and disturbed_s else None,
    }
