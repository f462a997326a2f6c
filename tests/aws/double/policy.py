"""Who may do what: a small evaluator of IAM policies.

Honoured: Effect, Action and NotAction, Resource when the ARN is known, and the conditions StringEquals, StringLike,
StringNotEquals, ArnLike, ArnEquals (also with ForAllValues, ForAnyValue, IfExists) on the keys in `Context`.
Every other condition operator or key counts as satisfied. Boundaries, SCPs and resource policies do not exist.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.aws.double.model import ROLE, ApiError

if TYPE_CHECKING:
    from tests.aws.double.world import World

_ADMIN = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
_PREFIXES = {
    "efs": "elasticfilesystem",
    "elb": "elasticloadbalancing",
    "elbv2": "elasticloadbalancing",
    "resourcegroupstaggingapi": "tag",
    "service-quotas": "servicequotas",
}
_OTHER_NAMES = {("s3", "HeadBucket"): "s3:ListBucket"}
_ALWAYS_ALLOWED = {"sts:GetCallerIdentity"}


@dataclass
class Context:
    """What is known about a call. None for tags means not known, and then conditions on them are satisfied."""

    arn: str | None = None
    request_tags: dict[str, str] | None = None
    resource_tags: dict[str, str] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    def values(self, key: str) -> list[str] | None:
        """The values of a condition key: empty when the call does not have it, None when not known."""
        name, _, tag = key.partition("/")
        if name.lower() == "aws:tagkeys":
            return None if self.request_tags is None else sorted(self.request_tags)
        if tag:
            is_request = name.lower() == "aws:requesttag"
            tags = self.request_tags if is_request else self.resource_tags
            return None if tags is None else [tags[tag]] if tag in tags else []
        return [self.keys[key]] if key in self.keys else None


def action_of(service: str, operation: str) -> str:
    return _OTHER_NAMES.get((service, operation)) or f"{_PREFIXES.get(service, service)}:{operation}"


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(patterns: Any, text: str) -> bool:
    return any(_pattern(str(p)).fullmatch(text) for p in _listed(patterns))


def _condition_holds(operator: str, wanted: dict[str, Any], context: Context) -> bool:
    base = operator.partition(":")[2] or operator
    for key, patterns in wanted.items():
        values = context.values(key)
        if values is None or (not values and base.endswith("IfExists")):
            continue
        test = {"StringEquals": any, "StringLike": any, "ArnLike": any, "ArnEquals": any, "StringNotEquals": None}
        name = base.removesuffix("IfExists")
        if name not in test:
            continue
        if name == "StringNotEquals":
            held = not any(v in _listed(patterns) for v in values)
        elif operator.startswith("ForAllValues:"):
            held = all(_matches(patterns, v) for v in values)
        elif name == "StringEquals":
            held = any(v in _listed(patterns) for v in values)
        else:
            held = any(_matches(patterns, v) for v in values)
        if not held:
            return False
    return True


def _applies(statement: dict[str, Any], action: str, context: Context) -> bool:
    if "Action" in statement:
        named = _matches([a.lower() for a in _listed(statement["Action"])], action.lower())
    else:
        named = not _matches([a.lower() for a in _listed(statement["NotAction"])], action.lower())
    if not named or (context.arn and not _matches(statement.get("Resource", "*"), context.arn)):
        return False
    conditions = statement.get("Condition", {})
    return all(_condition_holds(op, wanted, context) for op, wanted in conditions.items())


def decide(documents: list[dict[str, Any]], action: str, context: Context) -> str:
    """'allowed', 'explicitDeny' or 'implicitDeny', the words of SimulatePrincipalPolicy."""
    statements = [s for d in documents for s in _listed(d["Statement"])]
    effects = {s["Effect"] for s in statements if _applies(s, action, context)}
    return "explicitDeny" if "Deny" in effects else "allowed" if "Allow" in effects else "implicitDeny"


def documents_of(world: World, principal: str) -> list[dict[str, Any]] | None:
    """The policies of a principal; None when it is not restricted.

    A role that a stack made has the policies of its template. Of AWS's managed policies only AdministratorAccess
    is known; others grant nothing here.
    """
    if principal in world.policies:
        return world.policies[principal]
    role = next((r for r in world.region(world.home).of(ROLE) if r.arn(world.account) == principal), None)
    if role is None or role.made_by == "planted":
        return None
    documents = [p["PolicyDocument"] for p in role.props.get("Policies", [])]
    for arn in role.props.get("ManagedPolicyArns", []):
        policy = world.region(world.home).get("AWS::IAM::ManagedPolicy", arn)
        documents += [policy.props["PolicyDocument"]] if policy else []
        documents += [_ADMIN] if arn.endswith(":policy/AdministratorAccess") else []
    for policy in world.region(world.home).of("AWS::IAM::ManagedPolicy"):
        documents += [policy.props["PolicyDocument"]] if role.id in policy.props.get("Roles", []) else []
    return documents


def authorize(world: World, principal: str, action: str, context: Context) -> None:
    """Raise the error that AWS answers when the principal may not perform the action."""
    if action in _ALWAYS_ALLOWED:
        return
    world.authorized.add(action)
    context.keys.setdefault("aws:RequestedRegion", world.home)
    documents = documents_of(world, principal)
    verdict = "allowed" if documents is None else decide(documents, action, context)
    if action in world.faults.denied:
        verdict = "explicitDeny"
    if verdict == "allowed":
        return
    why = {
        "explicitDeny": "with an explicit deny in an identity-based policy",
        "implicitDeny": f"because no identity-based policy allows the {action} action",
    }[verdict]
    text = f"User: {principal} is not authorized to perform: {action} on resource: {context.arn or '*'} {why}"
    raise denied_error(action, text)


def denied_error(action: str, text: str) -> ApiError:
    service = action.partition(":")[0]
    if service == "ec2":
        return ApiError("UnauthorizedOperation", f"You are not authorized to perform this operation. {text}", 403)
    if service in ("cloudformation", "iam", "sts", "elasticloadbalancing", "route53", "s3"):
        return ApiError("AccessDenied", text, 403)
    return ApiError("AccessDeniedException", text, 403 if service in ("eks", "elasticfilesystem") else 400)
