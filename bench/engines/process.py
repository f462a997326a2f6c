"""What every process of a measured run shares: its task, its clock, its costs, and how it answers.

A process gets one JSON argument (`Task`) and answers with one JSON file, because libraries print
what they like. Trainer 0 reads the processor time of the whole family from /proc just before and
after the timed steps, so costs belong to the same steps as the figure.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Task:
    """What one process is to do."""

    role: str
    rank: int
    work: str
    warmup: int
    steps: int
    ports: list[int]
    """One free port for each server, then a few spare ones."""
    root: int
    """The process that started the whole family."""
    answer: str
    """Where to write the answer."""
    folder: str
    """A short-named folder that is removed after the run."""
    options: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As one argument."""
        return json.dumps(asdict(self))

    @property
    def total(self) -> int:
        """Steps in all, those that are not timed included."""
        return self.warmup + self.steps


def begin() -> Task:
    """Read the task, end with the process that gave it, and carry the role as the process's name."""
    task = Task(**json.loads(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != task.root:
        raise SystemExit("the bench is gone")
    call_me(f"{task.role}-{task.rank}")
    return task


def call_me(name: str) -> None:
    """Name this process, so that costs can be counted by role."""
    Path("/proc/self/comm").write_text(name[:15], encoding="ascii")


def answer(task: Task, result: dict[str, Any]) -> None:
    """Say how it went; the file appears whole or not at all."""
    target = Path(task.answer)
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.rename(target)


def time_steps(
    task: Task, step: Callable[[int], object], prepare: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Do all steps, and time each after the warm-up; step k is called as step(k).

    `prepare` runs before each step, untimed: some engines write over the gradient that they are given.
    """
    for index in range(task.warmup):
        prepare()
        step(index)
    before = family_costs(task.root) if task.rank == 0 else {}
    seconds = []
    for index in range(task.warmup, task.total):
        prepare()
        begun = time.perf_counter()
        step(index)
        seconds.append(time.perf_counter() - begun)
    timing: dict[str, Any] = {"median_s": statistics.median(seconds), "timed_s": sum(seconds), "steps": len(seconds)}
    if task.rank == 0:
        timing["processes"] = costs_between(before, family_costs(task.root), task.steps)
    return timing


def family_costs(root: int) -> dict[int, dict[str, Any]]:
    """Name, processor seconds and memory of every process that descends from `root`, itself left out."""
    known = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (read := _read_process(entry)) is not None:
            known[int(entry.name)] = read
    mine = {root}
    while more := {pid for pid, read in known.items() if read["parent"] in mine} - mine:
        mine |= more
    return {pid: known[pid] for pid in mine - {root}}


def _read_process(entry: Path) -> dict[str, Any] | None:
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        status = (entry / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # it ended while we looked
    rest = stat.rpartition(")")[2].split()
    sizes = {key: line.split()[1] for line in status.splitlines() if (key := line.partition(":")[0]) in _SIZES}
    return {
        "name": stat[stat.index("(") + 1 : stat.rindex(")")],
        "parent": int(rest[1]),
        "cpu_s": (int(rest[11]) + int(rest[12])) / _TICKS,
        "rss_mb": round(int(sizes.get("VmRSS", "0")) / 1024, 1),
        "anon_mb": round(int(sizes.get("RssAnon", "0")) / 1024, 1),
    }


_SIZES = ("VmRSS", "RssAnon")


def costs_between(before: dict[int, Any], after: dict[int, Any], steps: int) -> list[dict[str, Any]]:
    """What each process spent per step, and the most memory it held at the two looks.

    At the second look the other trainer may be done already, and have given its memory back.
    """
    found = []
    for pid, read in sorted(after.items(), key=lambda item: item[1]["name"]):
        first = before.get(pid, {"cpu_s": 0.0, "rss_mb": 0.0, "anon_mb": 0.0})
        held = {key: max(read[key], first[key]) for key in ("rss_mb", "anon_mb")}
        found.append(
            {"name": read["name"], "cpu_s_per_step": round((read["cpu_s"] - first["cpu_s"]) / steps, 6), **held}
        )
    return found
