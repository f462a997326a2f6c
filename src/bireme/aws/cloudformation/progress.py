"""How far a stack is, from its events: what is being made, for how long, and how long that usually takes. No I/O.

The usual times are what users of EKS report, not measured by us. Nothing is ended because of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bireme.aws.cloudformation.causes import Event, explain
from bireme.core.text import duration, first_of

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


@dataclass(frozen=True, slots=True)
class Open:
    """A resource that CloudFormation is at work on."""

    resource: str
    kind: str
    since: float

    def told(self, now: float) -> str:
        """Its name, for how long, and how long that usually takes."""
        so_far = duration(max(0.0, now - self.since), is_exact=True)
        return f"{self.resource} ({so_far} of about {duration(usual_s(self.kind), is_exact=True)})"


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
            took = f" in {duration(event.time - begun.since, is_exact=True)}" if begun else ""
            lines.append(f"{stack}  {event.resource}  {_said(event)}{took}{_why(event)}")
        return lines

    def waiting(self, now: float) -> str:
        """What is being waited for, the slowest first."""
        slowest = sorted(self.open.values(), key=lambda each: each.since + usual_s(each.kind), reverse=True)
        return first_of([each.told(now) for each in slowest], 3)


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
