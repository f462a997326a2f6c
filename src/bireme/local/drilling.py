"""Drills: a job that is disturbed on purpose, and what that cost.

A fault names its target and its moment. At a round, a named point or during a recovery, the process itself strikes (a
rule of core.faults, exact to the instruction); after some seconds, and for whole nodes, the drill strikes from outside.
Only a trainer can cut its connections, so for a cut after some seconds the drill opens a *gate*: a file for which the
trainer's rule waits, as it might for another rule's. A fault in the recovery from a strike from outside waits too.
The report is computed from the job's metrics.jsonl, which has a line for each loss and each return.
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
from typing import Literal

import msgspec

from bireme.core.errors import UsageError
from bireme.core.faults import POINTS, Fired, Rule
from bireme.core.text import parse_duration
from bireme.job.status import JobStatus
from bireme.spec.job import Job

Action = Literal["kill", "pause", "cut"]
_WHO = re.compile(r"(trainer|pserver|node):(\d+)|coordinator|all")
_CUT = re.compile(r"(trainer:\d+)-(pserver:\d+)")
_MOMENTS = ("round", "after", "recovery")
_DEFAULT_POINT = {"trainer": "push.before", "pserver": "lane.landed"}
_RECOVERY_POINT = {"trainer": "view.begin", "pserver": "view.set-up"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is to go wrong."""

    action: Action
    who: str
    """`trainer:0`, `pserver:1`, `node:2` or `all`."""
    when: str
    """As it was written, for messages."""
    round: int | None = None
    after_s: float | None = None
    point: str = ""
    is_in_recovery: bool = False
    seconds: float = 0.0
    target: str = ""
    """The pserver to which connections are cut."""
    is_drawn: bool = False
    """Drawn at random: its moment may come after the job's end."""

    @property
    def role(self) -> str:
        """`trainer`, `pserver`, `node` or `all`."""
        return self.who.partition(":")[0]

    @property
    def is_inside(self) -> bool:
        """Whether the process strikes itself."""
        return self.action == "cut" or (self.after_s is None and self.role in _DEFAULT_POINT)

    @property
    def waits_for_drill(self) -> bool:
        """Whether the drill decides when it happens."""
        return not self.is_inside or self.after_s is not None

    def __str__(self) -> str:
        target = f" from {self.target}" if self.target else ""
        return f"{self.action} {self.who}{target} {self.when}" + (f", {self.seconds:g} s" if self.seconds else "")


def parse_seconds(text: str) -> float:
    """`10s`, `500ms`, `2m` or a plain number of seconds."""
    try:
        return parse_duration(text, " ms s m")
    except ValueError as e:
        raise UsageError(f"{text!r} is no duration", fix="write for example 10s, 500ms or 2m") from e


def parse(action: Action, text: str, job: Job) -> Fault:
    """A fault as it is written on the command line: `pserver:1@round=300`, `trainer:0@after=12s,10s`."""
    who, _, rest = text.partition("@")
    who, target = _parse_target(action, who, text)
    for one in (who, target):
        _check_rank(one, job)
    words = rest.split(",")
    lengths = [word for word in words if word[:1].isdigit()] if action == "pause" else []
    seconds = parse_seconds(lengths[0]) if lengths else 10.0 if action == "pause" else 0.0
    moment = [word for word in words if word not in lengths]
    return _with_moment(Fault(action, who, "@" + ",".join(moment), seconds=seconds, target=target), moment, text)


def _parse_target(action: Action, who: str, text: str) -> tuple[str, str]:
    """The process that a fault hits, and for a cut the pserver that it is cut off from."""
    match = _CUT.fullmatch(who) if action == "cut" else _WHO.fullmatch(who)
    if not match or "@" not in text:
        raise UsageError(
            f"--{action} {text!r} is not understood",
            fix="write WHO@WHEN, as pserver:1@round=300 or trainer:0@after=12s; a cut is trainer:0-pserver:1@WHEN",
        )
    if action == "cut":
        return match[1], match[2]
    return ("pserver:0" if who == "coordinator" else who), ""


def _check_rank(who: str, job: Job) -> None:
    role, _, rank = who.partition(":")
    count = {"trainer": job.trainers, "pserver": job.pservers, "node": job.nodes}.get(role)
    if count is not None and int(rank) >= count:
        raise UsageError(f"there is no {role} {rank}: the job has {role}s 0 to {count - 1}")


def _with_moment(fault: Fault, words: Sequence[str], text: str) -> Fault:
    options = dict(word.partition("=")[::2] for word in words)
    _check_moment(fault, options, text)
    point = options.get("point", "")
    if "recovery" in options:
        return replace(fault, point=point or _RECOVERY_POINT[fault.role], is_in_recovery=True)
    if "after" in options:
        return replace(fault, after_s=parse_seconds(options["after"]), point=_DEFAULT_POINT.get(fault.role, ""))
    return replace(fault, point=point or _DEFAULT_POINT.get(fault.role, ""), round=int(options.get("round", 0)))


def _check_moment(fault: Fault, options: dict[str, str], text: str) -> None:
    """Refuse a moment that never comes, or options that would be ignored."""
    point = options.get("point")
    moments = [key for key in options if key in _MOMENTS]
    if point is not None and point not in POINTS:
        raise UsageError(f"there is no fault point {point!r}", fix=f"known: {', '.join(POINTS)}")
    if point is not None and fault.role in _DEFAULT_POINT and POINTS[point].who not in (fault.who, fault.role):
        named = POINTS[point].who.replace("pserver:0", "the coordinator")
        raise UsageError(
            f"{fault.who} never passes {point}: only {named} does",
            fix="`bireme drill --points` lists which process passes which point",
        )
    if not moments and point is None:
        raise UsageError(f"{text!r} does not say when", fix="add @round=N, @after=SECONDS, @recovery or @point=NAME")
    odd = [key for key in options if key not in (*_MOMENTS, "point")]
    if odd or options.get("recovery") or not options.get("round", "0").isdecimal():
        fix = "WHEN is round=N, after=SECONDS, recovery or point=NAME; a pause may go on with its length, as in ,10s"
        raise UsageError(f"{text!r} is not understood", fix=fix)
    if len(moments) > 1 or (point is not None and "after" in options):
        raise UsageError(
            f"{text!r} names several moments",
            fix="give one of round=N, after=SECONDS and recovery; after=SECONDS goes without point=NAME",
        )
    if fault.role not in _DEFAULT_POINT and (point is not None or "recovery" in options):
        raise UsageError(
            f"{fault.who} cannot be struck at {'a point' if point is not None else 'a recovery'}",
            why="only a trainer or a pserver passes points of the code, and those of a recovery are among them",
            fix="name a trainer or a pserver, or a moment with round=N or after=SECONDS",
        )


def check_recoveries(faults: Sequence[Fault]) -> None:
    """Refuse a first fault that is to hit a recovery: there would be none."""
    if faults and faults[0].is_in_recovery:
        raise UsageError(
            f"{faults[0]}: there is no fault before it to recover from",
            fix="name that one first, as in --kill pserver:1@round=300 --kill pserver:0@recovery",
        )


def at_random(job: Job, seed: int, mtbf_s: float, count: int) -> list[Fault]:
    """Faults of any process at any moment, `mtbf_s` apart on average; the same for the same seed."""
    source, now, faults = random.Random(seed), 0.0, []
    for _ in range(count):
        now += source.expovariate(1.0 / mtbf_s)
        role = source.choices(("trainer", "pserver", "node", "all"), (5, 5, 2, 1))[0]
        rank = source.randrange({"trainer": job.trainers, "pserver": job.pservers, "node": job.nodes}.get(role, 1))
        action: Action = "pause" if role in ("trainer", "pserver") and source.random() < 0.2 else "kill"
        who = role if role == "all" else f"{role}:{rank}"
        pause_s = round(source.uniform(0.5, 5.0), 1) if action == "pause" else 0.0
        faults.append(Fault(action, who, f"@after={now:.1f}s", after_s=now, seconds=pause_s, is_drawn=True))
    return faults


def plan_of(faults: Sequence[Fault]) -> str:
    """The rules for those faults that processes bring on themselves, in the faults' order; '' for none."""
    numbers = _rule_numbers(faults)
    rules = [
        Rule(
            action=fault.action,
            who=fault.who,
            point=fault.point,
            round=fault.round or 0,
            after=_awaited(faults, place, numbers),
            target=fault.target,
        )
        for place, fault in enumerate(faults)
        if fault.is_inside
    ]
    return msgspec.json.encode(rules).decode() if rules else ""


def _rule_numbers(faults: Sequence[Fault]) -> dict[int, int]:
    """The number of each rule, by the place of its fault among all."""
    inside = [place for place, fault in enumerate(faults) if fault.is_inside]
    return {place: number for number, place in enumerate(inside)}


def _gate(faults: Sequence[Fault], place: int) -> int:
    """The number of the file that lets a waiting rule fire: one that no rule has."""
    return len(_rule_numbers(faults)) + place


def _awaited(faults: Sequence[Fault], place: int, numbers: dict[int, int]) -> int:
    """What a fault's rule waits for: another rule's number, a gate, or -1 for nothing."""
    if faults[place].is_in_recovery:  # from the fault before this one
        return numbers[place - 1] if place - 1 in numbers else _gate(faults, place - 1)
    return _gate(faults, place) if faults[place].waits_for_drill else -1


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
        if not fault.is_inside and not self._hit(fault, round_):
            return  # it is being started again: the next look tries once more
        del self._waiting[place]
        # Open the gate of this fault's own rule, or of the fault that is to hit the recovery from it.
        (fired / str(_gate(self.faults, place))).touch()

    def _hit(self, fault: Fault, round_: int) -> bool:
        """Signal the processes that a fault targets; returns whether there were any."""
        pids = [pid for who in _targets_of(fault) for pid in self._pids(who)]
        if pids:
            self.struck.append(Struck(fault, time.time(), round_, pids))
            _signal(pids, signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)
        return bool(pids)

    def _pids(self, who: str) -> list[int]:
        """Ids of this job's processes that `who` names."""
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
