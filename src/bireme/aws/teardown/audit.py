"""The resources left of a cluster, with prices: query every service that a cluster uses, by tag and by name.

The tagging service alone does not suffice: it lists deleted resources for a while, and no roles. So each service is
queried itself, and the tagging service covers the resource types that no query names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.aws import prices
from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError
from bireme.aws.cloudformation.stacks import find_stack
from bireme.aws.layout import CLUSTER_TAG, STACKS, log_group, repository_name, role_path, stack_name
from bireme.aws.teardown.sweep import Scope, balancers, tags_of

_ASKED = ("ec2", "eks", "elasticfilesystem", "ecr", "logs", "elasticloadbalancing", "cloudformation", "iam")
"""Services that are queried themselves; the tagging service's answers for them are ignored."""
GB = 1 << 30


@dataclass(frozen=True, slots=True)
class LeftResource:
    """A resource at AWS that belongs to a cluster."""

    kind: str
    id: str
    usd_month: float | None = 0.0
    """None: billed, but not in our table. 0: free."""
    note: str = ""
    is_data: bool = False
    """Whether it holds the user's data, which only `--delete-data` deletes."""


def audit(aws: Aws, cluster: str) -> list[LeftResource]:
    """List every existing resource of a cluster."""
    there = describe_cluster(aws, cluster)
    is_ours = there is None or (there.get("tags") or {}).get(CLUSTER_TAG) == cluster
    left = list(_stacks(aws, cluster))
    if there is not None and is_ours:
        usd = prices.CONTROL_PLANE_USD_H * prices.MONTH_H
        left.append(LeftResource("EKS cluster", cluster, usd, there.get("status", "")))
    # Tags and names that only contain the cluster's name count unless a foreign cluster has that name.
    scope = Scope(cluster, owns_cluster=is_ours)
    left += _machines(aws, scope)
    left += _network(aws, scope)
    left += _balancers(aws, scope)
    left += file_systems(aws, cluster)
    left += _named(aws, scope)
    return [*left, *_others(aws, cluster)]


def _stacks(aws: Aws, cluster: str) -> Iterator[LeftResource]:
    for kind in STACKS:
        stack = find_stack(aws, stack_name(cluster, kind))
        if stack is not None and stack.status != "DELETE_COMPLETE" and stack.is_of(cluster):
            yield LeftResource("stack", stack.name, note=stack.status, is_data=kind == "storage")


def describe_cluster(aws: Aws, cluster: str) -> dict[str, Any] | None:
    """The EKS cluster of this name; None if there is none."""
    try:
        return dict(aws.call("eks", "DescribeCluster", name=cluster)["cluster"])
    except AwsError as e:
        if e.is_absent:
            return None
        raise


def _tagged(scope: Scope) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [scope.cluster]}]


def _each(aws: Aws, operation: str, key: str, scope: Scope, vpcs: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """EC2 resources with our tag, with Kubernetes' tag for our cluster, and all in the VPCs."""
    seen: set[str] = set()
    queries = [_tagged(scope)]
    if vpcs:
        # Also what others made there: it blocks the deletion of our VPC.
        queries.append([{"Name": "vpc-id", "Values": list(vpcs)}])
    if scope.owns_cluster:
        queries.append([{"Name": f"tag:kubernetes.io/cluster/{scope.cluster}", "Values": ["owned"]}])
    for filters in queries:
        for each in aws.pages("ec2", operation, key, Filters=filters):
            id_ = next(str(each[name]) for name in _IDS if name in each)
            if id_ not in seen:
                seen.add(id_)
                yield each


_IDS = ("ReservationId", "VolumeId", "NetworkInterfaceId", "GroupId")


def _machines(aws: Aws, scope: Scope) -> Iterator[LeftResource]:
    for reservation in _each(aws, "DescribeInstances", "Reservations", scope):
        for each in reservation["Instances"]:
            if each["State"]["Name"] not in ("terminated", "shutting-down"):
                usd_h = prices.machine_usd_h(each["InstanceType"], aws.region)
                usd = None if usd_h is None else usd_h * prices.MONTH_H
                yield LeftResource("machine", each["InstanceId"], usd, each["InstanceType"])
    for each in _each(aws, "DescribeVolumes", "Volumes", scope):
        usd = prices.DISK_USD_GB_MONTH * each.get("Size", 0)
        yield LeftResource("volume", each["VolumeId"], usd, f"{each.get('Size', 0)} GB, {each['State']}")


def _network(aws: Aws, scope: Scope) -> Iterator[LeftResource]:
    tagged = _tagged(scope)
    for each in aws.pages("ec2", "DescribeNatGateways", "NatGateways", Filter=tagged):
        if each["State"] not in ("deleted", "failed") and scope.is_ours(tags_of(each)):
            yield LeftResource("NAT gateway", each["NatGatewayId"], prices.NAT_USD_H * prices.MONTH_H, each["State"])
    for each in aws.call("ec2", "DescribeAddresses", Filters=tagged).get("Addresses", ()):
        yield LeftResource("address", each["AllocationId"], prices.ADDRESS_USD_H * prices.MONTH_H)
    vpcs = [each["VpcId"] for each in aws.pages("ec2", "DescribeVpcs", "Vpcs", Filters=tagged)]
    yield from (LeftResource("VPC", vpc) for vpc in vpcs)
    for each in _each(aws, "DescribeNetworkInterfaces", "NetworkInterfaces", scope, vpcs):
        note = each.get("Description", "")
        if not scope.is_ours(tags_of(each, "TagSet")):
            note = f"{note + ', ' if note else ''}not made by bireme, in {each.get('VpcId')}"
        yield LeftResource("network interface", each["NetworkInterfaceId"], note=note)
    for each in _each(aws, "DescribeSecurityGroups", "SecurityGroups", scope, vpcs):
        if each.get("GroupName") != "default":  # deleted with its VPC
            yield LeftResource("security group", each["GroupId"], note=each.get("GroupName", ""))


def _balancers(aws: Aws, scope: Scope) -> Iterator[LeftResource]:
    for each in balancers(aws, scope):
        yield LeftResource(each.kind, each.name, prices.BALANCER_USD_H * prices.MONTH_H)


def file_systems(aws: Aws, cluster: str) -> Iterator[LeftResource]:
    """The file systems that bireme created for a cluster."""
    for each in aws.pages("efs", "DescribeFileSystems", "FileSystems"):
        if tags_of(each).get(CLUSTER_TAG) == cluster and each["LifeCycleState"] not in ("deleting", "deleted"):
            size = each.get("SizeInBytes", {}).get("Value", 0)
            usd = prices.FILE_USD_GB_MONTH * size / GB
            yield LeftResource("file system", each["FileSystemId"], usd, f"{size / GB:.1f} GiB of data", is_data=True)


def _named(aws: Aws, scope: Scope) -> Iterator[LeftResource]:
    cluster = scope.cluster
    for each in aws.pages("iam", "ListRoles", "Roles", PathPrefix=role_path(cluster)):
        yield LeftResource("role", each["RoleName"])
    try:
        answer = aws.call("ecr", "DescribeRepositories", repositoryNames=[repository_name(cluster)])
        for each in answer["repositories"]:
            yield LeftResource("image repository", each["repositoryName"], None, "billed by the bytes that it holds")
    except AwsError as e:
        if not e.is_absent:
            raise
    # EKS may write its last lines after the cluster is gone; it then creates the group again, without our tag.
    if scope.owns_cluster and has_log_group(aws, cluster):
        yield LeftResource("log group", log_group(cluster), None, "billed by the bytes that it holds")


def has_log_group(aws: Aws, cluster: str) -> bool:
    """Whether there is a log group of the control plane's name."""
    return _log_group_arn(aws, cluster) is not None


def _log_group_arn(aws: Aws, cluster: str) -> str | None:
    name = log_group(cluster)
    for each in aws.pages("logs", "DescribeLogGroups", "logGroups", logGroupNamePrefix=name):
        if each["logGroupName"] == name:
            return str(each["arn"]).removesuffix(":*")
    return None


def _log_tags(aws: Aws, arn: str) -> dict[str, str]:
    return dict(aws.call("logs", "ListTagsForResource", resourceArn=arn).get("tags") or {})


def has_foreign_log_group(aws: Aws, cluster: str) -> bool:
    """Whether a log group of that name exists without our tag: the stack could not create it, nor may we delete it."""
    arn = _log_group_arn(aws, cluster)
    if arn is None:
        return False
    return bool(_log_tags(aws, arn).get(CLUSTER_TAG) != cluster)


def delete_log_group(aws: Aws, cluster: str) -> bool:
    """Delete the log group that the platform stack left, by its tag, once its cluster is gone."""
    arn = _log_group_arn(aws, cluster)
    if arn is None or describe_cluster(aws, cluster) is not None:
        return False
    try:
        if _log_tags(aws, arn).get(CLUSTER_TAG) != cluster:
            return False
        aws.call("logs", "DeleteLogGroup", logGroupName=log_group(cluster))
    except AwsError as e:
        if not e.is_absent:
            raise
    return True


def _arns(aws: Aws, cluster: str) -> list[str]:
    filters = [{"Key": CLUSTER_TAG, "Values": [cluster]}]
    resources = aws.pages("resourcegroupstaggingapi", "GetResources", "ResourceTagMappingList", TagFilters=filters)
    return [each["ResourceARN"] for each in resources]


def _others(aws: Aws, cluster: str) -> Iterator[LeftResource]:
    for arn in _arns(aws, cluster):
        if arn.split(":")[2] not in _ASKED:
            yield LeftResource(arn.split(":")[2], arn, None)
