"""What the double is made of: things, regions, kinds of resources, and the registry of operations.

A `Thing` is something that exists in the account and may cost money. A `Kind` says how CloudFormation makes,
changes and removes one type of thing. Both are found by CloudFormation's type name, also for types that are only
made by other services (network interfaces, instances).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.aws.double.stacks import Stack
    from tests.aws.double.world import World

GLOBAL = "global"  # the region of IAM and Route 53
_GLOBAL_PREFIXES = ("AWS::IAM::", "AWS::Route53::")

ENI = "AWS::EC2::NetworkInterface"
VPC = "AWS::EC2::VPC"
SUBNET = "AWS::EC2::Subnet"
SECURITY_GROUP = "AWS::EC2::SecurityGroup"
INSTANCE = "AWS::EC2::Instance"
VOLUME = "AWS::EC2::Volume"
NETWORK_LB = "AWS::ElasticLoadBalancingV2::LoadBalancer"
CLASSIC_LB = "AWS::ElasticLoadBalancing::LoadBalancer"
CLUSTER = "AWS::EKS::Cluster"
NODEGROUP = "AWS::EKS::Nodegroup"
ADDON = "AWS::EKS::Addon"
ROLE = "AWS::IAM::Role"
LOG_GROUP = "AWS::Logs::LogGroup"


class ApiError(Exception):
    """An answer that is an error, with AWS's code and text."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


@dataclass
class Thing:
    """Something that exists. `props` are its template properties plus what the service adds at run time."""

    type: str
    id: str
    region: str
    props: dict[str, Any]
    tags: dict[str, str]
    made_by: str  # "stack <name>", "planted", "kubernetes <cluster>", or "service <id>"
    created: float
    state: str = "available"  # or "creating", "deleting"

    def arn(self, account: str) -> str:
        parts = {"cluster": self.props.get("ClusterName", ""), "path": self.props.get("Path", "/")}
        return KINDS[self.type].arn.format(region=self.region, account=account, id=self.id, **parts)


@dataclass
class Region:
    """One region's things and stacks. Global things are looked up in the global region by every region."""

    world: World
    name: str
    things: dict[tuple[str, str], Thing] = field(default_factory=dict)
    gone: list[tuple[float, Thing]] = field(default_factory=list)  # for answers that lag
    stacks: list[Stack] = field(default_factory=list)

    def home(self, type_: str) -> Region:
        return self.world.region(GLOBAL) if type_.startswith(_GLOBAL_PREFIXES) else self

    @property
    def zones(self) -> list[str]:
        letters = {"us-east-1": "abcdef", "us-west-2": "abcd", "us-west-1": "ac"}.get(self.name, "abc")
        return [self.name + letter for letter in letters]

    def of(self, type_: str, **equal: Any) -> list[Thing]:
        """Things of a type whose properties equal the given ones."""
        every = [t for t in self.home(type_).things.values() if t.type == type_]
        return [t for t in every if all(t.props.get(k) == v for k, v in equal.items())]

    def get(self, type_: str, id_: Any) -> Thing | None:
        return self.home(type_).things.get((type_, id_))

    def add(self, thing: Thing) -> Thing:
        home = self.home(thing.type)
        thing.region = home.name
        home.things[(thing.type, thing.id)] = thing
        return thing

    def make(self, type_: str, made_by: str, tags: dict[str, str] | None = None, **props: Any) -> Thing:
        """Make a thing at once, without a stack."""
        prefix = KINDS[type_].prefix if type_ in KINDS else "x"
        thing = Thing(type_, self.world.new_id(prefix), self.name, props, dict(tags or {}), made_by, self.world.now())
        return self.add(thing)

    def remove(self, thing: Thing) -> None:
        home = self.home(thing.type)
        if home.things.pop((thing.type, thing.id), None) is None:
            return
        home.gone.append((self.world.now(), thing))
        if thing.made_by == "planted":
            self.world.foreign_deleted.append(thing)

    def interfaces(self, subnet: str = "", group: str = "", vpc: str = "") -> list[Thing]:
        """Network interfaces in a subnet, with a security group, or in a VPC."""
        found = self.of(ENI)
        if subnet:
            found = [e for e in found if e.props.get("SubnetId") == subnet]
        if group:
            found = [e for e in found if group in e.props.get("Groups", [])]
        return [e for e in found if not vpc or e.props.get("VpcId") == vpc]


Hook = Callable[[Region, Thing], Any]


def _nothing(region: Region, thing: Thing) -> None:
    return None


@dataclass(frozen=True)
class Kind:
    """How one resource type is made and removed; the table of them is the double's knowledge of AWS.

    start: checks, raising ApiError, and side effects when creation begins.  done: side effects when it is complete.
    ready: None, or the ApiError with which the creation fails if it stays not None for `patience_s`.
    blocked: the ApiError that refuses deletion, or None.  removed: side effects of deletion.
    change: checks of an update: (region, thing, new properties).
    """

    type: str
    create_s: float = 5
    delete_s: float = 5
    prefix: str = "x"
    arn: str = "arn:aws:unknown:{region}:{account}:{id}"
    create: tuple[str, ...] = ()
    update: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    create_only: frozenset[str] = frozenset()
    name: str = ""  # the property that becomes the physical id; made up from stack and logical id when absent
    identify: Callable[[World, dict[str, Any]], str] | None = None
    attributes: dict[str, Hook] = field(default_factory=dict)
    start: Hook = _nothing
    done: Hook = _nothing
    ready: Hook = _nothing
    patience_s: float = 1200
    blocked: Hook = _nothing
    removed: Hook = _nothing
    change: Callable[[Region, Thing, dict[str, Any]], None] | None = None
    taggable: bool = True
    exists: tuple[str, str] = ("", "")  # error of a second thing with the same name
    in_templates: bool = True


KINDS: dict[str, Kind] = {}


def kind(type_: str, *, create: str = "", update: str = "", delete: str = "", only: str = "", **more: Any) -> None:
    """Put a resource type into the table; actions and create-only properties are words in a string."""
    KINDS[type_] = Kind(
        type=type_,
        create=tuple(create.split()),
        update=tuple((update or create).split()),
        delete=tuple(delete.split()),
        create_only=frozenset(only.split()),
        **more,
    )


@dataclass
class Call:
    """One API call after decoding."""

    world: World
    region: Region
    service: str
    operation: str
    params: dict[str, Any]
    principal: str


Operation = Callable[[Call], "dict[str, Any] | None"]
OPERATIONS: dict[tuple[str, str], Operation] = {}


def operation(service: str, *names: str) -> Callable[[Operation], Operation]:
    """Register a function as the answer to operations of a service."""

    def register(function: Operation) -> Operation:
        for name in names:
            OPERATIONS[(service, name)] = function
        return function

    return register


def tags_of(props: dict[str, Any]) -> dict[str, str]:
    """The tags in a resource's properties: a list of pairs or a map, under the four names that types use."""
    found: dict[str, str] = {}
    for key in ("Tags", "FileSystemTags", "AccessPointTags", "HostedZoneTags"):
        value = props.get(key) or {}
        found |= value if isinstance(value, dict) else {t["Key"]: t["Value"] for t in value}
    return found


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": k, "Value": v} for k, v in sorted(tags.items())]


def page(items: Iterable[Any], token: str | None, size: int) -> tuple[list[Any], str | None]:
    """One page of a listing; the token is the offset, in clear."""
    every = list(items)
    if token is not None and not token.isdigit():
        raise ApiError("ValidationError", "The specified NextToken is not valid")
    start = int(token or 0)
    end = start + size
    return every[start:end], str(end) if end < len(every) else None
