"""A stack's progress from its events: the resources in work, for how long, and the usual time. No I/O.

The usual times are reports of EKS users, not measurements of ours; no timeout depends on them.
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
"""Usual seconds to create a type; others take a few."""
QUICK_S = 15


def usual_s(kind: str) -> int:
    """How long it usually takes to make a resource."""
    return USUAL_S.get(kind, QUICK_S)


@dataclass(frozen=True, slots=True)
class Open:
    """A resource that CloudFormation is creating, changing or deleting."""

    resource: str
    kind: str
    since: float

    def describe(self, now: float) -> str:
        """Its name, the time so far and the usual time."""
        so_far = duration(max(0.0, now - self.since), is_exact=True)
        return f"{self.resource} ({so_far} of about {duration(usual_s(self.kind), is_exact=True)})"


@dataclass(slots=True)
class StackProgress:
    """The stacks' progress, accumulated from events."""

    open: dict[tuple[str, str], Open] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """By stack, how many resources are finished."""

    def take(self, stack: str, events: Iterable[Event]) -> list[str]:
        """Take new events; return a line for each resource that is finished or has failed."""
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
            lines.append(f"{stack}  {event.resource}  {_outcome(event)}{took}{_why(event)}")
        return lines

    def waiting(self, now: float) -> str:
        """The resources in work, the slowest first."""
        slowest = sorted(self.open.values(), key=lambda each: each.since + usual_s(each.kind), reverse=True)
        return first_of([each.describe(now) for each in slowest], 3)


_OUTCOMES = {
    "CREATE_COMPLETE": "made",
    "DELETE_COMPLETE": "deleted",
    "UPDATE_COMPLETE": "changed",
    "DELETE_SKIPPED": "not deleted with its stack",
}


def _outcome(event: Event) -> str:
    return _OUTCOMES.get(event.status, event.status)


def _why(event: Event) -> str:
    if not event.status.endswith("_FAILED") or not event.reason:
        return ""
    known = explain(event.reason)
    return f": {known.what if known else event.reason}"
