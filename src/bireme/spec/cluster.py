"""cluster.yaml: a Kubernetes cluster on AWS, as `bireme cluster` makes it. No I/O.

The same words as in job.yaml where they mean the same. Only what a user may want to decide has a key; everything else
(names of stacks, subnets of each zone, add-ons) follows from these.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

NAME = r"^[a-z][a-z0-9-]{0,30}[a-z0-9]$"
REGION = r"^[a-z]{2}(-[a-z]+)+-[0-9]$"
ZONE = r"^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$"
INSTANCE_TYPE = r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$"
Cidr = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$",
        description="A range of addresses such as `10.0.0.0/16`.",
    ),
]
KmsKey = Annotated[
    str, Meta(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", description="The ARN of a KMS key.")
]
PrincipalArn = Annotated[
    str,
    Meta(pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:(user|role)/.+$", description="The ARN of an IAM user or role."),
]
DEFAULT_TYPES = ("m7i.large", "m6i.large", "m5.large")


class GroupFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of workers: machines of the same kind."""

    count: Annotated[Annotated[int, Meta(ge=0, le=450)], Meta(description="How many machines.")] = 1
    types: Annotated[
        tuple[Annotated[str, Meta(pattern=INSTANCE_TYPE, description="An EC2 instance type.")], ...],
        Meta(min_length=1, description="Instance types, the best first. Spot wants several."),
    ] = DEFAULT_TYPES
    capacity: Annotated[
        Literal["on_demand", "spot"],
        Meta(
            description="`on_demand`: at list price, stays. `spot`: cheaper, may be taken away at two minutes' notice."
        ),
    ] = "on_demand"
    disk_gb: Annotated[Annotated[int, Meta(ge=20, le=16384)], Meta(description="Size of each machine's own disk.")] = 50


class TrainerGroupFile(GroupFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The trainers' group, whose machines may be taken away."""

    count: Annotated[Annotated[int, Meta(ge=0, le=450)], Meta(description="How many machines.")] = 3
    capacity: Annotated[Literal["on_demand", "spot"], Meta(description="As for `servers`.")] = "spot"


class WorkersFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines that run pods."""

    servers: Annotated[GroupFile, Meta(description="Where pservers run: they hold state, so on demand.")] = GroupFile()
    trainers: Annotated[TrainerGroupFile, Meta(description="Where trainers run: they restart, so spot.")] = (
        TrainerGroupFile()
    )
    max: Annotated[
        Annotated[int, Meta(ge=1, le=450)], Meta(description="`scale` goes no further than this, for each group.")
    ] = 20
    labels: Annotated[dict[str, str], Meta(description="More labels on the Kubernetes nodes.")] = {}
    key_pair: Annotated[
        str | None,
        Meta(description="An existing EC2 key pair for the machines. No port is opened for SSH; SSM works without it."),
    ] = None


class StorageFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared file system (EFS) that holds data, snapshots, models and logs. It outlives the cluster."""

    file_system: Annotated[
        Annotated[str, Meta(pattern=r"^fs-[0-9a-f]{8,40}$", description="The id of an EFS file system.")] | None,
        Meta(description="An existing file system of yours. Left out: one is made."),
    ] = None
    claim: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")],
        Meta(description="Name of the PersistentVolumeClaim by which jobs use it."),
    ] = "efsvol"
    throughput: Annotated[
        Literal["elastic", "bursting"],
        Meta(
            description="`elastic`: pay for bytes read and written. `bursting`: slower, in the price of the bytes held."
        ),
    ] = "elastic"


class NetworkFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses, and the way out."""

    cidr: Annotated[Cidr, Meta(description="Range of the VPC that is made.")] = "10.0.0.0/16"
    services: Annotated[Cidr, Meta(description="Range of Kubernetes' Services.")] = "10.100.0.0/16"
    egress: Annotated[
        Literal["nat", "public"],
        Meta(
            description="`nat`: workers have no public address and go out through one NAT gateway. `public`: they "
            "have public addresses, which is cheaper."
        ),
    ] = "nat"
    vpc: Annotated[
        Annotated[str, Meta(pattern=r"^vpc-[0-9a-f]{8,40}$", description="The id of a VPC.")] | None,
        Meta(
            description="An existing VPC. `subnets` must name two subnets in it, in two zones. Left out: one is made."
        ),
    ] = None
    subnets: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^subnet-[0-9a-f]{8,40}$", description="The id of a subnet.")], ...],
        Meta(description="With `vpc`: subnets for workers and control plane, the workers' first."),
    ] = ()


class AccessFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may reach the cluster's API server, and as whom."""

    api: Annotated[
        tuple[Cidr, ...],
        Meta(min_length=1, description="Addresses that may reach the API server; never the whole world."),
    ]
    admins: Annotated[
        tuple[PrincipalArn, ...],
        Meta(description="IAM users or roles that administer the cluster. Left out: whoever runs `cluster up`."),
    ] = ()


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster on AWS."""

    name: Annotated[
        Annotated[str, Meta(pattern=NAME)],
        Meta(
            description="Name of the cluster, of its stacks and tags: lower-case letters, digits and dashes, at most "
            "32, a letter first."
        ),
    ]
    region: Annotated[Annotated[str, Meta(pattern=REGION)], Meta(description="AWS region, such as `us-west-2`.")]
    zones: Annotated[
        tuple[Annotated[str, Meta(pattern=ZONE, description="An availability zone of the region.")], ...],
        Meta(
            description="Two zones; workers run in the first. Left out: `plan` and `up` ask EC2 which offer the types."
        ),
    ] = ()
    kubernetes: Annotated[
        Annotated[str, Meta(pattern=r"^1\.[0-9]{2}$")], Meta(description="Kubernetes version, in quotes.")
    ] = "1.34"
    workers: Annotated[WorkersFile, Meta(description="The machines that run pods.")] = WorkersFile()
    storage: Annotated[StorageFile, Meta(description="The shared file system.")] = StorageFile()
    network: Annotated[NetworkFile, Meta(description="Addresses, and the way out.")] = NetworkFile()
    access: Annotated[AccessFile, Meta(description="Who may reach the API server.")]
    kms_key: Annotated[
        KmsKey | None,
        Meta(
            description="KMS key for the file system and Kubernetes' secrets. Left out: keys that AWS keeps, for free."
        ),
    ] = None
    dns_zone: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", description="A DNS name.")] | None,
        Meta(description="A private DNS zone in the VPC, with the file system as `efs.ZONE`. Left out: none."),
    ] = None
    bucket: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="The name of an S3 bucket.")]
        | None,
        Meta(description="An existing S3 bucket that jobs may read `s3://` data from."),
    ] = None
    tags: Annotated[dict[str, str], Meta(description="More tags on everything that can have tags.")] = {}
