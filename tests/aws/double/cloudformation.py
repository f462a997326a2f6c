"""The CloudFormation API: which operation is allowed in which status, and what its answer looks like."""

from __future__ import annotations

import re
from typing import Any

from tests.aws.double import policy
from tests.aws.double.model import ROLE, ApiError, Call, Region, operation, page, tag_list
from tests.aws.double.plan import changes
from tests.aws.double.stacks import Request, Resource, Stack
from tests.aws.double.template import Template, invalid, read_parameters

_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")
_UPDATABLE = {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"}
_UNDELETABLE = re.compile(
    r"UPDATE_(ROLLBACK_)?(COMPLETE_CLEANUP_)?IN_PROGRESS|UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS"
)


def find(region: Region, name: str, *, deleted_by_id: bool = True) -> Stack:
    """A stack by name, or by id, which also finds deleted ones."""
    for stack in reversed(region.stacks):
        gone = stack.status == "DELETE_COMPLETE"
        if (stack.name == name and not gone) or (stack.id == name and (deleted_by_id or not gone)):
            return stack
    raise invalid(f"Stack with id {name} does not exist")


def _seen(call: Call, name: str) -> tuple[Stack, str]:
    """The stack and the status that a reader sees, which lags under `stale_reads_s`."""
    stack, world = find(call.region, name), call.world
    until, old = stack.stale
    if world.now() < until and world.chance(0.5):
        if not old:
            raise invalid(f"Stack with id {name} does not exist")
        return stack, old
    return stack, stack.status


def _read_template(call: Call, previous: Stack | None) -> Template:
    params = call.params
    if params.get("UsePreviousTemplate") and previous:
        return previous.request.template
    if "TemplateURL" in params:
        raise invalid("the double does not model TemplateURL")
    if "TemplateBody" not in params:
        raise invalid("Either Template URL or Template Body must be specified.")
    return Template(params["TemplateBody"])


def read_request(call: Call, previous: Stack | None) -> Request:
    params, template = call.params, _read_template(call, previous)
    given = params.get("Capabilities", [])
    missing = sorted(c for c in template.capabilities() if c not in given and "CAPABILITY_NAMED_IAM" not in given)
    if missing and call.operation != "ValidateTemplate":
        raise ApiError("InsufficientCapabilitiesException", f"Requires capabilities : [{', '.join(missing)}]")
    old = previous.request.values if previous else {}
    values = read_parameters(template, params.get("Parameters", []), old, call.region)
    tags = (
        {t["Key"]: t["Value"] for t in params["Tags"]} if "Tags" in params else dict(previous.tags) if previous else {}
    )
    if any(k.startswith("aws:") for k in tags):
        raise invalid("aws: prefixed tag key names are not allowed for external use.")
    return Request(template, values, tags, given)


def actor_of(call: Call, stack: Stack | None) -> tuple[str, str | None]:
    """Who makes the resources: the role given now, the role the stack has, or the caller."""
    role = call.params.get("RoleARN")
    if role:
        context = policy.Context(arn=role, keys={"iam:PassedToService": "cloudformation.amazonaws.com"})
        policy.authorize(call.world, call.principal, "iam:PassRole", context)
        known = role in call.world.policies or any(r.arn(call.world.account) == role for r in call.region.of(ROLE))
        if not known:
            raise invalid(f"Role {role} is invalid or cannot be assumed")
    elif stack:
        role = stack.role
    return role or call.principal, role


def is_repeated(stack: Stack, call: Call) -> bool:
    """Whether this request was already accepted, by its token."""
    token = call.params.get("ClientRequestToken", "")
    if token and stack.tokens.get(token) == call.operation:
        return True
    if token in stack.tokens:
        raise ApiError(
            "TokenAlreadyExistsException", f"Token {token} was used for another operation"
        )  # text not checked
    if token:
        stack.tokens[token] = call.operation
    stack.token = token
    return False


# --- stacks ---------------------------------------------------------------------------------------------------------


@operation("cloudformation", "CreateStack")
def create_stack(call: Call) -> dict[str, Any]:
    params, name = call.params, call.params["StackName"]
    existing = next((s for s in call.region.stacks if s.name == name and s.status != "DELETE_COMPLETE"), None)
    if existing and existing.tokens.get(params.get("ClientRequestToken", "")) == "CreateStack":
        return {"StackId": existing.id}
    if existing:
        raise ApiError("AlreadyExistsException", f"Stack [{name}] already exists")
    if "OnFailure" in params and "DisableRollback" in params:
        raise invalid("You can specify either DisableRollback or OnFailure, but not both.")  # text not checked on AWS
    stack = new_stack(call)
    stack.on_failure = "DO_NOTHING" if params.get("DisableRollback") else params.get("OnFailure", "ROLLBACK")
    stack.protected = params.get("EnableTerminationProtection", False)
    is_repeated(stack, call)
    stack.begin_create()
    return {"StackId": stack.id}


def new_stack(call: Call) -> Stack:
    name = call.params["StackName"]
    if not _NAME.fullmatch(name):
        text = f"1 validation error detected: Value '{name}' at 'stackName' failed to satisfy constraint: Member must "
        raise invalid(text + "satisfy regular expression pattern: [a-zA-Z][-a-zA-Z0-9]*")
    request = read_request(call, None)
    actor, role = actor_of(call, None)
    stack = Stack(call.region, name, request, actor)
    stack.role = role
    return stack


def check_updatable(stack: Stack) -> None:
    if stack.status not in _UPDATABLE:
        raise invalid(f"Stack:{stack.id} is in {stack.status} state and can not be updated.")


@operation("cloudformation", "UpdateStack")
def update_stack(call: Call) -> dict[str, Any]:
    stack = find(call.region, call.params["StackName"], deleted_by_id=False)
    if stack.tokens.get(call.params.get("ClientRequestToken", "")) == "UpdateStack":
        return {"StackId": stack.id}
    check_updatable(stack)
    request = read_request(call, stack)
    if not changes(stack, request):
        raise invalid("No updates are to be performed.")
    stack.actor, stack.role = actor_of(call, stack)
    is_repeated(stack, call)
    stack.begin_update(request)
    return {"StackId": stack.id}


@operation("cloudformation", "DeleteStack")
def delete_stack(call: Call) -> None:
    params, name = call.params, call.params["StackName"]
    try:
        stack = find(call.region, name)
    except ApiError:
        return  # deleting what does not exist succeeds
    if stack.status in ("DELETE_COMPLETE", "DELETE_IN_PROGRESS"):
        return
    if stack.protected:
        raise invalid(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
    if _UNDELETABLE.fullmatch(stack.status):
        raise invalid(f"Stack [{stack.id}] cannot be deleted while in status {stack.status}")
    retain = list(params.get("RetainResources", []))
    force = params.get("DeletionMode") == "FORCE_DELETE_STACK"
    if (retain or force) and stack.status != "DELETE_FAILED":
        text = (
            f"Invalid operation on stack [{stack.id}]. Resources can be retained only in DELETE_FAILED."  # not checked
        )
        raise invalid(text)
    failed = [r.logical for r in stack.resources.values() if r.status == "DELETE_FAILED"]
    if any(r not in failed for r in retain):
        raise invalid(f"Resources to retain must be in DELETE_FAILED: [{', '.join(failed)}]")  # text not checked on AWS
    stack.actor, stack.role = actor_of(call, stack)
    if not is_repeated(stack, call):
        stack.begin_delete(failed if force else retain)


@operation("cloudformation", "DescribeStacks")
def describe_stacks(call: Call) -> dict[str, Any]:
    if "StackName" in call.params:
        return {"Stacks": [_stack_view(*_seen(call, call.params["StackName"]))]}
    alive = [s for s in reversed(call.region.stacks) if s.status != "DELETE_COMPLETE"]
    stacks, token = page(alive, call.params.get("NextToken"), 20)
    return {"Stacks": [_stack_view(s, s.status) for s in stacks], "NextToken": token} | {}


def _stack_view(stack: Stack, status: str) -> dict[str, Any]:
    view: dict[str, Any] = {
        "StackId": stack.id, "StackName": stack.name, "CreationTime": stack.created, "StackStatus": status,
        "DisableRollback": stack.on_failure == "DO_NOTHING", "NotificationARNs": [], "RollbackConfiguration": {},
        "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in shown_parameters(stack.request).items()],
        "Tags": tag_list(stack.tags), "Capabilities": stack.request.capabilities,
        "EnableTerminationProtection": stack.protected, "Outputs": stack.outputs,
        "DriftInformation": {"StackDriftStatus": stack.drifts.get("status", "NOT_CHECKED")},
    }  # fmt: skip
    optional = {"RoleARN": stack.role, "LastUpdatedTime": stack.updated, "DeletionTime": stack.deleted}
    optional |= {"Description": stack.request.template.tree.get("Description")}
    optional |= {"StackStatusReason": stack.reason if status == stack.status else ""}
    return view | {k: v for k, v in optional.items() if v}


def shown_parameters(request: Request) -> dict[str, str]:
    hidden = {k for k, spec in request.template.parameters.items() if spec.get("NoEcho") in (True, "true")}
    return {k: "****" if k in hidden else v for k, v in request.values.items()}


@operation("cloudformation", "ListStacks")
def list_stacks(call: Call) -> dict[str, Any]:
    wanted = call.params.get("StackStatusFilter")
    found = [s for s in reversed(call.region.stacks) if not wanted or s.status in wanted]
    stacks, token = page(found, call.params.get("NextToken"), 20)
    keys = (
        "StackId",
        "StackName",
        "CreationTime",
        "LastUpdatedTime",
        "DeletionTime",
        "StackStatus",
        "StackStatusReason",
    )
    views = [_stack_view(s, s.status) for s in stacks]
    return {"StackSummaries": [{k: v[k] for k in keys if k in v} for v in views], "NextToken": token}


@operation("cloudformation", "DescribeStackEvents")
def describe_stack_events(call: Call) -> dict[str, Any]:
    stack, _ = _seen(call, call.params["StackName"])
    events, token = page(reversed(stack.events), call.params.get("NextToken"), call.world.event_page)
    return {"StackEvents": events, "NextToken": token}


def _resource_view(resource: Resource) -> dict[str, Any]:
    view = {"LogicalResourceId": resource.logical, "ResourceType": resource.type, "ResourceStatus": resource.status}
    optional = {"PhysicalResourceId": resource.physical, "ResourceStatusReason": resource.reason}
    return view | {k: v for k, v in optional.items() if v}


@operation("cloudformation", "DescribeStackResources")
def describe_stack_resources(call: Call) -> dict[str, Any]:
    stack, _ = _seen(call, call.params["StackName"])
    wanted = call.params.get("LogicalResourceId")
    found = [r for r in stack.resources.values() if r.status and wanted in (None, r.logical)]
    extra = {"StackName": stack.name, "StackId": stack.id}
    return {"StackResources": [_resource_view(r) | extra | {"Timestamp": r.time} for r in found][:100]}


@operation("cloudformation", "ListStackResources")
def list_stack_resources(call: Call) -> dict[str, Any]:
    stack, _ = _seen(call, call.params["StackName"])
    found = [r for r in stack.resources.values() if r.status]
    resources, token = page(found, call.params.get("NextToken"), 100)
    views = [_resource_view(r) | {"LastUpdatedTimestamp": r.time} for r in resources]
    return {"StackResourceSummaries": views, "NextToken": token}


@operation("cloudformation", "ValidateTemplate")
def validate_template(call: Call) -> dict[str, Any]:
    template = _read_template(call, None)
    parameters = []
    for key, spec in template.parameters.items():
        entry = {"ParameterKey": key, "NoEcho": spec.get("NoEcho") in (True, "true")}
        optional = {"DefaultValue": spec.get("Default"), "Description": spec.get("Description")}
        parameters.append(entry | {k: str(v) for k, v in optional.items() if v is not None})
    needed = sorted(template.capabilities())
    return {"Parameters": parameters, "Capabilities": needed, "Description": template.tree.get("Description")}


@operation("cloudformation", "UpdateTerminationProtection")
def update_termination_protection(call: Call) -> dict[str, Any]:
    stack = find(call.region, call.params["StackName"], deleted_by_id=False)
    stack.protected = call.params["EnableTerminationProtection"]
    return {"StackId": stack.id}


@operation("cloudformation", "CancelUpdateStack")
def cancel_update_stack(call: Call) -> None:
    stack = find(call.region, call.params["StackName"])
    if stack.status != "UPDATE_IN_PROGRESS":
        text = f"CancelUpdateStack cannot be called from current stack status {stack.status}"
        raise invalid(text)
    stack.begin_update_rollback("User Initiated")


@operation("cloudformation", "ContinueUpdateRollback")
def continue_update_rollback(call: Call) -> dict[str, Any]:
    stack = find(call.region, call.params["StackName"])
    if stack.status != "UPDATE_ROLLBACK_FAILED":
        raise invalid(f"Stack:{stack.id} is in {stack.status} state and can not continue rollback.")  # not checked
    stack.actor, stack.role = actor_of(call, stack)
    stack.begin_update_rollback("User Initiated", tuple(call.params.get("ResourcesToSkip", ())))
    return {}


# --- drift ----------------------------------------------------------------------------------------------------------


@operation("cloudformation", "DetectStackDrift")
def detect_stack_drift(call: Call) -> dict[str, Any]:
    stack = find(call.region, call.params["StackName"])
    if stack.status.endswith("IN_PROGRESS"):
        raise invalid(
            f"Drift detection cannot be performed on stack [{stack.id}] in status {stack.status}"
        )  # not checked
    id_ = call.world.new_uuid()
    stack.drifts |= {"id": id_, "detecting": True, "time": call.world.now()}
    call.world.later(10, lambda: _finish_detection(stack))
    return {"StackDriftDetectionId": id_}


def _finish_detection(stack: Stack) -> None:
    found = [_drift_of(stack, r) for r in stack.resources.values() if r.physical and r.status != "DELETE_COMPLETE"]
    drifted = any(d["StackResourceDriftStatus"] != "IN_SYNC" for d in found)
    stack.drifts |= {"detecting": False, "found": found, "status": "DRIFTED" if drifted else "IN_SYNC"}


def _drift_of(stack: Stack, resource: Resource) -> dict[str, Any]:
    thing, now = resource.thing, stack.world.now()
    view: dict[str, Any] = {
        "StackId": stack.id, "LogicalResourceId": resource.logical, "PhysicalResourceId": resource.physical,
        "ResourceType": resource.type, "Timestamp": now, "PropertyDifferences": [],
    }  # fmt: skip
    if thing is None or stack.region.get(thing.type, thing.id) is None:
        return view | {"StackResourceDriftStatus": "DELETED"}
    for key, expected in resource.props.items():
        actual = thing.props.get(key)
        if actual != expected:
            entry = {"PropertyPath": f"/{key}", "ExpectedValue": str(expected), "ActualValue": str(actual)}
            view["PropertyDifferences"].append(entry | {"DifferenceType": "NOT_EQUAL"})
    return view | {"StackResourceDriftStatus": "MODIFIED" if view["PropertyDifferences"] else "IN_SYNC"}


@operation("cloudformation", "DescribeStackDriftDetectionStatus")
def describe_drift_detection(call: Call) -> dict[str, Any]:
    id_ = call.params["StackDriftDetectionId"]
    stack = next((s for s in call.region.stacks if s.drifts.get("id") == id_), None)
    if stack is None:
        raise invalid(f"Stack drift detection {id_} does not exist")  # text not checked on AWS
    view = {"StackId": stack.id, "StackDriftDetectionId": id_, "Timestamp": stack.drifts["time"]}
    if stack.drifts["detecting"]:
        return view | {"DetectionStatus": "DETECTION_IN_PROGRESS"}
    count = sum(d["StackResourceDriftStatus"] != "IN_SYNC" for d in stack.drifts["found"])
    status = {"StackDriftStatus": stack.drifts["status"], "DriftedStackResourceCount": count}
    return view | status | {"DetectionStatus": "DETECTION_COMPLETE"}


@operation("cloudformation", "DescribeStackResourceDrifts")
def describe_resource_drifts(call: Call) -> dict[str, Any]:
    wanted = call.params.get("StackResourceDriftStatusFilters")
    found = find(call.region, call.params["StackName"]).drifts.get("found", [])
    return {"StackResourceDrifts": [d for d in found if not wanted or d["StackResourceDriftStatus"] in wanted]}
