"""What an update would do to each resource, computed from the same differences that the update itself uses."""

from __future__ import annotations

from typing import Any

from tests.aws.double.stacks import KNOWN_LATER, Request, Stack, differences
from tests.aws.double.template import Scope


def changes(stack: Stack, request: Request) -> list[dict[str, Any]]:
    """The resource changes of an update, in dependency order; new values may be known only later."""
    unknown: set[str] = set()  # resources whose reference or attributes will be new

    def ref(name: str) -> Any:
        return KNOWN_LATER if name in unknown else stack.resources[name].physical

    def attribute(name: str, key: str) -> Any:
        resource = stack.resources.get(name)
        if name in unknown or resource is None or resource.thing is None:
            return KNOWN_LATER
        return resource.kind.attributes[key](stack.region, resource.thing)

    scope = Scope(request.template, request.values, stack.region, stack.name, stack.id, ref, attribute)
    found = []
    for name in request.template.order():
        if not scope.has(name):
            continue
        old = stack.resources.get(name)
        if old is None or old.thing is None:
            unknown.add(name)
            found.append(_change("Add", name, request.template.resources[name]["Type"]))
            continue
        props = scope.properties(name)
        changed, replaces = differences(old, props, stack.tags, request.tags)
        if not changed:
            continue
        sure = [k for k in replaces if KNOWN_LATER not in str(props.get(k))]
        replacement = "True" if sure else "Conditional" if replaces else "False"
        unknown |= {name} if replaces else set()
        found.append(_change("Modify", name, old.type, old.physical, replacement, changed, replaces))
    kept = {n for n in request.template.resources if scope.has(n)}
    for name, resource in stack.resources.items():
        if name not in kept and resource.physical and resource.status != "DELETE_COMPLETE":
            found.append(_change("Remove", name, resource.type, resource.physical))
    return found


def _change(
    action: str,
    name: str,
    type_: str,
    physical: str = "",
    replacement: str = "",
    changed: list[str] | None = None,
    replaces: list[str] | None = None,
) -> dict[str, Any]:
    view: dict[str, Any] = {
        "Action": action,
        "LogicalResourceId": name,
        "ResourceType": type_,
        "Scope": [],
        "Details": [],
    }
    view |= {"PhysicalResourceId": physical} if physical else {}
    if action == "Modify":
        view["Replacement"] = replacement
        view["Scope"] = sorted({"Tags" if k == "Tags" else "Properties" for k in changed or []})
        for key in changed or []:
            recreation = (
                ("Always" if replacement == "True" else "Conditionally") if key in (replaces or []) else "Never"
            )
            target = {"Attribute": "Properties", "Name": key, "RequiresRecreation": recreation}
            if key == "Tags":
                target = {"Attribute": "Tags", "RequiresRecreation": "Never"}
            view["Details"].append({"Target": target, "Evaluation": "Static", "ChangeSource": "DirectModification"})
    return {"Type": "Resource", "ResourceChange": view}
