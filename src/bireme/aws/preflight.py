"""Checks at AWS before anything is created: the caller's identity, zones, types, versions, quotas and free names.

Each check is one finding. A check that AWS refuses (its permission is missing) is a warning and does not stop `up`:
the stack itself decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Literal

from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, explain
from bireme.aws.cloudformation.stacks import find_stack
from bireme.aws.layout import CLUSTER_TAG, EXECUTION_ROLE, ClusterLayout, choose_zones, log_group
from bireme.aws.policy import Question, execution_questions, operator_questions
from bireme.aws.teardown.audit import describe_cluster, has_foreign_log_group
from bireme.aws.templates import types_of
from bireme.aws.up import execution_role
from bireme.core.text import first_of
from bireme.spec.cluster import ClusterFile, GroupFile

QUOTAS = {
    "on_demand": ("ec2", "L-1216C47A", "vCPUs of on-demand machines"),
    "spot": ("ec2", "L-34B43A08", "vCPUs of spot machines"),
    "address": ("ec2", "L-0263D0A3", "elastic addresses"),
    "vpc": ("vpc", "L-F678F1CE", "VPCs"),
    "cluster": ("eks", "L-1194D53C", "EKS clusters"),
}
State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    name: str
    state: State
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of AWS."""

    account: str
    arn: str
    principal: str
    """The user or role behind the session, as access entries name it."""


def can_administer(identity: Caller) -> CheckResult:
    """Whether the caller can be a cluster's administrator: EKS takes users and roles only."""
    if re.fullmatch(r"arn:[^:]+:iam::\d+:(user|role)/.+", identity.principal):
        return CheckResult("you", "ok", identity.principal)
    fix = "log in as a user or role, or name administrators with `access.admins`"
    return CheckResult("you", "wrong", f"{identity.principal} cannot administer an EKS cluster", fix)


def identify(aws: Aws) -> Caller:
    """The caller's identity; for a session, its role with the path, if `iam:GetRole` is allowed."""
    answer = aws.call("sts", "GetCallerIdentity")
    arn, principal = answer["Arn"], answer["Arn"]
    if role := re.fullmatch(r"arn:([^:]+):sts::(\d+):assumed-role/([^/]+)/.+", arn):
        principal = f"arn:{role[1]}:iam::{role[2]}:role/{role[3]}"
        try:
            principal = aws.call("iam", "GetRole", RoleName=role[3])["Role"]["Arn"]
        except AwsError as e:
            if not (e.is_absent or "Denied" in e.code):
                raise
    return Caller(answer["Account"], arn, principal)


def offered_zones(aws: Aws, file: ClusterFile) -> list[str]:
    """Zones of the region that offer at least one type of each group, the most types first."""
    answer = aws.call("ec2", "DescribeAvailabilityZones", Filters=[{"Name": "state", "Values": ["available"]}])
    zones = [each["ZoneName"] for each in answer["AvailabilityZones"] if each.get("ZoneType") != "local-zone"]
    groups = [set(file.workers.servers.types), set(file.workers.trainers.types)]
    offers = aws.pages(
        "ec2",
        "DescribeInstanceTypeOfferings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": sorted(set.union(*groups))}],
    )
    offered: dict[str, set[str]] = {zone: set() for zone in zones}
    for each in offers:
        if each["Location"] in offered:
            offered[each["Location"]].add(each["InstanceType"])
    fit = [zone for zone in zones if all(offered[zone] & types for types in groups)]
    return sorted(fit, key=lambda zone: (-len(offered[zone]), zone))


def choose_layout(aws: Aws, file: ClusterFile) -> ClusterLayout:
    """The layout with zones that AWS offers; an existing platform keeps its zones."""
    stack = find_stack(aws, ClusterLayout(file, ()).stack("platform"))
    there = [stack.parameters[k] for k in ("ZoneA", "ZoneB") if k in stack.parameters] if stack is not None else []
    return ClusterLayout(file, choose_zones(file, there if len(there) == 2 else offered_zones(aws, file)))


def examine(aws: Aws, layout: ClusterLayout, identity: Caller) -> list[CheckResult]:
    """Run every check, in the order in which they are printed."""
    checks: list[tuple[str, Callable[[], Iterator[CheckResult]]]] = [
        ("permissions", lambda: _permissions(aws, layout, identity)),
        ("zones", lambda: _zones(aws, layout)),
        ("Kubernetes", lambda: _version(aws, layout)),
        ("name", lambda: _name(aws, layout)),
        ("quotas", lambda: _quotas(aws, layout)),
        ("machines", lambda: _machines(aws, layout)),
        ("your own", lambda: _own(aws, layout)),
    ]
    results: list[CheckResult] = []
    for name, check in checks:
        try:
            results += check()
        except AwsError as e:
            known = explain(f"{e.code}: {e.message}")
            text = f"not checked: {known.what if known else e.message}"
            if e.is_absent:
                results.append(
                    CheckResult(name, "wrong", known.what if known else e.message, known.fix if known else "")
                )
            else:
                results.append(CheckResult(name, "warning", text, known.fix if known else ""))
    return results


def _permissions(aws: Aws, layout: ClusterLayout, identity: Caller) -> Iterator[CheckResult]:
    role, place = execution_role(aws), (layout.name, aws.region, identity.account)
    asked = operator_questions(*place, role)
    missing = _denied(aws, identity, asked)
    made = [] if role else _denied(aws, identity, execution_questions(*place, types_of(layout)))
    no_role = f"there is no role {EXECUTION_ROLE}"
    why = f" ({no_role}, so CloudFormation has your permissions only)" if made else ""
    fixes = ["attach the policy that `bireme cluster policy` prints"] if missing else []
    if made:
        fixes.append(
            "have an administrator deploy `bireme cluster policy --template`, which makes that role, or attach what "
            "`bireme cluster policy --execution` prints too"
        )
    if lacking := sorted({*missing, *made}):
        text = f"missing: {first_of(lacking, 6)}{why}"
        yield CheckResult("permissions", "wrong", text, "; ".join(fixes))
    elif role:
        yield CheckResult("permissions", "ok", "yours are enough to start and watch stacks")
    else:
        text = f"yours are enough to start and watch stacks, and to make what is in them ({no_role})"
        yield CheckResult("permissions", "ok", text)


def _denied(aws: Aws, identity: Caller, questions: Iterable[Question]) -> list[str]:
    """The actions that IAM would deny the caller."""
    denied = []
    for each in questions:
        context = [
            {"ContextKeyName": key, "ContextKeyType": "string", "ContextKeyValues": [value]}
            for key, value in each.context.items()
        ]
        asked = {"ActionNames": each.actions, "ResourceArns": [each.place], "ContextEntries": context}
        principal = identity.principal
        for result in aws.pages(
            "iam", "SimulatePrincipalPolicy", "EvaluationResults", PolicySourceArn=principal, **asked
        ):
            if result["EvalDecision"] != "allowed":
                denied.append(result["EvalActionName"])
    return denied


def _zones(aws: Aws, layout: ClusterLayout) -> Iterator[CheckResult]:
    offered = offered_zones(aws, layout.file)
    missing = [zone for zone in layout.zones if zone not in offered]
    if not offered:
        types = ", ".join(sorted({*layout.file.workers.servers.types, *layout.file.workers.trainers.types}))
        yield CheckResult(
            "zones", "wrong", f"no zone of {aws.region} offers both groups one of {types}", "choose other `types`"
        )
    elif len(layout.zones) < 2:
        text = f"{layout.file.region} offers these types in one zone only"
        yield CheckResult("zones", "wrong", text, "choose other `types`: a control plane needs two zones")
    elif missing:
        text = f"{', '.join(missing)} does not exist for this account, or does not offer the types"
        yield CheckResult("zones", "wrong", text, f"one of: {', '.join(offered)}")
    else:
        yield CheckResult("zones", "ok", f"{', '.join(layout.zones)} (workers in the first)")


def _version(aws: Aws, layout: ClusterLayout) -> Iterator[CheckResult]:
    wanted = layout.file.kubernetes
    statuses = {
        each["clusterVersion"]: each.get("versionStatus") or str(each.get("status", "")).upper()
        for each in aws.pages("eks", "DescribeClusterVersions", "clusterVersions")
    }
    standard = sorted(version for version, status in statuses.items() if "STANDARD" in status)
    status = statuses.get(wanted, "")
    if "STANDARD" in status:
        yield CheckResult("Kubernetes", "ok", f"{wanted} is in standard support")
    elif wanted in statuses:
        text = f"{wanted} is past standard support: EKS would upgrade it by itself"
        yield CheckResult("Kubernetes", "wrong", text, f"one of: {', '.join(standard)}")
    else:
        yield CheckResult("Kubernetes", "wrong", f"EKS does not offer {wanted}", f"one of: {', '.join(standard)}")


def _name(aws: Aws, layout: ClusterLayout) -> Iterator[CheckResult]:
    taken = [
        stack.name
        for kind in layout.stacks
        if (stack := find_stack(aws, layout.stack(kind))) and not stack.is_of(layout.name)
    ]
    cluster = describe_cluster(aws, layout.name)
    is_ours = cluster is None or (cluster.get("tags") or {}).get(CLUSTER_TAG) == layout.name
    if taken or not is_ours:
        text = f"{taken[0] if taken else f'an EKS cluster {layout.name}'} exists, and bireme did not make it"
        yield CheckResult("name", "wrong", text, "choose another `name`")
    elif cluster is None and not _has_platform(aws, layout) and has_foreign_log_group(aws, layout.name):
        name = log_group(layout.name)
        fix = f"`aws logs delete-log-group --log-group-name {name}` if you need its lines no more"
        yield CheckResult("name", "wrong", f"an earlier cluster of that name left its log group {name}", fix)
    else:
        yield CheckResult("name", "ok", f"{layout.name} is {'free' if cluster is None else 'yours'}")


def _has_platform(aws: Aws, layout: ClusterLayout) -> bool:
    return find_stack(aws, layout.stack("platform")) is not None


def _quotas(aws: Aws, layout: ClusterLayout) -> Iterator[CheckResult]:
    if find_stack(aws, layout.stack("workers")) is not None:
        yield CheckResult("quotas", "ok", "the workers are there already")
        return
    needs: dict[str, int] = {"cluster": 1}
    for group in (layout.file.workers.servers, layout.file.workers.trainers):
        number = vcpus(group)
        if number is None:
            text = f"how many vCPUs {group.types[0]} has is not known here: the quota may be too small for it"
            yield CheckResult("quotas", "warning", text)
        else:
            needs[group.capacity] = needs.get(group.capacity, 0) + number
    if layout.makes_network:
        needs["vpc"] = 1
    if layout.has_nat:
        needs["address"] = 1
    short = []
    for key, need in needs.items():
        service, code, name = QUOTAS[key]
        quota = aws.call("service-quotas", "GetServiceQuota", ServiceCode=service, QuotaCode=code)["Quota"]["Value"]
        used = _used(aws, key)
        if used + need > quota:
            short.append(f"{name}: {need} needed, {quota - used:g} of {quota:g} free")
    fix = "ask for more at https://console.aws.amazon.com/servicequotas, or choose fewer or smaller machines"
    if short:
        yield CheckResult("quotas", "wrong", "; ".join(short), fix)
    else:
        yield CheckResult("quotas", "ok", ", ".join(f"{need} {QUOTAS[key][2]}" for key, need in needs.items()))


def _machines(aws: Aws, layout: ClusterLayout) -> Iterator[CheckResult]:
    workers = layout.file.workers
    if not (workers.servers.count or workers.trainers.count) and find_stack(aws, layout.stack("workers")) is None:
        text = "no machine is requested, and the cluster's add-ons need one to start on"
        yield CheckResult("machines", "wrong", text, "set `workers.servers.count: 1`; `scale 0` works afterwards")


def _used(aws: Aws, key: str) -> int:
    """The used part of a quota where one listing counts it; clusters and machines are left to AWS."""
    if key == "address":
        return len(aws.call("ec2", "DescribeAddresses").get("Addresses", ()))
    if key == "vpc":
        return sum(1 for _ in aws.pages("ec2", "DescribeVpcs", "Vpcs"))
    return 0


def vcpus(group: GroupFile) -> int | None:
    """The vCPUs of a group by its first type: `large` has 2, `4xlarge` 16, `metal-24xl` 96; None for other sizes."""
    size = group.types[0].partition(".")[2]
    if not group.count:
        return 0
    if match := re.fullmatch(r"([0-9]*)xlarge|metal-([0-9]+)xl", size):
        return group.count * 4 * int(match[1] or match[2] or 1)
    return group.count * 2 if size in ("nano", "micro", "small", "medium", "large") else None


def _own(aws: Aws, layout: ClusterLayout) -> Iterator[CheckResult]:
    """Check the user's own resources that the file names."""
    file = layout.file
    if file.kms_key is not None:
        key = aws.call("kms", "DescribeKey", KeyId=file.kms_key)["KeyMetadata"]
        is_on = key.get("KeyState") == "Enabled"
        yield CheckResult("KMS key", "ok" if is_on else "wrong", key.get("KeyState", ""), "" if is_on else "enable it")
    if file.workers.key_pair is not None:
        aws.call("ec2", "DescribeKeyPairs", KeyNames=[file.workers.key_pair])
        yield CheckResult("key pair", "ok", file.workers.key_pair)
    if file.network.vpc is not None:
        yield _subnets(aws, layout)
        yield _services(aws, file.network.vpc, IPv4Network(file.network.services))
    if file.storage.file_system is not None and find_stack(aws, layout.stack("platform")) is None:
        yield _file_system(aws, file.storage.file_system)


def _subnets(aws: Aws, layout: ClusterLayout) -> CheckResult:
    subnets = aws.call("ec2", "DescribeSubnets", SubnetIds=list(layout.file.network.subnets))["Subnets"]
    vpcs = {each["VpcId"] for each in subnets}
    at = {each["SubnetId"]: each["AvailabilityZone"] for each in subnets}
    zones = [at.get(subnet, "?") for subnet in layout.file.network.subnets]
    if vpcs != {layout.file.network.vpc}:
        return CheckResult(
            "subnets", "wrong", f"the subnets are in {', '.join(sorted(vpcs))}", "name subnets of that VPC"
        )
    if len(set(zones[:2])) < 2:
        text = f"the first two subnets are both in {zones[0]}"
        return CheckResult("subnets", "wrong", text, "the first two must be in two zones")
    return CheckResult("subnets", "ok", ", ".join(zones))


def _services(aws: Aws, vpc: str, services: IPv4Network) -> CheckResult:
    """Whether the range of Services is free in an existing VPC, which may have several ranges."""
    described = next(iter(aws.pages("ec2", "DescribeVpcs", "Vpcs", VpcIds=[vpc])))
    more = [each.get("CidrBlock") for each in described.get("CidrBlockAssociationSet") or ()]
    ranges = [IPv4Network(each) for each in dict.fromkeys([described["CidrBlock"], *more]) if each]
    taken = [each for each in ranges if each.overlaps(services)]
    if not taken:
        return CheckResult("services", "ok", f"{services} is outside the VPC's {', '.join(map(str, ranges))}")
    text = f"`network.services` ({services}) overlaps the VPC's {', '.join(map(str, taken))}"
    choices = map(IPv4Network, ("10.100.0.0/16", "172.20.0.0/16", "192.168.128.0/17"))
    free = [each for each in choices if not any(each.overlaps(other) for other in ranges)]
    return CheckResult("services", "wrong", text, f"write `services: {free[0]}`" if free else "choose another range")


def _file_system(aws: Aws, file_system: str) -> CheckResult:
    described = aws.call("efs", "DescribeFileSystems", FileSystemId=file_system)["FileSystems"][0]
    targets = described.get("NumberOfMountTargets", 0)
    if targets:
        fix = "delete its mount targets, or leave `storage.file_system` out"
        text = f"{file_system} has {targets} mount target(s): it can be mounted from one VPC only"
        return CheckResult("file system", "wrong", text, fix)
    return CheckResult("file system", "ok", file_system)
