"""EC2 resource types: what they need, what they hold on to, and what refuses their deletion."""

from __future__ import annotations

import ipaddress
from typing import Any

from tests.aws.double.model import (
    CLASSIC_LB,
    CLUSTER,
    ENI,
    INSTANCE,
    NETWORK_LB,
    SECURITY_GROUP,
    SUBNET,
    VOLUME,
    VPC,
    ApiError,
    Region,
    Thing,
    kind,
)

_IGW, _ATTACHMENT, _NAT = "AWS::EC2::InternetGateway", "AWS::EC2::VPCGatewayAttachment", "AWS::EC2::NatGateway"
_ROUTE_TABLE, _ENDPOINT, _EIP = "AWS::EC2::RouteTable", "AWS::EC2::VPCEndpoint", "AWS::EC2::EIP"
_ASSOCIATION = "AWS::EC2::SubnetRouteTableAssociation"
_EC2_ARN = "arn:aws:ec2:{region}:{account}:%s/{id}"


def violation(what: str) -> ApiError:
    return ApiError("DependencyViolation", what)


def need(region: Region, type_: str, id_: Any, code: str) -> Thing:
    """The thing that a property names, or the NotFound error of its service."""
    found = region.get(type_, id_)
    if found is None:
        raise ApiError(code, f"The {type_.rpartition('::')[2]} '{id_}' does not exist")
    return found


# --- VPC ------------------------------------------------------------------------------------------------------------


def _vpc_starts(region: Region, thing: Thing) -> None:
    if len(region.of(VPC)) > region.world.quota("L-F678F1CE"):
        raise ApiError("VpcLimitExceeded", "The maximum number of VPCs has been reached.")
    # Every VPC has a group that cannot be deleted by hand: a trap for code that sweeps a VPC.
    region.make(
        SECURITY_GROUP, f"service {thing.id}", GroupName="default", VpcId=thing.id, Rules=[], GroupDescription="default"
    )


def _vpc_blocked(region: Region, thing: Thing) -> ApiError | None:
    inside = [t for t in region.things.values() if t.props.get("VpcId") == thing.id]
    held = [t for t in inside if t.props.get("GroupName") != "default" and t.type not in (NETWORK_LB, CLUSTER)]
    return violation(f"The vpc '{thing.id}' has dependencies and cannot be deleted.") if held else None


def _vpc_removed(region: Region, thing: Thing) -> None:
    for group in region.of(SECURITY_GROUP, VpcId=thing.id):
        region.remove(group)


def _subnet_starts(region: Region, thing: Thing) -> None:
    vpc = need(region, VPC, thing.props.get("VpcId"), "InvalidVpcID.NotFound")
    zone = thing.props.setdefault("AvailabilityZone", region.zones[0])
    if zone not in region.zones:
        text = f"Value ({zone}) for parameter availabilityZone is invalid. Subnets can currently only be created in "
        raise ApiError("InvalidParameterValue", text + f"the following availability zones: {', '.join(region.zones)}.")
    mine, whole = (ipaddress.ip_network(t.props["CidrBlock"]) for t in (thing, vpc))
    if not mine.subnet_of(whole):  # type: ignore[arg-type]
        raise ApiError("InvalidSubnet.Range", f"The CIDR '{mine}' is invalid.")
    others = [s for s in region.of(SUBNET, VpcId=vpc.id) if s is not thing]
    if any(mine.overlaps(ipaddress.ip_network(s.props["CidrBlock"])) for s in others):
        raise ApiError("InvalidSubnet.Conflict", f"The CIDR '{mine}' conflicts with another subnet")


def _subnet_blocked(region: Region, thing: Thing) -> ApiError | None:
    held = region.interfaces(subnet=thing.id)
    return violation(f"The subnet '{thing.id}' has dependencies and cannot be deleted.") if held else None


# --- gateways and routes --------------------------------------------------------------------------------------------


def _attachment_blocked(region: Region, thing: Thing) -> ApiError | None:
    vpc = thing.props["VpcId"]
    if any(e.props.get("PublicIp") for e in region.interfaces(vpc=vpc)):
        text = f"Network {vpc} has some mapped public address(es). Please unmap those public address(es) before "
        return violation(text + "detaching the gateway.")
    return None


def _igw_blocked(region: Region, thing: Thing) -> ApiError | None:
    held = region.of(_ATTACHMENT, InternetGatewayId=thing.id)
    return violation(f"The internetGateway '{thing.id}' has dependencies and cannot be deleted.") if held else None


def _route_starts(region: Region, thing: Thing) -> None:
    table = need(region, _ROUTE_TABLE, thing.props.get("RouteTableId"), "InvalidRouteTableID.NotFound")
    gateway, vpc = thing.props.get("GatewayId", ""), table.props["VpcId"]
    if gateway.startswith("igw-") and not _attached(region, vpc, gateway):
        text = f"route table {table.id} and network gateway {gateway} belong to different networks"
        raise ApiError("InvalidParameterValue", text)


def _attached(region: Region, vpc: str, gateway: str = "") -> bool:
    found = [a for a in region.of(_ATTACHMENT, VpcId=vpc) if a.state == "available"]
    return any(not gateway or a.props["InternetGatewayId"] == gateway for a in found)


def _nat_starts(region: Region, thing: Thing) -> None:
    subnet = need(region, SUBNET, thing.props.get("SubnetId"), "InvalidSubnetID.NotFound")
    vpc = thing.props["VpcId"] = subnet.props["VpcId"]
    if thing.props.get("ConnectivityType") != "private" and not _attached(region, vpc):
        raise ApiError("Gateway.NotAttached", f"Network {vpc} has no Internet gateway attached")
    region.make(
        ENI, f"service {thing.id}", SubnetId=subnet.id, VpcId=vpc, Groups=[], Status="in-use", RequesterManaged=True,
        Description=f"Interface for NAT Gateway {thing.id}", Owner=thing.id, PublicIp="203.0.113.5",
    )  # fmt: skip


def remove_owned(region: Region, thing: Thing) -> None:
    """Remove the interfaces and instances that a service made for a thing."""
    for found in region.of(ENI, Owner=thing.id) + region.of(INSTANCE, Owner=thing.id):
        region.remove(found)


def _eip_starts(region: Region, thing: Thing) -> None:
    if len(region.of(_EIP)) > region.world.quota("L-0263D0A3"):
        raise ApiError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    thing.props["AllocationId"] = region.world.new_id("eipalloc")


def _eip_blocked(region: Region, thing: Thing) -> ApiError | None:
    if region.of(_NAT, AllocationId=thing.props["AllocationId"]):
        return ApiError("InvalidIPAddress.InUse", f"Address {thing.id} is in use.")
    return None


def _table_blocked(region: Region, thing: Thing) -> ApiError | None:
    held = region.of(_ASSOCIATION, RouteTableId=thing.id)
    return violation(f"The routeTable '{thing.id}' has dependencies and cannot be deleted.") if held else None


def _endpoint_starts(region: Region, thing: Thing) -> None:
    if thing.props.get("VpcEndpointType", "Gateway") == "Interface":
        for subnet in thing.props.get("SubnetIds", []):
            region.make(
                ENI, f"service {thing.id}", SubnetId=subnet, VpcId=thing.props["VpcId"], Status="in-use",
                Groups=thing.props.get("SecurityGroupIds", []), RequesterManaged=True, Owner=thing.id,
                Description=f"VPC Endpoint Interface {thing.id}",
            )  # fmt: skip


# --- security groups ------------------------------------------------------------------------------------------------


def _group_starts(region: Region, thing: Thing) -> None:
    thing.props.setdefault("GroupName", thing.id)
    rules = thing.props.get("SecurityGroupIngress", [])
    thing.props["Rules"] = [dict(r, Id=region.world.new_id("sgr")) for r in rules]
    twins = region.of(SECURITY_GROUP, VpcId=thing.props.get("VpcId"), GroupName=thing.props["GroupName"])
    if len(twins) > 1:
        text = f"The security group '{thing.props['GroupName']}' already exists for VPC '{thing.props.get('VpcId')}'"
        raise ApiError("InvalidGroup.Duplicate", text)


def _group_changes(region: Region, thing: Thing, props: dict[str, Any]) -> None:
    """Replace the group's own rules; those of SecurityGroupIngress resources stay."""
    own = [dict(r, Id=region.world.new_id("sgr")) for r in props.get("SecurityGroupIngress", [])]
    thing.props["Rules"] = own + [r for r in thing.props["Rules"] if "GroupId" in r]


def group_blocked(region: Region, thing: Thing) -> ApiError | None:
    """A group cannot go while an interface has it or another group's rule names it."""
    if thing.props.get("GroupName") == "default":
        return ApiError(
            "CannotDelete", f'the specified group: "{thing.id}" name: "default" cannot be deleted by a user'
        )
    others = [g for g in region.of(SECURITY_GROUP) if g is not thing]
    named = any(r.get("SourceSecurityGroupId") == thing.id for g in others for r in g.props.get("Rules", []))
    if named or region.interfaces(group=thing.id):
        return violation(f"resource {thing.id} has a dependent object")
    return None


def _ingress_starts(region: Region, thing: Thing) -> None:
    group = need(region, SECURITY_GROUP, thing.props.get("GroupId"), "InvalidGroup.NotFound")
    source = thing.props.get("SourceSecurityGroupId")
    if source:
        need(region, SECURITY_GROUP, source, "InvalidGroup.NotFound")
    group.props["Rules"].append(dict(thing.props, Id=thing.id))


def _ingress_removed(region: Region, thing: Thing) -> None:
    group = region.get(SECURITY_GROUP, thing.props.get("GroupId"))
    if group:
        group.props["Rules"] = [r for r in group.props["Rules"] if r["Id"] != thing.id]


def _prop(name: str) -> Any:
    return lambda region, thing: thing.props.get(name)


def _own_id(region: Region, thing: Thing) -> str:
    return thing.id


kind(
    VPC, create_s=5, prefix="vpc", arn=_EC2_ARN % "vpc", only="CidrBlock InstanceTenancy",
    create="ec2:CreateVpc ec2:CreateTags ec2:ModifyVpcAttribute", delete="ec2:DeleteVpc",
    update="ec2:ModifyVpcAttribute",
    start=_vpc_starts, blocked=_vpc_blocked, removed=_vpc_removed,
    attributes={
        "VpcId": _own_id, "CidrBlock": _prop("CidrBlock"),
        "DefaultSecurityGroup": lambda r, t: r.of(SECURITY_GROUP, VpcId=t.id, GroupName="default")[0].id,
    },
)  # fmt: skip
kind(
    SUBNET, create_s=5, prefix="subnet", arn=_EC2_ARN % "subnet", only="CidrBlock AvailabilityZone VpcId",
    create="ec2:CreateSubnet ec2:CreateTags", update="ec2:ModifySubnetAttribute", delete="ec2:DeleteSubnet",
    start=_subnet_starts, blocked=_subnet_blocked,
    attributes={"SubnetId": _own_id, "AvailabilityZone": _prop("AvailabilityZone"), "VpcId": _prop("VpcId"),
                "CidrBlock": _prop("CidrBlock")},
)  # fmt: skip
kind(
    _IGW, create_s=15, prefix="igw", arn=_EC2_ARN % "internet-gateway", blocked=_igw_blocked,
    create="ec2:CreateInternetGateway ec2:CreateTags", delete="ec2:DeleteInternetGateway",
    attributes={"InternetGatewayId": _own_id},
)  # fmt: skip
kind(
    _ATTACHMENT, create_s=5, arn=_EC2_ARN % "vpc-gateway-attachment", only="VpcId InternetGatewayId", taggable=False,
    create="ec2:AttachInternetGateway", delete="ec2:DetachInternetGateway", blocked=_attachment_blocked,
    identify=lambda w, p: f"IGW|{p['VpcId']}", attributes={"AttachmentType": lambda r, t: "IGW"},
)  # fmt: skip
kind(
    _ROUTE_TABLE, create_s=5, prefix="rtb", arn=_EC2_ARN % "route-table", only="VpcId", blocked=_table_blocked,
    create="ec2:CreateRouteTable ec2:CreateTags", delete="ec2:DeleteRouteTable", attributes={"RouteTableId": _own_id},
)  # fmt: skip
kind(
    "AWS::EC2::Route", create_s=3, arn=_EC2_ARN % "route", only="RouteTableId DestinationCidrBlock", taggable=False,
    create="ec2:CreateRoute", update="ec2:ReplaceRoute", delete="ec2:DeleteRoute", start=_route_starts,
    identify=lambda w, p: f"{p['RouteTableId']}|{p.get('DestinationCidrBlock', '')}", attributes={},
)  # fmt: skip
kind(
    _ASSOCIATION, create_s=3, prefix="rtbassoc", arn=_EC2_ARN % "rtbassoc", only="SubnetId", taggable=False,
    create="ec2:AssociateRouteTable", delete="ec2:DisassociateRouteTable", attributes={"Id": _own_id},
)  # fmt: skip
kind(
    _EIP, create_s=15, arn=_EC2_ARN % "elastic-ip", only="Domain", start=_eip_starts, blocked=_eip_blocked,
    create="ec2:AllocateAddress ec2:CreateTags", delete="ec2:ReleaseAddress",
    identify=lambda w, p: f"203.0.113.{w.next_octet()}",
    attributes={"AllocationId": _prop("AllocationId"), "PublicIp": _own_id},
)  # fmt: skip
kind(
    _NAT, create_s=100, delete_s=60, prefix="nat", arn=_EC2_ARN % "natgateway", only="SubnetId AllocationId",
    create="ec2:CreateNatGateway ec2:CreateTags", delete="ec2:DeleteNatGateway",
    start=_nat_starts, removed=remove_owned, attributes={"NatGatewayId": _own_id},
)  # fmt: skip
kind(
    _ENDPOINT, create_s=15, delete_s=15, prefix="vpce", arn=_EC2_ARN % "vpc-endpoint",
    only="VpcId ServiceName VpcEndpointType",
    create="ec2:CreateVpcEndpoint ec2:CreateTags", update="ec2:ModifyVpcEndpoint", delete="ec2:DeleteVpcEndpoints",
    start=_endpoint_starts, removed=remove_owned, attributes={"Id": _own_id},
)  # fmt: skip
kind(
    SECURITY_GROUP, create_s=8, prefix="sg", arn=_EC2_ARN % "security-group", only="GroupName GroupDescription VpcId",
    create="ec2:CreateSecurityGroup ec2:CreateTags", update="ec2:AuthorizeSecurityGroupIngress",
    delete="ec2:DeleteSecurityGroup", start=_group_starts, blocked=group_blocked, change=_group_changes,
    attributes={"GroupId": _own_id, "VpcId": _prop("VpcId"), "Id": _own_id},
)  # fmt: skip
kind(
    "AWS::EC2::SecurityGroupIngress", create_s=3, prefix="sgr", arn=_EC2_ARN % "security-group-rule", taggable=False,
    only="GroupId IpProtocol FromPort ToPort CidrIp SourceSecurityGroupId", start=_ingress_starts,
    create="ec2:AuthorizeSecurityGroupIngress", delete="ec2:RevokeSecurityGroupIngress",
    removed=_ingress_removed, attributes={"Id": _own_id},
)  # fmt: skip
kind(
    "AWS::EC2::LaunchTemplate", create_s=5, prefix="lt", arn=_EC2_ARN % "launch-template", only="LaunchTemplateName",
    create="ec2:CreateLaunchTemplate", update="ec2:CreateLaunchTemplateVersion", delete="ec2:DeleteLaunchTemplate",
    change=lambda r, t, p: t.props.update(Version=t.props.get("Version", 1) + 1),
    attributes={
        "LaunchTemplateId": _own_id, "LatestVersionNumber": lambda r, t: str(t.props.get("Version", 1)),
        "DefaultVersionNumber": lambda r, t: "1",
    },
)  # fmt: skip
for _type, _prefix, _name in (
    (ENI, "eni", "network-interface"),
    (INSTANCE, "i", "instance"),
    (VOLUME, "vol", "volume"),
    ("AWS::EC2::KeyPair", "key", "key-pair"),
):
    kind(_type, prefix=_prefix, arn=_EC2_ARN % _name, in_templates=False)
_LB_ARN = "arn:aws:elasticloadbalancing:{region}:{account}:loadbalancer/{id}"
kind(NETWORK_LB, prefix="net/lb", arn=_LB_ARN, in_templates=False)
kind(CLASSIC_LB, prefix="lb", arn=_LB_ARN, in_templates=False, name="Name")
