"""Drills: a job that is disturbed on purpose, and what that cost.

A fault is named by whom it hits and when. At a round, a named point or during a recovery, the process itself strikes (a
rule of core.faults, exact to the instruction); after some seconds, and for whole nodes, the drill strikes from outside.
Everything that the report says is read from what the job wrote: metrics.jsonl has a line for each loss and each return.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from bireme.core.errors import UsageError
from bireme.core.faults import POINTS, Fired, Rule
from bireme.spec.job import Job

Action = Literal["kill", "pause", "cut"]
_WHO = re.compile(r"(trainer|pserver|node):(\d+)|coordinator|all")
_DEFAULT_POINT = {"trainer": "push.before", "pserver": "lane.landed"}
_RECOVERY_POINT = {"trainer": "view.begin", "pserver": "view.set-up"}
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is to go wrong."""

    action: Action
    who: str
    """`trainer:0`, `pserver:1`, `node:2` or `all`."""
    when: str
    """As it was asked for, for people."""
    round: int | None = None
    after_s: float | None = None
    point: str = ""
    is_in_recovery: bool = False
    seconds: float = 0.0
    target: str = ""

    @property
    def is_inside(self) -> bool:
        """Whether the process strikes itself."""
        return self.after_s is None and self.who.partition(":")[0] in ("trainer", "pserver")

    def __str__(self) -> str:
        target = f" from {self.target}" if self.target else ""
        return f"{self.action} {self.who}{target} {self.when}" + (f", {self.seconds:g} s" if self.seconds else "")


def parse_seconds(text: str) -> float:
    """`10s`, `500ms`, `2m` or a plain number of seconds."""
    found = _SECONDS.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{text!r} is no duration", fix="write for example 10s, 500ms or 2m")
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}[found[2]]


def parse(action: Action, text: str, job: Job) -> Fault:
    """A fault as it is written on the command line: `pserver:1@round=300`, `trainer:0@after=12s,10s`."""
    who, at, rest = text.partition("@")
    who, _, target = who.partition("-")
    if not at or not _WHO.fullmatch(who) or (action == "cut") != bool(target):
        raise UsageError(
            f"--{action} {text!r} is not understood",
            fix="write WHO@WHEN, as pserver:1@round=300 or trainer:0@after=12s; a cut is trainer:0-pserver:1@WHEN",
        )
    if who == "coordinator":
        who = "pserver:0"
    for one in (who, target):
        _check_rank(one, job)
    options = dict(part.partition("=")[::2] for part in rest.split(","))
    durations = [parse_seconds(key) for key in options if _SECONDS.fullmatch(key)]
    seconds = durations[0] if durations else 10.0 if action == "pause" else 0.0
    when = "@" + ",".join(part for part in rest.split(",") if not _SECONDS.fullmatch(part))
    return _with_moment(Fault(action, who, when, seconds=seconds, target=target), options, text)


def _check_rank(who: str, job: Job) -> None:
    role, _, rank = who.partition(":")
    count = {"trainer": job.trainers, "pserver": job.pservers, "node": job.nodes}.get(role)
    if count is not None and int(rank) >= count:
        raise UsageError(f"there is no {role} {rank}: the job has {role}s 0 to {count - 1}")


def _with_moment(fault: Fault, options: dict[str, str], text: str) -> Fault:
    role = fault.who.partition(":")[0]
    point = options.get("point", "")
    if point and point not in POINTS:
        raise UsageError(f"there is no fault point {point!r}", fix=f"known: {', '.join(POINTS)}")
    if "recovery" in options:
        return replace(fault, point=point or _RECOVERY_POINT.get(role, ""), is_in_recovery=True)
    if "after" in options:
        return replace(fault, after_s=parse_seconds(options["after"]))
    if options.get("round", "").isdecimal() or point:
        return replace(fault, point=point or _DEFAULT_POINT.get(role, ""), round=int(options.get("round") or 0))
    raise UsageError(f"{text!r} does not say when", fix="add @round=N, @after=SECONDS, @recovery or @point=NAME")


def at_random(job: Job, seed: int, mtbf_s: float, count: int) -> list[Fault]:
    """Faults of any process at any moment, `mtbf_s` apart on average; the same for the same seed."""
    source, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now += source.expovariate(1.0 / mtbf_s)
        role = source.choices(("trainer", "pserver", "node", "all"), (5, 5, 2, 1))[0]
        rank = source.randrange({"trainer": job.trainers, "pserver": job.pservers, "node": job.nodes}.get(role, 1))
        action: Action = "pause" if role in ("trainer", "pserver") and source.random() < 0.2 else "kill"
        who = role if role == "all" else f"{role}:{rank}"
        pause_s = round(source.uniform(0.5, 5.0), 1) if action == "pause" else 0.0
        found.append(Fault(action, who, f"@after={now:.1f}s", after_s=now, seconds=pause_s))
    return found


def plan_of(faults: Sequence[Fault]) -> str:
    """The rules for those faults that processes bring on themselves, in the faults' order; '' for none."""
    inside = [fault for fault in faults if fault.is_inside]
    rules: list[Rule] = []
    for fault in inside:
        # In a recovery: in the one that the fault before this one has caused.
        after = len(rules) - 1 if fault.is_in_recovery else -1
        rules.append(
            Rule(
                action=fault.action,
                who=fault.who,
                point=fault.point,
                round=fault.round or 0,
                after=after,
                target=fault.target,
            )
        )
    return msgspec.json.encode(rules).decode() if rules else ""


@dataclass(slots=True)
class Struck:
    """A fault that has happened."""

    fault: Fault
    unix: float
    round: int
    """As far as is known the round in which it happened."""
    pids: list[int] = field(default_factory=list)
    is_over: bool = False


class Drill:
    """Strikes from outside while a job runs, and ends pauses."""

    def __init__(self, faults: Sequence[Fault], output: Path) -> None:
        self.faults = list(faults)
        self._job = f"--job={output / 'job.json'}".encode()
        self._begun: float | None = None
        self._waiting = [fault for fault in faults if not fault.is_inside]
        self._inside = [fault for fault in faults if fault.is_inside]
        self._seen: set[int] = set()
        self.struck: list[Struck] = []

    def look(self, status: dict[str, Any], fired: Path) -> None:
        """Do what is due, given the job's status and the directory where rules leave word."""
        now = time.time()
        if self._begun is None and status.get("phase") == "training":
            self._begun = now
        for number, fault in enumerate(self._inside):
            if number not in self._seen and (fired / str(number)).exists():
                self._note_inside(number, fault, fired / str(number))
        for fault in list(self._waiting):
            if self._is_due(fault, status, now):
                self._strike(fault, int(status.get("round", 0)))
        for struck in self.struck:
            if struck.fault.action == "pause" and not struck.is_over and now >= struck.unix + struck.fault.seconds:
                struck.is_over = True
                _signal(struck.pids, signal.SIGCONT)

    def _note_inside(self, number: int, fault: Fault, path: Path) -> None:
        try:
            said = msgspec.json.decode(path.read_bytes(), type=Fired)
        except (OSError, msgspec.MsgspecError):
            return  # being written
        self._seen.add(number)
        self.struck.append(Struck(fault, said.unix, said.round, [said.pid]))

    def _is_due(self, fault: Fault, status: dict[str, Any], now: float) -> bool:
        if self._begun is None:
            return False
        if fault.after_s is not None:
            return now >= self._begun + fault.after_s
        return fault.round is not None and int(status.get("round", 0)) >= fault.round

    def _strike(self, fault: Fault, round_: int) -> None:
        pids = self._pids(fault.who)
        if not pids:
            return  # it is being started again: in a moment
        self._waiting.remove(fault)
        self.struck.append(Struck(fault, time.time(), round_, pids))
        _signal(pids, signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)

    def _pids(self, who: str) -> list[int]:
        """The processes of this job that are meant."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
                if self._job in words:
                    rank = next(word[7:] for word in words if word.startswith(b"--rank="))
                    name = f"{words[words.index(self._job) - 1].decode()}:{rank.decode()}"
                    if who in (name, "all"):
                        found.append(int(entry.name))
        return found

    @property
    def never(self) -> list[Fault]:
        """Faults that did not happen before the job ended."""
        happened = [id(struck.fault) for struck in self.struck]
        return [fault for fault in self.faults if id(fault) not in happened]


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
