"""The plan of a cluster: the checked file, the stacks' resources, address ranges and the price.

Without credentials this is all; with them `preflight` queries AWS too, and CloudFormation lists the changes to existing
stacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bireme.aws import prices
from bireme.aws.cloudformation.causes import AwsError, to_error
from bireme.aws.cloudformation.stacks import ChangeSet, Stacks
from bireme.aws.layout import CLUSTER_TAG, ClusterLayout, StackKind
from bireme.aws.preflight import CheckResult
from bireme.aws.templates import Template, body_of, template_of
from bireme.aws.up import DesiredCluster, propose
from bireme.core.errors import SpecError

BODY_LIMIT = 51_200


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What `up` would do."""

    layout: ClusterLayout
    estimate: prices.Estimate
    findings: tuple[CheckResult, ...] = ()
    changes: dict[StackKind, ChangeSet | None] = field(default_factory=dict)
    """By existing stack; None: nothing would change."""

    @property
    def wrong(self) -> list[CheckResult]:
        """The findings that must be fixed before anything is created."""
        return [finding for finding in self.findings if finding.state == "wrong"]

    def resources(self, kind: StackKind) -> dict[str, str]:
        """The types of a stack's resources by their name."""
        made: Template = template_of(self.layout, kind)["Resources"]
        return {name: each["Type"] for name, each in made.items()}

    def as_dict(self) -> dict[str, Any]:
        """The plan as one plain value."""
        layout = self.layout
        return {
            "cluster": msgspec.to_builtins(layout.file),
            "zones": list(layout.zones),
            "ranges": {"public": list(layout.public_ranges), "private": list(layout.private_ranges)}
            if layout.makes_network
            else None,
            "stacks": {layout.stack(kind): self.resources(kind) for kind in layout.stacks},
            "price": {
                "date": prices.DATE,
                "usd_hour": round(self.estimate.usd_h, 4),
                "usd_month": round(self.estimate.usd_h * prices.MONTH_H, 2),
                "unknown": list(self.estimate.unknown),
                "items": [msgspec.to_builtins(item) for item in self.estimate.items],
            },
            "preflight": [msgspec.to_builtins(finding) for finding in self.findings],
            "changes": {
                layout.stack(kind): [msgspec.to_builtins(change) for change in changes.changes] if changes else []
                for kind, changes in self.changes.items()
            },
        }


def offline(layout: ClusterLayout) -> ClusterPlan:
    """Plan without AWS; a template that breaks our own rules is a bug and is never sent."""
    for kind in layout.stacks:
        template = template_of(layout, kind)
        assert not (broken := broken_rules(template)), f"{kind}: {broken}; this is a bug"
        if len(body_of(template).encode()) > BODY_LIMIT:
            fix = "use fewer `tags` and `labels`"
            raise SpecError(f"the template of {layout.stack(kind)} is larger than CloudFormation takes", fix=fix)
    return ClusterPlan(layout, prices.estimate(layout))


def proposed(stacks: Stacks, wanted: DesiredCluster) -> dict[StackKind, ChangeSet | None]:
    """The changes to the stacks that are up; the change sets are deleted again."""
    change_sets: dict[StackKind, ChangeSet | None] = {}
    outputs: dict[str, str] = {}
    for kind in wanted.layout.stacks:
        try:
            stack = stacks.find(wanted.layout.stack(kind))
            if stack is None or not stack.is_up or not stack.is_of(wanted.layout.name):
                return change_sets
            outputs |= stack.outputs
            change_sets[kind] = propose(stacks, wanted, kind, stack, outputs)
            if (changes := change_sets[kind]) is not None:
                stacks.forget(changes)
        except AwsError as e:
            raise to_error(e, f"list the changes to {wanted.layout.stack(kind)}") from e
    return change_sets


def broken_rules(template: Template) -> list[str]:
    """Rules of our own that no linter has: nothing open to the world, everything encrypted and tagged."""
    broken = []
    for name, each in template["Resources"].items():
        kind, properties = each["Type"].removeprefix("AWS::"), each["Properties"]
        broken += [f"{name}: {text}" for text in _broken(kind, properties)]
        if kind in TAGGED and CLUSTER_TAG not in str(properties.get(TAGGED[kind])):
            broken.append(f"{name} lacks the tag of its cluster")
    return broken


def _broken(kind: str, properties: dict[str, Any]) -> Iterator[str]:
    if any(rule.get("CidrIp", "").endswith("/0") for rule in properties.get("SecurityGroupIngress", ())):
        yield "open to the world"
    if kind == "EKS::Cluster":
        vpc = properties["ResourcesVpcConfig"]
        if "0.0.0.0/0" in vpc.get("PublicAccessCidrs", ["0.0.0.0/0"]):
            yield "the API server is open to the world"
        if len(vpc["SubnetIds"]) < 2:
            yield "subnets in one zone"
    if kind == "EFS::FileSystem" and properties.get("Encrypted") is not True:
        yield "not encrypted"
    if kind == "EC2::LaunchTemplate":
        disks = properties["LaunchTemplateData"]["BlockDeviceMappings"]
        if not all(disk["Ebs"].get("Encrypted") for disk in disks):
            yield "a disk is not encrypted"
    if kind == "EKS::Addon" and properties["AddonName"] not in KNOWN_ADDONS:
        yield f"there is no add-on {properties['AddonName']}"


KNOWN_ADDONS = {"vpc-cni", "kube-proxy", "eks-pod-identity-agent", "coredns", "aws-efs-csi-driver"}
TAGGED = {
    "EFS::FileSystem": "FileSystemTags",
    "EFS::AccessPoint": "AccessPointTags",
    "EKS::Cluster": "Tags",
    "EKS::Nodegroup": "Tags",
    "EKS::Addon": "Tags",
    "EKS::AccessEntry": "Tags",
    "EKS::PodIdentityAssociation": "Tags",
    "EC2::LaunchTemplate": "TagSpecifications",
    "ECR::Repository": "Tags",
    "Route53::HostedZone": "HostedZoneTags",
}
"""Types that are tagged in the template itself; the others get the stack's tags from CloudFormation."""
