"""Delete strays: resources that Kubernetes or EKS created in our network and left, which block the stacks' deletion.

Only resources in the VPC of our own platform stack, or volumes of a cluster that this stack still contains, and of
these only those with the cluster's own tag. Everything else is listed by `audit` and left alone.
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
"""How many load balancers one DescribeTags call accepts."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where strays of a cluster can be, and which tags identify them."""

    cluster: str
    vpc: str = ""
    owns_cluster: bool = False
    """Whether the EKS cluster of this name is ours; tags that only contain its name count only then."""
    is_own_vpc: bool = False
    """Whether the VPC is ours too: no other cluster of that name can be in it, so the name counts in any case."""

    def is_ours(self, tags: Mapping[str, str]) -> bool:
        """Whether the tags attribute a resource to this cluster."""
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


def find_scope(aws: Aws, cluster: str, platform: Stack | None) -> Scope:
    """Derive the scope from the platform stack's own resources, also if it failed half-way."""
    if platform is None or not platform.is_of(cluster) or platform.status == "DELETE_COMPLETE":
        return Scope(cluster)
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
    return Scope(cluster, own or platform.outputs.get("VpcId", ""), "Cluster" in made, bool(own))


def tags_of(resource: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """The tags of a resource as EC2 lists it."""
    return {tag["Key"]: tag["Value"] for tag in resource.get(key) or ()}


def sweep(stacks: Stacks, cluster: str, note: Callable[[str], None]) -> list[str]:
    """Delete the strays that are certainly ours; return their ids."""
    scope = find_scope(stacks.aws, cluster, stacks.find(stack_name(cluster, "platform")))
    done: list[str] = []
    for what, id_, delete in strays(stacks.aws, scope):
        try:
            delete()
        except AwsError as e:
            # Deleted meanwhile, or blocked by a resource that must go first: the next round retries.
            if not e.is_absent:
                note(f"{what} {id_} cannot be deleted yet: {e.code}")
            continue
        note(f"deleted {what} {id_}, left behind by Kubernetes")
        done.append(id_)
    return done


Stray = tuple[str, str, Callable[[], Any]]


def strays(aws: Aws, scope: Scope) -> Iterator[Stray]:
    """The strays, in an order in which they can be deleted: balancers, interfaces, volumes, security groups."""
    if scope.owns_cluster:
        yield from _volumes(aws, scope)
    if not scope.vpc:
        return
    for balancer in balancers(aws, scope):
        yield balancer.kind, balancer.name, balancer.deleter(aws)
    yield from _interfaces(aws, scope)
    yield from _groups(aws, scope)


def _interfaces(aws: Aws, scope: Scope) -> Iterator[Stray]:
    where = [{"Name": "vpc-id", "Values": [scope.vpc]}, {"Name": "status", "Values": ["available"]}]
    for each in aws.pages("ec2", "DescribeNetworkInterfaces", "NetworkInterfaces", Filters=where):
        if scope.is_ours(tags_of(each, "TagSet")):
            id_ = each["NetworkInterfaceId"]
            yield "network interface", id_, _deleter(aws, "DeleteNetworkInterface", NetworkInterfaceId=id_)


def _groups(aws: Aws, scope: Scope) -> Iterator[Stray]:
    where = [{"Name": "vpc-id", "Values": [scope.vpc]}]
    for each in aws.pages("ec2", "DescribeSecurityGroups", "SecurityGroups", Filters=where):
        tags = tags_of(each)
        # A stack's groups are deleted with it, and the cluster's own with the cluster unless a stray interface held it.
        is_busy = "aws:cloudformation:stack-id" in tags or ("aws:eks:cluster-name" in tags and scope.owns_cluster)
        if scope.is_ours(tags) and not is_busy:
            yield "security group", each["GroupId"], _deleter(aws, "DeleteSecurityGroup", GroupId=each["GroupId"])


def _volumes(aws: Aws, scope: Scope) -> Iterator[Stray]:
    key = f"tag:kubernetes.io/cluster/{scope.cluster}"
    where = [{"Name": key, "Values": ["owned"]}, {"Name": "status", "Values": ["available"]}]
    for each in aws.pages("ec2", "DescribeVolumes", "Volumes", Filters=where):
        if scope.is_ours(tags_of(each)):
            yield "volume", each["VolumeId"], _deleter(aws, "DeleteVolume", VolumeId=each["VolumeId"])


def _deleter(aws: Aws, operation: str, **parameters: str) -> Callable[[], Any]:
    return lambda: aws.call("ec2", operation, **parameters)


@dataclass(frozen=True, slots=True)
class Balancer:
    """A load balancer of one of the cluster's Services."""

    kind: str
    name: str
    service: str
    parameters: Mapping[str, str]

    def deleter(self, aws: Aws) -> Callable[[], Any]:
        """The call that deletes it."""
        return lambda: aws.call(self.service, "DeleteLoadBalancer", **self.parameters)


def balancers(aws: Aws, scope: Scope) -> list[Balancer]:
    """The cluster's load balancers, of both generations; in its VPC where that is known."""
    newer = [
        (each["LoadBalancerArn"], each["LoadBalancerName"])
        for each in aws.pages("elbv2", "DescribeLoadBalancers", "LoadBalancers")
        if scope.vpc in ("", each.get("VpcId"))
    ]
    older = [
        each["LoadBalancerName"]
        for each in aws.pages("elb", "DescribeLoadBalancers", "LoadBalancerDescriptions")
        if scope.vpc in ("", each.get("VPCId"))
    ]
    ours = []
    for i in range(0, len(newer), CHUNK):
        part = dict(newer[i : i + CHUNK])
        answer = aws.call("elbv2", "DescribeTags", ResourceArns=list(part))
        for each in answer["TagDescriptions"]:
            if scope.is_ours(tags_of(each)):
                arn = each["ResourceArn"]
                ours.append(Balancer("load balancer", part[arn], "elbv2", {"LoadBalancerArn": arn}))
    for i in range(0, len(older), CHUNK):
        answer = aws.call("elb", "DescribeTags", LoadBalancerNames=older[i : i + CHUNK])
        for each in answer["TagDescriptions"]:
            if scope.is_ours(tags_of(each)):
                name = each["LoadBalancerName"]
                ours.append(Balancer("load balancer", name, "elb", {"LoadBalancerName": name}))
    return ours
