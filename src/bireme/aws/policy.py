"""The IAM policies: exactly what the tool calls, and what CloudFormation calls for it. No I/O, no boto3.

Two identities. The *operator* (a person, or CI) starts and watches stacks and deletes strays. CloudFormation creates
the resources with a role of its own, which the operator may pass to it but not use. Both are generated from the two
tables here: `CALLS`, outside of which `client` refuses to call, and `TYPE_ACTIONS`, which must name every type that a
template uses. Granted on `*` are only actions that IAM cannot narrow, or that only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bireme.aws.layout import CLUSTER_TAG, EXECUTION_ROLE, STACKS, log_group, repository_name, role_path, stack_name

Policy = dict[str, Any]
Statement = dict[str, Any]
_PREFIX = {
    "efs": "elasticfilesystem",
    "elb": "elasticloadbalancing",
    "elbv2": "elasticloadbalancing",
    "service-quotas": "servicequotas",
    "resourcegroupstaggingapi": "tag",
}
"""IAM's name of a service where boto3's differs."""
_CALLED = {
    "sts": "GetCallerIdentity",
    "cloudformation": "CreateStack DescribeStacks DescribeStackEvents DescribeStackResources CreateChangeSet "
    "DescribeChangeSet ExecuteChangeSet DeleteChangeSet DeleteStack ContinueUpdateRollback "
    "UpdateTerminationProtection DetectStackDrift DescribeStackDriftDetectionStatus",
    "iam": "GetRole ListRoles SimulatePrincipalPolicy",
    "ec2": "DescribeAvailabilityZones DescribeInstanceTypeOfferings DescribeRegions DescribeVpcs DescribeSubnets "
    "DescribeKeyPairs DescribeInstances DescribeVolumes DescribeAddresses DescribeNatGateways "
    "DescribeNetworkInterfaces DescribeSecurityGroups DeleteNetworkInterface DeleteSecurityGroup DeleteVolume",
    "eks": "DescribeCluster DescribeClusterVersions ListNodegroups DescribeNodegroup ListAddons DescribeAddon",
    "efs": "DescribeFileSystems DeleteFileSystem",
    "elbv2": "DescribeLoadBalancers DescribeTags DeleteLoadBalancer",
    "elb": "DescribeLoadBalancers DescribeTags DeleteLoadBalancer",
    "ecr": "GetAuthorizationToken DescribeRepositories",
    "logs": "DescribeLogGroups ListTagsForResource DeleteLogGroup",
    "kms": "DescribeKey",
    "service-quotas": "GetServiceQuota",
    "resourcegroupstaggingapi": "GetResources",
}
CALLS = frozenset(f"{service}.{operation}" for service, names in _CALLED.items() for operation in names.split())
"""Every AWS API call of bireme, as `service.Operation`."""
TYPE_ACTIONS = {
    "AWS::CloudFormation::Stack": "",
    "AWS::EC2::VPC": "ec2: CreateVpc DeleteVpc ModifyVpcAttribute DescribeVpcs DescribeVpcAttribute CreateTags "
    "DeleteTags DescribeSecurityGroups DescribeNetworkAcls",
    "AWS::EC2::InternetGateway": "ec2: CreateInternetGateway DeleteInternetGateway DescribeInternetGateways",
    "AWS::EC2::VPCGatewayAttachment": "ec2: AttachInternetGateway DetachInternetGateway DescribeVpnGateways",
    "AWS::EC2::Subnet": "ec2: CreateSubnet DeleteSubnet ModifySubnetAttribute DescribeSubnets "
    "DescribeAvailabilityZones",
    "AWS::EC2::RouteTable": "ec2: CreateRouteTable DeleteRouteTable DescribeRouteTables",
    "AWS::EC2::Route": "ec2: CreateRoute DeleteRoute ReplaceRoute DescribeNetworkInterfaces",
    "AWS::EC2::SubnetRouteTableAssociation": "ec2: AssociateRouteTable DisassociateRouteTable "
    "ReplaceRouteTableAssociation",
    "AWS::EC2::EIP": "ec2: AllocateAddress ReleaseAddress AssociateAddress DisassociateAddress DescribeAddresses",
    "AWS::EC2::NatGateway": "ec2: CreateNatGateway DeleteNatGateway DescribeNatGateways",
    "AWS::EC2::VPCEndpoint": "ec2: CreateVpcEndpoint DeleteVpcEndpoints ModifyVpcEndpoint DescribeVpcEndpoints",
    "AWS::EC2::SecurityGroup": "ec2: CreateSecurityGroup DeleteSecurityGroup AuthorizeSecurityGroupIngress "
    "AuthorizeSecurityGroupEgress RevokeSecurityGroupIngress RevokeSecurityGroupEgress "
    "UpdateSecurityGroupRuleDescriptionsIngress UpdateSecurityGroupRuleDescriptionsEgress DescribeInstances",
    "AWS::EC2::LaunchTemplate": "ec2: CreateLaunchTemplate DeleteLaunchTemplate CreateLaunchTemplateVersion "
    "DescribeLaunchTemplates",
    "AWS::IAM::Role": "iam: CreateRole DeleteRole GetRole TagRole UntagRole UpdateRole UpdateAssumeRolePolicy "
    "AttachRolePolicy DetachRolePolicy PutRolePolicy GetRolePolicy DeleteRolePolicy ListRolePolicies "
    "ListAttachedRolePolicies",
    "AWS::EKS::Cluster": "eks: CreateCluster DeleteCluster DescribeCluster UpdateClusterConfig UpdateClusterVersion "
    "DescribeUpdate TagResource UntagResource; iam: PassRole CreateServiceLinkedRole; "
    "kms: DescribeKey CreateGrant",
    "AWS::EKS::AccessEntry": "eks: CreateAccessEntry DeleteAccessEntry DescribeAccessEntry UpdateAccessEntry "
    "AssociateAccessPolicy DisassociateAccessPolicy ListAssociatedAccessPolicies",
    "AWS::EKS::Addon": "eks: CreateAddon DeleteAddon DescribeAddon UpdateAddon",
    "AWS::EKS::PodIdentityAssociation": "eks: CreatePodIdentityAssociation DeletePodIdentityAssociation "
    "DescribePodIdentityAssociation UpdatePodIdentityAssociation",
    "AWS::EKS::Nodegroup": "eks: CreateNodegroup DeleteNodegroup DescribeNodegroup UpdateNodegroupConfig "
    "UpdateNodegroupVersion ListUpdates; ec2: RunInstances DescribeKeyPairs "
    "DescribeLaunchTemplateVersions",
    "AWS::EFS::FileSystem": "elasticfilesystem: CreateFileSystem DeleteFileSystem DescribeFileSystems "
    "UpdateFileSystem TagResource UntagResource ListTagsForResource PutFileSystemPolicy DeleteFileSystemPolicy "
    "DescribeFileSystemPolicy DescribeLifecycleConfiguration DescribeBackupPolicy DescribeReplicationConfigurations "
    "PutBackupPolicy; "
    "kms: GenerateDataKeyWithoutPlaintext",
    "AWS::EFS::MountTarget": "elasticfilesystem: CreateMountTarget DeleteMountTarget DescribeMountTargets "
    "DescribeMountTargetSecurityGroups ModifyMountTargetSecurityGroups; ec2: CreateNetworkInterface "
    "DeleteNetworkInterface",
    "AWS::EFS::AccessPoint": "elasticfilesystem: CreateAccessPoint DeleteAccessPoint DescribeAccessPoints",
    "AWS::Logs::LogGroup": "logs: CreateLogGroup DeleteLogGroup DescribeLogGroups PutRetentionPolicy "
    "DeleteRetentionPolicy TagResource UntagResource ListTagsForResource GetDataProtectionPolicy "
    "DescribeIndexPolicies DescribeResourcePolicies",
    "AWS::ECR::Repository": "ecr: CreateRepository DeleteRepository DescribeRepositories PutLifecyclePolicy "
    "GetLifecyclePolicy DeleteLifecyclePolicy GetRepositoryPolicy PutImageScanningConfiguration TagResource "
    "UntagResource ListTagsForResource",
    "AWS::Route53::HostedZone": "route53: CreateHostedZone DeleteHostedZone GetHostedZone GetChange "
    "ChangeTagsForResource ListTagsForResource ListQueryLoggingConfigs AssociateVPCWithHostedZone",
    "AWS::Route53::RecordSet": "route53: ChangeResourceRecordSets ListResourceRecordSets ListHostedZones",
}  # fmt: skip
"""By resource type, the actions that CloudFormation needs to create, change and delete it as our templates use it."""
PUSH = "ecr: BatchCheckLayerAvailability InitiateLayerUpload UploadLayerPart CompleteLayerUpload PutImage BatchGetImage"
"""The actions of `bireme image push` in the registry."""
TAGGING = ("cloudformation:TagResource", "cloudformation:UntagResource")
"""Required to create a stack with tags."""
_ROLES = "arn:aws:iam::*:role/bireme/*"


def action_of(call: str) -> str:
    """The IAM action of one of `CALLS`."""
    service, _, operation = call.partition(".")
    return f"{_PREFIX.get(service, service)}:{operation}"


def _actions(text: str) -> list[str]:
    """`ec2: A B; iam: C` as full names."""
    groups = (part.partition(":") for part in text.split(";") if part.strip())
    return [f"{service.strip()}:{name}" for service, _, names in groups for name in names.split()]


def execution_actions(types: Iterable[str]) -> set[str]:
    """The actions that CloudFormation may need for these resource types."""
    return {action for kind in types for action in _actions(TYPE_ACTIONS[kind])}


def execution_policy() -> Policy:
    """The policy of CloudFormation's role, narrowed to names wherever IAM supports it."""
    actions = execution_actions(TYPE_ACTIONS)
    scoped: list[tuple[str, set[str], Any, Policy | None]] = [
        ("Roles", _of(actions, "iam") - {"iam:PassRole", "iam:CreateServiceLinkedRole"}, _ROLES, None),
        (
            "PassRoles",
            {"iam:PassRole"},
            _ROLES,
            {"StringEquals": {"iam:PassedToService": _SERVICES}},
        ),
        ("ServiceRoles", {"iam:CreateServiceLinkedRole"}, "arn:aws:iam::*:role/aws-service-role/*", None),
        ("Images", _of(actions, "ecr"), "arn:aws:ecr:*:*:repository/bireme-*", None),
        ("Logs", _of(actions, "logs") - _LOG_LISTS, "arn:aws:logs:*:*:log-group:/aws/eks/*", None),
        ("Keys", _of(actions, "kms"), "arn:aws:kms:*:*:key/*", None),
    ]
    rest = actions.difference(*(each for _, each, _, _ in scoped))
    statements = [_allow(sid, allowed, where, condition) for sid, allowed, where, condition in scoped]
    return _policy([*statements, _allow("Resources", rest, "*")])


_SERVICES = ["eks.amazonaws.com", "ec2.amazonaws.com", "pods.eks.amazonaws.com"]
_LOG_LISTS = {"logs:DescribeLogGroups", "logs:DescribeResourcePolicies", "logs:DescribeIndexPolicies"}


def operator_policy(cluster: str | None = None) -> Policy:
    """The policy of a user of `bireme cluster`; with a name, for that cluster only."""
    names = [stack_name(cluster, kind) for kind in STACKS] if cluster else ["bireme-*"]
    stacks = [f"arn:aws:cloudformation:*:*:{what}/{name}/*" for name in names for what in ("stack", "changeSet")]
    repositories = f"arn:aws:ecr:*:*:repository/bireme-{cluster or '*'}"
    role = f"arn:aws:iam::*:role/{EXECUTION_ROLE}"
    logs = f"arn:aws:logs:*:*:log-group:{log_group(cluster or '*')}*"
    actions = {action_of(call) for call in CALLS} - {"sts:GetCallerIdentity"}
    ours = {"Null": {f"aws:ResourceTag/{CLUSTER_TAG}": "false"}}
    if cluster:
        ours = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": cluster}}
    listed = {"cloudformation:DescribeStackDriftDetectionStatus"}
    strays = {
        "ec2:DeleteNetworkInterface", "ec2:DeleteSecurityGroup", "ec2:DeleteVolume",
        "elasticloadbalancing:DeleteLoadBalancer",
    }  # fmt: skip
    interfaces = {"ec2:DeleteNetworkInterface"}
    to_cloudformation = {"StringEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}}
    looked = {"eks", "elasticfilesystem", "kms"}
    statements = [
        _allow("Stacks", {*_of(actions, "cloudformation"), *TAGGING} - listed, stacks),
        _allow("HandRole", {"iam:PassRole"}, role, to_cloudformation),
        _allow("Images", {*_actions(PUSH), "ecr:DescribeRepositories"}, repositories),
        _allow("Data", {"elasticfilesystem:DeleteFileSystem"}, _FILE_SYSTEMS, ours),
        _allow("Strays", strays - interfaces, _STRAYS, _kubernetes_tags(cluster)),
        _allow("StrayInterfaces", interfaces, _STRAYS[:1], _interface_tags(cluster)),
        _allow("LogGroup", {"logs:ListTagsForResource", "logs:DeleteLogGroup"}, logs),
        _allow("KnowRole", {"iam:GetRole"}, "arn:aws:iam::*:role/*"),
        _allow("KnowYourself", {"iam:SimulatePrincipalPolicy"}, ["arn:aws:iam::*:role/*", "arn:aws:iam::*:user/*"]),
    ]
    granted = {action for statement in statements for action in statement["Action"]}
    at = {action for action in actions - granted - _LISTED if action.partition(":")[0] in looked}
    statements.append(_allow("LookAt", at, ["arn:aws:eks:*:*:*", _FILE_SYSTEMS, "arn:aws:kms:*:*:key/*"]))
    return _policy([*statements, _allow("Look", actions - granted - at, "*")])


_FILE_SYSTEMS = "arn:aws:elasticfilesystem:*:*:file-system/*"
_STRAYS = [
    *(f"arn:aws:ec2:*:*:{kind}/*" for kind in ("network-interface", "security-group", "volume")),
    "arn:aws:elasticloadbalancing:*:*:loadbalancer/*",
]
_LISTED = {"eks:DescribeClusterVersions", "elasticfilesystem:DescribeFileSystems"}
"""Listing actions, which IAM cannot narrow to a resource."""


@dataclass(frozen=True, slots=True)
class Question:
    """A permission check that IAM can simulate before the resource exists."""

    place: str
    actions: list[str]
    context: dict[str, str] = field(default_factory=dict)
    """The call's context, for policies with a condition."""


def operator_questions(cluster: str, region: str, account: str, role: str | None) -> list[Question]:
    """The permissions that the operator needs; with CloudFormation's role, to pass it too."""
    stack = f"arn:aws:cloudformation:{region}:{account}:stack/{stack_name(cluster, 'platform')}/new"
    actions = {each["Sid"]: each["Action"] for each in operator_policy()["Statement"]}
    asked = [Question(stack, actions["Stacks"]), Question("*", actions["Look"])]
    if role:
        asked.append(Question(role, ["iam:PassRole"], {"iam:PassedToService": "cloudformation.amazonaws.com"}))
    return asked


def execution_questions(cluster: str, region: str, account: str, types: Iterable[str]) -> list[Question]:
    """The permissions that CloudFormation needs for these resource types, where it has no role of its own."""
    roles = f"arn:aws:iam::{account}:role"
    places = {
        "Roles": f"{roles}{role_path(cluster)}new",
        "PassRoles": f"{roles}{role_path(cluster)}new",
        "ServiceRoles": f"{roles}/aws-service-role/eks.amazonaws.com/AWSServiceRoleForAmazonEKS",
        "Images": f"arn:aws:ecr:{region}:{account}:repository/{repository_name(cluster)}",
        "Logs": f"arn:aws:logs:{region}:{account}:log-group:{log_group(cluster)}",
        "Resources": "*",
    }  # KMS is left out: it matters for a key of the user's own only, whose key policy decides too
    wanted = execution_actions(types)
    context = {"PassRoles": {"iam:PassedToService": "eks.amazonaws.com"}}
    actions = {each["Sid"]: sorted(wanted & set(each["Action"])) for each in execution_policy()["Statement"]}
    return [Question(place, actions[sid], context.get(sid, {})) for sid, place in places.items() if actions[sid]]


def _kubernetes_tags(cluster: str | None) -> Policy | None:
    """Strays carry Kubernetes' tag, whose key contains the cluster's name: without a name it cannot narrow."""
    if cluster is None:
        return None
    return {"StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{cluster}": "owned"}}


def _interface_tags(cluster: str | None) -> Policy | None:
    """The network plug-in's own tag identifies its interfaces in any cluster."""
    key = "aws:ResourceTag/cluster.k8s.amazonaws.com/name"
    return {"StringEquals": {key: cluster}} if cluster else {"Null": {key: "false"}}


def _of(actions: Iterable[str], service: str) -> set[str]:
    return {action for action in actions if action.startswith(f"{service}:")}


def _allow(sid: str, actions: Iterable[str], where: str | list[str], condition: Policy | None = None) -> Statement:
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": where}
    return statement | ({"Condition": condition} if condition else {})


def _policy(statements: list[Statement]) -> Policy:
    return {"Version": "2012-10-17", "Statement": statements}
