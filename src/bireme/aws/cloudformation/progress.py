"""How far a stack is, from its events: what is being made, for how long, and how long that usually takes. No I/O.

The usual times are what users of EKS report, not measured by us. Nothing is ended because of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bireme.aws.cloudformation.causes import Event, explain

USUAL_S = {
    "AWS::EKS::Cluster": 600,
    "AWS::EKS::Nodegroup": 180,
    "AWS::EKS::Addon": 60,
    "AWS::EC2::NatGateway": 120,
    "AWS::EFS::MountTarget": 90,
    "AWS::EFS::FileSystem": 15,
    "AWS::IAM::Role": 20,
    "AWS::EC2::VPCEndpoint": 20,
    "AWS::Route53::HostedZone": 60,
}
"""Seconds that a type usually takes to be made; what is not here takes a few."""
QUICK_S = 15


def usual_s(kind: str) -> int:
    """How long it usually takes to make a resource."""
    return USUAL_S.get(kind, QUICK_S)


def span(seconds: float) -> str:
    """A duration for people: `45 s`, `9 min 40 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


@dataclass(frozen=True, slots=True)
class Open:
    """A resource that CloudFormation is at work on."""

    resource: str
    kind: str
    since: float

    def told(self, now: float) -> str:
        """Its name, for how long, and how long that usually takes."""
        return f"{self.resource} ({span(max(0.0, now - self.since))} of about {span(usual_s(self.kind))})"


@dataclass(slots=True)
class Progress:
    """The stacks' progress as far as events tell it."""

    open: dict[tuple[str, str], Open] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """By stack, how many resources are finished."""

    def take(self, stack: str, events: Iterable[Event]) -> list[str]:
        """Take news in; a line for each resource that is finished or has failed."""
        lines = []
        for event in events:
            if event.resource == stack:
                continue
            key = (stack, event.resource)
            if event.status.endswith("_IN_PROGRESS"):
                self.open.setdefault(key, Open(event.resource, event.kind, event.time))
                continue
            begun = self.open.pop(key, None)
            self.done[stack] = self.done.get(stack, 0) + 1
            took = f" in {span(event.time - begun.since)}" if begun else ""
            lines.append(f"{stack}  {event.resource}  {_said(event)}{took}{_why(event)}")
        return lines

    def waiting(self, now: float) -> str:
        """What is being waited for, the slowest first."""
        slowest = sorted(self.open.values(), key=lambda each: each.since + usual_s(each.kind), reverse=True)
        more = f" and {len(slowest) - 3} more" if len(slowest) > 3 else ""
        return ", ".join(each.told(now) for each in slowest[:3]) + more


_WORDS = {
    "CREATE_COMPLETE": "made",
    "DELETE_COMPLETE": "deleted",
    "UPDATE_COMPLETE": "changed",
    "DELETE_SKIPPED": "not deleted with its stack",
}


def _said(event: Event) -> str:
    return _WORDS.get(event.status, event.status)


def _why(event: Event) -> str:
    if not event.status.endswith("_FAILED") or not event.reason:
        return ""
    known = explain(event.reason)
    return f": {known.what if known else event.reason}"
