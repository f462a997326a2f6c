"""The stack that outlives the cluster: the shared file system with data, snapshots, models and logs."""

from __future__ import annotations

from bireme.aws.layout import ClusterLayout
from bireme.aws.templates.parts import Template, outputs, ref, resource, tag_list, template


def storage(layout: ClusterLayout) -> Template:
    """An encrypted EFS file system. CloudFormation retains it when the stack is deleted, unless its creation failed."""
    properties = {
        "Encrypted": True,
        "PerformanceMode": "generalPurpose",
        "ThroughputMode": layout.file.storage.throughput,
        "FileSystemTags": tag_list(layout.tags, Name=layout.stack("storage")),
        "FileSystemPolicy": _only_encrypted(),
    }
    if layout.file.kms_key is not None:
        properties["KmsKeyId"] = layout.file.kms_key
    keep = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
    return template(
        f"bireme {layout.name}: the shared file system. Outlives the cluster.",
        {"FileSystem": resource("EFS::FileSystem", properties, **keep)},
        Outputs=outputs(FileSystemId=(ref("FileSystem"), "The file system.")),
    )


def _only_encrypted() -> dict[str, object]:
    """Let clients in through mount targets, and refuse those that do not encrypt."""
    client = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite", "elasticfilesystem:ClientRootAccess"]
    through_mount = {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}}
    plain = {"Bool": {"aws:SecureTransport": "false"}}
    anyone = {"AWS": "*"}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": anyone, "Action": client, "Resource": "*", "Condition": through_mount},
            {"Effect": "Deny", "Principal": anyone, "Action": "*", "Resource": "*", "Condition": plain},
        ],
    }
