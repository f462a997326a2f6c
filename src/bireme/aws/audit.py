"""What is left of a cluster, and what it costs: every service that a cluster uses is asked, by tag and by name.

The tagging service alone will not do: it forgets late (what is deleted is listed for a while) and does not know roles.
So each service is asked itself, and the tagging service only for kinds of things that nobody has thought of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bireme.aws import prices
from bireme.aws.causes import AwsError
from bireme.aws.client import Aws
from bireme.aws.layout import CLUSTER_TAG, STACKS, repository_name, role_path, stack_name
from bireme.aws.stacks import find_stack
from bireme.aws.sweep import Ground, balancers, tags_of

_ASKED = ("ec2", "eks", "elasticfilesystem", "ecr", "logs", "elasticloadbalancing", "cloudformation", "iam")
"""Services whose own answers count more than the tagging service's."""
GB = 1 << 30


@dataclass(frozen=True, slots=True)
class Thing:
    """Something at AWS that belongs to a cluster."""

    kind: str
    id: str
    usd_month: float | None = 0.0
    """None: billed, but not in our table. 0: free."""
    note: str = ""
    is_data: bool = False
    """Whether it holds the user's data, which stays unless it is told to go."""


def audit(aws: Aws, cluster: str) -> list[Thing]:
    """Everything that is there of a cluster now."""
    found = [*_stacks(aws, cluster), *_control_plane(aws, cluster)]
    has_cluster = any(thing.kind == "EKS cluster" for thing in found)
    # Tags with only the cluster's name on them count while that name is ours, or nobody's.
    is_ours = has_cluster or not _exists(aws, cluster)
    ground = Ground(cluster, owns_cluster=is_ours)
    found += _machines(aws, ground)
    found += _network(aws, ground)
    found += _balancers(aws, ground)
    found += file_systems(aws, cluster)
    found += _named(aws, cluster)
    return [*found, *_others(aws, cluster)]


def _stacks(aws: Aws, cluster: str) -> Iterator[Thing]:
    for kind in STACKS:
        stack = find_stack(aws, stack_name(cluster, kind))
        if stack is not None and stack.status != "DELETE_COMPLETE" and stack.is_of(cluster):
            yield Thing("stack", stack.name, note=stack.status, is_data=kind == "storage")


def describe_cluster(aws: Aws, cluster: str) -> dict[str, Any] | None:
    """The EKS cluster of this name; None if there is none."""
    try:
        return dict(aws.call("eks", "DescribeCluster", name=cluster)["cluster"])
    except AwsError as e:
        if e.is_absent:
            return None
        raise


def _exists(aws: Aws, cluster: str) -> bool:
    return describe_cluster(aws, cluster) is not None


def _control_plane(aws: Aws, cluster: str) -> Iterator[Thing]:
    found = describe_cluster(aws, cluster)
    if found is not None and (found.get("tags") or {}).get(CLUSTER_TAG) == cluster:
        yield Thing("EKS cluster", cluster, prices.CONTROL_PLANE_USD_H * prices.MONTH_H, found.get("status", ""))


def _tagged(ground: Ground) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [ground.cluster]}]


def _each(aws: Aws, operation: str, key: str, ground: Ground) -> Iterator[dict[str, Any]]:
    """Things of EC2 with our tag, and those with Kubernetes' tag for our cluster."""
    seen = set()
    queries = [_tagged(ground)]
    if ground.owns_cluster:
        queries.append([{"Name": f"tag:kubernetes.io/cluster/{ground.cluster}", "Values": ["owned"]}])
    for filters in queries:
        for each in aws.pages("ec2", operation, key, Filters=filters):
            if (id_ := repr(sorted(each.items(), key=lambda item: item[0]))) not in seen:
                seen.add(id_)
                yield each


def _machines(aws: Aws, ground: Ground) -> Iterator[Thing]:
    for reservation in _each(aws, "DescribeInstances", "Reservations", ground):
        for each in reservation["Instances"]:
            if each["State"]["Name"] not in ("terminated", "shutting-down"):
                usd_h = prices.machine_usd_h(each["InstanceType"], aws.region)
                usd = None if usd_h is None else usd_h * prices.MONTH_H
                yield Thing("machine", each["InstanceId"], usd, each["InstanceType"])
    for each in _each(aws, "DescribeVolumes", "Volumes", ground):
        usd = prices.DISK_USD_GB_MONTH * each.get("Size", 0)
        yield Thing("volume", each["VolumeId"], usd, f"{each.get('Size', 0)} GB, {each['State']}")


def _network(aws: Aws, ground: Ground) -> Iterator[Thing]:
    tagged = _tagged(ground)
    for each in aws.pages("ec2", "DescribeNatGateways", "NatGateways", Filter=tagged):
        if each["State"] not in ("deleted", "failed"):
            yield Thing("NAT gateway", each["NatGatewayId"], prices.NAT_USD_H * prices.MONTH_H, each["State"])
    for each in aws.call("ec2", "DescribeAddresses", Filters=tagged).get("Addresses", ()):
        yield Thing("address", each["AllocationId"], prices.ADDRESS_USD_H * prices.MONTH_H)
    for each in aws.pages("ec2", "DescribeVpcs", "Vpcs", Filters=tagged):
        yield Thing("VPC", each["VpcId"])
    for each in _each(aws, "DescribeNetworkInterfaces", "NetworkInterfaces", ground):
        yield Thing("network interface", each["NetworkInterfaceId"], note=each.get("Description", ""))
    for each in _each(aws, "DescribeSecurityGroups", "SecurityGroups", ground):
        yield Thing("security group", each["GroupId"], note=each.get("GroupName", ""))


def _balancers(aws: Aws, ground: Ground) -> Iterator[Thing]:
    for each in balancers(aws, ground):
        yield Thing(each.kind, each.name, prices.BALANCER_USD_H * prices.MONTH_H)


def file_systems(aws: Aws, cluster: str) -> Iterator[Thing]:
    """The file systems that we have made for a cluster."""
    for each in aws.pages("efs", "DescribeFileSystems", "FileSystems"):
        if tags_of(each).get(CLUSTER_TAG) == cluster and each["LifeCycleState"] not in ("deleting", "deleted"):
            size = each.get("SizeInBytes", {}).get("Value", 0)
            usd = prices.FILE_USD_GB_MONTH * size / GB
            yield Thing("file system", each["FileSystemId"], usd, f"{size / GB:.1f} GiB of data", is_data=True)


def _named(aws: Aws, cluster: str) -> Iterator[Thing]:
    for each in aws.pages("iam", "ListRoles", "Roles", PathPrefix=role_path(cluster)):
        yield Thing("role", each["RoleName"])
    try:
        answer = aws.call("ecr", "DescribeRepositories", repositoryNames=[repository_name(cluster)])
        for each in answer["repositories"]:
            yield Thing("image repository", each["repositoryName"], None, "billed by the bytes that it holds")
    except AwsError as e:
        if not e.is_absent:
            raise
    # A log group of this name may be of a cluster that was never ours: our tag decides.
    name = f"/aws/eks/{cluster}/cluster"
    tagged = {arn.removesuffix(":*").rpartition(":log-group:")[2] for arn in _arns(aws, cluster) if ":logs:" in arn}
    for each in aws.pages("logs", "DescribeLogGroups", "logGroups", logGroupNamePrefix=name):
        if each["logGroupName"] == name and name in tagged:
            yield Thing("log group", name, None, "billed by the bytes that it holds")


def _arns(aws: Aws, cluster: str) -> list[str]:
    filters = [{"Key": CLUSTER_TAG, "Values": [cluster]}]
    found = aws.pages("resourcegroupstaggingapi", "GetResources", "ResourceTagMappingList", TagFilters=filters)
    return [each["ResourceARN"] for each in found]


def _others(aws: Aws, cluster: str) -> Iterator[Thing]:
    for arn in _arns(aws, cluster):
        if arn.split(":")[2] not in _ASKED:
            yield Thing(arn.split(":")[2], arn, None)
