"""`up`, `scale` and `down` against the double, in virtual time: whatever fails, the next run continues from there."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

import msgspec
import pytest

from bireme.aws.layout import CLUSTER_TAG, STACKS, ClusterLayout, choose_zones, stack_name
from bireme.aws.policy import CALLS, action_of, execution_policy, operator_policy
from bireme.aws.preflight import CheckResult, choose_layout, examine, identify
from bireme.aws.teardown.down import find_stacks, other_regions, take_down
from bireme.aws.templates import template_of
from bireme.core.errors import BiremeError, CloudError
from bireme.spec.cluster import NetworkFile, TrainerGroupFile, WorkersFile
from tests.aws.double import World
from tests.aws.stage import NAME, CrashError, Stage, Unreachable, cluster_file

LAYOUT = ClusterLayout(cluster_file(), choose_zones(cluster_file()))
RESOURCES = [(kind, name) for kind in STACKS for name in template_of(LAYOUT, kind)["Resources"]]
RERUNS = 5


@pytest.fixture
def stage() -> Stage:
    return Stage.make()


def statuses(stage: Stage) -> dict[str, str]:
    return {kind: stack.status for kind, stack in find_stacks(stage.aws(), NAME).stacks.items()}


def plant_strangers(world: World) -> None:
    """Things of other people that look like ours."""
    near = {"bireme:cluster": f"{NAME}-2", "Name": f"bireme-{NAME}"}
    world.plant("AWS::EC2::VPC", tags=near, CidrBlock="10.9.0.0/16")
    world.plant("AWS::EC2::Volume", tags={f"kubernetes.io/cluster/{NAME}-2": "owned"}, Size=8, State="available")
    world.plant("AWS::EFS::FileSystem", tags=near)
    world.plant("AWS::Logs::LogGroup", LogGroupName=f"/aws/eks/{NAME}/other")
    world.plant("AWS::EC2::SecurityGroup", tags={f"kubernetes.io/cluster/{NAME}": "shared"}, VpcId="vpc-0000000a")
    world.plant("AWS::EC2::NetworkInterface", tags=near, VpcId="vpc-0000000a", SubnetId="subnet-0000000a")
    world.plant("AWS::IAM::Role", tags=near, RoleName=f"bireme-{NAME}-2-node", Path=f"/bireme/{NAME}-2/")
    world.plant("AWS::ECR::Repository", tags=near, RepositoryName=f"bireme-{NAME}-2")
    theirs = stack_name(f"{NAME}-2", "workers")
    world.plant("AWS::CloudFormation::Stack", tags=near, name=theirs, status="CREATE_COMPLETE")
    world.make_load_balancer(f"{NAME}-2", "vpc-0000000a")
    for thing in world.inventory():
        if thing.made_by == f"kubernetes {NAME}-2":
            thing.made_by = "planted"


def test_up_makes_three_stacks_and_down_leaves_nothing(stage: Stage) -> None:
    outputs = stage.up()
    assert statuses(stage) == dict.fromkeys(STACKS, "CREATE_COMPLETE")
    assert outputs["ClusterName"] == NAME and outputs["RepositoryUri"].endswith(f"/bireme-{NAME}")
    assert stage.down() == []
    assert stage.ours() == []
    assert stage.world.contract_violations == []


def test_up_again_changes_nothing(stage: Stage) -> None:
    stage.up()
    made = Counter(thing.id for thing in stage.world.inventory())
    stage.up()
    assert stage.notes[-3:] == [f"{stack_name(NAME, kind)} is up, nothing to change" for kind in STACKS]
    assert Counter(thing.id for thing in stage.world.inventory()) == made


def test_down_keeps_the_data_by_default(stage: Stage) -> None:
    stage.up()
    left = stage.down(deletes_data=False)
    assert {thing.kind for thing in left} == {"stack", "file system"}
    assert all(thing.is_data for thing in left)
    assert stage.down(deletes_data=True) == []
    assert stage.ours() == []


def test_a_cluster_made_again_uses_the_data_that_was_kept(stage: Stage) -> None:
    before = stage.up()["FileSystemId"]
    stage.down(deletes_data=False)
    assert stage.up()["FileSystemId"] == before


def test_scale_changes_only_the_workers(stage: Stage) -> None:
    stage.up()
    vpc = [thing.id for thing in stage.world.inventory() if thing.type == "AWS::EC2::VPC"]
    more = msgspec.structs.replace(stage.file, workers=WorkersFile(trainers=TrainerGroupFile(count=5)))
    stage.scale(more)
    machines = [thing for thing in stage.world.inventory() if thing.type == "AWS::EC2::Instance"]
    assert len(machines) == 6
    assert vpc == [thing.id for thing in stage.world.inventory() if thing.type == "AWS::EC2::VPC"]
    assert statuses(stage)["workers"] == "UPDATE_COMPLETE"


@pytest.mark.parametrize(("kind", "resource"), RESOURCES)
def test_down_after_up_failed_at_a_resource_leaves_nothing(kind: str, resource: str) -> None:
    stage = Stage.make()
    plant_strangers(stage.world)
    stage.world.faults.fail_create[resource] = ("InternalFailure", "it cannot be made", "always")
    with pytest.raises(CloudError, match=resource):
        stage.up()
    assert stage.down() == []
    assert stage.ours() == []
    assert stage.world.foreign_deleted == []


@pytest.mark.parametrize("resource", ["Cluster", "NatGateway", "Trainers", "FileSystem", "AddonCoreDns"])
def test_up_after_up_failed_deletes_the_wreck_and_continues(stage: Stage, resource: str) -> None:
    stage.world.faults.fail_create[resource] = ("VcpuLimitExceeded", "You have requested more vCPU capacity")
    with pytest.raises(CloudError, match="quota of vCPUs is used up"):
        stage.up()
    stage.up()
    assert any("from an earlier run" in note for note in stage.notes)
    assert set(statuses(stage).values()) == {"CREATE_COMPLETE"}


def test_what_kubernetes_left_behind_does_not_stop_down(stage: Stage) -> None:
    stage.world.faults.stray_enis = 3
    outputs = stage.up()
    plant_strangers(stage.world)
    stage.world.make_load_balancer(NAME, outputs["VpcId"])
    stage.world.make_load_balancer(NAME, outputs["VpcId"], classic=True)
    stage.world.make_volume(NAME)
    assert stage.down() == []
    assert stage.ours() == []
    assert stage.world.foreign_deleted == []
    assert any("left behind by Kubernetes" in note for note in stage.notes)


def test_what_others_put_into_our_network_is_listed(stage: Stage) -> None:
    vpc = stage.up()["VpcId"]
    subnet = next(t.id for t in stage.world.inventory() if t.type == "AWS::EC2::Subnet" and t.props["VpcId"] == vpc)
    theirs = stage.world.plant(
        "AWS::EC2::NetworkInterface", VpcId=vpc, SubnetId=subnet, Status="in-use", Description="a database"
    )
    outcome = take_down(stage.stacks(), NAME, None, stage.notes.append, deletes_data=True)
    assert outcome.failure is not None and "bireme-paddle-platform" in outcome.failure.what
    held = {thing.id: thing.note for thing in outcome.left}
    assert held[theirs.id] == f"a database, not made by bireme, in {vpc}"
    assert held["bireme-paddle-platform"] == "DELETE_FAILED" and vpc in held
    assert stage.world.foreign_deleted == []


def test_data_that_is_still_mounted_is_not_called_gone(stage: Stage) -> None:
    data = stage.up()["FileSystemId"]
    stage.world.plant("AWS::EFS::MountTarget", FileSystemId=data, SubnetId="subnet-0000000a", SecurityGroups=[])
    left = stage.down()
    assert [(thing.kind, thing.id) for thing in left] == [("file system", data)]
    assert any("still mounted" in note for note in stage.notes)


def test_a_foreign_stack_of_our_name_is_refused_and_left_alone(stage: Stage) -> None:
    stage.world.plant("AWS::CloudFormation::Stack", name=stack_name(NAME, "platform"), status="CREATE_COMPLETE")
    with pytest.raises(CloudError, match="did not make"):
        stage.up()
    with pytest.raises(CloudError, match="did not make"):
        stage.down()
    assert find_stacks(stage.aws(), NAME).stacks["platform"].status == "CREATE_COMPLETE"


def test_a_foreign_cluster_of_our_name_keeps_its_volumes(stage: Stage) -> None:
    world = stage.world
    world.plant("AWS::EKS::Cluster", Name=NAME)
    world.plant("AWS::EC2::Volume", tags={f"kubernetes.io/cluster/{NAME}": "owned"}, Size=8, State="available")
    with pytest.raises(CloudError, match="exists already"):
        stage.up()
    stage.workloads = Unreachable(stage)
    assert stage.down() == []
    assert stage.workloads.asked == 0, "its jobs are not ours"
    assert world.foreign_deleted == []


def test_down_works_while_the_control_plane_is_being_made(stage: Stage) -> None:
    stage.dies_at = 95
    with pytest.raises(CrashError):
        stage.up()
    assert statuses(stage)["platform"] == "CREATE_IN_PROGRESS"
    assert stage.down() == []
    assert stage.ours() == []


def test_data_without_its_stack_is_never_replaced_by_nothing(stage: Stage) -> None:
    stage.up()
    stage.down(deletes_data=False)
    storage = find_stacks(stage.aws(), NAME).stacks["storage"]
    stage.stacks().delete(storage)
    with pytest.raises(CloudError, match="is there without its stack") as caught:
        stage.up()
    assert "storage: {file_system: fs-" in caught.value.fix
    assert [thing.type for thing in stage.world.inventory()].count("AWS::EFS::FileSystem") == 1


def test_a_change_that_would_replace_the_network_is_refused(stage: Stage) -> None:
    stage.up()
    stage.file = msgspec.structs.replace(stage.file, network=NetworkFile(cidr="10.50.0.0/16"))
    with pytest.raises(CloudError, match=r"would replace .*Vpc"):
        stage.up()
    assert statuses(stage)["platform"] == "CREATE_COMPLETE"


def test_a_later_kubernetes_reaches_control_plane_and_nodes(stage: Stage) -> None:
    stage.up()
    stage.file = msgspec.structs.replace(stage.file, kubernetes="1.35")
    stage.up()
    there = {thing.type: thing.props.get("Version") for thing in stage.world.inventory() if "EKS" in thing.type}
    assert (there["AWS::EKS::Cluster"], there["AWS::EKS::Nodegroup"]) == ("1.35", "1.35")


def test_scale_changes_nothing_but_the_numbers(stage: Stage) -> None:
    stage.up()
    groups = {thing.id for thing in stage.world.inventory() if thing.type == "AWS::EKS::Nodegroup"}
    other = TrainerGroupFile(count=4, types=("c7i.large",))
    stage.scale(msgspec.structs.replace(stage.file, workers=WorkersFile(trainers=other)))
    assert groups == {thing.id for thing in stage.world.inventory() if thing.type == "AWS::EKS::Nodegroup"}


def test_a_log_group_that_eks_made_again_is_listed(stage: Stage) -> None:
    stage.up()
    stage.down()
    stage.world.plant("AWS::Logs::LogGroup", LogGroupName=f"/aws/eks/{NAME}/cluster")
    assert [(thing.kind, thing.usd_month) for thing in stage.down()] == [("log group", None)]


def test_the_wrong_region_is_reported(stage: Stage) -> None:
    stage.up()
    assert other_regions(stage.aws("eu-central-1"), NAME) == ["us-west-2"]


def test_expired_credentials_end_the_run_and_the_next_continues(stage: Stage) -> None:
    stage.world.faults.expire_credentials_at = stage.world.clock.now() + 400
    with pytest.raises(CloudError, match="expired") as caught:
        stage.up()
    assert "run the same command" in caught.value.fix
    stage.world.renew_credentials()
    stage.up()
    assert set(statuses(stage).values()) == {"CREATE_COMPLETE"}


def test_polling_stays_under_thirty_calls_a_minute(stage: Stage) -> None:
    stage.up()
    per_minute = Counter(int(at // 60) for service, _, _, at in stage.world.calls if service == "cloudformation")
    assert max(per_minute.values()) <= 30


OPERATOR = "arn:aws:iam::123456789012:user/operator"


def as_operator(stage: Stage, without: str = "") -> None:
    """The account as an administrator leaves it: CloudFormation's role, and an operator with our policy alone."""
    world = stage.world
    role = "bireme-cloudformation"
    if not [thing for thing in world.inventory() if thing.id == role]:
        world.plant("AWS::IAM::Role", id=role, RoleName=role, Path="/")
    world.principals["test"] = OPERATOR

    def lessened(policy: dict[str, object]) -> dict[str, object]:
        for statement in policy["Statement"]:  # type: ignore[attr-defined]
            statement["Action"] = [action for action in statement["Action"] if action != without]
        return policy

    world.policies[OPERATOR] = [lessened(operator_policy())]
    world.policies[f"arn:aws:iam::123456789012:role/{role}"] = [lessened(execution_policy())]


def whole_life(stage: Stage) -> None:
    stage.up()
    stage.scale(msgspec.structs.replace(stage.file, workers=WorkersFile(trainers=TrainerGroupFile(count=4))))
    stage.down()


def test_up_scale_and_down_need_exactly_the_printed_policy(stage: Stage) -> None:
    as_operator(stage)
    stage.world.faults.stray_enis = 1
    whole_life(stage)
    assert stage.ours() == []


def test_every_call_that_a_run_makes_is_in_the_policy(stage: Stage) -> None:
    whole_life(stage)
    made = {f"{service}.{operation}" for service, operation, _, _ in stage.world.calls}
    assert made <= CALLS


NEEDED = [
    "cloudformation:CreateStack", "cloudformation:DescribeStacks", "cloudformation:DescribeStackEvents",
    "cloudformation:CreateChangeSet", "cloudformation:DescribeChangeSet", "cloudformation:ExecuteChangeSet",
    "cloudformation:DeleteStack", "cloudformation:DescribeStackResources",
    "cloudformation:UpdateTerminationProtection", "iam:PassRole", "elasticfilesystem:DescribeFileSystems",
    "elasticfilesystem:DeleteFileSystem", "ec2:DescribeVolumes", "ec2:DescribeInstances",
    "elasticloadbalancing:DescribeLoadBalancers", "ec2:DescribeAvailabilityZones", "eks:DescribeCluster",
    "ec2:CreateVpc", "ec2:CreateNatGateway", "eks:CreateCluster", "eks:CreateNodegroup", "eks:CreateAddon",
    "iam:CreateRole", "elasticfilesystem:CreateFileSystem", "elasticfilesystem:CreateMountTarget",
    "logs:CreateLogGroup", "ecr:CreateRepository", "ec2:CreateLaunchTemplate", "ec2:CreateSecurityGroup",
    "eks:CreateAccessEntry", "eks:CreatePodIdentityAssociation", "ec2:CreateSubnet", "ec2:AllocateAddress",
]  # fmt: skip


def test_the_policy_of_one_cluster_is_enough_for_it(stage: Stage) -> None:
    as_operator(stage)
    stage.world.policies[OPERATOR] = [operator_policy(NAME)]
    stage.world.faults.stray_enis = 1
    whole_life(stage)
    assert stage.ours() == []


@pytest.mark.parametrize("action", NEEDED)
def test_a_missing_permission_is_named(stage: Stage, action: str) -> None:
    as_operator(stage, without=action)
    with pytest.raises(BiremeError) as caught:
        whole_life(stage)
    assert action in f"{caught.value}"


OPTIONAL = {"iam:GetRole", "eks:DeleteAccessEntry", "eks:DeletePodIdentityAssociation"}
"""Without the first the tool works with the caller's own permissions; the others go with their cluster."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_permission_that_a_life_uses_is_needed_and_named() -> None:
    whole = Stage.make()
    as_operator(whole)
    whole_life(whole)
    unneeded = []
    for action in sorted(whole.world.authorized - OPTIONAL):
        stage = Stage.make()
        as_operator(stage, without=action)
        try:
            whole_life(stage)
            unneeded.append(action)
        except BiremeError as e:
            assert action in str(e), f"{action} is not named: {e}"
    assert unneeded == []


def preflight(stage: Stage) -> dict[str, CheckResult]:
    aws = stage.aws()
    return {each.name: each for each in examine(aws, choose_layout(aws, stage.file), identify(aws))}


def test_preflight_finds_nothing_wrong_in_a_good_account(stage: Stage) -> None:
    as_operator(stage)
    assert {each.state for each in preflight(stage).values()} == {"ok"}


def test_preflight_names_missing_permissions_quotas_and_versions(stage: Stage) -> None:
    as_operator(stage, without="cloudformation:CreateStack")
    stage.world.faults.quotas["L-34B43A08"] = 4
    stage.file = msgspec.structs.replace(stage.file, kubernetes="1.99")
    found = preflight(stage)
    assert found["permissions"].text == "missing: cloudformation:CreateStack"
    assert found["quotas"].text == "vCPUs of spot machines: 6 needed, 4 of 4 free"
    assert found["Kubernetes"].text == "EKS does not offer 1.99"
    assert {found[name].state for name in ("permissions", "quotas", "Kubernetes")} == {"wrong"}


def draw_faults(world: World, draw: random.Random) -> None:
    faults = world.faults
    faults.throttle = draw.choice([0, 0, 0.05, 0.2])
    faults.server_error = draw.choice([0, 0, 0.03, 0.08])
    faults.stale_reads_s = draw.choice([0, 0, 4, 8])
    faults.tagging_lag_s = draw.choice([0, 60])
    faults.stray_enis = draw.choice([0, 0, 1, 3])
    resources = [name for _, name in RESOURCES]
    # Each of these ends a run, and five re-runs must do: two, two deaths of the tool, and expired credentials.
    for table in (faults.fail_create, faults.fail_delete):
        for name in draw.sample(resources, draw.choice([0, 0, 1, 2])):
            table[name] = ("InternalFailure", "drawn by the test")
    if draw.random() < 0.15:
        faults.expire_credentials_at = world.clock.now() + draw.uniform(0, 1500)


def reach(stage: Stage, want: str, draw: random.Random) -> None:
    """Run a command until it succeeds, killing it on the way; at most five runs after the first."""
    for attempt in range(RERUNS + 1):
        dies = attempt < 2 and draw.random() < 0.6
        stage.dies_at = stage.calls + draw.randint(1, 160) if dies else None
        try:
            left = stage.up() and [] if want == "up" else stage.down()
            stage.dies_at = None
            assert not left, f"left: {left}"
            return
        except (CrashError, BiremeError):
            stage.world.renew_credentials()
            stage.world.clock.advance(draw.choice([0, 10, 120, 1200]))
    raise AssertionError(f"not {want} after {RERUNS} re-runs: {stage.notes[-6:]}")


def live_through(seed: int) -> None:
    draw = random.Random(seed)
    egress: Literal["nat", "public"] = draw.choice(["nat", "public"])
    stage = Stage.make(seed, file=cluster_file(network=NetworkFile(egress=egress)))
    plant_strangers(stage.world)
    draw_faults(stage.world, draw)
    if draw.random() < 0.8:
        reach(stage, "up", draw)
        assert all(stack.is_up for stack in find_stacks(stage.aws(), NAME).stacks.values())
        vpc = next(
            t.id for t in stage.world.inventory() if t.tags.get(CLUSTER_TAG) == NAME and t.type == "AWS::EC2::VPC"
        )
        if draw.random() < 0.3:
            stage.world.make_load_balancer(NAME, vpc, classic=draw.random() < 0.5)
        if draw.random() < 0.3:
            stage.world.make_volume(NAME)
    else:
        stage.dies_at = stage.calls + draw.randint(1, 200)
        try:
            stage.up()
        except (CrashError, BiremeError):
            stage.world.renew_credentials()
    reach(stage, "down", draw)
    assert stage.ours() == []
    assert stage.world.foreign_deleted == []
    assert stage.world.contract_violations == []


@pytest.mark.parametrize("seed", range(24))
def test_a_drawn_life_ends_as_asked(seed: int) -> None:
    live_through(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, 25))
def test_five_hundred_drawn_lives_end_as_asked(first: int) -> None:
    for seed in range(10_000 + first, 10_000 + first + 25):
        try:
            live_through(seed)
        except BaseException as e:
            raise AssertionError(f"seed {seed}: {e!r}") from e


def test_every_action_of_the_tool_is_granted() -> None:
    granted = {action for statement in operator_policy()["Statement"] for action in statement["Action"]}
    assert {action_of(call) for call in CALLS} - {"sts:GetCallerIdentity"} <= granted
