"""Named places where a drill may interfere; in normal runs each costs one comparison.

Code calls `faults.at("wire.send")`. Nothing happens unless the process was armed, so the
product's own path is what a drill exercises. A plan is text, `delay:seed=7,max_ms=5`, and the
same seed gives each process the same sequence of delays.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable

from bireme.core.errors import UsageError

_armed: Callable[[str], None] | None = None


def at(point: str) -> None:
    """Pass a named fault point."""
    if _armed is not None:
        _armed(point)


def arm(plan: str) -> None:
    """Turn on the faults that `plan` describes for the rest of this process's life; '' turns them off."""
    global _armed
    if not plan:
        _armed = None
        return
    kind, _, rest = plan.partition(":")
    try:
        options = {k: float(v) for k, v in (part.split("=") for part in rest.split(",") if part)}
    except ValueError:
        options = {"?": 0.0}
    is_sane = all(math.isfinite(v) and v >= 0 for v in options.values())
    if kind != "delay" or not is_sane or not set(options) <= {"seed", "max_ms"}:
        raise UsageError(f"unknown fault plan {plan!r}", fix="write for example `delay:seed=7,max_ms=5`")
    _armed = _delays(int(options.get("seed", 0)), options.get("max_ms", 5.0) / 1000)


def _delays(seed: int, max_s: float) -> Callable[[str], None]:
    source, lock = random.Random(seed), threading.Lock()

    def wait(point: str) -> None:
        with lock:
            # Most points pass at once and a few wait long: orders change more than with equal waits.
            pause = max_s * source.random() if source.random() < 0.25 else 0.0
        if pause:
            time.sleep(pause)

    return wait
