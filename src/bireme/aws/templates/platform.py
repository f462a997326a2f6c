"""The platform stack: network, EKS control plane, identities, add-ons that need no machine, and ways to the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from bireme.aws.layout import JOB_ACCOUNT, NAMESPACE, ClusterLayout, log_group, repository_name, role_path
from bireme.aws.templates.network import LETTERS, network, vpc_id, worker_subnets
from bireme.aws.templates.parts import (
    Resource,
    Template,
    att,
    managed,
    outputs,
    parameter,
    ref,
    resource,
    sub,
    tag_list,
    template,
    trust,
)

USER = 1000
"""Who pods are; the access point makes every file theirs."""
LOG_DAYS = 14
KEPT = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
ADDONS = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Add-ons that become active without a machine; those that need one are in the workers' stack."""
EFS_ACCOUNTS = {"Controller": "efs-csi-controller-sa", "Node": "efs-csi-node-sa"}
"""The driver's two accounts: the add-on's own association would cover the first only, and mounts would be refused."""
POD_ACTIONS = ("sts:AssumeRole", "sts:TagSession")


def platform(layout: ClusterLayout) -> Template:
    """The template; `FileSystemId` comes from the storage stack or is the user's own."""
    resources = {
        **network(layout),
        **dict(_control_plane(layout)),
        **dict(_access(layout)),
        **dict(_pods(layout)),
        **dict(_data(layout)),
        **dict(_names(layout)),
        "Repository": _repository(layout),
    }
    needed = {"FileSystemId": parameter("The shared file system.")}
    if layout.makes_network:
        for letter in LETTERS:
            needed[f"Zone{letter}"] = parameter("Availability zone.", "AWS::EC2::AvailabilityZone::Name")
    if not layout.file.access.admins:
        needed["AdminArn"] = parameter("IAM user or role that administers the cluster.")
    return template(
        f"bireme {layout.name}: network, EKS control plane and identities.",
        resources,
        Parameters=needed,
        Outputs=outputs(
            ClusterName=(ref("Cluster"), "The EKS cluster."),
            VpcId=(vpc_id(layout), "The VPC."),
            Egress=("nat" if layout.has_nat else "none of ours", "Whether a NAT gateway is billed."),
            WorkerSubnet=(worker_subnets(layout)[0], "The subnet of the workers."),
            NodeRoleArn=(att("NodeRole", "Arn"), "The role of the workers."),
            AccessPointId=(ref("AccessPoint"), "The way to the file system that jobs use."),
            FileSystemId=(ref("FileSystemId"), "The shared file system."),
            RepositoryUri=(att("Repository", "RepositoryUri"), "Where the cluster's images are."),
        ),
    )


def _control_plane(layout: ClusterLayout) -> Iterator[tuple[str, Resource]]:
    file, path = layout.file, role_path(layout.name)
    # EKS would make the log group itself, without an end to its retention. Were it deleted before the cluster, EKS
    # would make it again; so CloudFormation keeps it, and `down` deletes it once the cluster is gone.
    group = {"LogGroupName": log_group(layout.name), "RetentionInDays": LOG_DAYS}
    yield "ControlPlaneLogs", resource("Logs::LogGroup", group, **KEPT)
    role = {"Path": path, "AssumeRolePolicyDocument": trust("eks.amazonaws.com", *POD_ACTIONS)}
    yield "ClusterRole", resource("IAM::Role", {**role, "ManagedPolicyArns": managed("AmazonEKSClusterPolicy")})
    properties = {
        "Name": layout.name,
        "Version": file.kubernetes,
        "RoleArn": att("ClusterRole", "Arn"),
        "AccessConfig": {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False},
        "BootstrapSelfManagedAddons": False,
        "KubernetesNetworkConfig": {"ServiceIpv4Cidr": file.network.services},
        "Logging": {"ClusterLogging": {"EnabledTypes": [{"Type": "api"}, {"Type": "authenticator"}]}},
        "ResourcesVpcConfig": {
            "SubnetIds": worker_subnets(layout),
            "EndpointPublicAccess": True,
            "EndpointPrivateAccess": True,
            "PublicAccessCidrs": list(file.access.api),
        },
        # An old cluster is upgraded at the end of its support instead of being billed six times as much.
        "UpgradePolicy": {"SupportType": "STANDARD"},
        "Tags": tag_list(layout.tags),
    }
    if file.kms_key is not None:
        properties["EncryptionConfig"] = [{"Provider": {"KeyArn": file.kms_key}, "Resources": ["secrets"]}]
    yield "Cluster", resource("EKS::Cluster", properties, DependsOn="ControlPlaneLogs")
    for addon in ADDONS:
        name = "".join(part.title() for part in addon.split("-"))
        yield f"Addon{name}", _addon(addon, layout)


def _addon(name: str, layout: ClusterLayout) -> Resource:
    properties = {
        "ClusterName": ref("Cluster"),
        "AddonName": name,
        "ResolveConflicts": "OVERWRITE",
        "Tags": tag_list(layout.tags),
    }
    return resource("EKS::Addon", properties)


def _access(layout: ClusterLayout) -> Iterator[tuple[str, Resource]]:
    admins: list[object] = list(layout.file.access.admins) or [ref("AdminArn")]
    policy = {
        "PolicyArn": sub("arn:${AWS::Partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"),
        "AccessScope": {"Type": "cluster"},
    }
    for admin in admins:
        # Named after its principal: named by position, removing an entry in the middle would clash with the next.
        name = f"Admin{hashlib.sha256(admin.encode()).hexdigest()[:8]}" if isinstance(admin, str) else "Admin"
        entry = {"ClusterName": ref("Cluster"), "PrincipalArn": admin, "AccessPolicies": [policy]}
        yield name, resource("EKS::AccessEntry", {**entry, "Tags": tag_list(layout.tags)})
    policies = (
        "AmazonEKSWorkerNodePolicy",
        "AmazonEKS_CNI_Policy",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonSSMManagedInstanceCore",
    )
    role = {
        "Path": role_path(layout.name),
        "AssumeRolePolicyDocument": trust("ec2.amazonaws.com"),
        "ManagedPolicyArns": managed(*policies),
    }
    yield "NodeRole", resource("IAM::Role", role)


def _pods(layout: ClusterLayout) -> Iterator[tuple[str, Resource]]:
    """What pods may do at AWS: the driver mounts the file system, and jobs read the bucket."""
    role = {
        "Path": role_path(layout.name),
        "AssumeRolePolicyDocument": trust("pods.eks.amazonaws.com", *POD_ACTIONS),
    }
    driver = managed("service-role/AmazonEFSCSIDriverPolicy")
    yield "EfsDriverRole", resource("IAM::Role", {**role, "ManagedPolicyArns": driver})
    for which, account in EFS_ACCOUNTS.items():
        yield f"EfsDriver{which}", _identity(layout, "kube-system", account, "EfsDriverRole")
    if layout.file.bucket is not None:
        bucket = f"arn:${{AWS::Partition}}:s3:::{layout.file.bucket}"
        allowed = [
            {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": sub(bucket)},
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": sub(f"{bucket}/*")},
        ]
        reading = {"PolicyName": "read-data", "PolicyDocument": {"Version": "2012-10-17", "Statement": allowed}}
        yield "JobRole", resource("IAM::Role", {**role, "Policies": [reading]})
        yield "JobIdentity", _identity(layout, NAMESPACE, JOB_ACCOUNT, "JobRole")


def _identity(layout: ClusterLayout, namespace: str, account: str, role: str) -> Resource:
    properties = {
        "ClusterName": ref("Cluster"),
        "Namespace": namespace,
        "ServiceAccount": account,
        "RoleArn": att(role, "Arn"),
        "Tags": tag_list(layout.tags),
    }
    return resource("EKS::PodIdentityAssociation", properties)


def _data(layout: ClusterLayout) -> Iterator[tuple[str, Resource]]:
    """The ways to the file system: NFS from this cluster's machines only, and a directory owned by the pods' user."""
    from_cluster = {
        "IpProtocol": "tcp",
        "FromPort": 2049,
        "ToPort": 2049,
        "SourceSecurityGroupId": att("Cluster", "ClusterSecurityGroupId"),
        "Description": "NFS from the workers",
    }
    # Without a rule EC2 adds one that lets everything out.
    nowhere = {"IpProtocol": "-1", "CidrIp": "127.0.0.1/32", "Description": "nothing goes out"}
    group = {
        "GroupDescription": "Shared file system of a bireme cluster",
        "VpcId": vpc_id(layout),
        "SecurityGroupIngress": [from_cluster],
        "SecurityGroupEgress": [nowhere],
        "Tags": tag_list({"Name": f"bireme-{layout.name}-efs"}),
    }
    yield "FileSystemSecurityGroup", resource("EC2::SecurityGroup", group)
    for letter, subnet in zip(LETTERS, worker_subnets(layout), strict=False):
        target = {
            "FileSystemId": ref("FileSystemId"),
            "SubnetId": subnet,
            "SecurityGroups": [ref("FileSystemSecurityGroup")],
        }
        yield f"MountTarget{letter}", resource("EFS::MountTarget", target)
    user = {"Uid": str(USER), "Gid": str(USER)}
    directory = {"OwnerUid": str(USER), "OwnerGid": str(USER), "Permissions": "0750"}
    point = {
        "FileSystemId": ref("FileSystemId"),
        "PosixUser": user,
        "RootDirectory": {"Path": "/bireme", "CreationInfo": directory},
        "AccessPointTags": tag_list(layout.tags),
    }
    yield "AccessPoint", resource("EFS::AccessPoint", point)


def _names(layout: ClusterLayout) -> Iterator[tuple[str, Resource]]:
    zone = layout.file.dns_zone
    if zone is None:
        return
    vpcs = [{"VPCId": vpc_id(layout), "VPCRegion": ref("AWS::Region")}]
    tags = tag_list(layout.tags)
    yield "Zone", resource("Route53::HostedZone", {"Name": zone, "VPCs": vpcs, "HostedZoneTags": tags})
    record = {
        "HostedZoneId": ref("Zone"),
        "Name": f"efs.{zone}",
        "Type": "CNAME",
        "TTL": "300",
        "ResourceRecords": [sub("${FileSystemId}.efs.${AWS::Region}.${AWS::URLSuffix}")],
    }
    yield "FileSystemName", resource("Route53::RecordSet", record)


def _repository(layout: ClusterLayout) -> Resource:
    keep = (
        '{"rules":[{"rulePriority":1,"description":"keep the last 20 images","selection":{"tagStatus":"any",'
        '"countType":"imageCountMoreThan","countNumber":20},"action":{"type":"expire"}}]}'
    )
    properties = {
        "RepositoryName": repository_name(layout.name),
        "EmptyOnDelete": True,
        "ImageScanningConfiguration": {"ScanOnPush": True},
        "EncryptionConfiguration": {"EncryptionType": "AES256"},
        "LifecyclePolicy": {"LifecyclePolicyText": keep},
        "Tags": tag_list(layout.tags),
    }
    return resource("ECR::Repository", properties, DeletionPolicy="Delete", UpdateReplacePolicy="Delete")
