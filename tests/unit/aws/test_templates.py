"""The templates and policies, checked by what knows AWS' own schemas: cfn-lint, parliament, and rules of ours."""

from __future__ import annotations

import gc
import json
import warnings
from typing import Any

import msgspec
import pytest

from bireme.aws.layout import STACKS, ClusterLayout, choose_zones
from bireme.aws.plan import BODY_LIMIT, broken_rules, offline
from bireme.aws.policy import CALLS, TYPE_ACTIONS, execution_actions, execution_policy, operator_policy
from bireme.aws.templates import body_of, template_of
from bireme.aws.templates.operator import operator
from bireme.spec.cluster import AccessFile, ClusterFile, NetworkFile, StorageFile, WorkersFile

with warnings.catch_warnings():
    # Both leave files open while they are imported.
    warnings.simplefilter("ignore", ResourceWarning)
    import parliament
    from cfnlint.api import lint
    from cfnlint.config import ManualArgs
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    gc.collect()

KEY = "arn:aws:kms:us-west-2:123456789012:key/12345678-1234-1234-1234-123456789012"
SUBNETS = ("subnet-0123456789abcdef0", "subnet-0123456789abcdef1")
OWN_VPC = NetworkFile(vpc="vpc-0123456789abcdef0", subnets=SUBNETS)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "public": {"network": NetworkFile(egress="public")},
    "full": {"kms_key": KEY, "dns_zone": "paddle", "bucket": "my-data", "workers": WorkersFile(key_pair="mine")},
    "own": {"network": OWN_VPC, "storage": StorageFile(file_system="fs-0123456789abcdef0")},
}


def layout_of(kind: str, region: str = "us-west-2") -> ClusterLayout:
    access = AccessFile(api=("203.0.113.7/32",))
    file = ClusterFile(name="paddle", region=region, access=access, **KINDS[kind])
    return ClusterLayout(file, choose_zones(file))


@pytest.mark.parametrize("region", ["us-west-1", "us-west-2", "eu-central-1"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_template_passes_cfn_lint(kind: str, region: str) -> None:
    layout = layout_of(kind, region)
    for stack in layout.stacks:
        found = lint(json.dumps(template_of(layout, stack)), config=ManualArgs(regions=[region]))
        assert [f"{stack}: {each}" for each in found] == []


def test_the_operators_template_passes_cfn_lint() -> None:
    found = lint(json.dumps(operator()), config=ManualArgs(regions=["us-west-2"]))
    assert [str(each) for each in found] == []


@pytest.mark.parametrize("kind", KINDS)
def test_templates_keep_our_own_rules_and_the_size_limit(kind: str) -> None:
    offline(layout_of(kind))
    for stack in layout_of(kind).stacks:
        assert len(body_of(template_of(layout_of(kind), stack))) < BODY_LIMIT / 4


def platform() -> dict[str, Any]:
    return msgspec.json.decode(body_of(template_of(layout_of("plain"), "platform")))


def workers() -> dict[str, Any]:
    return msgspec.json.decode(body_of(template_of(layout_of("plain"), "workers")))


def test_our_rules_catch_what_linters_miss() -> None:
    found = platform()
    group = found["Resources"]["FileSystemSecurityGroup"]["Properties"]["SecurityGroupIngress"][0]
    group["CidrIp"] = "0.0.0.0/0"
    cluster = found["Resources"]["Cluster"]["Properties"]["ResourcesVpcConfig"]
    cluster["SubnetIds"] = cluster["SubnetIds"][:1]
    cluster["PublicAccessCidrs"] = ["0.0.0.0/0"]
    found["Resources"]["AddonVpcCni"]["Properties"]["AddonName"] = "vpc-cnl"
    del found["Resources"]["Repository"]["Properties"]["Tags"]
    assert broken_rules(found) == [
        "Cluster: the API server is open to the world",
        "Cluster: subnets in one zone",
        "AddonVpcCni: there is no add-on vpc-cnl",
        "FileSystemSecurityGroup: open to the world",
        "Repository lacks the tag of its cluster",
    ]
    machines = workers()
    machines["Resources"]["ServersTemplate"]["Properties"]["LaunchTemplateData"]["BlockDeviceMappings"][0]["Ebs"] = {}
    assert broken_rules(machines) == ["ServersTemplate: a disk is not encrypted"]


def test_no_port_is_opened_for_ssh_and_nfs_only_to_the_workers() -> None:
    rules = platform()["Resources"]["FileSystemSecurityGroup"]["Properties"]["SecurityGroupIngress"]
    assert [(rule["FromPort"], rule["ToPort"]) for rule in rules] == [(2049, 2049)]
    assert rules[0]["SourceSecurityGroupId"] == {"Fn::GetAtt": ["Cluster", "ClusterSecurityGroupId"]}


def test_an_own_vpc_and_file_system_are_used_and_not_made() -> None:
    layout = layout_of("own")
    assert layout.stacks == ("platform", "workers")
    types = {each["Type"] for each in template_of(layout, "platform")["Resources"].values()}
    assert not {"AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::NatGateway"} & types


def test_every_type_of_a_template_has_its_schemas_actions() -> None:
    used = {
        each["Type"] for kind in KINDS for stack in layout_of(kind).stacks
        for each in template_of(layout_of(kind), stack)["Resources"].values()
    }  # fmt: skip
    assert used <= set(TYPE_ACTIONS)
    # Actions that the schemas leave out, though the services ask for them.
    extra = {"ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:DescribeAvailabilityZones"}
    for kind in used:
        handlers = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", kind).schema["handlers"]
        listed = {action for handler in handlers.values() for action in handler.get("permissions", ())}
        assert execution_actions([kind]) - listed - extra - {"iam:PassRole", "iam:CreateServiceLinkedRole"} == set(), (
            kind
        )
        needed = {
            a for a in handlers["create"]["permissions"] if a.split(":")[1].startswith(("Create", "Run", "Alloc"))
        }
        assert needed - execution_actions(TYPE_ACTIONS) - UNUSED == set(), kind


UNUSED = {
    "ec2:CreateVpcEncryptionControl", "vpc-lattice:CreateServiceNetworkVpcEndpointAssociation",
    "elasticfilesystem:CreateReplicationConfiguration", "iam:CreateInstanceProfile", "logs:CreateLogDelivery",
    "route53:CreateQueryLoggingConfig",
}  # fmt: skip
"""Actions for properties that no template of ours sets."""


@pytest.mark.parametrize("policy", [operator_policy(), operator_policy("paddle"), execution_policy()])
def test_policies_are_small_exact_and_pass_parliament(policy: dict[str, Any]) -> None:
    text = json.dumps(policy, separators=(",", ":"))  # as IAM counts its limit
    assert len(text) <= 6144
    actions = [action for statement in policy["Statement"] for action in statement["Action"]]
    assert not [action for action in actions if "*" in action]
    found = parliament.analyze_policy_string(text).findings
    # What CloudFormation makes has no name yet, so its role cannot be bound to one; the operator's is bound.
    allowed = {"RESOURCE_STAR"} if policy == execution_policy() else set()
    assert {each.issue for each in found} <= allowed


def test_the_operator_may_not_use_the_role_or_the_resources() -> None:
    actions = {action for statement in operator_policy()["Statement"] for action in statement["Action"]}
    assert (
        not {"sts:AssumeRole", "ec2:RunInstances", "iam:CreateRole", "eks:CreateCluster", "eks:DeleteCluster"} & actions
    )


def test_a_call_outside_of_the_policy_is_a_bug() -> None:
    from bireme.aws.client import Aws

    assert "ec2.RunInstances" not in CALLS
    with pytest.raises(AssertionError, match=r"policy\.CALLS"):
        Aws("us-west-2").call("ec2", "RunInstances")


def test_stacks_are_made_in_the_order_of_their_needs() -> None:
    layout, known = layout_of("full"), {"AdminArn", "ZoneA", "ZoneB", "ServersCount", "TrainersCount"}
    for stack in STACKS:
        found = template_of(layout, stack)
        assert set(found.get("Parameters", {})) <= known
        known |= set(found.get("Outputs", {}))
