"""The workers' stack: two groups of machines, and the add-ons that need machines to become active."""

from __future__ import annotations

from bireme.aws.layout import CLUSTER_TAG, GROUP_LABEL, ClusterLayout
from bireme.aws.templates.parts import Resource, Template, att, parameter, ref, resource, tag_list, template
from bireme.spec.cluster import GroupFile

GROUPS = ("Servers", "Trainers")
ADDONS = {"CoreDns": "coredns", "EfsDriver": "aws-efs-csi-driver"}


def workers(layout: ClusterLayout) -> Template:
    """The template; how many machines there are is a parameter, so that `scale` changes nothing else."""
    groups = {"Servers": layout.file.workers.servers, "Trainers": layout.file.workers.trainers}
    resources: dict[str, Resource] = {}
    for name, group in groups.items():
        resources[f"{name}Template"] = _launch_template(layout, name, group)
        resources[name] = _group(layout, name, group)
    for name, addon in ADDONS.items():
        properties = {
            "ClusterName": ref("ClusterName"),
            "AddonName": addon,
            "ResolveConflicts": "OVERWRITE",
            "Tags": tag_list(layout.tags),
        }
        # Without machines these would be DEGRADED, and the stack would fail after twenty minutes.
        resources[f"Addon{name}"] = resource("EKS::Addon", properties, DependsOn=list(GROUPS))
    count = {"MinValue": 0, "MaxValue": layout.file.workers.max}
    needed = {
        "ClusterName": parameter("The EKS cluster."),
        "NodeRoleArn": parameter("The role of the workers."),
        "WorkerSubnet": parameter("The subnet of the workers.", "AWS::EC2::Subnet::Id"),
        "ServersCount": parameter("Machines for pservers.", "Number", **count),
        "TrainersCount": parameter("Machines for trainers.", "Number", **count),
    }
    return template(f"bireme {layout.name}: the workers.", resources, Parameters=needed)


def _launch_template(layout: ClusterLayout, name: str, group: GroupFile) -> Resource:
    # CloudFormation's own tags do not reach what an instance makes for itself.
    # Only tags that never change: EKS refuses a new version of this together with other changes of the group.
    tags = tag_list({CLUSTER_TAG: layout.name, "Name": f"bireme-{layout.name}-{name.lower()}"})
    data = {
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvda",
                "Ebs": {"VolumeType": "gp3", "VolumeSize": group.disk_gb, "Encrypted": True},
            }
        ],
        # Pods get no credentials of the machine: their requests would need a second hop.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "network-interface")
        ],
    }
    if layout.file.workers.key_pair is not None:
        data["KeyName"] = layout.file.workers.key_pair
    own = [{"ResourceType": "launch-template", "Tags": tags}]
    return resource("EC2::LaunchTemplate", {"LaunchTemplateData": data, "TagSpecifications": own})


def _group(layout: ClusterLayout, name: str, group: GroupFile) -> Resource:
    """A managed node group; without a name, so that CloudFormation can replace it by making the new one first."""
    size = {"MinSize": 0, "MaxSize": layout.file.workers.max, "DesiredSize": ref(f"{name}Count")}
    properties = {
        "ClusterName": ref("ClusterName"),
        "NodeRole": ref("NodeRoleArn"),
        "Version": layout.file.kubernetes,
        "Subnets": [ref("WorkerSubnet")],
        "ScalingConfig": size,
        "UpdateConfig": {"MaxUnavailable": 1},
        "AmiType": "AL2023_x86_64_STANDARD",
        "CapacityType": group.capacity.upper(),
        "InstanceTypes": list(group.types),
        "Labels": {**layout.file.workers.labels, GROUP_LABEL: name.lower()},
        "LaunchTemplate": {"Id": ref(f"{name}Template"), "Version": att(f"{name}Template", "LatestVersionNumber")},
        "NodeRepairConfig": {"Enabled": True},
        "Tags": layout.tags,
    }
    return resource("EKS::Nodegroup", properties)
