"""EKS resource types. Cluster, node groups and add-ons make things of their own, and some of them stay behind."""

from __future__ import annotations

import functools
import zlib
from typing import Any

from tests.aws.double.model import (
    ADDON,
    CLUSTER,
    ENI,
    INSTANCE,
    LOG_GROUP,
    NODEGROUP,
    ROLE,
    SECURITY_GROUP,
    SUBNET,
    ApiError,
    Hook,
    Region,
    Thing,
    kind,
    tags_of,
)
from tests.aws.double.network import group_blocked, need, remove_owned

_ASG, _LAUNCH_TEMPLATE = "AWS::AutoScaling::AutoScalingGroup", "AWS::EC2::LaunchTemplate"
_EKS_ARN = "arn:aws:eks:{region}:{account}:%s/{id}"
# Name -> does it need nodes to become healthy? Versions are made up.
ADDONS = {
    "vpc-cni": False,
    "kube-proxy": False,
    "eks-pod-identity-agent": False,
    "eks-node-monitoring-agent": False,
    "snapshot-controller": True,
    "coredns": True,
    "aws-efs-csi-driver": True,
    "aws-ebs-csi-driver": True,
    "aws-mountpoint-s3-csi-driver": True,
    "metrics-server": True,
    "amazon-cloudwatch-observability": True,
}
_SIZES = {
    "medium": 1,
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "8xlarge": 32,
    "12xlarge": 48,
    "16xlarge": 64,
}
_FAMILIES = {  # family -> (GiB per vCPU, architecture)
    "m6i": (4, "x86_64"), "m7i": (4, "x86_64"), "m7a": (4, "x86_64"), "c6i": (2, "x86_64"), "c7i": (2, "x86_64"),
    "r7i": (8, "x86_64"), "t3": (4, "x86_64"), "m5": (4, "x86_64"), "c5": (2, "x86_64"), "r5": (8, "x86_64"),
    "m7g": (4, "arm64"), "c7g": (2, "arm64"), "r7g": (8, "arm64"), "m6g": (4, "arm64"), "t4g": (4, "arm64"),
}  # fmt: skip


def instance_types() -> list[str]:
    return [f"{family}.{size}" for family in _FAMILIES for size in _SIZES]


def instance_shape(type_: str) -> tuple[int, int, str]:
    """vCPUs, MiB and architecture of an instance type."""
    family, _, size = type_.partition(".")
    if family not in _FAMILIES or size not in _SIZES:
        raise ApiError("InvalidInstanceType", f"The following supplied instance types do not exist: [{type_}]")
    vcpus = 2 if family.startswith("t") and _SIZES[size] < 2 else _SIZES[size]
    return vcpus, _SIZES[size] * _FAMILIES[family][0] * 1024, _FAMILIES[family][1]


def _role(region: Region, arn: str) -> Thing:
    """The role with an ARN. A role that IAM has not yet spread everywhere is refused like a missing one."""
    role = next((r for r in region.of(ROLE) if r.arn(region.world.account) == arn), None)
    if role is None or region.world.now() - role.created < region.world.faults.stale_reads_s:
        text = (
            f"Role with arn: {arn}, could not be assumed because it does not exist or the trusted entity is not correct"
        )
        raise ApiError("InvalidParameterException", text)
    return role


def active_cluster(region: Region, name: str) -> Thing:
    cluster = region.get(CLUSTER, name)
    if cluster is None:
        raise ApiError("ResourceNotFoundException", f"No cluster found for name: {name}.", 404)
    return cluster


# --- cluster --------------------------------------------------------------------------------------------------------


def _cluster_starts(region: Region, thing: Thing) -> None:
    world, props = region.world, thing.props
    if len(region.of(CLUSTER)) > world.quota("L-1194D53C"):
        raise ApiError("ResourceLimitExceededException", "Cluster limit exceeded for account.")
    default = [v for v, s in world.eks_versions.items() if s == "STANDARD_SUPPORT"][-1]
    if props.setdefault("Version", default) not in world.eks_versions:
        raise ApiError("InvalidParameterException", f"unsupported Kubernetes version {props['Version']}")
    _role(region, props["RoleArn"])
    config = props["ResourcesVpcConfig"]
    subnets = [need(region, SUBNET, s, "InvalidParameterException") for s in config["SubnetIds"]]
    zones = sorted({s.props["AvailabilityZone"] for s in subnets})
    bad = [z for z in zones if z in world.faults.unsupported_zones]
    if bad:
        good = ", ".join(z for z in region.zones if z not in world.faults.unsupported_zones)
        text = (
            f"Cannot create cluster '{thing.id}' because {bad[0]}, the targeted availability zone, does not currently "
        )
        text += (
            f"have sufficient capacity to support the cluster. Retry and choose from these availability zones: {good}"
        )
        raise ApiError("UnsupportedAvailabilityZoneException", text)
    if len(zones) < 2:
        raise ApiError("InvalidParameterException", "Subnets specified must be in at least two different AZs")
    _make_cluster_network(region, thing, subnets)


def _make_cluster_network(region: Region, thing: Thing, subnets: list[Thing]) -> None:
    props, vpc = thing.props, subnets[0].props["VpcId"]
    number = zlib.crc32(thing.id.encode())
    tags = {"aws:eks:cluster-name": thing.id, f"kubernetes.io/cluster/{thing.id}": "owned"}
    name = f"eks-cluster-sg-{thing.id}-{number}"
    by = f"service {thing.id}"
    group = region.make(SECURITY_GROUP, by, tags | {"Name": name}, GroupName=name, VpcId=vpc, Rules=[])
    group.props["GroupDescription"] = "EKS created security group applied to ENI that is attached to EKS Control Plane"
    props |= {"VpcId": vpc, "ClusterSecurityGroupId": group.id, "Hash": f"{number:032X}"}
    groups = [group.id, *props["ResourcesVpcConfig"].get("SecurityGroupIds", [])]
    for subnet in subnets[:2]:
        region.make(
            ENI, by, SubnetId=subnet.id, VpcId=vpc, Groups=groups, Status="in-use", RequesterManaged=True,
            Description=f"Amazon EKS {thing.id}", Owner=thing.id,
        )  # fmt: skip


def _log_group_name(cluster: Thing) -> str | None:
    logging = cluster.props.get("Logging", {}).get("ClusterLogging", {}).get("EnabledTypes")
    return f"/aws/eks/{cluster.id}/cluster" if logging else None


def _cluster_done(region: Region, thing: Thing) -> None:
    """A cluster with logging writes to its log group at once, and makes it when it is not there."""
    name = _log_group_name(thing)
    if name and not region.get(LOG_GROUP, name):
        made = region.make(LOG_GROUP, f"service {thing.id}", LogGroupName=name)
        del region.things[(LOG_GROUP, made.id)]
        made.id = name
        region.add(made)


def _cluster_blocked(region: Region, thing: Thing) -> ApiError | None:
    if region.of(NODEGROUP, ClusterName=thing.id):
        return ApiError("ResourceInUseException", "Cluster has nodegroups attached", 409)
    return None


def _cluster_removed(region: Region, thing: Thing) -> None:
    remove_owned(region, thing)
    for type_ in (ADDON, "AWS::EKS::PodIdentityAssociation", "AWS::EKS::AccessEntry"):
        for found in region.of(type_, ClusterName=thing.id):
            region.remove(found)
    group = region.get(SECURITY_GROUP, thing.props.get("ClusterSecurityGroupId"))
    # The group stays when something still holds it (not checked on AWS); then the VPC cannot be deleted.
    if group and group_blocked(region, group) is None:
        region.remove(group)


def _cluster_changes(region: Region, thing: Thing, props: dict[str, Any]) -> None:
    old, new = (int(p["Version"].split(".")[1]) for p in (thing.props, thing.props | props))
    if new not in (old, old + 1):
        text = f"Unsupported Kubernetes minor version update from 1.{old} to 1.{new}"
        raise ApiError("InvalidParameterException", text)


def log_group_removed(region: Region, thing: Thing) -> None:
    """A cluster whose log group was deleted before it makes the group again with its next line."""
    for cluster in region.of(CLUSTER):
        if _log_group_name(cluster) == thing.id:
            region.world.later(5, functools.partial(_write_log, region, cluster))


def _write_log(region: Region, cluster: Thing) -> None:
    if region.get(CLUSTER, cluster.id):
        _cluster_done(region, cluster)


def _endpoint(region: Region, thing: Thing) -> str:
    made_up = f"https://{thing.props.get('Hash', '')}.gr7.{region.name}.eks.amazonaws.com"
    return region.world.kubernetes[0] if region.world.kubernetes else made_up


def _authority(region: Region, thing: Thing) -> str:
    return region.world.kubernetes[1] if region.world.kubernetes else "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"


CLUSTER_ATTRIBUTES: dict[str, Hook] = {
    "Arn": lambda r, t: t.arn(r.world.account),
    "Endpoint": _endpoint,
    "CertificateAuthorityData": _authority,
    "ClusterSecurityGroupId": lambda r, t: t.props["ClusterSecurityGroupId"],
    "OpenIdConnectIssuerUrl": lambda r, t: f"https://oidc.eks.{r.name}.amazonaws.com/id/{t.props['Hash']}",
    "Id": lambda r, t: t.id,
    "KubernetesNetworkConfig.ServiceIpv4Cidr": lambda r, t: "172.20.0.0/16",
}

# --- node group -----------------------------------------------------------------------------------------------------


def _issue(code: str, message: str) -> ApiError:
    return ApiError(code, f"[Issue(Code={code}, Message={message}, ResourceIds=[])]")


def _nodegroup_starts(region: Region, thing: Thing) -> None:
    cluster = active_cluster(region, thing.props["ClusterName"])
    if cluster.state != "available":
        raise ApiError("ResourceInUseException", f"Cluster '{cluster.id}' is not in ACTIVE status", 409)
    role = _role(region, thing.props["NodeRole"])
    for subnet in thing.props["Subnets"]:
        need(region, SUBNET, subnet, "InvalidParameterException")
    attached = " ".join(map(str, role.props.get("ManagedPolicyArns", [])))
    thing.props["CanJoin"] = role.made_by == "planted" or "AmazonEKSWorkerNodePolicy" in attached


def _wanted(props: dict[str, Any]) -> tuple[int, str, bool]:
    """Number of nodes, instance type, and whether they are spot instances."""
    scaling = props.get("ScalingConfig", {})
    number = scaling.get("DesiredSize", scaling.get("MinSize", 2))
    return int(number), props.get("InstanceTypes", ["t3.medium"])[0], props.get("CapacityType") == "SPOT"


def _limit(region: Region, thing: Thing, props: dict[str, Any]) -> ApiError | None:
    number, type_, spot = _wanted(props)
    others = [i for i in region.of(INSTANCE, Spot=spot) if i.props["Owner"] != thing.id]
    used = sum(instance_shape(i.props["InstanceType"])[0] for i in others)
    limit = region.world.quota("L-34B43A08" if spot else "L-1216C47A")
    if number == 0 or used + number * instance_shape(type_)[0] <= limit:
        return None
    if spot:
        text = "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded."
    else:
        text = "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity than "
        text += (
            f"your current vCPU limit of {limit:.0f} allows for the instance bucket that the specified instance type "
        )
        text += (
            "belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this "
        )
        text += "limit."
    return _issue("AsgInstanceLaunchFailures", text + " Launching EC2 instance failed.")


def _nodegroup_ready(region: Region, thing: Thing) -> ApiError | None:
    """The auto scaling group keeps trying for 20 minutes before the node group fails."""
    if _wanted(thing.props)[0] and not thing.props["CanJoin"]:
        return _issue("NodeCreationFailure", "Instances failed to join the kubernetes cluster")
    return _limit(region, thing, thing.props)


def _nodegroup_done(region: Region, thing: Thing) -> None:
    name, group = thing.props["ClusterName"], thing.id.rpartition("/")[2]
    if not region.of(_ASG, Owner=thing.id):
        region.make(_ASG, f"service {thing.id}", {"eks:cluster-name": name}, Owner=thing.id)
    number, type_, spot = _wanted(thing.props)
    instances = region.of(INSTANCE, Owner=thing.id)
    for extra in instances[number:]:
        for eni in region.of(ENI, InstanceId=extra.id):
            region.remove(eni)
        region.remove(extra)
    tags = {"eks:cluster-name": name, "eks:nodegroup-name": group, f"kubernetes.io/cluster/{name}": "owned"}
    tags |= _template_tags(region, thing)
    groups = [active_cluster(region, name).props["ClusterSecurityGroupId"]]
    for i in range(len(instances), number):
        subnet = need(region, SUBNET, thing.props["Subnets"][i % len(thing.props["Subnets"])], "x")
        made = region.make(
            INSTANCE, f"service {thing.id}", tags, InstanceType=type_, Spot=spot, Owner=thing.id, SubnetId=subnet.id,
            VpcId=subnet.props["VpcId"], Zone=subnet.props["AvailabilityZone"],
        )  # fmt: skip
        public = "198.51.100.9" if subnet.props.get("MapPublicIpOnLaunch") in (True, "true") else None
        region.make(
            ENI, f"service {made.id}", {"cluster.k8s.amazonaws.com/name": name}, SubnetId=subnet.id, Groups=groups,
            VpcId=subnet.props["VpcId"], Status="in-use", Description="", Owner=thing.id, InstanceId=made.id,
            PublicIp=public,
        )  # fmt: skip


def _template_tags(region: Region, thing: Thing) -> dict[str, str]:
    template = region.get(_LAUNCH_TEMPLATE, thing.props.get("LaunchTemplate", {}).get("Id"))
    specs = template.props.get("LaunchTemplateData", {}).get("TagSpecifications", []) if template else []
    return {k: v for s in specs if s.get("ResourceType") == "instance" for k, v in tags_of(s).items()}


def _nodegroup_changes(region: Region, thing: Thing, props: dict[str, Any]) -> None:
    error = _limit(region, thing, thing.props | props)
    if error:
        raise error


def _nodegroup_removed(region: Region, thing: Thing) -> None:
    for group in region.of(_ASG, Owner=thing.id):
        region.remove(group)
    nodes = region.of(INSTANCE, Owner=thing.id)
    remove_owned(region, thing)
    cluster = region.get(CLUSTER, thing.props["ClusterName"])
    subnet = region.get(SUBNET, thing.props["Subnets"][0])
    if cluster is None or subnet is None:
        return
    for i in range(region.world.faults.stray_enis):
        node = nodes[i % len(nodes)].id if nodes else region.world.new_id("i")
        region.make(
            ENI, f"service {thing.id}", {"cluster.k8s.amazonaws.com/name": cluster.id}, SubnetId=subnet.id,
            VpcId=subnet.props["VpcId"], Groups=[cluster.props["ClusterSecurityGroupId"]], Status="available",
            Description=f"aws-K8S-{node}",
        )  # fmt: skip


# --- add-ons and the rest -------------------------------------------------------------------------------------------


def _addon_starts(region: Region, thing: Thing) -> None:
    active_cluster(region, thing.props["ClusterName"])
    if thing.props["AddonName"] not in ADDONS:
        raise ApiError("InvalidParameterException", f"Addon {thing.props['AddonName']} specified is not supported")


def _addon_ready(region: Region, thing: Thing) -> ApiError | None:
    groups = [g.id for g in region.of(NODEGROUP, ClusterName=thing.props["ClusterName"])]
    nodes = [i for i in region.of(INSTANCE) if i.props["Owner"] in groups]
    thing.props["Degraded"] = ADDONS[thing.props["AddonName"]] and not nodes
    if thing.props["Degraded"]:
        text = "The add-on is unhealthy because it doesn't have the desired number of replicas."
        return _issue("InsufficientNumberOfReplicas", text)
    return None


kind(
    CLUSTER, create_s=600, delete_s=240, name="Name", arn=_EKS_ARN % "cluster",
    only="Name RoleArn KubernetesNetworkConfig EncryptionConfig",
    create="eks:CreateCluster iam:PassRole eks:TagResource", delete="eks:DeleteCluster",
    update="eks:UpdateClusterConfig eks:UpdateClusterVersion",
    exists=("ResourceInUseException", "Cluster already exists with name: {}"),
    start=_cluster_starts, done=_cluster_done, blocked=_cluster_blocked, removed=_cluster_removed,
    change=_cluster_changes, attributes=CLUSTER_ATTRIBUTES,
)  # fmt: skip
kind(
    NODEGROUP, create_s=150, delete_s=180, arn=_EKS_ARN % "nodegroup",
    only="ClusterName NodegroupName InstanceTypes CapacityType Subnets AmiType DiskSize NodeRole RemoteAccess",
    create="eks:CreateNodegroup iam:PassRole eks:TagResource", delete="eks:DeleteNodegroup",
    update="eks:UpdateNodegroupConfig eks:UpdateNodegroupVersion",
    exists=("ResourceInUseException", "NodeGroup already exists with name {}"),
    identify=lambda w, p: f"{p['ClusterName']}/{p['NodegroupName']}", name="NodegroupName",
    start=_nodegroup_starts, ready=_nodegroup_ready, done=_nodegroup_done, removed=_nodegroup_removed,
    change=_nodegroup_changes,
    attributes={
        "Arn": lambda r, t: t.arn(r.world.account), "ClusterName": lambda r, t: t.props["ClusterName"],
        "NodegroupName": lambda r, t: t.id.rpartition("/")[2], "Id": lambda r, t: t.id,
    },
)  # fmt: skip
kind(
    ADDON, create_s=40, delete_s=20, arn=_EKS_ARN % "addon", only="ClusterName AddonName",
    create="eks:CreateAddon eks:TagResource", update="eks:UpdateAddon", delete="eks:DeleteAddon",
    identify=lambda w, p: f"{p['ClusterName']}|{p['AddonName']}",
    exists=("ResourceInUseException", "Addon already exists."),
    start=_addon_starts, ready=_addon_ready, attributes={"Arn": lambda r, t: t.arn(r.world.account)},
)  # fmt: skip
kind(
    "AWS::EKS::PodIdentityAssociation", create_s=10, prefix="a", arn=_EKS_ARN % "podidentityassociation",
    only="ClusterName Namespace ServiceAccount",
    create="eks:CreatePodIdentityAssociation iam:PassRole", delete="eks:DeletePodIdentityAssociation",
    start=lambda r, t: active_cluster(r, t.props["ClusterName"]),
    attributes={
        "AssociationArn": lambda r, t: t.arn(r.world.account), "AssociationId": lambda r, t: t.id.rpartition("/")[2],
    },
)  # fmt: skip
kind(
    "AWS::EKS::AccessEntry", create_s=10, arn=_EKS_ARN % "access-entry", only="ClusterName PrincipalArn Type",
    create="eks:CreateAccessEntry eks:AssociateAccessPolicy", delete="eks:DeleteAccessEntry",
    identify=lambda w, p: f"{p['PrincipalArn']}|{p['ClusterName']}",
    start=lambda r, t: active_cluster(r, t.props["ClusterName"]),
    exists=("ResourceInUseException", "The specified access entry resource is already in use on this cluster."),
    attributes={"AccessEntryArn": lambda r, t: t.arn(r.world.account)},
)  # fmt: skip
kind(
    _ASG,
    prefix="eks",
    arn="arn:aws:autoscaling:{region}:{account}:autoScalingGroup:x:autoScalingGroupName/{id}",
    in_templates=False,
)
