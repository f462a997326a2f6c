"""The change set operations of CloudFormation."""

from __future__ import annotations

from typing import Any

from tests.aws.double import cloudformation as api
from tests.aws.double.model import ApiError, Call, operation, page, tag_list
from tests.aws.double.plan import changes
from tests.aws.double.stacks import Stack
from tests.aws.double.template import invalid

_NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."


def _change_set(call: Call) -> dict[str, Any]:
    name = call.params["ChangeSetName"]
    stacks = call.region.stacks
    if not name.startswith("arn:"):
        stacks = [api.find(call.region, call.params["StackName"])]
    for stack in reversed(stacks):
        for found in stack.change_sets.values():
            if name in (found["name"], found["id"]):
                return found
    raise ApiError("ChangeSetNotFound", f"ChangeSet [{name}] does not exist", 404)


@operation("cloudformation", "CreateChangeSet")
def create_change_set(call: Call) -> dict[str, Any]:
    params, world = call.params, call.world
    type_ = params.get("ChangeSetType", "UPDATE")
    existing = next(
        (s for s in call.region.stacks if s.name == params["StackName"] and s.status != "DELETE_COMPLETE"), None
    )
    if type_ == "CREATE":
        if existing and existing.status != "REVIEW_IN_PROGRESS":
            text = f"Stack [{existing.name}] already exists and cannot be created again with the changeSet "
            raise invalid(f"{text}[{params['ChangeSetName']}].")
        stack = existing or api.new_stack(call)
        if not existing:
            stack.set_status("REVIEW_IN_PROGRESS", "User Initiated")
        request = api.read_request(call, None)
    else:
        stack = api.find(call.region, params["StackName"], deleted_by_id=False)
        api.check_updatable(stack)
        request = api.read_request(call, stack)
    if params["ChangeSetName"] in stack.change_sets:
        raise ApiError("AlreadyExistsException", f"ChangeSet {params['ChangeSetName']} already exists")
    place = f"{call.region.name}:{world.account}"
    id_ = f"arn:aws:cloudformation:{place}:changeSet/{params['ChangeSetName']}/{world.new_uuid()}"
    made = {"name": params["ChangeSetName"], "id": id_, "request": request, "stack": stack, "time": world.now()}
    made |= {"status": "CREATE_PENDING", "reason": "", "execution": "UNAVAILABLE", "changes": [], "call": call}
    stack.change_sets[made["name"]] = made
    world.later(1, lambda: made.update(status="CREATE_IN_PROGRESS"))
    world.later(5, lambda: _finish(made))
    return {"Id": id_, "StackId": stack.id}


def _finish(made: dict[str, Any]) -> None:
    made["changes"] = changes(made["stack"], made["request"])
    if made["changes"]:
        made |= {"status": "CREATE_COMPLETE", "execution": "AVAILABLE"}
    else:
        made |= {"status": "FAILED", "reason": _NO_CHANGES}


@operation("cloudformation", "DescribeChangeSet")
def describe_change_set(call: Call) -> dict[str, Any]:
    found = _change_set(call)
    shown, token = page(found["changes"], call.params.get("NextToken"), 100)
    request, stack = found["request"], found["stack"]
    view = _summary(found) | {"Changes": shown, "Tags": tag_list(request.tags), "Capabilities": request.capabilities}
    view["Parameters"] = [{"ParameterKey": k, "ParameterValue": v} for k, v in api.shown_parameters(request).items()]
    return view | {"StackId": stack.id, "NextToken": token}


def _summary(found: dict[str, Any]) -> dict[str, Any]:
    view = {
        "ChangeSetName": found["name"], "ChangeSetId": found["id"], "StackName": found["stack"].name,
        "StackId": found["stack"].id, "CreationTime": found["time"], "Status": found["status"],
        "ExecutionStatus": found["execution"],
    }  # fmt: skip
    return view | ({"StatusReason": found["reason"]} if found["reason"] else {})


@operation("cloudformation", "ListChangeSets")
def list_change_sets(call: Call) -> dict[str, Any]:
    stack = api.find(call.region, call.params["StackName"])
    return {"Summaries": [_summary(c) for c in stack.change_sets.values()]}


@operation("cloudformation", "DeleteChangeSet")
def delete_change_set(call: Call) -> dict[str, Any]:
    try:
        found = _change_set(call)
    except ApiError as e:
        if e.code == "ChangeSetNotFound":
            return {}  # deleting what does not exist succeeds
        raise
    if found["execution"] == "EXECUTE_IN_PROGRESS":
        raise ApiError("InvalidChangeSetStatus", f"ChangeSet [{found['id']}] is in progress")  # text not checked on AWS
    del found["stack"].change_sets[found["name"]]
    return {}


@operation("cloudformation", "ExecuteChangeSet")
def execute_change_set(call: Call) -> dict[str, Any]:
    found = _change_set(call)
    stack: Stack = found["stack"]
    if found["execution"] != "AVAILABLE":
        text = f"ChangeSet [{found['id']}] cannot be executed in its current execution status of [{found['execution']}]"
        raise ApiError("InvalidChangeSetStatus", text)
    made_by: Call = found["call"]
    stack.actor, stack.role = api.actor_of(made_by, stack)
    if not stack.role:
        stack.actor = call.principal
    api.is_repeated(stack, call)
    found["execution"] = "EXECUTE_COMPLETE"
    stack.change_sets = {found["name"]: found}  # the others are deleted by the execution
    if stack.status == "REVIEW_IN_PROGRESS":
        stack.request = found["request"]
        stack.on_failure = "DO_NOTHING" if call.params.get("DisableRollback") else "ROLLBACK"
        stack.begin_create()
        return {}
    api.check_updatable(stack)
    stack.begin_update(found["request"])
    return {}


@operation("cloudformation", "GetTemplate")
def get_template(call: Call) -> dict[str, Any]:
    if "ChangeSetName" in call.params:
        body = _change_set(call)["request"].template.body
    else:
        body = api.find(call.region, call.params["StackName"]).request.template.body
    return {"TemplateBody": body, "StagesAvailable": ["Original", "Processed"]}
