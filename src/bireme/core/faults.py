"""Named fault points for drills; in normal runs each costs one comparison.

Code calls `faults.at("lane.applied", round)`. Nothing happens unless the process was armed, so a drill exercises
the product's own path. A plan is a list of rules; each names a process, a point and the action there: the
process is killed or stopped, one of its connections is cut, or it is delayed at random. A rule fires once in a
job's life, however often its process is started: the process that creates its file in the `fired` directory fires it.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Annotated, Literal, NamedTuple

import msgspec

from bireme.core.errors import UsageError


class Point(NamedTuple):
    """A place in the code where a fault can be injected."""

    who: str  # which processes pass it: any `trainer` or `pserver`, or only the one of that rank
    what: str


POINTS = {
    "push.before": Point("trainer", "a trainer is about to send a gradient"),
    "push.after": Point("trainer", "a trainer has sent its gradient, the lanes may not have applied it"),
    "lane.landed": Point("pserver", "a lane has all gradients of a round and has not applied them"),
    "lane.applied": Point("pserver", "a lane has applied a round and has answered no trainer"),
    "part.sync": Point("pserver", "a part of a snapshot is written and not synced"),
    "part.rename": Point("pserver", "a part of a snapshot is synced and does not have its name yet"),
    "snapshot.commit": Point("pserver:0", "all parts of a snapshot have their names, its manifest is not written"),
    "snapshot.load": Point("pserver:0", "the coordinator looks for the snapshot to resume from"),
    "view.set-up": Point("pserver", "a pserver is setting up its part"),
    "view.enter": Point("pserver", "a pserver is between two views"),
    "view.begin": Point("trainer", "a trainer has received a view and has no connections yet"),
    "model.saved": Point("trainer:0", "a model is on disk, the coordinator does not know it yet"),
    "write.ledger": Point("pserver:0", "a pass is about to be written into the ledger"),
}
"""All fault points but `wire.send` and `wire.receive`, where processes can only be delayed."""


class FaultRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault to inject into a process."""

    action: Literal["kill", "pause", "cut", "delay"]
    who: str = ""  # as in `pserver:1`; '' for every process
    point: str = ""
    round: int = 0  # not before this round, at points that have one
    after: int = -1  # not before this other rule has fired
    target: str = ""  # the peer to which connections are cut
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] = 5.0


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a fired rule's file."""

    pid: int
    unix: float
    round: int


_armed: Callable[[str, int], None] | None = None
_on_cut: Callable[[str], None] | None = None


def at(point: str, round_: int = 0) -> None:
    if _armed is not None:
        _armed(point, round_)


def on_cut(cut: Callable[[str], None] | None) -> None:
    global _on_cut
    _on_cut = cut


def arm(plan: str, who: str = "", fired: Path | None = None) -> None:
    """Arm the rules of `plan` for the process `who`, for the rest of its life; '' disarms all."""
    global _armed
    _armed = None
    if not plan:
        return
    rules = _parse(plan)
    delays = [_delays(rule) for rule in rules if rule.action == "delay" and rule.who in ("", who)]
    own = [(number, rule) for number, rule in enumerate(rules) if rule.action != "delay" and rule.who == who]
    seen = [0]  # the newest round, for points without one

    def strike(point: str, round_: int) -> None:
        # No lock: an update that another thread overwrites only makes a rule fire later.
        seen[0] = max(seen[0], round_)
        for delay in delays:
            delay()
        for number, rule in own:
            if rule.point == point and seen[0] >= rule.round and fired is not None:
                _fire(fired, number, rule, seen[0])

    _armed = strike


def _parse(plan: str) -> list[FaultRule]:
    """Parse rules from JSON, or from the short form of a delay for all processes: `delay:seed=7,max_ms=5`."""
    kind, _, rest = plan.partition(":")
    try:
        if kind != "delay":
            return msgspec.json.decode(plan, type=list[FaultRule])
        options = dict(part.split("=") for part in rest.split(",") if part)
        return [msgspec.convert({"action": "delay", **options}, FaultRule, strict=False)]
    except (msgspec.MsgspecError, ValueError) as e:
        raise UsageError(f"unknown fault plan {plan!r}", fix="write for example `delay:seed=7,max_ms=5`") from e


def _fire(fired: Path, number: int, rule: FaultRule, round_: int) -> None:
    if rule.after >= 0 and not (fired / str(rule.after)).exists():
        return
    # O_EXCL: exactly one of several threads, or of successive processes, fires the rule.
    try:
        fd = os.open(fired / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError:
        return  # it has fired before
    with os.fdopen(fd, "wb") as f:
        f.write(msgspec.json.encode(Fired(pid=os.getpid(), unix=time.time(), round=round_)))
    if rule.action == "cut":
        if _on_cut is not None:
            _on_cut(rule.target)
    else:
        os.kill(os.getpid(), signal.SIGKILL if rule.action == "kill" else signal.SIGSTOP)


def _delays(rule: FaultRule) -> Callable[[], None]:
    source, lock, max_s = random.Random(rule.seed), threading.Lock(), rule.max_ms / 1000

    def wait() -> None:
        with lock:
            # Most points pass at once and a few wait long, which reorders events more than equal waits would.
            pause = max_s * source.random() if source.random() < 0.25 else 0.0
        if pause:
            sleep(pause)

    return wait
