"""Faults of a drill: what is to go wrong, when, and the rules for processes that strike themselves.

A fault names its target and its moment. At a round, a named point or during a recovery, the process itself strikes (a
rule of core.faults, exact to the instruction); after some seconds, and for whole nodes, the drill strikes from outside.
Only a trainer can cut its connections, so for a cut after some seconds the drill opens a *gate*: a file for which the
trainer's rule waits, as it might for another rule's. A fault in the recovery from a strike from outside waits too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from bireme.core.errors import UsageError
from bireme.core.faults import POINTS, FaultRule
from bireme.core.text import parse_duration
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
        return self.who.partition(":")[0]

    @property
    def is_inside(self) -> bool:
        return self.action == "cut" or (self.after_s is None and self.role in _DEFAULT_POINT)

    @property
    def waits_for_drill(self) -> bool:
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
        fix = "write WHO@WHEN, as pserver:1@round=300 or trainer:0@after=12s; a cut is trainer:0-pserver:1@WHEN"
        raise UsageError(f"--{action} {text!r} is not understood", fix=fix)
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
        fix = "`bireme drill --points` lists which process passes which point"
        raise UsageError(f"{fault.who} never passes {point}: only {named} does", fix=fix)
    if not moments and point is None:
        raise UsageError(f"{text!r} does not say when", fix="add @round=N, @after=SECONDS, @recovery or @point=NAME")
    odd = [key for key in options if key not in (*_MOMENTS, "point")]
    if odd or options.get("recovery") or not options.get("round", "0").isdecimal():
        fix = "WHEN is round=N, after=SECONDS, recovery or point=NAME; a length may follow a pause, as in ,10s"
        raise UsageError(f"{text!r} is not understood", fix=fix)
    if len(moments) > 1 or (point is not None and "after" in options):
        fix = "give one of round=N, after=SECONDS and recovery; after=SECONDS goes without point=NAME"
        raise UsageError(f"{text!r} names several moments", fix=fix)
    if fault.role not in _DEFAULT_POINT and (point is not None or "recovery" in options):
        raise UsageError(
            f"{fault.who} cannot be struck at {'a point' if point is not None else 'a recovery'}",
            why="only a trainer or a pserver passes points of the code, and those of a recovery are among them",
            fix="name a trainer or a pserver, or a moment with round=N or after=SECONDS",
        )


def check_recoveries(faults: Sequence[Fault]) -> None:
    if faults and faults[0].is_in_recovery:
        fix = "name that one first, as in --kill pserver:1@round=300 --kill pserver:0@recovery"
        raise UsageError(f"{faults[0]}: there is no fault before it to recover from", fix=fix)


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
    inside = [place for place, fault in enumerate(faults) if fault.is_inside]
    numbers = {place: number for number, place in enumerate(inside)}
    rules = [
        FaultRule(
            action=fault.action,
            who=fault.who,
            point=fault.point,
            round=fault.round or 0,
            after=_awaited(faults, place, numbers),
            target=fault.target,
        )
        for place, fault in ((place, faults[place]) for place in inside)
    ]
    return msgspec.json.encode(rules).decode() if rules else ""


def gate(faults: Sequence[Fault], place: int) -> int:
    """The number of the file that lets a waiting rule fire: one that no rule has."""
    return sum(fault.is_inside for fault in faults) + place


def _awaited(faults: Sequence[Fault], place: int, numbers: dict[int, int]) -> int:
    """What a fault's rule waits for: another rule's number, a gate, or -1 for nothing."""
    if faults[place].is_in_recovery:  # from the fault before this one
        return numbers.get(place - 1, gate(faults, place - 1))
    return gate(faults, place) if faults[place].waits_for_drill else -1
