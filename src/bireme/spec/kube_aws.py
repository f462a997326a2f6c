"""Keys of kube-aws 0.9.1's cluster.yaml, which the PaddlePaddle tutorial uses, with our key or the reason for none.

A key that still has a meaning is moved to ours before the file is checked, and keeps its line. All others are refused
by name: a setting without effect would mislead.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from bireme.spec.cluster import DEFAULT_VERSION
from bireme.spec.mistakes import Mistake, lines_of


@dataclass(frozen=True, slots=True)
class OldKey:
    """The counterpart of a key of kube-aws."""

    key: str = ""
    """Our key for the same; empty if there is none."""
    is_list: bool = False
    """Whether ours holds a list where kube-aws took one value."""
    why: str = ""
    fix: str = "leave it out"


_CONTROL_PLANE = OldKey(why="EKS runs the control plane")
_CERTIFICATES = OldKey(why="EKS makes and renews the certificates")
_MACHINE_IMAGE = OldKey(why="EKS chooses the machine image for the version of Kubernetes")
_IMAGES = OldKey(why="EKS uses its own images")
_RECORD = OldKey(why="EKS gives the API server a public name", fix="leave it out; `dns_zone` makes a private zone")
_SUBNETS = OldKey(
    why="the subnets are cut from `network.cidr`", fix="leave it out, or list existing ones in `network.subnets`"
)
_DISK = OldKey(why="all disks are of one kind", fix="leave it out; `workers.trainers.disk_gb` sets the size")
_TIMEOUT = OldKey(why="CloudFormation and EKS have limits of their own")

KUBE_AWS: dict[str, OldKey] = {
    "clusterName": OldKey("name"),
    "availabilityZone": OldKey("zones", is_list=True),
    "kmsKeyArn": OldKey("kms_key"),
    "keyName": OldKey("workers.key_pair"),
    "externalDNSName": OldKey("dns_zone"),
    "workerCount": OldKey("workers.trainers.count"),
    "workerInstanceType": OldKey("workers.trainers.types", is_list=True),
    "workerRootVolumeSize": OldKey("workers.trainers.disk_gb"),
    "elasticFileSystemId": OldKey("storage.file_system"),
    "vpcId": OldKey("network.vpc"),
    "vpcCIDR": OldKey("network.cidr"),
    "serviceCIDR": OldKey("network.services"),
    "stackTags": OldKey("tags"),
    "kubernetesVersion": OldKey(
        why="EKS has its own list of versions", fix=f'leave it out, or write `kubernetes: "{DEFAULT_VERSION}"`'
    ),
    "workerSpotPrice": OldKey(
        why="spot machines cost the market price, and no bid limits it",
        fix="leave it out; `workers.trainers.capacity` is `spot` unless set to `on_demand`",
    ),
    "controllerCount": _CONTROL_PLANE,
    "controllerInstanceType": _CONTROL_PLANE,
    "controllerRootVolumeSize": _CONTROL_PLANE,
    "controllerRootVolumeType": _CONTROL_PLANE,
    "controllerRootVolumeIOPS": _CONTROL_PLANE,
    "controllerIP": _CONTROL_PLANE,
    "etcdCount": _CONTROL_PLANE,
    "etcdInstanceType": _CONTROL_PLANE,
    "etcdRootVolumeSize": _CONTROL_PLANE,
    "etcdDataVolumeSize": _CONTROL_PLANE,
    "etcdDataVolumeEphemeral": _CONTROL_PLANE,
    "controllerCreateTimeout": _TIMEOUT,
    "controlerCreateTimeout": _TIMEOUT,  # as kube-aws's own template spells it
    "workerCreateTimeout": _TIMEOUT,
    "workerRootVolumeType": _DISK,
    "workerRootVolumeIOPS": _DISK,
    "tlsCADurationDays": _CERTIFICATES,
    "tlsCertDurationDays": _CERTIFICATES,
    "podCIDR": OldKey(why="pods have addresses of the VPC", fix="leave it out; `network.cidr` sets the VPC's range"),
    "dnsServiceIP": OldKey(why="EKS chooses an address in `network.services`"),
    "instanceCIDR": _SUBNETS,
    "subnets": _SUBNETS,
    "routeTableId": OldKey(why="the subnets have route tables", fix="leave it out; `network.subnets` names them"),
    "mapPublicIPs": OldKey(why="`network.egress` decides", fix="write `network: {egress: nat}`, or `public`"),
    "releaseChannel": _MACHINE_IMAGE,
    "amiId": _MACHINE_IMAGE,
    "createRecordSet": _RECORD,
    "recordSetTTL": _RECORD,
    "hostedZone": _RECORD,
    "hostedZoneId": _RECORD,
    "sshAuthorizedKeys": OldKey(why="no port is opened for SSH", fix="leave it out; `workers.key_pair` sets a key"),
    "hyperkubeImageRepo": _IMAGES,
    "awsCliImageRepo": _IMAGES,
    "awsCliTag": _IMAGES,
    "useCalico": OldKey(why="pods use the VPC's own network"),
    "containerRuntime": OldKey(why="EKS's machines run containerd"),
    "experimental": OldKey(why="managed node groups drain machines; the other experiments have no counterpart"),
}
"""Every key of kube-aws 0.9.1 but `region`, which is the same here."""


def move_keys(data: Any) -> list[Mistake]:
    """Move kube-aws's keys of a parsed file, in place, to ours; one without a counterpart is removed and refused."""
    if not isinstance(data, MutableMapping):
        return []
    found, lines = [], lines_of(data, 1)
    for name in [key for key in data if key in KUBE_AWS]:
        old, value = KUBE_AWS[name], data.pop(name)
        if not old.key:
            text = f"`{name}` is a key of kube-aws that bireme does not use: {old.why}"
            found.append(Mistake(lines[name], text, fix=old.fix))
        elif _holds(data, old.key):
            text = f"`{name}`, a key of kube-aws, and `{old.key}` are both given"
            found.append(Mistake(lines[name], text, fix=f"leave `{name}` out"))
        else:
            _put(data, old.key, [value] if old.is_list else value, lines[name])
    return found


def _holds(data: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


def _put(data: Any, path: str, value: Any, line: int) -> None:
    """Set a value below a dotted path; a section of the wrong type is left to the struct's check."""
    *sections, last = path.split(".")
    for key in sections:
        if key not in data:
            _set(data, key, type(data)(), line)
        data = data[key]
        if not isinstance(data, MutableMapping):
            return
    _set(data, last, value, line)


def _set(data: Any, key: str, value: Any, line: int) -> None:
    data[key] = value
    if hasattr(data, "lc"):  # a mapping read from YAML counts lines from 0
        data.lc.add_kv_line_col(key, [line - 1, 0, line - 1, 0])
