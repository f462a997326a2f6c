"""Resource types of IAM, EFS, Logs, ECR, Route 53, KMS and S3."""

from __future__ import annotations

from tests.aws.double.eks import log_group_removed
from tests.aws.double.model import ENI, LOG_GROUP, ROLE, SECURITY_GROUP, SUBNET, ApiError, Region, Thing, kind
from tests.aws.double.network import need, remove_owned

_PROFILE, _POLICY = "AWS::IAM::InstanceProfile", "AWS::IAM::ManagedPolicy"
_FILE_SYSTEM, _MOUNT = "AWS::EFS::FileSystem", "AWS::EFS::MountTarget"
_ZONE, _RECORD = "AWS::Route53::HostedZone", "AWS::Route53::RecordSet"
_EFS_ARN = "arn:aws:elasticfilesystem:{region}:{account}:%s/{id}"


def _arn(region: Region, thing: Thing) -> str:
    return thing.arn(region.world.account)


def _own_id(region: Region, thing: Thing) -> str:
    return thing.id


def _role_blocked(region: Region, thing: Thing) -> ApiError | None:
    if any(thing.id in p.props.get("Roles", []) for p in region.of(_PROFILE)):
        text = "Cannot delete entity, must remove roles from instance profile first."
        return ApiError("DeleteConflict", text, 409)
    if any(thing.id in p.props.get("Roles", []) for p in region.of(_POLICY)):
        return ApiError("DeleteConflict", "Cannot delete entity, must detach all policies first.", 409)
    return None


def _policy_blocked(region: Region, thing: Thing) -> ApiError | None:
    if any(thing.id in r.props.get("ManagedPolicyArns", []) for r in region.of(ROLE)):
        return ApiError("DeleteConflict", "Cannot delete a policy attached to entities.", 409)
    return None


def _file_system_blocked(region: Region, thing: Thing) -> ApiError | None:
    if region.of(_MOUNT, FileSystemId=thing.id):
        text = f"file system {thing.id} cannot be deleted as it has mount targets"  # not checked on AWS
        return ApiError("FileSystemInUse", text, 409)
    return None


def _mount_starts(region: Region, thing: Thing) -> None:
    props = thing.props
    need(region, _FILE_SYSTEM, props.get("FileSystemId"), "FileSystemNotFound")
    subnet = need(region, SUBNET, props.get("SubnetId"), "SubnetNotFound")
    for group in props.get("SecurityGroups", []):
        need(region, SECURITY_GROUP, group, "SecurityGroupNotFound")
    zone = props["AvailabilityZone"] = subnet.props["AvailabilityZone"]
    others = [m for m in region.of(_MOUNT, FileSystemId=props["FileSystemId"]) if m is not thing]
    if any(m.props["AvailabilityZone"] == zone for m in others):
        raise ApiError("MountTargetConflict", "mount target already exists in this AZ", 409)
    region.make(
        ENI, f"service {thing.id}", SubnetId=subnet.id, VpcId=subnet.props["VpcId"], Status="in-use",
        Groups=props.get("SecurityGroups", []), RequesterManaged=True, Owner=thing.id,
        Description=f"EFS mount target for {props['FileSystemId']} ({thing.id})",
    )  # fmt: skip


def _repository_blocked(region: Region, thing: Thing) -> ApiError | None:
    if thing.props.get("Images") and thing.props.get("EmptyOnDelete") not in (True, "true"):
        text = f"The repository with name '{thing.id}' in registry with id '{region.world.account}' cannot be deleted "
        return ApiError("RepositoryNotEmptyException", text + "because it still contains images")
    return None


def _zone_blocked(region: Region, thing: Thing) -> ApiError | None:
    if region.of(_RECORD, HostedZoneId=thing.id) or thing.props.get("ExtraRecords"):
        text = "The specified hosted zone contains non-required resource record sets and so cannot be deleted."
        return ApiError("HostedZoneNotEmpty", text)
    return None


def _bucket_blocked(region: Region, thing: Thing) -> ApiError | None:
    if thing.props.get("Objects"):
        return ApiError("BucketNotEmpty", "The bucket you tried to delete is not empty", 409)
    return None


kind(
    ROLE, create_s=15, delete_s=3, name="RoleName", arn="arn:aws:iam::{account}:role{path}{id}", only="RoleName Path",
    create="iam:CreateRole iam:TagRole", update="iam:UpdateRole iam:PutRolePolicy", delete="iam:DeleteRole",
    exists=("EntityAlreadyExists", "Role with name {} already exists."), blocked=_role_blocked,
    attributes={"Arn": _arn, "RoleId": lambda r, t: "AROAEXAMPLE"},
)  # fmt: skip
kind(
    _POLICY, create_s=15, delete_s=3, name="ManagedPolicyName", arn="{id}", only="ManagedPolicyName Path Description",
    create="iam:CreatePolicy", update="iam:CreatePolicyVersion", delete="iam:DeletePolicy", blocked=_policy_blocked,
    identify=lambda w, p: f"arn:aws:iam::{w.account}:policy{p.get('Path', '/')}{p['ManagedPolicyName']}",
    exists=("EntityAlreadyExists", "A policy called {} already exists. Duplicate names are not allowed."),
    attributes={"PolicyArn": _own_id}, taggable=False,
)  # fmt: skip
kind(
    _PROFILE, create_s=120, delete_s=3, name="InstanceProfileName", only="InstanceProfileName Path", taggable=False,
    arn="arn:aws:iam::{account}:instance-profile{path}{id}",
    create="iam:CreateInstanceProfile iam:AddRoleToInstanceProfile iam:PassRole", delete="iam:DeleteInstanceProfile",
    exists=("EntityAlreadyExists", "Instance Profile {} already exists."), attributes={"Arn": _arn},
)  # fmt: skip
kind(
    _FILE_SYSTEM, create_s=10, prefix="fs", arn=_EFS_ARN % "file-system",
    only="Encrypted KmsKeyId PerformanceMode AvailabilityZoneName",
    create="elasticfilesystem:CreateFileSystem elasticfilesystem:TagResource",
    update="elasticfilesystem:UpdateFileSystem elasticfilesystem:PutLifecycleConfiguration",
    delete="elasticfilesystem:DeleteFileSystem", blocked=_file_system_blocked,
    attributes={"Arn": _arn, "FileSystemId": _own_id},
)  # fmt: skip
kind(
    _MOUNT, create_s=90, delete_s=30, prefix="fsmt", arn=_EFS_ARN % "mount-target",
    only="FileSystemId SubnetId IpAddress",
    create="elasticfilesystem:CreateMountTarget ec2:CreateNetworkInterface", taggable=False,
    delete="elasticfilesystem:DeleteMountTarget", start=_mount_starts, removed=remove_owned,
    attributes={"Id": _own_id, "IpAddress": lambda r, t: "10.0.0.9"},
)  # fmt: skip
kind(
    "AWS::EFS::AccessPoint", create_s=10, prefix="fsap", arn=_EFS_ARN % "access-point",
    only="FileSystemId PosixUser RootDirectory ClientToken",
    create="elasticfilesystem:CreateAccessPoint elasticfilesystem:TagResource",
    delete="elasticfilesystem:DeleteAccessPoint",
    start=lambda r, t: need(r, _FILE_SYSTEM, t.props.get("FileSystemId"), "FileSystemNotFound"),
    attributes={"Arn": _arn, "AccessPointId": _own_id},
)  # fmt: skip
kind(
    LOG_GROUP, create_s=5, name="LogGroupName", arn="arn:aws:logs:{region}:{account}:log-group:{id}:*",
    only="LogGroupName",
    create="logs:CreateLogGroup logs:PutRetentionPolicy logs:TagResource", delete="logs:DeleteLogGroup",
    exists=("ResourceAlreadyExistsException", "The specified log group already exists"),
    removed=log_group_removed, attributes={"Arn": _arn},
)  # fmt: skip
kind(
    "AWS::ECR::Repository", create_s=5, name="RepositoryName", arn="arn:aws:ecr:{region}:{account}:repository/{id}",
    only="RepositoryName EncryptionConfiguration", create="ecr:CreateRepository ecr:TagResource",
    update="ecr:PutLifecyclePolicy", delete="ecr:DeleteRepository", blocked=_repository_blocked,
    exists=("RepositoryAlreadyExistsException", "The repository with name '{}' already exists"),
    attributes={"Arn": _arn, "RepositoryUri": lambda r, t: f"{r.world.registry}/{t.id}"},
)  # fmt: skip
kind(
    _ZONE, create_s=30, prefix="Z", arn="arn:aws:route53:::hostedzone/{id}", only="Name", blocked=_zone_blocked,
    create="route53:CreateHostedZone", delete="route53:DeleteHostedZone", attributes={"Id": _own_id},
)  # fmt: skip
kind(
    _RECORD, create_s=30, arn="arn:aws:route53:::recordset/{id}", only="Name HostedZoneId", taggable=False,
    create="route53:ChangeResourceRecordSets", delete="route53:ChangeResourceRecordSets",
    identify=lambda w, p: p["Name"],
)  # fmt: skip
kind(
    "AWS::KMS::Key", create_s=20, arn="arn:aws:kms:{region}:{account}:key/{id}", create="kms:CreateKey kms:TagResource",
    update="kms:PutKeyPolicy", delete="kms:ScheduleKeyDeletion", identify=lambda w, p: w.new_uuid(),
    attributes={"Arn": _arn, "KeyId": _own_id},
)  # fmt: skip
kind(
    "AWS::S3::Bucket", create_s=20, name="BucketName", arn="arn:aws:s3:::{id}", only="BucketName",
    create="s3:CreateBucket s3:PutBucketTagging", update="s3:PutBucketTagging", delete="s3:DeleteBucket",
    exists=("BucketAlreadyOwnedByYou", "{} already exists"), blocked=_bucket_blocked,
    attributes={"Arn": _arn, "DomainName": lambda r, t: f"{t.id}.s3.amazonaws.com"},
)  # fmt: skip
