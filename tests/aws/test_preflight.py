"""What preflight finds out before anything is made: permissions, zones, sizes and ranges."""

from __future__ import annotations

import msgspec
import pytest

from bireme.aws.policy import Policy, execution_policy, operator_policy
from bireme.aws.preflight import CheckResult, choose_layout, examine, identify, vcpus
from bireme.core.errors import CloudError
from bireme.spec.cluster import GroupFile, NetworkFile, TrainerGroupFile, WorkersFile
from tests.aws.stage import Stage, cluster_file

OPERATOR = "arn:aws:iam::123456789012:user/operator"
ROLE = "bireme-cloudformation"


@pytest.fixture
def stage() -> Stage:
    return Stage.make()


def allow(stage: Stage, *policies: Policy) -> None:
    """The operator with these policies alone; there is no role for CloudFormation."""
    stage.world.principals["test"] = OPERATOR
    stage.world.policies[OPERATOR] = list(policies)


def without(policy: Policy, action: str) -> Policy:
    for statement in policy["Statement"]:
        statement["Action"] = [each for each in statement["Action"] if each != action]
    return policy


def preflight(stage: Stage) -> dict[str, CheckResult]:
    aws = stage.aws()
    return {each.name: each for each in examine(aws, choose_layout(aws, stage.file), identify(aws))}


def test_the_operators_policy_alone_is_not_enough_to_make(stage: Stage) -> None:
    allow(stage, operator_policy())
    found = preflight(stage)["permissions"]
    assert found.state == "wrong"
    assert found.text.startswith("missing: ec2:AllocateAddress")
    assert f"there is no role {ROLE}, so CloudFormation has your permissions only" in found.text
    assert "cluster policy --template`" in found.fix and "cluster policy --execution`" in found.fix
    with pytest.raises(CloudError) as caught:
        stage.up()
    assert "--template" in caught.value.fix and "--execution" in caught.value.fix


def test_both_policies_are_enough_without_a_role(stage: Stage) -> None:
    allow(stage, operator_policy(), execution_policy())
    found = preflight(stage)["permissions"]
    assert found.state == "ok"
    assert f"there is no role {ROLE}" in found.text
    stage.up()


@pytest.mark.parametrize("action", ["elasticfilesystem:CreateFileSystem", "iam:PassRole", "iam:CreateRole"])
def test_one_missing_permission_to_make_is_named(stage: Stage, action: str) -> None:
    allow(stage, operator_policy(), without(execution_policy(), action))
    assert preflight(stage)["permissions"].text.startswith(f"missing: {action} (there is no role")


def test_the_permission_to_hand_the_role_over_is_asked(stage: Stage) -> None:
    allow(stage, without(operator_policy(), "iam:PassRole"))
    stage.world.plant("AWS::IAM::Role", id=ROLE, RoleName=ROLE, Path="/")
    found = preflight(stage)["permissions"]
    assert (found.text, found.fix) == ("missing: iam:PassRole", "attach the policy that `bireme cluster policy` prints")


def test_a_zone_must_offer_a_type_of_each_group(stage: Stage) -> None:
    workers = WorkersFile(servers=GroupFile(types=("m5.large",)), trainers=TrainerGroupFile(types=("c7i.large",)))
    stage.file = cluster_file(workers=workers)
    stage.world.faults.not_offered = {("c7i.large", "us-west-2a"), ("m5.large", "us-west-2b")}
    assert choose_layout(stage.aws(), stage.file).zones == ("us-west-2c", "us-west-2d")
    stage.world.faults.not_offered |= {("c7i.large", "us-west-2c"), ("m5.large", "us-west-2d")}
    assert "no zone of us-west-2 offers both groups" in preflight(stage)["zones"].text


SIZES = {"m5.large": 2, "t3.micro": 2, "m5.xlarge": 4, "m5.24xlarge": 96, "c7i.metal-24xl": 96, "c5.metal": None}


@pytest.mark.parametrize("name", SIZES)
def test_the_vcpus_of_a_type_follow_from_its_size(name: str) -> None:
    each = SIZES[name]
    assert vcpus(GroupFile(count=3, types=(name,))) == (None if each is None else 3 * each)
    assert vcpus(GroupFile(count=0, types=(name,))) == 0


def test_a_size_that_says_nothing_is_a_warning(stage: Stage) -> None:
    workers = WorkersFile(servers=GroupFile(types=("c5.metal", "m5.large")))
    stage.file = cluster_file(workers=workers)
    aws = stage.aws()
    found = [each for each in examine(aws, choose_layout(aws, stage.file), identify(aws)) if each.name == "quotas"]
    assert [each.state for each in found] == ["warning", "ok"]
    assert "how many vCPUs c5.metal has is not known" in found[0].text


@pytest.mark.parametrize(("cidr", "state"), [("10.100.0.0/20", "wrong"), ("10.9.0.0/16", "ok")])
def test_services_are_outside_the_range_of_an_existing_vpc(stage: Stage, cidr: str, state: str) -> None:
    vpc = stage.world.plant("AWS::EC2::VPC", id="vpc-0123456789abcdef0", CidrBlock=cidr)
    for i in (0, 1):
        zone = f"us-west-2{'ab'[i]}"
        id_ = f"subnet-0123456789abcdef{i}"
        stage.world.plant("AWS::EC2::Subnet", id=id_, VpcId=vpc.id, AvailabilityZone=zone, CidrBlock=cidr)
    subnets = ("subnet-0123456789abcdef0", "subnet-0123456789abcdef1")
    stage.file = msgspec.structs.replace(stage.file, network=NetworkFile(vpc=vpc.id, subnets=subnets))
    found = preflight(stage)["services"]
    assert found.state == state
    assert cidr in found.text
    assert found.fix == ("write `services: 172.20.0.0/16`" if state == "wrong" else "")
