"""A drill: strikes from outside while a job runs, and what all faults cost.

The report is computed from the job's metrics.jsonl, which has a line for each loss and each return.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bireme.core.faults import Fired
from bireme.job.status import JobStatus
from bireme.local.faults import Fault, gate


@dataclass(slots=True)
class Struck:
    """A fault that has happened."""

    fault: Fault
    unix: float
    round: int
    """The round in which it happened; for a strike from outside, that of the last status."""
    pids: list[int] = field(default_factory=list)
    is_over: bool = False


class Drill:
    """Strikes from outside while a job runs, and ends pauses."""

    def __init__(self, faults: Sequence[Fault], output: Path) -> None:
        self.faults = list(faults)
        self._job = f"--job={output / 'job.json'}".encode()
        self._begun: float | None = None
        self._waiting = {place: fault for place, fault in enumerate(faults) if fault.waits_for_drill}
        self._inside = [fault for fault in faults if fault.is_inside]
        self._seen: set[int] = set()
        self._due: set[int] = set()
        self.struck: list[Struck] = []

    def look(self, status: JobStatus, fired: Path) -> None:
        """Strike what is due by the job's status; `fired` is the directory with a file for each rule that has fired."""
        now = time.time()
        if self._begun is None and status.phase == "training":
            self._begun = now
        for number, fault in enumerate(self._inside):
            if number not in self._seen and (fired / str(number)).exists():
                self._note_inside(number, fault, fired / str(number))
        for place, fault in list(self._waiting.items()):
            if self._is_due(fault, status, now):
                self._due.add(place)
                self._strike(place, fault, status.round, fired)
        for struck in self.struck:
            if struck.fault.action == "pause" and not struck.is_over and now >= struck.unix + struck.fault.seconds:
                struck.is_over = True
                _signal(struck.pids, signal.SIGCONT)

    def _note_inside(self, number: int, fault: Fault, path: Path) -> None:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Fired)
        except (OSError, msgspec.MsgspecError):
            return  # being written
        self._seen.add(number)
        self.struck.append(Struck(fault, record.unix, record.round, [record.pid]))

    def _is_due(self, fault: Fault, status: JobStatus, now: float) -> bool:
        if self._begun is None:
            return False
        if fault.after_s is not None:
            return now >= self._begun + fault.after_s
        return fault.round is not None and status.round >= fault.round

    def _strike(self, place: int, fault: Fault, round_: int, fired: Path) -> None:
        if not fault.is_inside:
            pids = [pid for who in _targets_of(fault) for pid in self._pids(who)]
            if not pids:
                return  # it is being started again: the next look tries once more
            self.struck.append(Struck(fault, time.time(), round_, pids))
            _signal(pids, signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)
        del self._waiting[place]
        # Open the gate of this fault's own rule, or of the fault that is to hit the recovery from it.
        (fired / str(gate(self.faults, place))).touch()

    def _pids(self, who: str) -> list[int]:
        pids = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
                if self._job in words:
                    rank = next(word[7:] for word in words if word.startswith(b"--rank="))
                    name = f"{words[words.index(self._job) - 1].decode()}:{rank.decode()}"
                    if who in (name, "all"):
                        pids.append(int(entry.name))
        return pids

    @property
    def never(self) -> list[Fault]:
        """Faults that did not happen before the job ended, without those that were drawn for a moment after its end."""
        happened = {id(struck.fault) for struck in self.struck}
        missed = [place for place, fault in enumerate(self.faults) if id(fault) not in happened]
        return [self.faults[place] for place in missed if place in self._due or not self.faults[place].is_drawn]


def _targets_of(fault: Fault) -> list[str]:
    """The processes to signal: what a node has started dies with it, but is not paused with it."""
    rank = fault.who.partition(":")[2]
    is_paused_node = fault.action == "pause" and fault.role == "node"
    return [f"{role}:{rank}" for role in ("node", "pserver", "trainer")] if is_paused_node else [fault.who]


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def cost_of(struck: Sequence[Struck], metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each fault: when it happened, how long it was until the next new round, how many rounds were redone."""
    begun = next((row["unix"] for row in metrics if row.get("event") == "view"), 0.0)
    return [
        {"fault": str(one.fault), "at_s": round(one.unix - begun, 2), **_return(one, metrics)}
        for one in sorted(struck, key=lambda s: s.unix)
    ]


def _return(one: Struck, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When rounds continued after a fault, and from where."""
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
