"""The double itself: each behaviour of AWS that our code must survive, through real boto3."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.aws.double import DoubleServer, VirtualClock, World, attach

NODE_POLICIES = ["arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"]
SESSION = boto3.Session("key", "secret", region_name="us-west-2")  # shared: loading the models takes time
PROJECT = [{"Key": "bireme:project", "Value": "p"}]
USER = "arn:aws:iam::123456789012:user/tester"
TRUST = {"Version": "2012-10-17", "Statement": []}


def ref(name: str) -> dict[str, str]:
    return {"Ref": name}


def att(name: str, attribute: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, attribute]}


def resource(type_: str, depends: list[str] | None = None, policy: str = "", **props: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"Type": f"AWS::{type_}", "Properties": props}
    made |= {"DependsOn": depends} if depends else {}
    return made | ({"DeletionPolicy": policy} if policy else {})


def platform() -> dict[str, Any]:
    """A network, a cluster, a file system: 25 resources of 20 types."""
    resources = {
        "Vpc": resource("EC2::VPC", CidrBlock=ref("Cidr")),
        "Gateway": resource("EC2::InternetGateway"),
        "Attachment": resource("EC2::VPCGatewayAttachment", VpcId=ref("Vpc"), InternetGatewayId=ref("Gateway")),
        "Table": resource("EC2::RouteTable", VpcId=ref("Vpc")),
        "Route": resource(
            "EC2::Route", ["Attachment"], RouteTableId=ref("Table"), DestinationCidrBlock="0.0.0.0/0",
            GatewayId=ref("Gateway"),
        ),
        "Address": resource("EC2::EIP", ["Attachment"], Domain="vpc"),
        "Nat": resource(
            "EC2::NatGateway", ["Attachment"], SubnetId=ref("SubnetA"), AllocationId=att("Address", "AllocationId")
        ),
        "Endpoint": resource(
            "EC2::VPCEndpoint", VpcId=ref("Vpc"), ServiceName={"Fn::Sub": "com.amazonaws.${AWS::Region}.s3"}
        ),
        "FilesGroup": resource("EC2::SecurityGroup", VpcId=ref("Vpc"), GroupDescription="nfs"),
        "FilesIngress": resource(
            "EC2::SecurityGroupIngress", GroupId=ref("FilesGroup"), IpProtocol="tcp", FromPort=2049, ToPort=2049,
            SourceSecurityGroupId=att("Cluster", "ClusterSecurityGroupId"),
        ),
        "ClusterRole": resource("IAM::Role", AssumeRolePolicyDocument=TRUST),
        "Logs": resource("Logs::LogGroup", LogGroupName={"Fn::Sub": "/aws/eks/${AWS::StackName}/cluster"}),
        "Cluster": resource(
            "EKS::Cluster", ["Logs"], Name=ref("AWS::StackName"), RoleArn=att("ClusterRole", "Arn"), Version="1.34",
            ResourcesVpcConfig={"SubnetIds": [ref("SubnetA"), ref("SubnetB")]},
            Logging={"ClusterLogging": {"EnabledTypes": [{"Type": "api"}]}},
        ),
        "Cni": resource("EKS::Addon", ClusterName=ref("Cluster"), AddonName="vpc-cni"),
        "Identity": resource(
            "EKS::PodIdentityAssociation", ClusterName=ref("Cluster"), Namespace="kube-system", ServiceAccount="efs",
            RoleArn=att("ClusterRole", "Arn"),
        ),
        "Entry": resource("EKS::AccessEntry", ClusterName=ref("Cluster"), PrincipalArn=USER),
        "Files": resource("EFS::FileSystem", policy="RetainExceptOnCreate", Encrypted=True),
        "Home": resource("EFS::AccessPoint", FileSystemId=ref("Files")),
        "Images": resource("ECR::Repository", RepositoryName={"Fn::Sub": "${AWS::StackName}/bireme"}),
    }  # fmt: skip
    for i, zone in enumerate("AB"):
        resources[f"Subnet{zone}"] = resource(
            "EC2::Subnet",
            VpcId=ref("Vpc"),
            CidrBlock=f"10.0.{i}.0/24",
            AvailabilityZone={"Fn::Select": [i, ref("Zones")]},
        )
        resources[f"Link{zone}"] = resource(
            "EC2::SubnetRouteTableAssociation", SubnetId=ref(f"Subnet{zone}"), RouteTableId=ref("Table")
        )
        resources[f"Mount{zone}"] = resource(
            "EFS::MountTarget",
            FileSystemId=ref("Files"),
            SubnetId=ref(f"Subnet{zone}"),
            SecurityGroups=[ref("FilesGroup")],
        )
    parameters = {
        "Cidr": {"Type": "String", "Default": "10.0.0.0/16", "AllowedPattern": r"\d+\.\d+\.\d+\.\d+/\d+"},
        "Zones": {"Type": "CommaDelimitedList", "Default": "us-west-2a,us-west-2b"},
    }
    outputs = {
        "Vpc": {"Value": ref("Vpc")},
        "ClusterArn": {"Value": att("Cluster", "Arn")},
        "Subnets": {"Value": {"Fn::Join": [",", [ref("SubnetA"), ref("SubnetB")]]}},
        "Image": {"Value": att("Images", "RepositoryUri")},
    }
    return {"Parameters": parameters, "Resources": resources, "Outputs": outputs}


def workers(cluster: str, subnets: str, count: int = 2, type_: str = "m7i.large") -> dict[str, Any]:
    return {
        "Parameters": {"Count": {"Type": "Number", "Default": count, "MinValue": 0, "MaxValue": 50}},
        "Conditions": {"HasNodes": {"Fn::Not": [{"Fn::Equals": [ref("Count"), "0"]}]}},
        "Resources": {
            "Role": resource("IAM::Role", AssumeRolePolicyDocument=TRUST, ManagedPolicyArns=NODE_POLICIES),
            "Template": resource(
                "EC2::LaunchTemplate",
                LaunchTemplateData={"TagSpecifications": [{"ResourceType": "instance", "Tags": PROJECT}]},
            ),
            "Nodes": resource(
                "EKS::Nodegroup", ClusterName=cluster, NodeRole=att("Role", "Arn"), Subnets=subnets.split(","),
                InstanceTypes=[type_], ScalingConfig={"MinSize": 0, "DesiredSize": ref("Count"), "MaxSize": 50},
                LaunchTemplate={"Id": ref("Template"), "Version": att("Template", "LatestVersionNumber")},
            ),
            "Dns": resource("EKS::Addon", ["Nodes"], ClusterName=cluster, AddonName="coredns"),
        },
        "Outputs": {"Group": {"Condition": "HasNodes", "Value": att("Nodes", "NodegroupName")}},
    }  # fmt: skip


def small(**resources: Any) -> dict[str, Any]:
    return {"Resources": resources or {"Vpc": resource("EC2::VPC", CidrBlock="10.0.0.0/16")}}


class Aws:
    """A world and clients attached to it in the process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: dict[tuple[str, str], Any] = {}

    def __call__(self, service: str, region: str = "") -> Any:
        where = (service, region or self.world.home)
        if where not in self.clients:
            config = Config(retries={"total_max_attempts": 1})
            self.clients[where] = SESSION.client(service, region_name=where[1], config=config)
            attach(self.clients[where], self.world)
        return self.clients[where]

    def create(self, name: str, template: dict[str, Any], **more: Any) -> str:
        body = json.dumps(template)
        made = self("cloudformation").create_stack(
            StackName=name, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"], **more
        )
        return made["StackId"]

    def make(self, name: str, template: dict[str, Any], **more: Any) -> str:
        """Create and wait; returns the final status."""
        return self.settled(self.create(name, template, **more))

    def update(self, name: str, template: dict[str, Any], **more: Any) -> str:
        body = json.dumps(template)
        self("cloudformation").update_stack(
            StackName=name, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"], **more
        )
        return self.settled(name)

    def delete(self, name: str, **more: Any) -> str:
        id_ = self.stack(name)["StackId"]
        self("cloudformation").delete_stack(StackName=name, **more)
        return self.settled(id_)

    def stack(self, name: str) -> dict[str, Any]:
        return self("cloudformation").describe_stacks(StackName=name)["Stacks"][0]

    def settled(self, name: str) -> str:
        self.world.run_until_idle()
        return self.stack(name)["StackStatus"]

    def outputs(self, name: str) -> dict[str, str]:
        return {o["OutputKey"]: o["OutputValue"] for o in self.stack(name)["Outputs"]}

    def events(self, name: str) -> list[dict[str, Any]]:
        pages = self("cloudformation").get_paginator("describe_stack_events").paginate(StackName=name)
        return [e for p in pages for e in p["StackEvents"]]

    def reasons(self, name: str, status: str) -> dict[str, str]:
        found = [e for e in self.events(name) if e["ResourceStatus"] == status]
        return {e["LogicalResourceId"]: e.get("ResourceStatusReason", "") for e in found}

    def left(self) -> set[str]:
        return {t.type for t in self.world.inventory()}


@pytest.fixture
def aws() -> Iterator[Aws]:
    made = Aws(World())
    yield made
    assert made.world.contract_violations == []


def refusal(call: Callable[..., Any], **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_a_platform_and_its_workers_go_and_the_data_stays(aws: Aws) -> None:
    assert aws.make("p", platform()) == "CREATE_COMPLETE"
    out = aws.outputs("p")
    assert out["Image"] == "123456789012.dkr.ecr.us-west-2.amazonaws.com/p/bireme"
    assert aws.make("w", workers("p", out["Subnets"])) == "CREATE_COMPLETE"
    assert aws("eks").describe_cluster(name="p")["cluster"]["status"] == "ACTIVE"
    assert len(aws("ec2").describe_instances()["Reservations"]) == 2
    assert aws.delete("w") == "DELETE_COMPLETE"
    assert aws.delete("p") == "DELETE_COMPLETE"
    assert aws.left() == {"AWS::EFS::FileSystem"}


# --- time and order -------------------------------------------------------------------------------------------------


def test_a_stack_lasts_as_long_as_its_resources(aws: Aws) -> None:
    aws.create("p", platform())
    assert aws.stack("p")["StackStatus"] == "CREATE_IN_PROGRESS"
    aws.world.clock.advance(120)
    done = {r["LogicalResourceId"]: r["ResourceStatus"] for r in _resources(aws, "p")}
    assert (done["Vpc"], done["Cluster"]) == ("CREATE_COMPLETE", "CREATE_IN_PROGRESS")
    assert "Cni" not in done
    assert aws("eks").describe_cluster(name="p")["cluster"]["status"] == "CREATING"
    begin = aws.world.clock.now()
    aws.settled("p")
    assert 300 < aws.world.clock.now() - begin < 1200


def _resources(aws: Aws, name: str) -> list[dict[str, Any]]:
    pages = aws("cloudformation").get_paginator("list_stack_resources").paginate(StackName=name)
    return [r for p in pages for r in p["StackResourceSummaries"]]


def test_events_are_newest_first_and_one_seed_gives_one_history() -> None:
    histories = []
    for _ in range(2):
        aws = Aws(World(seed=7, clock=VirtualClock()))
        aws.make("p", platform())
        histories.append([(e["Timestamp"], e["LogicalResourceId"], e["ResourceStatus"]) for e in aws.events("p")])
    assert histories[0] == histories[1]
    times = [t for t, _, _ in histories[0]]
    assert times == sorted(times, reverse=True)
    assert len(times) > 60


# --- create that fails ----------------------------------------------------------------------------------------------


def test_a_failed_resource_rolls_the_stack_back(aws: Aws) -> None:
    aws.world.faults.fail_create["Nat"] = ("NatGatewayLimitExceeded", "no more NAT gateways")
    assert aws.make("p", platform()) == "ROLLBACK_COMPLETE"
    failed = aws.reasons("p", "CREATE_FAILED")
    assert "no more NAT gateways" in failed["Nat"]
    assert failed["Cluster"] == "Resource creation cancelled"
    assert aws.left() == set()  # also the file system: RetainExceptOnCreate
    code, text = refusal(aws("cloudformation").update_stack, StackName="p", TemplateBody=json.dumps(small()))
    assert code == "ValidationError"
    assert text.endswith("is in ROLLBACK_COMPLETE state and can not be updated.")
    assert aws.delete("p") == "DELETE_COMPLETE"
    assert aws.make("p", platform()) == "CREATE_COMPLETE"  # the fault happens once


def test_a_failure_keeps_what_was_made_when_roll_back_is_off(aws: Aws) -> None:
    aws.world.faults.fail_create["AWS::EC2::NatGateway"] = ("X", "broken", "always")
    assert aws.make("p", platform(), OnFailure="DO_NOTHING") == "CREATE_FAILED"
    assert "AWS::EC2::VPC" in aws.left()
    assert aws.make("q", platform(), OnFailure="DELETE", Parameters=[_p("Cidr", "10.0.0.0/8")]) == "DELETE_COMPLETE"


def test_a_failed_roll_back_leaves_rollback_failed(aws: Aws) -> None:
    aws.world.faults.fail_create["Nat"] = ("X", "broken")
    aws.world.faults.fail_delete["Vpc"] = ("Y", "stuck")
    assert aws.make("p", platform()) == "ROLLBACK_FAILED"
    assert aws.delete("p") == "DELETE_COMPLETE"


@pytest.mark.parametrize(
    ("quota", "value", "text"),
    [
        ("L-0263D0A3", 0.0, "The maximum number of addresses has been reached."),
        ("L-F678F1CE", 0.0, "The maximum number of VPCs has been reached."),
        ("L-1194D53C", 0.0, "Cluster limit exceeded"),
    ],
)
def test_a_quota_fails_the_resource_with_the_text_of_aws(aws: Aws, quota: str, value: float, text: str) -> None:
    aws.world.faults.quotas[quota] = value
    assert aws("service-quotas").get_service_quota(ServiceCode="x", QuotaCode=quota)["Quota"]["Value"] == value
    assert aws.make("p", platform()) == "ROLLBACK_COMPLETE"
    assert any(text in reason for reason in aws.reasons("p", "CREATE_FAILED").values())


def test_nodes_beyond_the_vcpu_quota_fail_after_twenty_minutes(aws: Aws) -> None:
    aws.make("p", platform())
    aws.world.faults.quotas["L-1216C47A"] = 3
    begin = aws.world.clock.now()
    assert aws.make("w", workers("p", aws.outputs("p")["Subnets"])) == "ROLLBACK_COMPLETE"
    assert aws.world.clock.now() - begin > 1200
    assert "VcpuLimitExceeded" in aws.reasons("w", "CREATE_FAILED")["Nodes"]


def test_add_ons_with_pods_fail_without_nodes_and_others_do_not(aws: Aws) -> None:
    aws.make("p", platform())
    template = workers("p", aws.outputs("p")["Subnets"], count=0)
    aws.create("w", template)
    aws.world.clock.advance(400)
    assert aws("eks").describe_addon(clusterName="p", addonName="coredns")["addon"]["status"] == "DEGRADED"
    assert aws.settled("w") == "ROLLBACK_COMPLETE"
    assert "InsufficientNumberOfReplicas" in aws.reasons("w", "CREATE_FAILED")["Dns"]


def test_an_unknown_add_on_and_a_cluster_in_one_zone_are_refused(aws: Aws) -> None:
    template = platform()
    template["Resources"]["Cni"]["Properties"]["AddonName"] = "nonsense"
    assert aws.make("p", template) == "ROLLBACK_COMPLETE"
    assert "not supported" in aws.reasons("p", "CREATE_FAILED")["Cni"]
    template["Resources"]["Cluster"]["Properties"]["ResourcesVpcConfig"] = {"SubnetIds": [ref("SubnetA")]}
    assert aws.make("q", template) == "ROLLBACK_COMPLETE"
    assert "at least two different AZs" in aws.reasons("q", "CREATE_FAILED")["Cluster"]


def test_a_zone_without_eks_is_refused_with_the_good_zones(aws: Aws) -> None:
    aws.world.faults.unsupported_zones = {"us-west-2b"}
    assert aws.make("p", platform()) == "ROLLBACK_COMPLETE"
    reason = aws.reasons("p", "CREATE_FAILED")["Cluster"]
    assert "choose from these availability zones: us-west-2a, us-west-2c, us-west-2d" in reason


def test_a_route_before_its_gateway_is_attached_is_refused(aws: Aws) -> None:
    template = platform()
    del template["Resources"]["Route"]["DependsOn"]
    assert aws.make("p", template) == "ROLLBACK_COMPLETE"
    assert "belong to different networks" in aws.reasons("p", "CREATE_FAILED")["Route"]


def test_a_name_that_is_taken_fails_the_resource(aws: Aws) -> None:
    aws.world.plant("AWS::Logs::LogGroup", LogGroupName="/aws/eks/p/cluster")
    assert aws.make("p", platform()) == "ROLLBACK_COMPLETE"
    assert "HandlerErrorCode: AlreadyExists" in aws.reasons("p", "CREATE_FAILED")["Logs"]
    assert aws.world.foreign_deleted == []


# --- delete that fails ----------------------------------------------------------------------------------------------


def test_stray_interfaces_fail_the_deletion_until_removed(aws: Aws) -> None:
    aws.world.faults.stray_enis = 2
    aws.make("p", platform())
    aws.make("w", workers("p", aws.outputs("p")["Subnets"]))
    vpc = aws.outputs("p")["Vpc"]
    assert aws.delete("w") == "DELETE_COMPLETE"
    assert aws.delete("p") == "DELETE_FAILED"
    assert set(aws.reasons("p", "DELETE_FAILED")) == {"p", "SubnetA", "Vpc"}
    ec2 = aws("ec2")
    wanted = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "status", "Values": ["available"]}]
    strays = ec2.describe_network_interfaces(Filters=wanted)["NetworkInterfaces"]
    assert [e["Description"][:10] for e in strays] == ["aws-K8S-i-"] * 2
    for eni in strays:
        ec2.delete_network_interface(NetworkInterfaceId=eni["NetworkInterfaceId"])
    left = ec2.describe_security_groups(Filters=[{"Name": "tag:aws:eks:cluster-name", "Values": ["p"]}])[
        "SecurityGroups"
    ]
    for group in left:
        ec2.delete_security_group(GroupId=group["GroupId"])
    assert aws.delete("p") == "DELETE_COMPLETE"


def test_a_blocker_that_goes_away_in_time_lets_the_deletion_pass(aws: Aws) -> None:
    aws.make(
        "v",
        small(
            Vpc=resource("EC2::VPC", CidrBlock="10.0.0.0/16"),
            S=resource("EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.0.0/24"),
        ),
    )
    subnet = aws.world.inventory()[-2]
    eni = aws.world.plant("AWS::EC2::NetworkInterface", SubnetId=subnet.id)
    aws("cloudformation").delete_stack(StackName="v")
    aws.world.clock.advance(120)
    assert aws.stack("v")["StackStatus"] == "DELETE_IN_PROGRESS"
    aws("ec2").delete_network_interface(NetworkInterfaceId=eni.id)
    aws.world.run_until_idle()
    assert aws.left() == set()
    assert aws.world.foreign_deleted == [eni]


def test_a_load_balancer_of_kubernetes_blocks_the_network(aws: Aws) -> None:
    aws.make("p", platform())
    vpc = aws.outputs("p")["Vpc"]
    balancer = aws.world.make_load_balancer("p", vpc)
    volume = aws.world.make_volume("p")
    assert aws.delete("p") == "DELETE_FAILED"
    assert "mapped public address(es)" in aws.reasons("p", "DELETE_FAILED")["Attachment"]
    ec2, elb = aws("ec2"), aws("elbv2")
    eni = ec2.describe_network_interfaces(Filters=[{"Name": "description", "Values": ["ELB net/*"]}])[
        "NetworkInterfaces"
    ][0]
    assert (
        refusal(ec2.delete_network_interface, NetworkInterfaceId=eni["NetworkInterfaceId"])[0]
        == "InvalidParameterValue"
    )
    attachment = eni["Attachment"]["AttachmentId"]
    assert refusal(ec2.detach_network_interface, AttachmentId=attachment)[0] == "OperationNotPermitted"
    arn = elb.describe_load_balancers()["LoadBalancers"][0]["LoadBalancerArn"]
    tags = elb.describe_tags(ResourceArns=[arn])["TagDescriptions"][0]["Tags"]
    assert {"Key": "kubernetes.io/cluster/p", "Value": "owned"} in tags
    elb.delete_load_balancer(LoadBalancerArn=arn)
    group = balancer.props["SecurityGroups"][0]
    assert refusal(ec2.delete_security_group, GroupId=group)[0] == "DependencyViolation"
    aws.world.clock.advance(61)
    for cluster_group in ec2.describe_security_groups(
        Filters=[{"Name": "tag-key", "Values": ["aws:eks:cluster-name"]}]
    )["SecurityGroups"]:
        ec2.revoke_security_group_ingress(
            GroupId=cluster_group["GroupId"], IpPermissions=cluster_group["IpPermissions"]
        )
    ec2.delete_security_group(GroupId=group)
    assert aws.delete("p") == "DELETE_COMPLETE"
    assert ec2.describe_volumes()["Volumes"][0]["VolumeId"] == volume.id
    ec2.delete_volume(VolumeId=volume.id)
    assert aws.left() == {"AWS::EFS::FileSystem"}


def test_a_cluster_with_foreign_node_groups_is_not_deleted(aws: Aws) -> None:
    aws.make("p", platform())
    aws.make("w", workers("p", aws.outputs("p")["Subnets"]))
    assert aws.delete("p") == "DELETE_FAILED"
    assert "Cluster has nodegroups attached" in aws.reasons("p", "DELETE_FAILED")["Cluster"]
    assert aws("eks").list_nodegroups(clusterName="p")["nodegroups"]
    assert aws.delete("w") == "DELETE_COMPLETE"
    assert aws.delete("p") == "DELETE_COMPLETE"


def test_a_log_group_deleted_before_its_cluster_comes_back(aws: Aws) -> None:
    template = platform()
    del template["Resources"]["Cluster"]["DependsOn"]
    aws.make("p", template)
    assert aws.delete("p") == "DELETE_COMPLETE"
    names = [g["logGroupName"] for g in aws("logs").describe_log_groups(logGroupNamePrefix="/aws/eks")["logGroups"]]
    assert names == ["/aws/eks/p/cluster"]


def test_full_repositories_and_buckets_and_zones_are_not_deleted(aws: Aws) -> None:
    parts = {
        "Repo": resource("ECR::Repository", RepositoryName="r"),
        "Bucket": resource("S3::Bucket", BucketName="b"),
        "Zone": resource("Route53::HostedZone", Name="x.internal", VPCs=[{"VPCId": "vpc-1", "VPCRegion": "us-west-2"}]),
        "Key": resource("KMS::Key", KeyPolicy={}),
        "Name": resource("Route53::RecordSet", HostedZoneId=ref("Zone"), Name="a.x.internal", Type="A"),
    }
    aws.make("s", small(**parts))
    zones = aws("route53").list_hosted_zones_by_vpc(VPCId="vpc-1", VPCRegion="us-west-2")["HostedZoneSummaries"]
    assert [z["Name"] for z in zones] == ["x.internal"]
    aws("s3").head_bucket(Bucket="b")
    assert refusal(aws("s3").head_bucket, Bucket="other")[0] == "404"
    things = {t.type: t for t in aws.world.inventory()}
    assert aws("kms").describe_key(KeyId=things["AWS::KMS::Key"].id)["KeyMetadata"]["Enabled"]
    things["AWS::ECR::Repository"].props["Images"] = ["sha256:1"]
    things["AWS::S3::Bucket"].props["Objects"] = ["k"]
    things["AWS::Route53::HostedZone"].props["ExtraRecords"] = ["by hand"]
    assert aws.delete("s") == "DELETE_FAILED"
    assert set(aws.reasons("s", "DELETE_FAILED")) == {"s", "Repo", "Bucket", "Zone"}


def test_resources_can_be_retained_only_after_a_failed_deletion(aws: Aws) -> None:
    aws.make("v", small())
    delete = aws("cloudformation").delete_stack
    assert refusal(delete, StackName="v", RetainResources=["Vpc"])[0] == "ValidationError"
    aws.world.faults.fail_delete["Vpc"] = ("X", "stuck")
    assert aws.delete("v") == "DELETE_FAILED"
    assert aws.delete("v", RetainResources=["Vpc"]) == "DELETE_COMPLETE"
    assert "AWS::EC2::VPC" in aws.left()


def test_deletion_policies_keep_what_they_say(aws: Aws) -> None:
    files = [resource("EFS::FileSystem", policy=p) for p in ("Retain", "RetainExceptOnCreate", "Delete")]
    aws.make("f", small(A=files[0], B=files[1], C=files[2]))
    assert aws.delete("f") == "DELETE_COMPLETE"
    assert len(aws("efs").describe_file_systems()["FileSystems"]) == 2
    aws.world.faults.fail_create["C"] = ("X", "broken")
    assert aws.make("g", small(A=files[0], B=files[1], C=files[2])) == "ROLLBACK_COMPLETE"
    assert len(aws("efs").describe_file_systems()["FileSystems"]) == 3


def test_termination_protection_refuses_the_deletion(aws: Aws) -> None:
    aws.make("v", small(), EnableTerminationProtection=True)
    _, text = refusal(aws("cloudformation").delete_stack, StackName="v")
    assert text == "Stack [v] cannot be deleted while TerminationProtection is enabled"
    aws("cloudformation").update_termination_protection(StackName="v", EnableTerminationProtection=False)
    assert aws.delete("v") == "DELETE_COMPLETE"


def test_two_mount_targets_in_one_zone_conflict(aws: Aws) -> None:
    template = platform()
    template["Resources"]["MountB"]["Properties"]["SubnetId"] = ref("SubnetA")
    assert aws.make("p", template) == "ROLLBACK_COMPLETE"
    assert any("mount target already exists in this AZ" in r for r in aws.reasons("p", "CREATE_FAILED").values())


# --- stacks by name, id, token --------------------------------------------------------------------------------------


def test_a_deleted_stack_is_found_by_id_alone(aws: Aws) -> None:
    id_ = aws.create("v", small())
    aws.settled("v")
    aws.delete("v")
    assert aws.stack(id_)["StackStatus"] == "DELETE_COMPLETE"
    describe = aws("cloudformation").describe_stacks
    assert refusal(describe, StackName="v") == ("ValidationError", "Stack with id v does not exist")
    aws("cloudformation").delete_stack(StackName="v")  # deleting what is not there succeeds
    listed = aws("cloudformation").list_stacks()["StackSummaries"]
    assert [(s["StackName"], s["StackStatus"]) for s in listed] == [("v", "DELETE_COMPLETE")]


def test_a_second_create_is_refused_unless_it_has_the_same_token(aws: Aws) -> None:
    first = aws.create("v", small(), ClientRequestToken="t-1")
    assert aws.create("v", small(), ClientRequestToken="t-1") == first
    again = aws("cloudformation").create_stack
    assert refusal(again, StackName="v", TemplateBody=json.dumps(small()))[0] == "AlreadyExistsException"
    text = refusal(aws("cloudformation").update_stack, StackName="v", TemplateBody=json.dumps(small()))[1]
    assert text == f"Stack:{first} is in CREATE_IN_PROGRESS state and can not be updated."


def test_a_stack_in_creation_can_be_deleted(aws: Aws) -> None:
    id_ = aws.create("p", platform())
    aws.world.clock.advance(60)
    aws("cloudformation").delete_stack(StackName="p")
    assert aws.settled(id_) == "DELETE_COMPLETE"
    assert aws.left() == {"AWS::EFS::FileSystem"}
    id_ = aws.create("q", platform())
    aws("cloudformation").delete_stack(StackName="q")  # before anything was made
    assert aws.settled(id_) == "DELETE_COMPLETE"
    assert len(aws.world.inventory()) == 1


def test_listings_have_pages(aws: Aws) -> None:
    for i in range(25):
        aws.world.plant("AWS::CloudFormation::Stack", {"owner": "them"}, name=f"other-{i}")
    pages = list(aws("cloudformation").get_paginator("list_stacks").paginate())
    assert [len(p["StackSummaries"]) for p in pages] == [20, 5]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"Resources": {"X": {"Type": "AWS::Nope::Thing"}}}, "Unrecognized resource types: [AWS::Nope::Thing]"),
        ({"Resources": {"X": resource("EC2::Subnet", VpcId=ref("Gone"))}}, "Unresolved resource dependencies [Gone]"),
        ({"Outputs": {"O": {"Value": att("Vpc", "Nope")}}}, "does not support attribute type Nope"),
        ({"Metadata": {"pad": "x" * 52_000}}, "length less than or equal to 51200"),
        ({"Parameters": {"P": {"Type": "String"}}}, "Parameters: [P] must have values"),
        (
            {"Parameters": {"P": {"Type": "AWS::EC2::VPC::Id", "Default": "vpc-1"}}},
            "vpc-1 for parameter name P does not",
        ),
        ({"Parameters": {"P": {"Type": "String", "Default": "a", "AllowedValues": ["b"]}}}, "one of AllowedValues"),
    ],
)
def test_a_bad_template_is_refused_before_anything_is_made(aws: Aws, change: dict[str, Any], text: str) -> None:
    code, said = refusal(aws("cloudformation").create_stack, StackName="v", TemplateBody=json.dumps(small() | change))
    assert code == "ValidationError"
    assert text in said
    assert aws.left() == set()


def test_iam_needs_a_capability_and_names_have_a_pattern(aws: Aws) -> None:
    role = small(R=resource("IAM::Role", AssumeRolePolicyDocument=TRUST))
    create = aws("cloudformation").create_stack
    assert refusal(create, StackName="v", TemplateBody=json.dumps(role)) == (
        "InsufficientCapabilitiesException",
        "Requires capabilities : [CAPABILITY_IAM]",
    )
    assert "stackName" in refusal(create, StackName="1v", TemplateBody=json.dumps(small()))[1]
    answer = aws("cloudformation").validate_template(TemplateBody=json.dumps(role))
    assert answer["Capabilities"] == ["CAPABILITY_IAM"]


def test_conditions_and_functions_are_resolved(aws: Aws) -> None:
    template = {
        "Parameters": {
            "Names": {"Type": "CommaDelimitedList", "Default": "a, b"},
            "Big": {"Type": "String", "Default": "no"},
        },
        "Conditions": {"IsBig": {"Fn::Equals": [ref("Big"), "yes"]}, "Small": {"Fn::Not": [{"Condition": "IsBig"}]}},
        "Resources": {
            "Vpc": resource("EC2::VPC", CidrBlock={"Fn::If": ["IsBig", "10.0.0.0/8", "10.0.0.0/24"]}),
            "Extra": resource("EC2::VPC", CidrBlock="10.9.0.0/16") | {"Condition": "IsBig"},
        },
        "Outputs": {
            "Cidr": {"Value": att("Vpc", "CidrBlock")},
            "Second": {"Value": {"Fn::Select": ["1", ref("Names")]}},
            "Text": {
                "Value": {"Fn::Sub": ["${Vpc}/${x}/${!y}/${AWS::Region}", {"x": {"Fn::Join": ["-", ref("Names")]}}]},
            },
            "Split": {"Value": {"Fn::Select": [0, {"Fn::Split": ["-", "p-q"]}]}},
            "Only": {"Condition": "IsBig", "Value": "x"},
        },
    }  # fmt: skip
    assert aws.make("v", template) == "CREATE_COMPLETE"
    out = aws.outputs("v")
    assert (out["Cidr"], out["Second"], out["Split"]) == ("10.0.0.0/24", "b", "p")
    assert out["Text"].endswith("/a-b/${y}/us-west-2")
    assert "Only" not in out


# --- updates and change sets ----------------------------------------------------------------------------------------


def _p(key: str, value: str) -> dict[str, str]:
    return {"ParameterKey": key, "ParameterValue": value}


def _with_workers(aws: Aws, count: int = 2) -> dict[str, Any]:
    aws.make("p", platform())
    template = workers("p", aws.outputs("p")["Subnets"])
    assert aws.make("w", template, Parameters=[_p("Count", str(count))]) == "CREATE_COMPLETE"
    return template


def test_scaling_is_an_update_of_the_number_of_instances(aws: Aws) -> None:
    template = _with_workers(aws)
    assert aws.update("w", template, Parameters=[_p("Count", "5")]) == "UPDATE_COMPLETE"
    assert len(aws("ec2").describe_instances()["Reservations"]) == 5
    assert aws.update("w", template, Parameters=[_p("Count", "1")]) == "UPDATE_COMPLETE"
    instances = aws("ec2").describe_instances()["Reservations"]
    assert [t["Value"] for t in instances[0]["Instances"][0]["Tags"] if t["Key"] == "bireme:project"] == ["p"]
    same = {"StackName": "w", "UsePreviousTemplate": True, "Capabilities": ["CAPABILITY_IAM"]}
    same["Parameters"] = [{"ParameterKey": "Count", "UsePreviousValue": True}]
    assert refusal(aws("cloudformation").update_stack, **same)[1] == "No updates are to be performed."


def test_a_create_only_change_creates_before_it_deletes(aws: Aws) -> None:
    template = _with_workers(aws)
    template["Resources"]["Nodes"]["Properties"]["InstanceTypes"] = ["m7i.xlarge"]
    assert aws.update("w", template) == "UPDATE_COMPLETE"
    types = [r["Instances"][0]["InstanceType"] for r in aws("ec2").describe_instances()["Reservations"]]
    assert types == ["m7i.xlarge"] * 2
    order = [(e["LogicalResourceId"], e["ResourceStatus"]) for e in reversed(aws.events("w"))]
    assert order.index(("Nodes", "UPDATE_COMPLETE")) < order.index(("Nodes", "DELETE_IN_PROGRESS"))
    assert ("w", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS") in order


def test_a_failed_update_goes_back_to_what_was(aws: Aws) -> None:
    template = _with_workers(aws)
    aws.world.faults.quotas["L-1216C47A"] = 6
    assert aws.update("w", template, Parameters=[_p("Count", "9")]) == "UPDATE_ROLLBACK_COMPLETE"
    assert "VcpuLimitExceeded" in aws.reasons("w", "UPDATE_FAILED")["Nodes"]
    assert len(aws("ec2").describe_instances()["Reservations"]) == 2
    template["Resources"]["More"] = resource("Logs::LogGroup", LogGroupName="more")
    aws.world.faults.fail_create["More"] = ("X", "broken")
    assert aws.update("w", template) == "UPDATE_ROLLBACK_COMPLETE"
    assert "More" not in {r["LogicalResourceId"] for r in _resources(aws, "w")}


def test_a_roll_back_that_fails_can_be_continued(aws: Aws) -> None:
    template = _with_workers(aws)
    aws.world.faults.fail_update["Nodes"] = ("X", "broken", "always")
    assert aws.update("w", template, Parameters=[_p("Count", "3")]) == "UPDATE_ROLLBACK_FAILED"
    aws.world.faults.fail_update.clear()
    aws("cloudformation").continue_update_rollback(StackName="w")
    assert aws.settled("w") == "UPDATE_ROLLBACK_COMPLETE"


def test_an_update_can_be_cancelled(aws: Aws) -> None:
    template = _with_workers(aws)
    body = {"StackName": "w", "TemplateBody": json.dumps(template), "Capabilities": ["CAPABILITY_IAM"]}
    aws("cloudformation").update_stack(**body, Parameters=[_p("Count", "4")])
    aws.world.clock.advance(10)
    assert "cannot be deleted while in status" in refusal(aws("cloudformation").delete_stack, StackName="w")[1]
    aws("cloudformation").cancel_update_stack(StackName="w")
    assert aws.settled("w") == "UPDATE_ROLLBACK_COMPLETE"
    assert refusal(aws("cloudformation").cancel_update_stack, StackName="w")[0] == "ValidationError"


def _change_set(aws: Aws, template: dict[str, Any], **more: Any) -> dict[str, Any]:
    name = {"StackName": more.pop("stack", "w"), "ChangeSetName": more.pop("name", "c")}
    body = {"TemplateBody": json.dumps(template), "Capabilities": ["CAPABILITY_IAM"]}
    aws("cloudformation").create_change_set(**name, **body, **more)
    assert aws("cloudformation").describe_change_set(**name)["Status"] == "CREATE_PENDING"
    aws.world.clock.advance(6)
    return aws("cloudformation").describe_change_set(**name)


def test_a_change_set_says_what_is_replaced(aws: Aws) -> None:
    template = _with_workers(aws)
    assert _change_set(aws, template)["StatusReason"].startswith("The submitted information didn't contain changes.")
    template["Resources"]["Nodes"]["Properties"]["CapacityType"] = "SPOT"
    template["Resources"]["Logs"] = resource("Logs::LogGroup")
    del template["Resources"]["Dns"]
    changes = {
        c["ResourceChange"]["LogicalResourceId"]: c["ResourceChange"]
        for c in _change_set(aws, template, name="d")["Changes"]
    }
    assert {k: c["Action"] for k, c in changes.items()} == {"Nodes": "Modify", "Logs": "Add", "Dns": "Remove"}
    assert changes["Nodes"]["Replacement"] == "True"
    scaled = _change_set(aws, workers("p", aws.outputs("p")["Subnets"]), name="e", Parameters=[_p("Count", "3")])[
        "Changes"
    ]
    assert [c["ResourceChange"]["Replacement"] for c in scaled] == ["False"]
    aws("cloudformation").execute_change_set(StackName="w", ChangeSetName="d")
    assert aws.settled("w") == "UPDATE_COMPLETE"
    assert (
        refusal(aws("cloudformation").describe_change_set, StackName="w", ChangeSetName="e")[0] == "ChangeSetNotFound"
    )


def test_replacing_a_resource_may_replace_those_that_refer_to_it(aws: Aws) -> None:
    template = platform()
    aws.make("p", template)
    changed = _change_set(aws, template, stack="p", Parameters=[_p("Cidr", "10.0.0.0/8")])["Changes"]
    verdicts = {c["ResourceChange"]["LogicalResourceId"]: c["ResourceChange"]["Replacement"] for c in changed}
    assert (verdicts["Vpc"], verdicts["SubnetA"]) == ("True", "Conditional")
    assert "Files" not in verdicts


def test_a_change_set_can_create_a_stack(aws: Aws) -> None:
    made = _change_set(aws, small(), stack="n", ChangeSetType="CREATE")
    assert aws.stack("n")["StackStatus"] == "REVIEW_IN_PROGRESS"
    assert made["ExecutionStatus"] == "AVAILABLE"
    aws("cloudformation").execute_change_set(StackName="n", ChangeSetName="c")
    assert aws.settled("n") == "CREATE_COMPLETE"
    twice = refusal(aws("cloudformation").execute_change_set, StackName="n", ChangeSetName="c")
    assert twice[0] == "InvalidChangeSetStatus"


def test_drift_is_found(aws: Aws) -> None:
    aws.make("p", platform())
    next(t for t in aws.world.inventory() if t.type == "AWS::EKS::Cluster").props["Version"] = "1.35"
    cloudformation = aws("cloudformation")
    id_ = cloudformation.detect_stack_drift(StackName="p")["StackDriftDetectionId"]
    describe = cloudformation.describe_stack_drift_detection_status
    assert describe(StackDriftDetectionId=id_)["DetectionStatus"] == "DETECTION_IN_PROGRESS"
    aws.world.clock.advance(11)
    assert describe(StackDriftDetectionId=id_)["DriftedStackResourceCount"] == 1
    drifts = cloudformation.describe_stack_resource_drifts(StackName="p", StackResourceDriftStatusFilters=["MODIFIED"])
    assert drifts["StackResourceDrifts"][0]["PropertyDifferences"][0]["PropertyPath"] == "/Version"


# --- faults of the API ----------------------------------------------------------------------------------------------


def test_throttling_has_the_code_of_each_service(aws: Aws) -> None:
    aws.world.faults.throttle = 1.0
    assert refusal(aws("cloudformation").list_stacks)[0] == "Throttling"
    assert refusal(aws("ec2").describe_vpcs)[0] == "RequestLimitExceeded"
    assert refusal(aws("eks").list_clusters)[0] == "ThrottlingException"
    assert refusal(aws("resourcegroupstaggingapi").get_resources)[0] == "ThrottlingException"


def test_a_server_error_may_come_after_the_work_was_done() -> None:
    seen = set()
    for seed in range(12):
        aws = Aws(World(seed=seed))
        aws.world.faults.server_error = 1.0
        body = json.dumps(small())
        assert refusal(aws("cloudformation").create_stack, StackName="v", TemplateBody=body)[0] == "InternalFailure"
        seen.add(len(aws.world.region("us-west-2").stacks))
    assert seen == {0, 1}


def test_reads_lag_behind_writes_for_a_while(aws: Aws) -> None:
    aws.world.faults.stale_reads_s = 10
    aws.create("v", small())
    answers = set()
    for _ in range(20):
        try:
            answers.add(aws.stack("v")["StackStatus"])
        except ClientError as e:
            answers.add(e.response["Error"]["Message"])
    assert answers == {"CREATE_IN_PROGRESS", "Stack with id v does not exist"}
    assert aws.settled("v") == "CREATE_COMPLETE"
    aws.world.clock.advance(10)
    assert aws.stack("v")["StackStatus"] == "CREATE_COMPLETE"


def test_a_fresh_role_cannot_be_assumed(aws: Aws) -> None:
    aws.world.faults.stale_reads_s = 60
    assert aws.make("p", platform()) == "ROLLBACK_COMPLETE"
    assert "could not be assumed" in aws.reasons("p", "CREATE_FAILED")["Cluster"]


def test_expired_credentials_end_every_call_until_renewed(aws: Aws) -> None:
    aws.world.faults.expire_credentials_at = aws.world.clock.now() + 100
    aws("sts").get_caller_identity()
    aws.world.clock.advance(100)
    assert refusal(aws("cloudformation").list_stacks)[0] == "ExpiredToken"
    assert refusal(aws("ec2").describe_vpcs)[0] == "RequestExpired"
    assert refusal(aws("eks").list_clusters)[0] == "ExpiredTokenException"
    aws.world.renew_credentials()
    aws("cloudformation").list_stacks()


# --- permissions ----------------------------------------------------------------------------------------------------


def allow(action: Any, resource: Any = "*", **condition: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    return {"Statement": [statement | ({"Condition": condition} if condition else {})]}


def test_a_call_without_permission_is_refused_as_by_aws(aws: Aws) -> None:
    aws.world.policies[USER] = [allow("cloudformation:*")]
    code, text = refusal(aws("ec2").describe_vpcs)
    assert code == "UnauthorizedOperation"
    assert text.endswith("because no identity-based policy allows the ec2:DescribeVpcs action")
    assert refusal(aws("eks").list_clusters)[0] == "AccessDeniedException"
    aws("sts").get_caller_identity()
    aws.world.faults.denied.add("cloudformation:ListStacks")
    assert "explicit deny" in refusal(aws("cloudformation").list_stacks)[1]


def test_stacks_make_resources_as_their_caller(aws: Aws) -> None:
    aws.world.policies[USER] = [allow("cloudformation:*"), allow(["ec2:Describe*", "ec2:CreateTags"])]
    assert aws.make("v", small()) == "ROLLBACK_COMPLETE"
    reason = aws.reasons("v", "CREATE_FAILED")["Vpc"]
    assert f"User: {USER} is not authorized to perform: ec2:CreateVpc" in reason
    assert "HandlerErrorCode: AccessDenied" in reason


def test_a_stack_keeps_the_role_it_was_given(aws: Aws) -> None:
    role = "arn:aws:iam::123456789012:role/maker"
    aws.world.policies[USER] = [allow("cloudformation:*")]
    aws.world.policies[role] = [allow("ec2:*")]
    body = json.dumps(small())
    denied = refusal(aws("cloudformation").create_stack, StackName="v", TemplateBody=body, RoleARN=role)
    assert "iam:PassRole" in denied[1]
    aws.world.policies[USER].append(allow("iam:PassRole", role))
    assert aws.make("v", small(), RoleARN=role) == "CREATE_COMPLETE"
    assert aws.delete("v") == "DELETE_COMPLETE"  # the caller may not delete a VPC, the role may
    unknown = refusal(aws("cloudformation").create_stack, StackName="u", TemplateBody=body, RoleARN=role + "x")
    assert "AccessDenied" in unknown[0]


def test_a_role_made_by_a_stack_has_the_policies_of_its_template(aws: Aws) -> None:
    policies = [{"PolicyName": "p", "PolicyDocument": allow("ec2:*Vpc*", "arn:aws:ec2:*:123456789012:vpc/*")}]
    operator = small(R=resource("IAM::Role", RoleName="maker", AssumeRolePolicyDocument=TRUST, Policies=policies))
    aws.make("operator", operator)
    role = aws("iam").get_role(RoleName="maker")["Role"]["Arn"]
    assert aws.make("v", small(), RoleARN=role) == "ROLLBACK_COMPLETE"  # ec2:CreateTags is missing
    assert "ec2:CreateTags" in aws.reasons("v", "CREATE_FAILED")["Vpc"]
    verdicts = aws("iam").simulate_principal_policy(
        PolicySourceArn=role, ActionNames=["ec2:CreateVpc", "eks:CreateCluster"]
    )
    assert [r["EvalDecision"] for r in verdicts["EvaluationResults"]] == ["allowed", "implicitDeny"]


def test_conditions_on_tags_are_honoured(aws: Aws) -> None:
    mine = aws.world.plant("AWS::EC2::Volume", {"bireme:project": "p"})
    theirs = aws.world.plant("AWS::EC2::Volume", {"owner": "them"})
    aws.world.policies[USER] = [allow("ec2:DeleteVolume", StringEquals={"aws:ResourceTag/bireme:project": "p"})]
    assert refusal(aws("ec2").delete_volume, VolumeId=theirs.id)[0] == "UnauthorizedOperation"
    aws("ec2").delete_volume(VolumeId=mine.id)
    assert aws.world.foreign_deleted == [mine]
    assert refusal(aws("ec2").delete_volume, VolumeId=mine.id, DryRun=True)[0] == "DryRunOperation"


# --- direct calls ---------------------------------------------------------------------------------------------------


def test_the_tagging_api_finds_things_and_may_show_deleted_ones(aws: Aws) -> None:
    aws.world.faults.tagging_lag_s = 300
    aws.make("p", platform(), Tags=[{"Key": "bireme:project", "Value": "p"}])
    call = {"TagFilters": [{"Key": "bireme:project", "Values": ["p"]}]}
    pages = aws("resourcegroupstaggingapi").get_paginator("get_resources").paginate(**call, ResourcesPerPage=5)
    arns = [r["ResourceARN"] for p in pages for r in p["ResourceTagMappingList"]]
    assert len(arns) > 10
    assert any(":cluster/p" in a for a in arns)
    clusters = aws("resourcegroupstaggingapi").get_resources(**call, ResourceTypeFilters=["eks:cluster"])
    assert len(clusters["ResourceTagMappingList"]) == 1
    aws.delete("p")
    before = aws("resourcegroupstaggingapi").get_resources(**call)["ResourceTagMappingList"]
    aws.world.clock.advance(301)
    assert len(aws("resourcegroupstaggingapi").get_resources(**call)["ResourceTagMappingList"]) == 1 < len(before)


def test_regions_are_apart_and_roles_are_not(aws: Aws) -> None:
    aws.make(
        "r",
        small(
            Vpc=resource("EC2::VPC", CidrBlock="10.0.0.0/16"),
            R=resource("IAM::Role", RoleName="r", AssumeRolePolicyDocument=TRUST),
        ),
    )
    other = aws("cloudformation", "eu-central-1")
    assert refusal(other.describe_stacks, StackName="r")[1] == "Stack with id r does not exist"
    assert aws("ec2", "eu-central-1").describe_vpcs()["Vpcs"] == []
    assert aws("iam", "eu-central-1").get_role(RoleName="r")["Role"]["RoleName"] == "r"


def test_preflight_questions_have_answers(aws: Aws) -> None:
    ec2, eks = aws("ec2"), aws("eks")
    assert aws("sts").get_caller_identity()["Arn"] == USER
    assert len(ec2.describe_availability_zones()["AvailabilityZones"]) == 4
    aws.world.faults.not_offered = {("m7i.large", "us-west-2d")}
    wanted = [{"Name": "instance-type", "Values": ["m7i.large"]}]
    offers = ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=wanted)
    assert sorted(o["Location"][-1] for o in offers["InstanceTypeOfferings"]) == ["a", "b", "c"]
    types = ec2.describe_instance_types(InstanceTypes=["m7i.xlarge"])["InstanceTypes"]
    assert types[0]["VCpuInfo"]["DefaultVCpus"] == 4
    assert refusal(ec2.describe_instance_types, InstanceTypes=["t3.huge"])[0] == "InvalidInstanceType"
    versions = eks.describe_cluster_versions()["clusterVersions"]
    assert [v["clusterVersion"] for v in versions if v["defaultVersion"]] == ["1.35"]
    addons = eks.describe_addon_versions(addonName="coredns", kubernetesVersion="1.34")["addons"]
    assert addons[0]["addonVersions"][0]["compatibilities"][0]["clusterVersion"] == "1.34"
    assert (
        aws("ecr")
        .get_authorization_token()["authorizationData"][0]["proxyEndpoint"]
        .startswith("https://123456789012.")
    )
    assert "us-west-2" in {r["RegionName"] for r in ec2.describe_regions()["Regions"]}
    assert refusal(eks.describe_cluster, name="p") == ("ResourceNotFoundException", "No cluster found for name: p.")


def test_every_description_answers_in_the_shape_of_its_service(aws: Aws) -> None:
    aws.world.kubernetes = ("https://127.0.0.1:6443", "Q0E=")
    _with_workers(aws)
    balancer = aws.world.make_load_balancer("p", aws.outputs("p")["Vpc"], classic=True)
    cluster = aws("eks").describe_cluster(name="p")["cluster"]
    assert (cluster["endpoint"], cluster["certificateAuthority"]["data"]) == aws.world.kubernetes
    plain = (
        "subnets nat_gateways addresses vpc_endpoints key_pairs launch_templates internet_gateways route_tables volumes"
    )
    for name in plain.split():
        getattr(aws("ec2"), f"describe_{name}")()
    eks = aws("eks")
    group = eks.list_nodegroups(clusterName="p")["nodegroups"][0]
    assert (
        eks.describe_nodegroup(clusterName="p", nodegroupName=group)["nodegroup"]["scalingConfig"]["desiredSize"] == 2
    )
    assert set(eks.list_addons(clusterName="p")["addons"]) == {"vpc-cni", "coredns"}
    assert len(eks.list_pod_identity_associations(clusterName="p")["associations"]) == 1
    assert len(eks.list_access_entries(clusterName="p")["accessEntries"]) == 1
    assert eks.list_clusters()["clusters"] == ["p"]
    files = aws("efs").describe_file_systems()["FileSystems"][0]
    assert (
        files["NumberOfMountTargets"]
        == len(aws("efs").describe_mount_targets(FileSystemId=files["FileSystemId"])["MountTargets"])
        == 2
    )
    assert len(aws("efs").describe_access_points()["AccessPoints"]) == 1
    assert aws("ecr").describe_repositories()["repositories"][0]["repositoryName"] == "p/bireme"
    elb = aws("elb")
    assert elb.describe_load_balancers()["LoadBalancerDescriptions"][0]["LoadBalancerName"] == balancer.id
    assert elb.describe_tags(LoadBalancerNames=[balancer.id])["TagDescriptions"][0]["Tags"][0]["Value"] == "owned"
    elb.delete_load_balancer(LoadBalancerName=balancer.id)
    assert elb.describe_load_balancers()["LoadBalancerDescriptions"] == []
    assert aws("cloudformation").get_template(StackName="p")["TemplateBody"]["Resources"]["Vpc"]
    assert aws("cloudformation").describe_stack_resources(StackName="p")["StackResources"][0]["StackName"] == "p"
    assert len(aws("iam").list_roles()["Roles"]) == 2


def test_the_default_security_group_cannot_be_deleted(aws: Aws) -> None:
    aws.make("v", small())
    group = aws("ec2").describe_security_groups()["SecurityGroups"][0]
    assert refusal(aws("ec2").delete_security_group, GroupId=group["GroupId"])[0] == "CannotDelete"


def test_calls_are_recorded_with_their_principal(aws: Aws) -> None:
    aws.world.principals["key"] = "arn:aws:sts::123456789012:assumed-role/Admin/me"
    aws("cloudformation").list_stacks()
    service, operation, principal, _ = aws.world.calls[-1]
    assert (service, operation, principal) == ("cloudformation", "ListStacks", aws.world.principals["key"])


# --- over HTTP ------------------------------------------------------------------------------------------------------


def test_every_protocol_works_over_http() -> None:
    world = World()
    with DoubleServer(world) as server:

        def client(name: str) -> Any:
            return SESSION.client(name, endpoint_url=server.url, config=Config(retries={"total_max_attempts": 1}))

        client("cloudformation").create_stack(StackName="v", TemplateBody=json.dumps(small()))
        world.run_until_idle()
        assert len(client("ec2").describe_vpcs()["Vpcs"]) == 1
        assert client("eks").list_clusters()["clusters"] == []
        assert client("ecr").describe_repositories()["repositories"] == []
        assert client("resourcegroupstaggingapi").get_resources()["ResourceTagMappingList"]
        assert client("elb").describe_load_balancers()["LoadBalancerDescriptions"] == []
        assert refusal(client("s3").head_bucket, Bucket="b")[0] == "404"
        assert world.contract_violations == []
        scope = "AWS4-HMAC-SHA256 Credential=k/20270101/us-west-2/cloudformation/aws4_request, Signature=x"
        request = urllib.request.Request(server.url, b"Action=CreateStack&Nonsense=1", {"authorization": scope})
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        caught.value.close()
    assert 'Unknown parameter in input: "Nonsense"' in world.contract_violations[0]
