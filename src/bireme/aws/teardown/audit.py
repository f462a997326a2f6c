"""What is left of a cluster, and what it costs: every service that a cluster uses is asked, by tag and by name.

The tagging service alone will not do: it forgets late (what is deleted is listed for a while) and does not know roles.
So each service is asked itself, and the tagging service only for kinds of things that nobody has thought of.
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
from bireme.aws.teardown.sweep import Ground, balancers, tags_of

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
    there = describe_cluster(aws, cluster)
    is_ours = there is None or (there.get("tags") or {}).get(CLUSTER_TAG) == cluster
    found = list(_stacks(aws, cluster))
    if there is not None and is_ours:
        usd = prices.CONTROL_PLANE_USD_H * prices.MONTH_H
        found.append(Thing("EKS cluster", cluster, usd, there.get("status", "")))
    # Tags and names that only hold the cluster's name count while that name is ours, or nobody's.
    ground = Ground(cluster, owns_cluster=is_ours)
    found += _machines(aws, ground)
    found += _network(aws, ground)
    found += _balancers(aws, ground)
    found += file_systems(aws, cluster)
    found += _named(aws, ground)
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


def _tagged(ground: Ground) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [ground.cluster]}]


def _each(aws: Aws, operation: str, key: str, ground: Ground, vpcs: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Things of EC2 with our tag, those with Kubernetes' tag for our cluster, and all others in the VPCs."""
    seen: set[str] = set()
    queries = [_tagged(ground)]
    if vpcs:
        # Whoever made them: they keep our VPC from going.
        queries.append([{"Name": "vpc-id", "Values": list(vpcs)}])
    if ground.owns_cluster:
        queries.append([{"Name": f"tag:kubernetes.io/cluster/{ground.cluster}", "Values": ["owned"]}])
    for filters in queries:
        for each in aws.pages("ec2", operation, key, Filters=filters):
            id_ = next(str(each[name]) for name in _IDS if name in each)
            if id_ not in seen:
                seen.add(id_)
                yield each


_IDS = ("ReservationId", "VolumeId", "NetworkInterfaceId", "GroupId")


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
        if each["State"] not in ("deleted", "failed") and ground.is_ours(tags_of(each)):
            yield Thing("NAT gateway", each["NatGatewayId"], prices.NAT_USD_H * prices.MONTH_H, each["State"])
    for each in aws.call("ec2", "DescribeAddresses", Filters=tagged).get("Addresses", ()):
        yield Thing("address", each["AllocationId"], prices.ADDRESS_USD_H * prices.MONTH_H)
    vpcs = [each["VpcId"] for each in aws.pages("ec2", "DescribeVpcs", "Vpcs", Filters=tagged)]
    yield from (Thing("VPC", vpc) for vpc in vpcs)
    for each in _each(aws, "DescribeNetworkInterfaces", "NetworkInterfaces", ground, vpcs):
        note = each.get("Description", "")
        if not ground.is_ours(tags_of(each, "TagSet")):
            note = f"{note + ', ' if note else ''}not made by bireme, in {each.get('VpcId')}"
        yield Thing("network interface", each["NetworkInterfaceId"], note=note)
    for each in _each(aws, "DescribeSecurityGroups", "SecurityGroups", ground, vpcs):
        if each.get("GroupName") != "default":  # goes with its VPC
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


def _named(aws: Aws, ground: Ground) -> Iterator[Thing]:
    cluster = ground.cluster
    for each in aws.pages("iam", "ListRoles", "Roles", PathPrefix=role_path(cluster)):
        yield Thing("role", each["RoleName"])
    try:
        answer = aws.call("ecr", "DescribeRepositories", repositoryNames=[repository_name(cluster)])
        for each in answer["repositories"]:
            yield Thing("image repository", each["repositoryName"], None, "billed by the bytes that it holds")
    except AwsError as e:
        if not e.is_absent:
            raise
    # EKS may write its last lines after the cluster is gone, and makes the group again for them, without our tag.
    if ground.owns_cluster and has_log_group(aws, cluster):
        yield Thing("log group", log_group(cluster), None, "billed by the bytes that it holds")


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
    """Whether a log group of that name is there that our stack could not make anew, as it is not ours to delete."""
    arn = _log_group_arn(aws, cluster)
    if arn is None:
        return False
    return bool(_log_tags(aws, arn).get(CLUSTER_TAG) != cluster)


def delete_log_group(aws: Aws, cluster: str) -> bool:
    """Delete the log group that our platform stack made and left, once its cluster is gone; by its tag."""
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
    found = aws.pages("resourcegroupstaggingapi", "GetResources", "ResourceTagMappingList", TagFilters=filters)
    return [each["ResourceARN"] for each in found]


def _others(aws: Aws, cluster: str) -> Iterator[Thing]:
    for arn in _arns(aws, cluster):
        if arn.split(":")[2] not in _ASKED:
            yield Thing(arn.split(":")[2], arn, None)
