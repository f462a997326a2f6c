"""Operations on stacks: start them, and follow CloudFormation's events to the end.

CloudFormation is eventually consistent: a stack that was just created may be unknown to the next request, so what this
run has begun is looked up by its id. Waiting has no timeout of its own: CloudFormation decides when it is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, Event, failure, root_cause, to_error
from bireme.aws.cloudformation.decide import Stack
from bireme.core.errors import BiremeError, CloudError

POLL_S = (3.0, 5.0, 8.0, 12.0, 15.0)
"""Pauses between two polls of a stack; the last one repeats. A poll is two calls: at most about 30 a minute."""
UNSEEN_S = 120.0
"""How long a stack that was just created may be missing from CloudFormation's answers."""
CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"]
_NO_CHANGE = ("didn't contain changes", "No updates are to be performed")

OnEvents = Callable[[str, list[Event]], None]
"""Called with a stack's name and its new events."""


def to_stack(answer: Mapping[str, Any]) -> Stack:
    """Convert one stack of DescribeStacks' answer."""
    return Stack(
        name=answer["StackName"],
        id=answer["StackId"],
        status=answer["StackStatus"],
        reason=answer.get("StackStatusReason", ""),
        tags={tag["Key"]: tag["Value"] for tag in answer.get("Tags", ())},
        outputs={each["OutputKey"]: each["OutputValue"] for each in answer.get("Outputs", ())},
        parameters={each["ParameterKey"]: each.get("ParameterValue", "") for each in answer.get("Parameters", ())},
        created=answer.get("CreationTime"),
        is_protected=bool(answer.get("EnableTerminationProtection")),
    )


def find_stack(aws: Aws, name: str) -> Stack | None:
    """A stack by its name or id; None if there is none, which is a state and not an error."""
    try:
        answer = aws.call("cloudformation", "DescribeStacks", StackName=name)
    except AwsError as e:
        if e.is_absent:
            return None
        raise
    return to_stack(answer["Stacks"][0])


def events_of(aws: Aws, name: str, after: str = "") -> list[Event]:
    """A stack's events after the one named, oldest first; all if none is named."""
    events: list[Event] = []
    try:
        for item in aws.pages("cloudformation", "DescribeStackEvents", "StackEvents", StackName=name):
            if item["EventId"] == after:
                break
            events.append(_to_event(item))
    except AwsError as e:
        # Eventual consistency: a stack that was just created may not be found yet.
        if not e.is_absent:
            raise
    return events[::-1]


def _to_event(answer: Mapping[str, Any]) -> Event:
    return Event(
        id=answer["EventId"],
        resource=answer.get("LogicalResourceId", ""),
        kind=answer.get("ResourceType", ""),
        status=answer.get("ResourceStatus", ""),
        reason=answer.get("ResourceStatusReason", ""),
        time=answer["Timestamp"].timestamp(),
    )


def last_operation(events: list[Event], stack: str) -> list[Event]:
    """The events since the stack's last creation, update or deletion began."""
    starts = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
    begun = [i for i, event in enumerate(events) if event.resource == stack and event.status in starts]
    return events[begun[-1] :] if begun else events


@dataclass(slots=True)
class Stacks:
    """The stacks of one account and region, as one run of bireme works on them."""

    aws: Aws
    on_events: OnEvents = lambda stack, events: None
    role: str | None = None
    """CloudFormation's own role, where an administrator has created one."""
    _seen: dict[str, str] = field(default_factory=dict)
    """The last event of each stack reported."""

    def find(self, name: str) -> Stack | None:
        """A stack by its name."""
        return find_stack(self.aws, name)

    def _role(self) -> dict[str, str]:
        return {"RoleARN": self.role} if self.role else {}

    def create(
        self, name: str, body: str, parameters: Mapping[str, str], tags: Mapping[str, str], *, protects: bool
    ) -> Stack:
        """Create a stack, and wait until it is up or has failed."""
        try:
            answer = self.aws.call(
                "cloudformation",
                "CreateStack",
                StackName=name,
                TemplateBody=body,
                Parameters=_parameters(parameters),
                Tags=_tags(tags),
                Capabilities=CAPABILITIES,
                EnableTerminationProtection=protects,
                OnFailure="ROLLBACK",
                ClientRequestToken=f"bireme-{uuid.uuid4()}",
                **self._role(),
            )
        except AwsError as e:
            if e.code not in ("AlreadyExistsException", "TokenAlreadyExistsException"):
                raise
            # Created by this command, whose first answer was lost, or by another run: either way it exists now.
            made = self.follow(name)
            if dict(tags).items() <= dict(made.tags).items():
                return made
            raise
        return self.follow(answer["StackId"], name)

    def delete(self, stack: Stack) -> Stack:
        """Delete a stack, and wait until it is gone or its deletion has failed; its last state."""
        if stack.is_protected:
            self.aws.call(
                "cloudformation",
                "UpdateTerminationProtection",
                StackName=stack.name,
                EnableTerminationProtection=False,
            )
        self._mark(stack.name)
        self.aws.call("cloudformation", "DeleteStack", StackName=stack.id, **self._role())
        return self.follow(stack.id, stack.name, leaving=stack.status)

    def continue_rollback(self, stack: Stack) -> Stack:
        """Continue a roll-back that failed, and wait for its end."""
        self._mark(stack.name)
        self.aws.call("cloudformation", "ContinueUpdateRollback", StackName=stack.name, **self._role())
        return self.follow(stack.id, stack.name, leaving=stack.status)

    def _mark(self, name: str) -> None:
        """Note the last event, so that only later ones are reported."""
        past = events_of(self.aws, name)
        if past:
            self._seen[name] = past[-1].id

    def follow(self, id_: str, name: str = "", leaving: str = "") -> Stack:
        """Follow a stack until CloudFormation has finished; `leaving` is the state that it must leave first."""
        begun, looks, last = self.aws.clock.now(), 0, ""
        name = name or id_
        while True:
            stack = find_stack(self.aws, id_)
            waited = self.aws.clock.now() - begun
            if stack is not None:
                last = self._report_events(name, stack) or last
                # The status was read before the events, so it may be older. The state `leaving` is final only if the
                # events end with it too, or if the operation has not begun for a long time.
                is_settled = stack.status != leaving or last == stack.status or (not last and waited >= UNSEEN_S)
                if not stack.is_moving and is_settled:
                    return stack
            elif leaving and waited >= UNSEEN_S:
                return Stack(name, id_, "DELETE_COMPLETE")
            elif waited >= UNSEEN_S:
                raise CloudError(
                    f"CloudFormation does not list the stack {name}, though it accepted its creation",
                    fix="run the same command again",
                )
            self.aws.clock.sleep(POLL_S[min(looks, len(POLL_S) - 1)])
            looks += 1

    def _report_events(self, name: str, stack: Stack) -> str:
        """Report new events; return the stack's own state in them, empty without one."""
        events = events_of(self.aws, stack.id, self._seen.get(name, ""))
        if events:
            self._seen[name] = events[-1].id
            self.on_events(name, events)
        return next((event.status for event in reversed(events) if event.resource == stack.name), "")

    def why_failed(self, stack: Stack) -> BiremeError:
        """The root cause of a stack's last failure."""
        events = last_operation(events_of(self.aws, stack.id), stack.name)
        return failure(stack.name, root_cause(events), stack.reason or stack.status)

    def propose(
        self, stack: Stack, body: str | None, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> ChangeSet | None:
        """Create a change set; None if it changes nothing. Without a body the previous template is kept.

        Apply it with `execute`, or delete it with `forget`.
        """
        name = f"bireme-{uuid.uuid4()}"
        answer = self.aws.call(
            "cloudformation",
            "CreateChangeSet",
            StackName=stack.name,
            ChangeSetName=name,
            ChangeSetType="UPDATE",
            **({"UsePreviousTemplate": True} if body is None else {"TemplateBody": body}),
            Parameters=_parameters(parameters),
            Tags=_tags(tags),
            Capabilities=CAPABILITIES,
            ClientToken=name,
            **self._role(),
        )
        return self._read_changes(stack, answer["Id"])

    def _read_changes(self, stack: Stack, id_: str) -> ChangeSet | None:
        for look in range(1000):
            answer = self.aws.call("cloudformation", "DescribeChangeSet", ChangeSetName=id_, StackName=stack.name)
            if answer["Status"] == "CREATE_COMPLETE":
                return ChangeSet(id_, stack, tuple(self._changes(answer, stack)))
            if answer["Status"] == "FAILED":
                self.forget(ChangeSet(id_, stack, ()))
                reason = answer.get("StatusReason", "")
                if any(text in reason for text in _NO_CHANGE):
                    return None
                raise to_error(AwsError("cloudformation.CreateChangeSet", "FAILED", reason), f"change {stack.name}")
            self.aws.clock.sleep(POLL_S[min(look, len(POLL_S) - 1)])
        raise CloudError(f"CloudFormation did not finish the change set of {stack.name}", fix="try again later")

    def _changes(self, answer: Mapping[str, Any], stack: Stack) -> Iterable[Change]:
        while True:
            for each in answer.get("Changes", ()):
                change = each.get("ResourceChange", {})
                yield Change(
                    action=change.get("Action", ""),
                    resource=change.get("LogicalResourceId", ""),
                    kind=change.get("ResourceType", ""),
                    replaces=change.get("Replacement") == "True",
                    may_replace=change.get("Replacement") == "Conditional",
                )
            if not answer.get("NextToken"):
                return
            answer = self.aws.call(
                "cloudformation",
                "DescribeChangeSet",
                ChangeSetName=answer["ChangeSetId"],
                StackName=stack.name,
                NextToken=answer["NextToken"],
            )

    def execute(self, changes: ChangeSet) -> Stack:
        """Apply a change set and wait; raise the root cause if it was rolled back."""
        stack = changes.stack
        self._mark(stack.name)
        self.aws.call("cloudformation", "ExecuteChangeSet", ChangeSetName=changes.id, StackName=stack.name)
        done = self.follow(stack.id, stack.name, leaving=stack.status)
        if done.status not in ("UPDATE_COMPLETE", "CREATE_COMPLETE"):
            raise self.why_failed(done)
        return done

    def forget(self, changes: ChangeSet) -> None:
        """Delete a change set."""
        self.aws.call("cloudformation", "DeleteChangeSet", ChangeSetName=changes.id, StackName=changes.stack.name)


@dataclass(frozen=True, slots=True)
class Change:
    """A change set's effect on one resource."""

    action: str
    resource: str
    kind: str
    replaces: bool = False
    may_replace: bool = False


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes that CloudFormation would make to a stack."""

    id: str
    stack: Stack
    changes: tuple[Change, ...]


def _parameters(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
