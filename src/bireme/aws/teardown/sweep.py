"""Clearing strays: what Kubernetes or EKS made in our network and left behind, which blocks the stacks' deletion.

Only things in the VPC of our own platform stack, or volumes of a cluster that this stack still holds, and of these
only those that carry the cluster's own tag. Everything else is listed by `audit` and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError
from bireme.aws.cloudformation.decide import Stack
from bireme.aws.cloudformation.stacks import Stacks
from bireme.aws.layout import CLUSTER_TAG, stack_name

CHUNK = 20
"""How many load balancers may be asked for their tags at once."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where strays of a cluster can be."""

    cluster: str
    vpc: str = ""
    owns_cluster: bool = False
    """Whether the EKS cluster of this name is ours; tags that only hold its name count only then."""
    is_own_vpc: bool = False
    """Whether the VPC is ours too: no other cluster of that name can be in it, so the name counts in any case."""

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """Whether tags say that a thing was made by or for this cluster."""
        name = self.cluster
        if tags.get(CLUSTER_TAG) == name:
            return True
        return (self.owns_cluster or self.is_own_vpc) and (
            tags.get(f"kubernetes.io/cluster/{name}") == "owned"
            or name
            in (
                tags.get("cluster.k8s.amazonaws.com/name"),
                tags.get("elbv2.k8s.aws/cluster"),
                tags.get("aws:eks:cluster-name"),
                tags.get("eks:cluster-name"),
            )
        )


def find_ground(aws: Aws, cluster: str, platform: Stack | None) -> Ground:
    """Where to look, from the platform stack's own resources, also when it has failed half-way."""
    if platform is None or not platform.is_of(cluster) or platform.status == "DELETE_COMPLETE":
        return Ground(cluster)
    answer = aws.call("cloudformation", "DescribeStackResources", StackName=platform.id)
    there = {
        each["LogicalResourceId"]: each.get("PhysicalResourceId", "")
        for each in answer["StackResources"]
        if each["ResourceStatus"] != "DELETE_COMPLETE"
    }
    own = there.get("Vpc", "")
    # A cluster that failed because the name was taken has no id: the one that took it is not ours.
    made = {
        each["LogicalResourceId"]
        for each in answer["StackResources"]
        if each["ResourceStatus"] not in ("CREATE_FAILED", "DELETE_COMPLETE") and each.get("PhysicalResourceId")
    }
    return Ground(cluster, own or platform.outputs.get("VpcId", ""), "Cluster" in made, bool(own))


def tags_of(thing: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """The tags of a thing as EC2 lists it."""
    return {tag["Key"]: tag["Value"] for tag in thing.get(key) or ()}


def sweep(stacks: Stacks, cluster: str, note: Callable[[str], None]) -> list[str]:
    """Delete strays that are surely ours; what was deleted."""
    ground = find_ground(stacks.aws, cluster, stacks.find(stack_name(cluster, "platform")))
    done: list[str] = []
    for what, id_, delete in strays(stacks.aws, ground):
        try:
            delete()
        except AwsError as e:
            # Gone meanwhile, or still held by something that goes first: the next round sees.
            if not e.is_absent:
                note(f"{what} {id_} cannot be deleted yet: {e.code}")
            continue
        note(f"deleted {what} {id_}, left behind by Kubernetes")
        done.append(id_)
    return done


Stray = tuple[str, str, Callable[[], Any]]


def strays(aws: Aws, ground: Ground) -> Iterator[Stray]:
    """What may be deleted, in an order in which it can be: balancers, interfaces, volumes, security groups."""
    if ground.owns_cluster:
        yield from _volumes(aws, ground)
    if not ground.vpc:
        return
    for balancer in balancers(aws, ground):
        yield balancer.kind, balancer.name, balancer.deleter(aws)
    yield from _interfaces(aws, ground)
    yield from _groups(aws, ground)


def _interfaces(aws: Aws, ground: Ground) -> Iterator[Stray]:
    where = [{"Name": "vpc-id", "Values": [ground.vpc]}, {"Name": "status", "Values": ["available"]}]
    for each in aws.pages("ec2", "DescribeNetworkInterfaces", "NetworkInterfaces", Filters=where):
        if ground.is_ours(tags_of(each, "TagSet")):
            id_ = each["NetworkInterfaceId"]
            yield "network interface", id_, _deleter(aws, "DeleteNetworkInterface", NetworkInterfaceId=id_)


def _groups(aws: Aws, ground: Ground) -> Iterator[Stray]:
    where = [{"Name": "vpc-id", "Values": [ground.vpc]}]
    for each in aws.pages("ec2", "DescribeSecurityGroups", "SecurityGroups", Filters=where):
        tags = tags_of(each)
        # Those of a stack go with the stack. The cluster's own goes with the cluster, unless a stray interface held it.
        is_busy = "aws:cloudformation:stack-id" in tags or ("aws:eks:cluster-name" in tags and ground.owns_cluster)
        if ground.is_ours(tags) and not is_busy:
            yield "security group", each["GroupId"], _deleter(aws, "DeleteSecurityGroup", GroupId=each["GroupId"])


def _volumes(aws: Aws, ground: Ground) -> Iterator[Stray]:
    key = f"tag:kubernetes.io/cluster/{ground.cluster}"
    where = [{"Name": key, "Values": ["owned"]}, {"Name": "status", "Values": ["available"]}]
    for each in aws.pages("ec2", "DescribeVolumes", "Volumes", Filters=where):
        if ground.is_ours(tags_of(each)):
            yield "volume", each["VolumeId"], _deleter(aws, "DeleteVolume", VolumeId=each["VolumeId"])


def _deleter(aws: Aws, operation: str, **parameters: str) -> Callable[[], Any]:
    return lambda: aws.call("ec2", operation, **parameters)


@dataclass(frozen=True, slots=True)
class Balancer:
    """A load balancer that a Service of the cluster has made."""

    kind: str
    name: str
    service: str
    parameters: Mapping[str, str]

    def deleter(self, aws: Aws) -> Callable[[], Any]:
        """What deletes it."""
        return lambda: aws.call(self.service, "DeleteLoadBalancer", **self.parameters)


def balancers(aws: Aws, ground: Ground) -> list[Balancer]:
    """The cluster's load balancers, of both generations; in its VPC where that is known."""
    newer = [
        (each["LoadBalancerArn"], each["LoadBalancerName"])
        for each in aws.pages("elbv2", "DescribeLoadBalancers", "LoadBalancers")
        if ground.vpc in ("", each.get("VpcId"))
    ]
    older = [
        each["LoadBalancerName"]
        for each in aws.pages("elb", "DescribeLoadBalancers", "LoadBalancerDescriptions")
        if ground.vpc in ("", each.get("VPCId"))
    ]
    found = []
    for i in range(0, len(newer), CHUNK):
        part = dict(newer[i : i + CHUNK])
        answer = aws.call("elbv2", "DescribeTags", ResourceArns=list(part))
        for each in answer["TagDescriptions"]:
            if ground.is_ours(tags_of(each)):
                arn = each["ResourceArn"]
                found.append(Balancer("load balancer", part[arn], "elbv2", {"LoadBalancerArn": arn}))
    for i in range(0, len(older), CHUNK):
        answer = aws.call("elb", "DescribeTags", LoadBalancerNames=older[i : i + CHUNK])
        for each in answer["TagDescriptions"]:
            if ground.is_ours(tags_of(each)):
                name = each["LoadBalancerName"]
                found.append(Balancer("load balancer", name, "elb", {"LoadBalancerName": name}))
    return found
