"""The EC2 API: descriptions with filters, and the few deletions that a clean-up needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.aws.double.eks import instance_shape, instance_types
from tests.aws.double.model import (
    ENI,
    INSTANCE,
    SECURITY_GROUP,
    SUBNET,
    VOLUME,
    VPC,
    ApiError,
    Call,
    Region,
    Thing,
    operation,
    page,
    tag_list,
)
from tests.aws.double.network import group_blocked

View = Callable[[Region, Thing], dict[str, Any]]
_ALIASES = {"instance-state-name": "Name", "attachment.vpc-id": "VpcId", "network-interface.status": "Status"}
_REGIONS = ("eu-central-1", "eu-west-1", "us-east-1", "us-east-2", "us-west-1", "us-west-2")


def _values(view: Any, key: str) -> Iterator[str]:
    """Every value of a member, wherever it is in a view."""
    if isinstance(view, list):
        for part in view:
            yield from _values(part, key)
    elif isinstance(view, dict):
        for name, part in view.items():
            if name == key and not isinstance(part, dict | list):
                yield str(part).lower() if isinstance(part, bool) else str(part)
            else:
                yield from _values(part, key)


def _passes(view: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a view passes a filter; a filter's name is a member's name with hyphens."""
    name, values = wanted["Name"], wanted["Values"]
    tags = {t["Key"]: t["Value"] for t in view.get("Tags", view.get("TagSet", []))}
    if name.startswith("tag:"):
        found = [tags[name[4:]]] if name[4:] in tags else []
    elif name == "tag-key":
        found = list(tags)
    else:
        key = _ALIASES.get(name) or "".join(part.capitalize() for part in name.split("-"))
        found = list(_values(view, key))
        if name == "status" and not found:  # DescribeVolumes calls its State so
            found = list(_values(view, "State"))
    patterns = [v.rstrip("*") if v.endswith("*") else None for v in values]
    return any(f in values or any(p is not None and f.startswith(p) for p in patterns) for f in found)


def _describe(name: str, key: str, type_: str, ids: str, not_found: str, view: View) -> None:
    """Register a description of all things of a type."""

    def answer(call: Call) -> dict[str, Any]:
        wanted = call.params.get(ids)
        things = call.region.of(type_)
        missing = [i for i in wanted or [] if i not in {view(call.region, t)[ids.rstrip("s")] for t in things}]
        if missing:
            raise ApiError(not_found, f"The ID '{missing[0]}' does not exist")
        views = [view(call.region, t) for t in sorted(things, key=lambda t: t.id)]
        views = [v for v in views if not wanted or v[ids.rstrip("s")] in wanted]
        # DescribeNatGateways calls them Filter.
        wanted = [*call.params.get("Filters", []), *call.params.get("Filter", [])]
        views = [v for v in views if all(_passes(v, f) for f in wanted)]
        found, token = page(views, call.params.get("NextToken"), call.params.get("MaxResults", 1000))
        if key == "Reservations":
            found = [{"ReservationId": "r-0", "Instances": [v]} for v in found]
        return {key: found} | ({"NextToken": token} if token else {})

    operation("ec2", name)(answer)


def _tags(thing: Thing) -> list[dict[str, str]]:
    return tag_list(thing.tags)


def _interface_view(region: Region, t: Thing) -> dict[str, Any]:
    groups = [(g, region.get(SECURITY_GROUP, g)) for g in t.props.get("Groups", [])]
    view = {
        "NetworkInterfaceId": t.id, "SubnetId": t.props.get("SubnetId", ""), "VpcId": t.props.get("VpcId", ""),
        "Status": t.props["Status"], "Description": t.props["Description"], "TagSet": _tags(t),
        "RequesterManaged": t.props.get("RequesterManaged", False), "InterfaceType": "interface",
        "OwnerId": region.world.account,
        "Groups": [{"GroupId": g, "GroupName": found.props["GroupName"] if found else ""} for g, found in groups],
    }  # fmt: skip
    if t.props["Status"] == "in-use":
        attachment = {"AttachmentId": f"{'ela' if t.props.get('RequesterManaged') else 'eni'}-attach-{t.id[4:]}"}
        attachment |= {"InstanceId": t.props["InstanceId"]} if t.props.get("InstanceId") else {}
        view["Attachment"] = attachment | {"Status": "attached"}
    if t.props.get("PublicIp"):
        view["Association"] = {"PublicIp": t.props["PublicIp"]}
    return view


def _permission(rule: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = {"IpProtocol": str(rule.get("IpProtocol", "-1"))}
    view |= {k: int(rule[k]) for k in ("FromPort", "ToPort") if k in rule}
    if rule.get("SourceSecurityGroupId"):
        return view | {"UserIdGroupPairs": [{"GroupId": rule["SourceSecurityGroupId"]}]}
    return view | {"IpRanges": [{"CidrIp": rule["CidrIp"]}] if rule.get("CidrIp") else []}


def _group_view(region: Region, t: Thing) -> dict[str, Any]:
    return {
        "GroupId": t.id, "GroupName": t.props["GroupName"], "VpcId": t.props.get("VpcId", ""), "Tags": _tags(t),
        "Description": t.props.get("GroupDescription", ""), "OwnerId": region.world.account,
        "IpPermissions": [_permission(r) for r in t.props.get("Rules", [])],
    }  # fmt: skip


def _instance_view(region: Region, t: Thing) -> dict[str, Any]:
    return {
        "InstanceId": t.id, "InstanceType": t.props.get("InstanceType", "t3.medium"), "Tags": _tags(t),
        "State": {"Code": 16, "Name": "running"}, "VpcId": t.props.get("VpcId", ""),
        "SubnetId": t.props.get("SubnetId", ""), "LaunchTime": t.created,
        "Placement": {"AvailabilityZone": t.props.get("Zone", region.zones[0])},
    } | ({"InstanceLifecycle": "spot"} if t.props.get("Spot") else {})  # fmt: skip


def _volume_view(region: Region, t: Thing) -> dict[str, Any]:
    return {
        "VolumeId": t.id, "Size": t.props.get("Size", 20), "State": t.props.get("State", "available"), "Tags": _tags(t),
        "AvailabilityZone": t.props.get("Zone", region.zones[0]), "CreateTime": t.created, "Attachments": [],
    }  # fmt: skip


def _vpc_view(region: Region, t: Thing) -> dict[str, Any]:
    cidr = t.props.get("CidrBlock", "10.0.0.0/16")
    return {"VpcId": t.id, "CidrBlock": cidr, "State": "available", "Tags": _tags(t), "IsDefault": False}


def _subnet_view(region: Region, t: Thing) -> dict[str, Any]:
    zone = t.props.get("AvailabilityZone", region.zones[0])
    view = {
        "SubnetId": t.id,
        "VpcId": t.props.get("VpcId", ""),
        "CidrBlock": t.props.get("CidrBlock", ""),
        "Tags": _tags(t),
    }
    return view | {"AvailabilityZone": zone, "State": "available"}


def _nat_view(region: Region, t: Thing) -> dict[str, Any]:
    state = "pending" if t.state == "creating" else "available"
    view = {
        "NatGatewayId": t.id,
        "VpcId": t.props.get("VpcId", ""),
        "SubnetId": t.props.get("SubnetId", ""),
        "State": state,
    }
    return view | {"Tags": _tags(t), "NatGatewayAddresses": [{"AllocationId": t.props.get("AllocationId", "")}]}


def _gateway_view(region: Region, t: Thing) -> dict[str, Any]:
    found = region.of("AWS::EC2::VPCGatewayAttachment", InternetGatewayId=t.id)
    attachments = [{"VpcId": a.props["VpcId"], "State": "available"} for a in found]
    return {"InternetGatewayId": t.id, "Attachments": attachments, "Tags": _tags(t)}


def _table_view(region: Region, t: Thing) -> dict[str, Any]:
    found = region.of("AWS::EC2::SubnetRouteTableAssociation", RouteTableId=t.id)
    links = [{"RouteTableAssociationId": a.id, "RouteTableId": t.id, "SubnetId": a.props["SubnetId"]} for a in found]
    return {"RouteTableId": t.id, "VpcId": t.props.get("VpcId", ""), "Associations": links, "Tags": _tags(t)}


_describe("DescribeVpcs", "Vpcs", VPC, "VpcIds", "InvalidVpcID.NotFound", _vpc_view)
_describe("DescribeSubnets", "Subnets", SUBNET, "SubnetIds", "InvalidSubnetID.NotFound", _subnet_view)
_describe(
    "DescribeNetworkInterfaces", "NetworkInterfaces", ENI, "NetworkInterfaceIds", "InvalidNetworkInterfaceID.NotFound",
    _interface_view,
)  # fmt: skip
_describe("DescribeSecurityGroups", "SecurityGroups", SECURITY_GROUP, "GroupIds", "InvalidGroup.NotFound", _group_view)
_describe("DescribeVolumes", "Volumes", VOLUME, "VolumeIds", "InvalidVolume.NotFound", _volume_view)
_describe("DescribeInstances", "Reservations", INSTANCE, "InstanceIds", "InvalidInstanceID.NotFound", _instance_view)
_describe(
    "DescribeNatGateways", "NatGateways", "AWS::EC2::NatGateway", "NatGatewayIds", "NatGatewayNotFound", _nat_view
)
_describe(
    "DescribeAddresses", "Addresses", "AWS::EC2::EIP", "PublicIps", "InvalidAddress.NotFound",
    lambda r, t: {"PublicIp": t.id, "AllocationId": t.props.get("AllocationId", ""), "Domain": "vpc", "Tags": _tags(t)},
)  # fmt: skip
_describe(
    "DescribeVpcEndpoints", "VpcEndpoints", "AWS::EC2::VPCEndpoint", "VpcEndpointIds", "InvalidVpcEndpointId.NotFound",
    lambda r, t: {"VpcEndpointId": t.id, "VpcId": t.props.get("VpcId", ""), "State": "available", "Tags": _tags(t),
                  "ServiceName": t.props.get("ServiceName", "")},
)  # fmt: skip
_describe(
    "DescribeLaunchTemplates", "LaunchTemplates", "AWS::EC2::LaunchTemplate", "LaunchTemplateIds",
    "InvalidLaunchTemplateId.NotFound",
    lambda r, t: {"LaunchTemplateId": t.id, "LaunchTemplateName": t.props.get("LaunchTemplateName", t.id),
                  "LatestVersionNumber": t.props.get("Version", 1), "Tags": _tags(t)},
)  # fmt: skip
_describe(
    "DescribeInternetGateways", "InternetGateways", "AWS::EC2::InternetGateway", "InternetGatewayIds",
    "InvalidInternetGatewayID.NotFound", _gateway_view,
)  # fmt: skip
_describe(
    "DescribeRouteTables",
    "RouteTables",
    "AWS::EC2::RouteTable",
    "RouteTableIds",
    "InvalidRouteTableID.NotFound",
    _table_view,
)
_describe(
    "DescribeKeyPairs", "KeyPairs", "AWS::EC2::KeyPair", "KeyNames", "InvalidKeyPair.NotFound",
    lambda r, t: {"KeyName": t.id, "KeyPairId": f"key-{t.id}", "Tags": _tags(t)},
)  # fmt: skip


# --- zones, regions, instance types ---------------------------------------------------------------------------------


@operation("ec2", "DescribeAvailabilityZones")
def describe_zones(call: Call) -> dict[str, Any]:
    region, wanted = call.region, call.params.get("ZoneNames", call.region.zones)
    parts = region.name.split("-")
    short = parts[0] + parts[1][0] + parts[2]
    zones = [
        {"ZoneName": z, "ZoneId": f"{short}-az{i}", "RegionName": region.name, "State": "available",
         "OptInStatus": "opt-in-not-required", "ZoneType": "availability-zone", "GroupName": region.name}
        for i, z in enumerate(region.zones, 1) if z in wanted
    ]  # fmt: skip
    return {"AvailabilityZones": [z for z in zones if all(_passes(z, f) for f in call.params.get("Filters", []))]}


@operation("ec2", "DescribeRegions")
def describe_regions(call: Call) -> dict[str, Any]:
    names = call.params.get("RegionNames", _REGIONS)
    return {"Regions": [{"RegionName": n, "OptInStatus": "opt-in-not-required"} for n in names]}


@operation("ec2", "DescribeInstanceTypeOfferings")
def describe_offerings(call: Call) -> dict[str, Any]:
    zonal = call.params.get("LocationType", "region") == "availability-zone"
    places = call.region.zones if zonal else [call.region.name]
    every = [
        {"InstanceType": t, "LocationType": call.params.get("LocationType", "region"), "Location": place}
        for t in instance_types()
        for place in places
        if (t, place) not in call.world.faults.not_offered
    ]
    found = [o for o in every if all(_passes(o, f) for f in call.params.get("Filters", []))]
    shown, token = page(found, call.params.get("NextToken"), call.params.get("MaxResults", 1000))
    return {"InstanceTypeOfferings": shown} | ({"NextToken": token} if token else {})


@operation("ec2", "DescribeInstanceTypes")
def describe_instance_types(call: Call) -> dict[str, Any]:
    views = []
    for name in call.params.get("InstanceTypes", instance_types()):
        vcpus, memory, architecture = instance_shape(name)
        view = {"InstanceType": name, "VCpuInfo": {"DefaultVCpus": vcpus}, "MemoryInfo": {"SizeInMiB": memory}}
        view |= {"ProcessorInfo": {"SupportedArchitectures": [architecture]}, "CurrentGeneration": True}
        views.append(view | {"SupportedUsageClasses": ["on-demand", "spot"]})
    return {"InstanceTypes": views}


# --- deletions ------------------------------------------------------------------------------------------------------


def _find(call: Call, type_: str, id_: str, code: str) -> Thing:
    found = call.region.get(type_, id_)
    if found is None:
        raise ApiError(code, f"The ID '{id_}' does not exist")
    return found


@operation("ec2", "DeleteNetworkInterface")
def delete_network_interface(call: Call) -> None:
    eni = _find(call, ENI, call.params["NetworkInterfaceId"], "InvalidNetworkInterfaceID.NotFound")
    if eni.props["Status"] == "in-use":
        raise ApiError("InvalidParameterValue", f"Network interface '{eni.id}' is currently in use.")
    call.region.remove(eni)


@operation("ec2", "DetachNetworkInterface")
def detach_network_interface(call: Call) -> None:
    id_ = call.params["AttachmentId"]
    eni = next((e for e in call.region.of(ENI) if id_.endswith(f"-attach-{e.id[4:]}")), None)
    if eni is None:
        raise ApiError("InvalidAttachmentID.NotFound", f"Attachment '{id_}' does not exist.")
    if eni.props.get("RequesterManaged"):
        raise ApiError("OperationNotPermitted", "You are not allowed to manage 'ela-attach' attachments.")
    eni.props["Status"] = "available"


@operation("ec2", "DeleteSecurityGroup")
def delete_security_group(call: Call) -> dict[str, Any]:
    group = _find(call, SECURITY_GROUP, call.params.get("GroupId", ""), "InvalidGroup.NotFound")
    error = group_blocked(call.region, group)
    if error:
        raise error
    call.region.remove(group)
    return {"Return": True, "GroupId": group.id}


@operation("ec2", "RevokeSecurityGroupIngress")
def revoke_ingress(call: Call) -> dict[str, Any]:
    group = _find(call, SECURITY_GROUP, call.params.get("GroupId", ""), "InvalidGroup.NotFound")
    wanted, ids = call.params.get("IpPermissions", []), call.params.get("SecurityGroupRuleIds", [])
    rules = group.props.get("Rules", [])

    def named(rule: dict[str, Any]) -> bool:
        mine = _permission(rule)
        pairs = {p["GroupId"] for p in mine.get("UserIdGroupPairs", [])}
        for entry in wanted:
            same = all(entry.get(k) == mine.get(k) for k in ("IpProtocol", "FromPort", "ToPort"))
            theirs = {p.get("GroupId") for p in entry.get("UserIdGroupPairs", [])}
            ranges = {r.get("CidrIp") for r in entry.get("IpRanges", [])}
            if same and (pairs & theirs or rule.get("CidrIp") in ranges):
                return True
        return rule["Id"] in ids

    left = [r for r in rules if not named(r)]
    if len(left) == len(rules):
        text = "The specified rule does not exist in this security group."
        raise ApiError("InvalidPermission.NotFound", text)
    group.props["Rules"] = left
    return {"Return": True}


@operation("ec2", "DeleteVolume")
def delete_volume(call: Call) -> None:
    volume = _find(call, VOLUME, call.params["VolumeId"], "InvalidVolume.NotFound")
    if volume.props.get("State") == "in-use":
        raise ApiError("VolumeInUse", f"Volume {volume.id} is currently attached to an instance")
    call.region.remove(volume)
