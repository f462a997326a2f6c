"""Templates: reading, checking, and resolving their functions. JSON only.

`Template` is the text; `Scope` is the text with values: parameters, pseudo parameters, and two functions that
give the reference and the attributes of a resource (which exist only once it has been made).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.aws.double.model import KINDS, SECURITY_GROUP, SUBNET, VPC, ApiError, Region

MAX_BODY = 51_200
_IDS = {"AWS::EC2::VPC::Id": VPC, "AWS::EC2::Subnet::Id": SUBNET, "AWS::EC2::SecurityGroup::Id": SECURITY_GROUP}
_NO_VALUE = object()
_SUB = re.compile(r"\$\{(!?)([^}]+)\}")
_SECTIONS = {"AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Mappings", "Conditions"}
_SECTIONS |= {"Resources", "Outputs", "Rules"}


def invalid(message: str) -> ApiError:
    return ApiError("ValidationError", message)


def _references(value: Any) -> Iterator[tuple[str, str | None]]:
    """(name, attribute or None) of every Ref, GetAtt and Sub inside a value."""
    if isinstance(value, list):
        for part in value:
            yield from _references(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key == "Ref":
                yield part, None
            elif key == "Fn::GetAtt":
                name, _, attribute = part.partition(".") if isinstance(part, str) else (part[0], "", part[1])
                yield name, attribute
            elif key == "Fn::Sub":
                yield from _sub_references(part)
            else:
                yield from _references(part)


def _sub_references(value: Any) -> Iterator[tuple[str, str | None]]:
    text, own = (value, {}) if isinstance(value, str) else value
    yield from _references(own)
    for literal, name in _SUB.findall(text):
        if not literal and name not in own:
            base, dot, attribute = name.partition(".")
            yield base, attribute if dot else None


@dataclass
class Template:
    body: str
    tree: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.body.encode()) > MAX_BODY:
            text = (
                "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: Member must have "
            )
            raise invalid(text + f"length less than or equal to {MAX_BODY}")
        try:
            self.tree = json.loads(self.body)
        except json.JSONDecodeError as e:
            raise invalid(f"Template format error: JSON not well-formed. (line {e.lineno}, column {e.colno})") from e
        self._check()

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.tree.get("Parameters", {}))

    @property
    def resources(self) -> dict[str, Any]:
        return dict(self.tree["Resources"])

    def _check(self) -> None:
        unknown = sorted(set(self.tree) - _SECTIONS)
        if unknown:
            raise invalid(f"Invalid template property or properties [{', '.join(unknown)}]")
        if not self.tree.get("Resources"):
            raise invalid("Template format error: At least one Resources member must be defined.")
        types = {r.get("Type") for r in self.resources.values()}
        strange = sorted(str(t) for t in types if t not in KINDS or not KINDS[t].in_templates)
        if strange:
            raise invalid(f"Template format error: Unrecognized resource types: [{', '.join(strange)}]")
        for block in ("Resources", "Outputs"):
            self._check_references(block)
        self.order()

    def _check_references(self, block: str) -> None:
        known = set(self.resources) | set(self.parameters)
        found = list(_references(self.tree.get(block, {})))
        depends = {d for r in self.resources.values() for d in _words(r.get("DependsOn"))}
        missing = {n for n, _ in found if n not in known and not n.startswith("AWS::")} | (
            depends - set(self.resources)
        )
        if missing:
            names = ", ".join(sorted(missing))
            text = f"Unresolved resource dependencies [{names}] in the {block} block of the template"
            raise invalid(f"Template format error: {text}")
        for name, attribute in found:
            if attribute and attribute not in KINDS[self.resources[name]["Type"]].attributes:
                text = f"Template error: resource {name} does not support attribute type {attribute} in Fn::GetAtt"
                raise invalid(text)

    def dependencies(self, name: str) -> set[str]:
        """Resources that must exist before this one."""
        resource = self.resources[name]
        named = {n for n, _ in _references(resource.get("Properties", {}))} | set(_words(resource.get("DependsOn")))
        return named & set(self.resources)

    def order(self) -> list[str]:
        """Resources, each after those it depends on."""
        done: list[str] = []
        left = {n: self.dependencies(n) for n in self.resources}
        while left:
            ready = [n for n, needs in left.items() if needs <= set(done)]
            if not ready:
                raise invalid(f"Circular dependency between resources: [{', '.join(left)}]")
            done += ready
            left = {n: needs for n, needs in left.items() if n not in ready}
        return done

    def capabilities(self) -> set[str]:
        """Capabilities that the caller must acknowledge."""
        iam = [r for r in self.resources.values() if r["Type"].startswith("AWS::IAM::")]
        named = any(KINDS[r["Type"]].name in r.get("Properties", {}) for r in iam)
        return {"CAPABILITY_NAMED_IAM"} if named else {"CAPABILITY_IAM"} if iam else set()


def _words(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


# --- parameters -----------------------------------------------------------------------------------------------------


def read_parameters(
    template: Template, given: list[dict[str, Any]], previous: dict[str, str], region: Region
) -> dict[str, str]:
    """Values of all parameters as text, checked like CloudFormation does before it makes anything."""
    values = {}
    for entry in given:
        key = entry["ParameterKey"]
        values[key] = previous.get(key, "") if entry.get("UsePreviousValue") else entry.get("ParameterValue", "")
    extra = sorted(set(values) - set(template.parameters))
    if extra:
        raise invalid(f"Parameters: [{', '.join(extra)}] do not exist in the template")
    for key, spec in template.parameters.items():
        if key not in values and "Default" in spec:
            values[key] = str(spec["Default"])
    missing = [k for k in template.parameters if k not in values]
    if missing:
        raise invalid(f"Parameters: [{', '.join(missing)}] must have values")
    for key, spec in template.parameters.items():
        _check_parameter(key, spec, values[key], region)
    return values


def _check_parameter(key: str, spec: dict[str, Any], value: str, region: Region) -> None:
    type_ = spec["Type"]
    if type_ == "Number" and not re.fullmatch(r"-?\d+(\.\d+)?", value):
        raise invalid(f"Parameter '{key}' must be a number.")
    if "AllowedValues" in spec and value not in map(str, spec["AllowedValues"]):
        raise invalid(f"Parameter '{key}' must be one of AllowedValues")
    said = spec.get("ConstraintDescription")
    if "AllowedPattern" in spec and not re.fullmatch(spec["AllowedPattern"], value):
        raise invalid(
            f"Parameter {key} failed to satisfy constraint: {said or 'must match pattern ' + spec['AllowedPattern']}"
        )
    size = float(value) if type_ == "Number" else len(value)
    low, high = (spec.get(f"{end}Value" if type_ == "Number" else f"{end}Length") for end in ("Min", "Max"))
    if (low is not None and size < float(low)) or (high is not None and size > float(high)):
        raise invalid(
            f"Parameter '{key}' must be between {low} and {high}"
            if not said
            else f"Parameter {key} failed to satisfy constraint: {said}"
        )
    inner = type_.removeprefix("List<").removesuffix(">")
    if inner in _IDS:
        for id_ in value.split(",") if type_.startswith("List<") else [value]:
            if region.get(_IDS[inner], id_.strip()) is None:
                text = f"Parameter validation failed: parameter value {id_} for parameter name {key} does not exist"
                raise invalid(f"{text}. Rollback requested by user.")


# --- functions ------------------------------------------------------------------------------------------------------


@dataclass
class Scope:
    template: Template
    values: dict[str, str]
    region: Region
    stack_name: str
    stack_id: str
    ref: Callable[[str], Any]
    attribute: Callable[[str, str], Any]

    def condition(self, name: str) -> bool:
        conditions = self.template.tree.get("Conditions", {})
        if name not in conditions:
            raise invalid(f"Template format error: Unresolved condition dependency {name}")
        return bool(self._function(conditions[name]))

    def has(self, name: str) -> bool:
        """Whether a resource's condition holds."""
        condition = self.template.resources[name].get("Condition")
        return condition is None or self.condition(condition)

    def properties(self, name: str) -> dict[str, Any]:
        return dict(self.resolve(self.template.resources[name].get("Properties", {})))

    def outputs(self) -> list[dict[str, Any]]:
        found = []
        for key, spec in self.template.tree.get("Outputs", {}).items():
            if "Condition" in spec and not self.condition(spec["Condition"]):
                continue
            entry = {"OutputKey": key, "OutputValue": str(self.resolve(spec["Value"]))}
            found.append(entry | ({"Description": spec["Description"]} if "Description" in spec else {}))
        return found

    def resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            return [v for v in map(self.resolve, value) if v is not _NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and (next(iter(value)) in ("Ref", "Condition") or next(iter(value)).startswith("Fn::")):
            return self._function(value)
        pairs = ((k, self.resolve(v)) for k, v in value.items())
        return {k: v for k, v in pairs if v is not _NO_VALUE}

    def _reference(self, name: str) -> Any:
        pseudo = {
            "AWS::Region": self.region.name, "AWS::AccountId": self.region.world.account, "AWS::Partition": "aws",
            "AWS::StackName": self.stack_name, "AWS::StackId": self.stack_id, "AWS::URLSuffix": "amazonaws.com",
            "AWS::NoValue": _NO_VALUE, "AWS::NotificationARNs": [],
        }  # fmt: skip
        if name in pseudo:
            return pseudo[name]
        if name not in self.values:
            return self.ref(name)
        type_, value = self.template.parameters[name]["Type"], self.values[name]
        is_list = type_ == "CommaDelimitedList" or type_.startswith("List<")
        return [v.strip() for v in value.split(",")] if is_list else value

    def _sub(self, argument: Any) -> str:
        text, own = (argument, {}) if isinstance(argument, str) else (argument[0], self.resolve(argument[1]))

        def replace(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return "${" + name + "}"
            base, dot, attribute = name.partition(".")
            return str(own[name] if name in own else self.attribute(base, attribute) if dot else self._reference(name))

        return _SUB.sub(replace, text)

    def _function(self, value: Any) -> Any:  # noqa: C901 - one case for each function
        if not isinstance(value, dict):
            return value
        (name, argument), *_ = value.items()
        r = self.resolve
        match name:
            case "Ref":
                return self._reference(argument)
            case "Condition":
                return self.condition(argument)
            case "Fn::GetAtt":
                return self.attribute(*(argument.split(".", 1) if isinstance(argument, str) else argument))
            case "Fn::Sub":
                return self._sub(argument)
            case "Fn::Join":
                return r(argument[0]).join(map(str, r(argument[1])))
            case "Fn::Split":
                return r(argument[1]).split(r(argument[0]))
            case "Fn::Select":
                return r(argument[1])[int(r(argument[0]))]
            case "Fn::If":
                return r(argument[1] if self.condition(argument[0]) else argument[2])
            case "Fn::Equals":
                return str(r(argument[0])) == str(r(argument[1]))
            case "Fn::Not":
                return not self._function(argument[0])
            case "Fn::And":
                return all(self._function(a) for a in argument)
            case "Fn::Or":
                return any(self._function(a) for a in argument)
            case "Fn::Base64":
                return base64.b64encode(str(r(argument)).encode()).decode()
            case "Fn::GetAZs":
                return self.region.zones
            case "Fn::FindInMap":
                first, second, third = r(argument)
                return self.template.tree["Mappings"][first][second][third]
        raise invalid(f"Template error: the double does not model {name}")
