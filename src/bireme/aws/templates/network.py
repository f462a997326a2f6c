"""The network part of the platform: a VPC in two zones, the way out, and a free way to S3."""

from __future__ import annotations

from collections.abc import Iterator

from bireme.aws.layout import ClusterLayout
from bireme.aws.templates.parts import Resource, att, ref, resource, sub, tag_list

LETTERS = ("A", "B")
ELB_ROLE = {"Public": "kubernetes.io/role/elb", "Private": "kubernetes.io/role/internal-elb"}
"""Tags by which Kubernetes finds the subnets for load balancers."""


def worker_subnets(layout: ClusterLayout) -> list[str | Resource]:
    """The subnets of workers, control plane and mount targets: the workers' own first."""
    if not layout.makes_network:
        return list(layout.file.network.subnets)
    side = "Private" if layout.has_nat else "Public"
    return [ref(f"{side}Subnet{letter}") for letter in LETTERS]


def vpc_id(layout: ClusterLayout) -> str | Resource:
    """The VPC, made or given."""
    return ref("Vpc") if layout.file.network.vpc is None else layout.file.network.vpc


def network(layout: ClusterLayout) -> dict[str, Resource]:
    """The resources for addresses and routes; none in a VPC of the user's own."""
    return dict(_network(layout)) if layout.makes_network else {}


def _network(layout: ClusterLayout) -> Iterator[tuple[str, Resource]]:
    named = tag_list({"Name": f"bireme-{layout.name}"})
    properties = {"CidrBlock": layout.file.network.cidr, "EnableDnsSupport": True, "EnableDnsHostnames": True}
    yield "Vpc", resource("EC2::VPC", {**properties, "Tags": named})
    yield "InternetGateway", resource("EC2::InternetGateway", {"Tags": named})
    attached = {"VpcId": ref("Vpc"), "InternetGatewayId": ref("InternetGateway")}
    yield "InternetGatewayAttachment", resource("EC2::VPCGatewayAttachment", attached)
    to_internet = {"GatewayId": ref("InternetGateway")}
    yield from _side(layout, "Public", layout.public_ranges, to_internet, after="InternetGatewayAttachment")
    tables = ["Public"]
    if layout.has_nat:
        tables.append("Private")
        # Without the attachment EC2 refuses the address; CloudFormation cannot see that by itself.
        address = {"Domain": "vpc", "Tags": named}
        yield "NatAddress", resource("EC2::EIP", address, DependsOn="InternetGatewayAttachment")
        gateway = {"SubnetId": ref("PublicSubnetA"), "AllocationId": att("NatAddress", "AllocationId"), "Tags": named}
        yield "NatGateway", resource("EC2::NatGateway", gateway, DependsOn="PublicDefaultRoute")
        to_nat = {"NatGatewayId": ref("NatGateway")}
        yield from _side(layout, "Private", layout.private_ranges, to_nat)
    # Images and data from S3 would otherwise be billed as NAT traffic.
    endpoint = {
        "VpcId": ref("Vpc"),
        "VpcEndpointType": "Gateway",
        "ServiceName": sub("com.amazonaws.${AWS::Region}.s3"),
        "RouteTableIds": [ref(f"{side}RouteTable") for side in tables],
    }
    yield "S3Endpoint", resource("EC2::VPCEndpoint", endpoint)


def _side(
    layout: ClusterLayout, side: str, ranges: tuple[str, ...], way_out: Resource, after: str = ""
) -> Iterator[tuple[str, Resource]]:
    """The subnets of one side in both zones, with their route table and its way out."""
    named = {"Name": f"bireme-{layout.name}-{side.lower()}"}
    yield f"{side}RouteTable", resource("EC2::RouteTable", {"VpcId": ref("Vpc"), "Tags": tag_list(named)})
    route = {"RouteTableId": ref(f"{side}RouteTable"), "DestinationCidrBlock": "0.0.0.0/0", **way_out}
    yield f"{side}DefaultRoute", resource("EC2::Route", route, **({"DependsOn": after} if after else {}))
    for letter, cidr in zip(LETTERS, ranges, strict=True):
        subnet = {
            "VpcId": ref("Vpc"),
            "AvailabilityZone": ref(f"Zone{letter}"),
            "CidrBlock": cidr,
            "MapPublicIpOnLaunch": side == "Public" and not layout.has_nat,
            "Tags": tag_list({**named, ELB_ROLE[side]: "1"}),
        }
        yield f"{side}Subnet{letter}", resource("EC2::Subnet", subnet)
        joined = {"SubnetId": ref(f"{side}Subnet{letter}"), "RouteTableId": ref(f"{side}RouteTable")}
        yield f"{side}Routes{letter}", resource("EC2::SubnetRouteTableAssociation", joined)
