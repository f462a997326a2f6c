"""cluster.yaml: a Kubernetes cluster on AWS, as `bireme cluster` makes it. No I/O.

Keys with the meaning of one in job.yaml have its name. Only what a user may want to decide has a key; everything else
(names of stacks, subnets of each zone, add-ons) follows from these. The descriptions and examples are also what
`cluster init` writes into a new file, and the reference page.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# `\Z`, not `$`: that would also match before a newline at the end.
NAME = r"^[a-z][a-z0-9-]{0,30}[a-z0-9]\Z"
REGION = r"^[a-z]{2}(-[a-z]+)+-[0-9]\Z"
ZONE = r"^[a-z]{2}(-[a-z]+)+-[0-9][a-z]\Z"
INSTANCE_TYPE = r"^[a-z][a-z0-9-]*\.[a-z0-9-]+\Z"
CIDR = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}\Z"
KMS_KEY = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+\Z"
PRINCIPAL = r"^arn:aws[a-z-]*:iam::[0-9]{12}:(user|role)/[A-Za-z0-9_+=,.@/-]+\Z"
VERSION = r"^1\.[0-9]{2}\Z"
DNS_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\Z"
LABEL_KEY = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z"
TAG_KEY = r"^[\w .:/=+@-]{1,128}\Z"
TAG_VALUE = r"^[\w .:/=+@-]{0,256}\Z"
KEY_PAIR = r"^[!-~]([ -~]{0,253}[!-~])?\Z"
CLAIM = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"
BUCKET = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z"
FILE_SYSTEM, VPC, SUBNET = (rf"^{kind}-[0-9a-f]{{8,40}}\Z" for kind in ("fs", "vpc", "subnet"))
MAX_WORKERS = 450
"""EKS's own limit of machines in a managed node group."""
MAX_TAGS = 40
"""AWS takes 50 tags a resource; the stacks add their own."""
DEFAULT_VERSION = "1.34"
OLDEST_VERSION = "1.31"
"""The oldest that EKS still ran in 2026-11, in extended support. Preflight asks EKS which are in standard support."""
DEFAULT_TYPES = ("m7i.large", "m6i.large", "m5.large")

Cidr = Annotated[str, Meta(pattern=CIDR, description="A range of addresses such as `10.0.0.0/16`.")]
PrincipalArn = Annotated[str, Meta(pattern=PRINCIPAL, description="The ARN of an IAM user or role.")]
Count = Annotated[int, Meta(ge=0, le=MAX_WORKERS)]
LabelKey = Annotated[
    str,
    Meta(
        pattern=LABEL_KEY,
        description="A label's key: at most 63 letters, digits, dashes, underscores and dots, a letter or digit first "
        "and last; a domain and a slash may precede it.",
    ),
]
LabelValue = Annotated[
    str,
    Meta(
        pattern=LABEL_VALUE,
        description="A label's value: at most 63 letters, digits, dashes, underscores and dots, a letter or digit "
        "first and last.",
    ),
]
TagKey = Annotated[
    str,
    Meta(pattern=TAG_KEY, description="A tag's key: 1 to 128 letters, digits, spaces and `_ . : / = + - @`."),
]
TagValue = Annotated[
    str,
    Meta(pattern=TAG_VALUE, description="A tag's value: at most 256 letters, digits, spaces and `_ . : / = + - @`."),
]


class GroupFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines for pservers, which hold state."""

    count: Annotated[Count, Meta(examples=[2])] = 1
    """How many machines."""
    types: Annotated[
        tuple[Annotated[str, Meta(pattern=INSTANCE_TYPE, description="An EC2 instance type.")], ...],
        Meta(min_length=1, examples=[["m7i.xlarge", "m6i.xlarge"]]),
    ] = DEFAULT_TYPES
    """Instance types (x86-64), the best first. With several, spot capacity is more likely."""
    capacity: Annotated[Literal["on_demand", "spot"], Meta(examples=["on_demand"])] = "on_demand"
    """`on_demand`: at list price, stays. `spot`: cheaper, may be taken away at two minutes' notice."""
    disk_gb: Annotated[int, Meta(ge=20, le=16384, examples=[100])] = 50
    """Size of each machine's own disk."""


class TrainerGroupFile(GroupFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines for trainers, which can be taken away and replaced."""

    count: Annotated[Count, Meta(examples=[8])] = 3
    """How many machines."""
    capacity: Annotated[Literal["on_demand", "spot"], Meta(examples=["on_demand"])] = "spot"
    """As for `servers`."""


class WorkersFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines that run pods, in two groups."""

    servers: Annotated[GroupFile, Meta(examples=[{"count": 2}])] = GroupFile()
    """Where pservers run: they hold state, so on demand."""
    trainers: Annotated[TrainerGroupFile, Meta(examples=[{"count": 8}])] = TrainerGroupFile()
    """Where trainers run: they can be replaced, so spot."""
    max: Annotated[int, Meta(ge=1, le=MAX_WORKERS, examples=[50])] = 20
    """Neither group may grow beyond this."""
    labels: Annotated[dict[LabelKey, LabelValue], Meta(examples=[{"team": "nlp"}])] = {}
    """More labels on the Kubernetes nodes."""
    key_pair: Annotated[Annotated[str, Meta(pattern=KEY_PAIR)] | None, Meta(examples=["my-key"])] = None
    """Name of an existing EC2 key pair for the machines. No port is opened for SSH; SSM works without a key."""


class StorageFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared file system (EFS) that holds data, snapshots, models and logs. It outlives the cluster."""

    file_system: Annotated[
        Annotated[str, Meta(pattern=FILE_SYSTEM)] | None, Meta(examples=["fs-0123456789abcdef0"])
    ] = None
    """Id of an existing EFS file system (`fs-…`). Left out: one is made."""
    claim: Annotated[str, Meta(pattern=CLAIM, examples=["shared"])] = "efsvol"
    """Name of the PersistentVolumeClaim by which jobs use it."""
    throughput: Annotated[Literal["elastic", "bursting"], Meta(examples=["bursting"])] = "elastic"
    """`elastic`: pay for bytes read and written. `bursting`: slower, in the price of the bytes held."""


class NetworkFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address ranges and egress."""

    cidr: Annotated[Cidr, Meta(examples=["10.4.0.0/16"])] = "10.0.0.0/16"
    """Range of the VPC that is made: private addresses, /16 to /24; four subnets are cut from it."""
    services: Annotated[Cidr, Meta(examples=["172.20.0.0/16"])] = "10.100.0.0/16"
    """Range of Kubernetes' Services: private addresses, /12 to /24, outside the VPC's."""
    egress: Annotated[Literal["nat", "public"], Meta(examples=["public"])] = "nat"
    """`nat`: workers have no public address and go out through one NAT gateway. `public`: they have public addresses,
    which is cheaper."""
    vpc: Annotated[Annotated[str, Meta(pattern=VPC)] | None, Meta(examples=["vpc-0123456789abcdef0"])] = None
    """Id of an existing VPC (`vpc-…`), whose subnets `subnets` names. Left out: one is made."""
    subnets: Annotated[
        tuple[Annotated[str, Meta(pattern=SUBNET, description="Id of a subnet (`subnet-…`).")], ...],
        Meta(examples=[["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]]),
    ] = ()
    """With `vpc`: at least two subnets in two zones, the workers' first."""


class AccessFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which addresses may reach the cluster's API server, and who administers it."""

    api: Annotated[
        tuple[Annotated[str, Meta(pattern=CIDR, description="A public address as `203.0.113.7/32`, or a range.")], ...],
        Meta(min_length=1, max_length=40, examples=[["203.0.113.7/32"]]),
    ]
    """Public addresses that may reach the API server, such as `[203.0.113.7/32]`; never all."""
    admins: Annotated[tuple[PrincipalArn, ...], Meta(examples=[["arn:aws:iam::123456789012:role/ml-admin"]])] = ()
    """ARNs of IAM users or roles that administer the cluster. Left out: who runs `cluster up`."""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster on AWS."""

    name: Annotated[str, Meta(pattern=NAME, examples=["paddle-cluster"])]
    """Name of the cluster, of its stacks and tags: 2 to 32 lower-case letters, digits and dashes, a letter first, no
    dash last."""
    region: Annotated[str, Meta(pattern=REGION, examples=["us-west-2"])]
    """AWS region, such as `us-west-2`."""
    zones: Annotated[
        tuple[Annotated[str, Meta(pattern=ZONE, description="An availability zone, such as `us-west-2a`.")], ...],
        Meta(max_length=2, examples=[["us-west-2a", "us-west-2b"]]),
    ] = ()
    """One or two zones; workers run in the first. What is left out is chosen among those that offer the types."""
    kubernetes: Annotated[
        Annotated[str, Meta(pattern=VERSION)],
        Meta(
            description=f'Kubernetes version, such as `"{DEFAULT_VERSION}"`, in quotes; {OLDEST_VERSION} or later.',
            examples=[DEFAULT_VERSION],
        ),
    ] = DEFAULT_VERSION
    workers: Annotated[WorkersFile, Meta(examples=[{"trainers": {"count": 8}}])] = WorkersFile()
    """The machines that run pods."""
    storage: Annotated[StorageFile, Meta(examples=[{"claim": "shared"}])] = StorageFile()
    """The shared file system (EFS). It outlives the cluster."""
    network: Annotated[NetworkFile, Meta(examples=[{"egress": "public"}])] = NetworkFile()
    """Address ranges and egress."""
    access: Annotated[AccessFile, Meta(examples=[{"api": ["203.0.113.7/32"]}])]
    """Which addresses may reach the API server, such as `access: {api: [203.0.113.7/32]}`."""
    kms_key: Annotated[
        Annotated[str, Meta(pattern=KMS_KEY)] | None,
        Meta(examples=["arn:aws:kms:us-west-2:123456789012:key/0123abcd-01ab-23cd-45ef-0123456789ab"]),
    ] = None
    """ARN of the KMS key for the file system and Kubernetes' secrets. Left out: AWS's own keys, free of charge."""
    dns_zone: Annotated[Annotated[str, Meta(pattern=DNS_NAME, max_length=253)] | None, Meta(examples=["paddle"])] = None
    """Name of a private DNS zone in the VPC, with the file system as `efs.NAME`. Left out: none."""
    bucket: Annotated[Annotated[str, Meta(pattern=BUCKET)] | None, Meta(examples=["my-training-data"])] = None
    """Name of an existing S3 bucket that jobs may read `s3://` data from."""
    tags: Annotated[dict[TagKey, TagValue], Meta(max_length=MAX_TAGS, examples=[{"project": "reviews"}])] = {}
    """More tags on everything that can have tags."""
