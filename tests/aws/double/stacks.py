"""The stack engine: create, update, delete and their roll-backs, one `Phase` after the other.

A `Resource` is a stack's record of a thing. What the template says (`props`) is kept apart from what exists
(`thing.props`), so that an update compares template with template and drift detection compares both.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from tests.aws.double import policy
from tests.aws.double.model import KINDS, ApiError, Kind, Region, Thing, tags_of
from tests.aws.double.phase import Phase
from tests.aws.double.template import Scope, Template

STACK = "AWS::CloudFormation::Stack"
KNOWN_LATER = "{{changeSet:KNOWN_AFTER_APPLY}}"
_RETRY_DELETE_S = 900  # about what CloudFormation does for subnets and VPCs
_RETRIED = {
    "DependencyViolation",
    "ResourceInUseException",
    "FileSystemInUse",
    "InvalidIPAddress.InUse",
    "DeleteConflict",
}
_HANDLER_CODES = {
    "UnauthorizedOperation": "AccessDenied", "AccessDenied": "AccessDenied", "AccessDeniedException": "AccessDenied",
    "VpcLimitExceeded": "ServiceLimitExceeded", "ResourceLimitExceededException": "ServiceLimitExceeded",
    "EntityAlreadyExists": "AlreadyExists", "ResourceAlreadyExistsException": "AlreadyExists",
    "RepositoryAlreadyExistsException": "AlreadyExists", "DependencyViolation": "InvalidRequest",
    "InvalidParameterException": "InvalidRequest", "InvalidParameterValue": "InvalidRequest",
    "ResourceNotFoundException": "NotFound", "InsufficientNumberOfReplicas": "NotStabilized",
    "ResourceInUseException": "ResourceConflict", "NotFound": "NotFound",
}  # fmt: skip


@dataclass
class Resource:
    logical: str
    type: str
    policy: str = "Delete"
    depends: set[str] = field(default_factory=set)
    props: dict[str, Any] = field(default_factory=dict)
    thing: Thing | None = None
    physical: str = ""
    status: str = ""
    reason: str = ""
    time: float = 0.0

    @property
    def kind(self) -> Kind:
        return KINDS[self.type]


@dataclass
class Request:
    """What a create or update asks for."""

    template: Template
    values: dict[str, str]
    tags: dict[str, str]
    capabilities: list[str]


class Stack:
    def __init__(self, region: Region, name: str, request: Request, actor: str) -> None:
        world = region.world
        self.region, self.world, self.name, self.actor = region, world, name, actor
        self.id = f"arn:aws:cloudformation:{region.name}:{world.account}:stack/{name}/{world.new_uuid()}"
        self.request = self._wanted = request
        self.role: str | None = None
        self.on_failure = "ROLLBACK"
        self.protected = False
        self.status, self.reason = "", ""
        self.created, self.updated, self.deleted = world.now(), 0.0, 0.0
        self.resources: dict[str, Resource] = {}
        self.events: list[dict[str, Any]] = []  # oldest first
        self.tokens: dict[str, str] = {}
        self.token = ""
        self.change_sets: dict[str, dict[str, Any]] = {}
        self.drifts: dict[str, Any] = {}
        self.outputs: list[dict[str, Any]] = []
        self.stale: tuple[float, str] = (0.0, "")  # until when Describe may show which old status
        self._phase: Phase | None = None
        self._undo: list[tuple[Resource, Resource | None]] = []  # (now, before)
        self._cleanup: list[Resource] = []
        region.stacks.append(self)

    @property
    def tags(self) -> dict[str, str]:
        return self.request.tags

    # --- records ----------------------------------------------------------------------------------------------------

    def _event(self, logical: str, physical: str, type_: str, status: str, reason: str) -> None:
        event = {
            "StackId": self.id, "EventId": self.world.new_uuid(), "StackName": self.name, "LogicalResourceId": logical,
            "PhysicalResourceId": physical, "ResourceType": type_, "ResourceStatus": status,
            "Timestamp": self.world.now(),
        }  # fmt: skip
        event |= {"ResourceStatusReason": reason} if reason else {}
        self.events.append(event | ({"ClientRequestToken": self.token} if self.token else {}))

    def set_status(self, status: str, reason: str = "") -> None:
        old, self.status, self.reason = self.status, status, reason
        if not old or status in ("DELETE_IN_PROGRESS", "UPDATE_IN_PROGRESS"):
            self.stale = (self.world.now() + self.world.faults.stale_reads_s, old)
        self._event(self.name, self.id, STACK, status, reason)

    def _mark(self, resource: Resource, status: str, reason: str = "") -> None:
        resource.status, resource.reason, resource.time = status, reason, self.world.now()
        self._event(resource.logical, resource.physical, resource.type, status, reason)

    def explain(self, type_: str, error: ApiError) -> str:
        """The reason text of a failed resource, in the form that CloudFormation's handlers give."""
        service = type_.split("::")[1].capitalize()
        code = _HANDLER_CODES.get(error.code, "GeneralServiceException")
        where = f"(Service: {service}, Status Code: {error.status}, Request ID: {self.world.new_uuid()})"
        if error.message.startswith("[Issue("):  # asynchronous failures have no request
            where = "(Service: null, Status Code: 0, Request ID: null)"
        end = f"(RequestToken: {self.world.new_uuid()}, HandlerErrorCode: {code})"
        return f'Resource handler returned message: "{error.message} {where}" {end}'

    def scope(self, request: Request) -> Scope:
        return Scope(request.template, request.values, self.region, self.name, self.id, self._ref, self._attribute)

    def _ref(self, name: str) -> Any:
        return self.resources[name].physical

    def _attribute(self, name: str, attribute: str) -> Any:
        resource = self.resources[name]
        if resource.thing is None:
            return KNOWN_LATER
        return resource.kind.attributes[attribute](self.region, resource.thing)

    # --- one resource -----------------------------------------------------------------------------------------------

    def _authorize(self, resource: Resource, actions: tuple[str, ...], thing: Thing, *, creating: bool = False) -> None:
        for action in actions:
            context = policy.Context(arn=thing.arn(self.world.account))
            context.keys |= {
                "aws:RequestedRegion": self.region.name,
                "aws:CalledViaFirst": "cloudformation.amazonaws.com",
            }
            context.request_tags = dict(thing.tags) if creating else None
            context.resource_tags = None if creating else dict(thing.tags)
            if action == "iam:PassRole":
                roles = thing.props.get("RoleArn") or thing.props.get("NodeRole") or thing.props.get("Roles")
                context = policy.Context(arn=roles if isinstance(roles, str) else None, keys=context.keys)
            policy.authorize(self.world, self.actor, action, context)

    def _begin_create(self, resource: Resource, scope: Scope) -> float:
        self._mark(resource, "CREATE_IN_PROGRESS")
        world, kind = self.world, resource.kind
        resource.props = scope.properties(resource.logical)
        props = copy.deepcopy(resource.props)
        if kind.name and not props.get(kind.name):
            made_up = f"{self.name}-{resource.logical}-{world.new_id('')[-12:].upper()}"
            props[kind.name] = (
                made_up.lower() if resource.type in ("AWS::S3::Bucket", "AWS::ECR::Repository") else made_up
            )
        id_ = (
            kind.identify(world, props)
            if kind.identify
            else props[kind.name]
            if kind.name
            else world.new_id(kind.prefix)
        )
        if kind.exists[0] and self.region.get(resource.type, id_):
            raise ApiError(kind.exists[0], kind.exists[1].format(id_), 409)
        thing = Thing(resource.type, id_, self.region.name, props, {}, f"stack {self.name}", world.now(), "creating")
        self._tag(resource, thing)
        self._authorize(resource, kind.create, thing, creating=True)
        self.region.add(thing)
        try:
            kind.start(self.region, thing)
        except ApiError:
            self._forget(thing)
            raise
        resource.thing, resource.physical = thing, id_
        self._mark(resource, "CREATE_IN_PROGRESS", "Resource creation Initiated")
        return kind.create_s * world.jitter(f"{self.name} {resource.logical}")

    def _forget(self, thing: Thing) -> None:
        """Take back a creation that the service refused."""
        thing.made_by = "refused"
        self.region.remove(thing)

    def _tag(self, resource: Resource, thing: Thing) -> None:
        if resource.kind.taggable:
            own = {"stack-name": self.name, "stack-id": self.id, "logical-id": resource.logical}
            thing.tags = (
                self._wanted.tags | tags_of(thing.props) | {f"aws:cloudformation:{k}": v for k, v in own.items()}
            )

    def _end_create(self, resource: Resource, waited: float) -> float | None:
        thing, kind, faults = resource.thing, resource.kind, self.world.faults
        assert thing is not None
        planned = faults.take("fail_create", resource.logical, resource.type)
        if planned:
            raise planned
        problem = kind.ready(self.region, thing)
        if problem and waited < kind.patience_s:
            return 20.0
        if problem:
            raise problem
        thing.state = "available"
        kind.done(self.region, thing)
        return None

    def _begin_delete(self, resource: Resource) -> float | None:
        if resource.thing is None:
            self._mark(resource, "DELETE_COMPLETE")
            return None
        self._mark(resource, "DELETE_IN_PROGRESS")
        return resource.kind.delete_s * self.world.jitter(f"{self.name} {resource.logical} delete")

    def _end_delete(self, resource: Resource, waited: float) -> float | None:
        thing, kind = resource.thing, resource.kind
        assert thing is not None
        planned = self.world.faults.take("fail_delete", resource.logical, resource.type)
        if planned:
            raise planned
        if self.region.get(thing.type, thing.id) is thing:  # otherwise deleted by hand: nothing to do
            self._authorize(resource, kind.delete, thing)
            error = kind.blocked(self.region, thing)
            if error and error.code in _RETRIED and waited < _RETRY_DELETE_S:
                return 30.0
            if error:
                raise error
            self.region.remove(thing)
            kind.removed(self.region, thing)
        resource.thing = None
        self._mark(resource, "DELETE_COMPLETE")
        return None

    # --- create -----------------------------------------------------------------------------------------------------

    def begin_create(self) -> None:
        self.set_status("CREATE_IN_PROGRESS", "User Initiated")
        self._wanted = self.request
        scope = self.scope(self.request)
        self._plan(self.request, scope)

        def end(name: str, waited: float) -> float | None:
            again = self._end_create(self.resources[name], waited)
            if again is None:
                self._mark(self.resources[name], "CREATE_COMPLETE")
            return again

        def failed(name: str, error: ApiError) -> None:
            resource = self.resources[name]
            self._mark(resource, "CREATE_FAILED", self.explain(resource.type, error))

        needs = {name: resource.depends for name, resource in self.resources.items()}
        self._phase = Phase(self.world, needs, lambda n: self._begin_create(self.resources[n], scope), end, failed)
        phase = self._phase  # a delete may put another phase in its place before this one begins
        self.world.later(2, lambda: phase.run(self._created, past_failures=False))

    def _plan(self, request: Request, scope: Scope) -> None:
        """Make records of the template's resources that are not there yet."""
        for name in request.template.order():
            spec = request.template.resources[name]
            if scope.has(name) and name not in self.resources:
                made = Resource(name, spec["Type"])
                self.resources[name] = made
            if name in self.resources and scope.has(name):
                self.resources[name].policy = spec.get("DeletionPolicy", "Delete")
                self.resources[name].depends = request.template.dependencies(name)

    def _created(self, failed: list[str], in_flight: list[str]) -> None:
        if not failed:
            self.outputs = self.scope(self.request).outputs()
            self.set_status("CREATE_COMPLETE")
            return
        for name in in_flight:
            self._mark(self.resources[name], "CREATE_FAILED", "Resource creation cancelled")
        names = ", ".join(sorted([*failed, *in_flight]))
        reason = f"The following resource(s) failed to create: [{names}]. "
        if self.on_failure == "DO_NOTHING":
            self.set_status("CREATE_FAILED", reason)
            return
        if self.on_failure == "DELETE":
            self.set_status("DELETE_IN_PROGRESS", reason + "Delete requested by user.")
            self._delete(list(self.resources.values()), self._deleted, creating=True)
            return
        self.set_status("ROLLBACK_IN_PROGRESS", reason + "Rollback requested by user.")
        self._delete(list(self.resources.values()), self._rolled_back, creating=True)

    def _rolled_back(self, failed: list[str], in_flight: list[str]) -> None:
        if failed:
            reason = f"The following resource(s) failed to delete: [{', '.join(sorted(failed))}]. "
            self.set_status("ROLLBACK_FAILED", reason)
        else:
            self.set_status("ROLLBACK_COMPLETE")

    # --- delete -----------------------------------------------------------------------------------------------------

    def _delete(self, doomed: list[Resource], then: Any, *, creating: bool = False) -> None:
        """Delete resources in reverse order. Policies that keep a resource are honoured."""
        keep = {"Retain"} if creating else {"Retain", "RetainExceptOnCreate"}
        work: dict[str, Resource] = {}
        for resource in doomed:
            if resource.status in ("DELETE_COMPLETE", "DELETE_SKIPPED") or not resource.status:
                continue
            if resource.policy in keep and resource.thing is not None:
                self._mark(resource, "DELETE_SKIPPED")
                continue
            work[resource.logical] = resource
        needs = {n: {m for m, other in work.items() if n in other.depends} for n in work}
        self._phase = Phase(
            self.world,
            needs,
            lambda n: self._begin_delete(work[n]),
            lambda n, waited: self._end_delete(work[n], waited),
            lambda n, e: self._mark(work[n], "DELETE_FAILED", self.explain(work[n].type, e)),
        )
        phase = self._phase
        self.world.later(2, lambda: phase.run(then, past_failures=True))

    def begin_delete(self, retain: list[str]) -> None:
        if self._phase:
            self._phase.abandon()
        self.set_status("DELETE_IN_PROGRESS", "User Initiated")
        for name in retain:
            self._mark(self.resources[name], "DELETE_SKIPPED")
        # RetainExceptOnCreate keeps the resource here: AWS says that only the roll-back of a create deletes it.
        self._delete(list(self.resources.values()), self._deleted)

    def _deleted(self, failed: list[str], in_flight: list[str]) -> None:
        if failed:
            names = ", ".join(sorted(failed))
            self.set_status("DELETE_FAILED", f"The following resource(s) failed to delete: [{names}]. ")
            return
        self.deleted = self.world.now()
        self.set_status("DELETE_COMPLETE")

    # --- update -----------------------------------------------------------------------------------------------------

    def begin_update(self, request: Request) -> None:
        self.updated = self.world.now()
        self.set_status("UPDATE_IN_PROGRESS", "User Initiated")
        self._wanted, self._undo, self._cleanup = request, [], []
        scope = self.scope(request)
        names = [n for n in request.template.order() if scope.has(n)]
        needs = {n: request.template.dependencies(n) for n in names}

        def failed(name: str, error: ApiError) -> None:
            resource = self.resources[name]
            verb = "CREATE" if resource.status.startswith("CREATE") else "UPDATE"
            self._mark(resource, f"{verb}_FAILED", self.explain(resource.type, error))

        self._phase = Phase(self.world, needs, lambda n: self._begin_change(n, scope), self._end_change, failed)
        phase = self._phase
        self.world.later(2, lambda: phase.run(self._updated, past_failures=False))

    def _begin_change(self, name: str, scope: Scope) -> float | None:
        old = self.resources.get(name)
        spec = scope.template.resources[name]
        if old is None or old.thing is None or old.type != spec["Type"]:
            new = Resource(name, spec["Type"], spec.get("DeletionPolicy", "Delete"), scope.template.dependencies(name))
            self.resources[name] = new
            self._undo.append((new, old))
            return self._begin_create(new, scope)
        props = scope.properties(name)
        changed, replaces = differences(old, props, self.tags, self._wanted.tags)
        if not changed:
            old.policy = spec.get("DeletionPolicy", "Delete")
            return None
        new = copy.copy(old)
        new.props, new.depends = props, scope.template.dependencies(name)
        new.policy = spec.get("DeletionPolicy", "Delete")
        self.resources[name] = new
        self._undo.append((new, old))
        if replaces:
            why = "Requested update requires the creation of a new physical resource; hence creating one."
            self._mark(new, "UPDATE_IN_PROGRESS", why)
            new.thing = None
            return self._begin_create_as_update(new, scope)
        self._mark(new, "UPDATE_IN_PROGRESS")
        assert old.thing is not None
        if self.region.get(old.type, old.physical) is None:
            text = f"Resource of type '{old.type}' with identifier '{old.physical}' was not found."
            raise ApiError("NotFound", text, 404)
        self._authorize(new, new.kind.update, old.thing)
        if new.kind.change:
            new.kind.change(self.region, old.thing, props)
        return max(3.0, new.kind.create_s * 0.5) * self.world.jitter(f"{self.name} {name} update")

    def _begin_create_as_update(self, resource: Resource, scope: Scope) -> float:
        seconds = self._begin_create(resource, scope)
        resource.status = "UPDATE_IN_PROGRESS"
        self.events.pop()
        self._event(
            resource.logical, resource.physical, resource.type, "UPDATE_IN_PROGRESS", "Resource creation Initiated"
        )
        return seconds

    def _end_change(self, name: str, waited: float) -> float | None:
        resource = self.resources[name]
        thing = resource.thing
        assert thing is not None
        if thing.state == "creating":
            again = self._end_create(resource, waited)
            if again is None:
                self._mark(resource, "CREATE_COMPLETE" if resource.status.startswith("CREATE") else "UPDATE_COMPLETE")
            return again
        planned = self.world.faults.take("fail_update", resource.logical, resource.type)
        if planned:
            raise planned
        before = next(old for new, old in self._undo if new is resource)
        assert before is not None
        self._apply(resource, before, self._wanted.tags)
        self._mark(resource, "UPDATE_COMPLETE")
        return None

    def _apply(self, resource: Resource, other: Resource, tags: dict[str, str]) -> None:
        """Give a thing the properties and tags of its record, in place of those of the other record."""
        thing = resource.thing
        assert thing is not None
        for key in set(resource.props) | set(other.props):
            thing.props.pop(key, None)
        thing.props |= copy.deepcopy(resource.props)
        if resource.kind.taggable:
            own = {k: v for k, v in thing.tags.items() if k.startswith("aws:")}
            thing.tags = tags | tags_of(thing.props) | own
        resource.kind.done(self.region, thing)

    def _updated(self, failed: list[str], in_flight: list[str]) -> None:
        if failed:
            for name in in_flight:
                verb = "CREATE" if self.resources[name].status.startswith("CREATE") else "UPDATE"
                noun = "creation" if verb == "CREATE" else "update"
                self._mark(self.resources[name], f"{verb}_FAILED", f"Resource {noun} cancelled")
            names = ", ".join(sorted([*failed, *in_flight]))
            self.begin_update_rollback(f"The following resource(s) failed to update: [{names}]. ")
            return
        scope = self.scope(self._wanted)
        gone = [r for n, r in self.resources.items() if n not in self._wanted.template.resources or not scope.has(n)]
        replaced = [old for new, old in self._undo if old and old.thing is not new.thing]
        self.request = self._wanted
        self.outputs = scope.outputs()
        self.set_status("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        # A failure to clean up does not fail the update: the thing stays, and the stack forgets it.
        self._delete(gone + replaced, lambda failed, flying: self._cleaned(gone, "UPDATE_COMPLETE"))

    def _cleaned(self, gone: list[Resource], status: str) -> None:
        for resource in gone:
            if self.resources.get(resource.logical) is resource:
                del self.resources[resource.logical]
        self.set_status(status)

    def begin_update_rollback(self, reason: str, skip: tuple[str, ...] = ()) -> None:
        """Undo an update that failed or was cancelled; also the way on from UPDATE_ROLLBACK_FAILED."""
        if self._phase:
            self._phase.abandon()
        self.set_status("UPDATE_ROLLBACK_IN_PROGRESS", reason)
        work = {new.logical: (new, old) for new, old in self._undo}

        def begin(name: str) -> float | None:
            new, old = work[name]
            if old is None or old.thing is not new.thing or name in skip:
                return None
            self._mark(new, "UPDATE_IN_PROGRESS")
            return max(3.0, new.kind.create_s * 0.5)

        def end(name: str, waited: float) -> float | None:
            new, old = work[name]
            assert old is not None
            planned = self.world.faults.take("fail_update", name, new.type)
            if planned:
                raise planned
            self._apply(old, new, self.tags)
            self._mark(old, "UPDATE_COMPLETE")
            return None

        def failed(name: str, error: ApiError) -> None:
            self._mark(work[name][0], "UPDATE_FAILED", self.explain(work[name][0].type, error))

        self._phase = Phase(self.world, {n: set() for n in work}, begin, end, failed)
        phase = self._phase
        self.world.later(2, lambda: phase.run(self._update_rolled_back, past_failures=True))

    def _update_rolled_back(self, failed: list[str], in_flight: list[str]) -> None:
        if failed:
            reason = f"The following resource(s) failed to update: [{', '.join(sorted(failed))}]. "
            self.set_status("UPDATE_ROLLBACK_FAILED", reason)
            return
        made = [new for new, old in self._undo if old is None or old.thing is not new.thing]
        for new, old in self._undo:
            if old is not None:
                self.resources[new.logical] = old
        self.set_status("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS")
        self._delete(made, lambda f, i: self._cleaned(made, "UPDATE_ROLLBACK_COMPLETE"), creating=True)


def differences(
    old: Resource, props: dict[str, Any], old_tags: dict[str, str], tags: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Properties that an update changes, and those of them that need a new thing."""
    keys = sorted(set(old.props) | set(props))
    changed = [k for k in keys if old.props.get(k) != props.get(k)]
    if old_tags != tags and old.kind.taggable and "Tags" not in changed:
        changed.append("Tags")
    return changed, [k for k in changed if k in old.kind.create_only]


def plant_stack(region: Region, tags: dict[str, str], *, name: str, status: str = "CREATE_COMPLETE") -> Any:
    """A stack that this project did not make. It holds one log group, so that deleting it is seen."""
    body = '{"Resources": {"Logs": {"Type": "AWS::Logs::LogGroup", "Properties": {}}}}'
    stack = Stack(region, name, Request(Template(body), {}, tags, []), "arn:aws:iam::999999999999:user/other")
    thing = region.world.plant("AWS::Logs::LogGroup", tags, region=region.name, LogGroupName=f"{name}-logs")
    made = Resource("Logs", thing.type, thing=thing, physical=thing.id, status="CREATE_COMPLETE")
    stack.resources["Logs"] = made
    stack.set_status(status)
    return stack
