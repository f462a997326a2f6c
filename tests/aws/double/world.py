"""The account: clock, faults, regions, what exists in them, and the one way in for API calls.

Nothing runs in the background. `World.handle` first performs everything that was due by now, in order of time, then
answers the call. A lock makes calls one at a time, so handlers need none of their own.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.aws.double import policy, wire
from tests.aws.double.model import (
    CLASSIC_LB,
    CLUSTER,
    ENI,
    KINDS,
    NETWORK_LB,
    OPERATIONS,
    SECURITY_GROUP,
    SUBNET,
    VOLUME,
    ApiError,
    Call,
    Region,
    Thing,
)

DEFAULT_QUOTAS = {
    "L-1216C47A": 64.0,  # vCPUs, on demand, standard families
    "L-34B43A08": 64.0,  # vCPUs, spot, standard families
    "L-0263D0A3": 5.0,  # elastic addresses
    "L-F678F1CE": 5.0,  # VPCs
    "L-1194D53C": 100.0,  # EKS clusters
}
_THROTTLES = {
    "ec2": ApiError("RequestLimitExceeded", "Request limit exceeded.", 503),
    "query": ApiError("Throttling", "Rate exceeded", 400),
    "rest-xml": ApiError("Throttling", "Rate exceeded", 400),
    "rest-json": ApiError("ThrottlingException", "Rate exceeded", 429),
}
_EXPIRED = {
    "ec2": ApiError("RequestExpired", "Request has expired.", 400),
    "query": ApiError("ExpiredToken", "The security token included in the request is expired", 403),
    "rest-xml": ApiError("ExpiredToken", "The security token included in the request is expired", 403),
    "rest-json": ApiError("ExpiredTokenException", "The security token included in the request is expired", 403),
}


class Clock(Protocol):
    def now(self) -> float: ...
    def advance(self, seconds: float) -> None: ...
    def sleep(self, seconds: float) -> None: ...


class VirtualClock:
    """Moves only when a test says so. `sleep` is what a test gives to the code that waits."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    sleep = advance


class ScaledClock:
    """Real time, `rate` times as fast; for runs of a real command line."""

    def __init__(self, rate: float = 60.0) -> None:
        self._rate, self._start, self._skipped = rate, time.time(), 0.0

    def now(self) -> float:
        return self._start + (time.time() - self._start) * self._rate + self._skipped

    def advance(self, seconds: float) -> None:
        self._skipped += seconds

    sleep = advance


@dataclass
class Faults:
    """What goes wrong. All off at first.

    fail_create, fail_update, fail_delete: by logical id or resource type: (code, message), which happens once, or
    (code, message, "always").
    """

    fail_create: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fail_update: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fail_delete: dict[str, tuple[str, ...]] = field(default_factory=dict)
    throttle: float = 0.0
    server_error: float = 0.0
    stale_reads_s: float = 0.0
    tagging_lag_s: float = 0.0
    expire_credentials_at: float | None = None
    denied: set[str] = field(default_factory=set)
    quotas: dict[str, float] = field(default_factory=dict)
    stray_enis: int = 0
    unsupported_zones: set[str] = field(default_factory=set)
    not_offered: set[tuple[str, str]] = field(default_factory=set)  # (instance type, zone)

    def take(self, table: str, logical_id: str, type_: str) -> ApiError | None:
        """The planned failure of a resource, forgotten unless it is for always."""
        faults: dict[str, tuple[str, ...]] = getattr(self, table)
        key = logical_id if logical_id in faults else type_
        if key not in faults:
            return None
        code, message, *more = faults[key]
        if "always" not in more:
            del faults[key]
        return ApiError(code, message)


class World:
    account: str

    def __init__(
        self, region: str = "us-west-2", account: str = "123456789012", seed: int = 0, clock: Clock | None = None
    ) -> None:
        self.home, self.account, self.seed = region, account, seed
        self.clock: Clock = clock or VirtualClock()
        self.faults = Faults()
        self.regions: dict[str, Region] = {}
        self.calls: list[tuple[str, str, str, float]] = []
        self.contract_violations: list[str] = []
        self.foreign_deleted: list[Thing] = []
        self.policies: dict[str, list[dict[str, Any]]] = {}
        self.principals: dict[str, str] = {}  # access key -> ARN
        self.kubernetes: tuple[str, str] | None = None
        self.authorized: set[str] = set()
        """Every IAM action that was asked for."""
        self.event_page = 100
        """Events in one answer; tests that poll much have fewer, as parsing them is most of their time."""
        self.registry = f"{account}.dkr.ecr.{region}.amazonaws.com"
        # (version, status); the last in standard support is the default
        self.eks_versions = {"1.31": "EXTENDED_SUPPORT", "1.32": "EXTENDED_SUPPORT"} | dict.fromkeys(
            ("1.33", "1.34", "1.35"), "STANDARD_SUPPORT"
        )
        self._random = random.Random(seed)
        self._ids = random.Random(f"ids {seed}")
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._octets = itertools.count(), itertools.count()
        self._event_time: float | None = None
        self._lock = threading.RLock()
        self.region(region)

    # --- time -------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Now, or the time of the event that is being performed late."""
        return self.clock.now() if self._event_time is None else self._event_time

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now() + seconds, next(self._order), action))

    def settle(self) -> None:
        """Perform what was due by now. Events that these cause are performed too when they are due."""
        with self._lock:
            while self._due and self._due[0][0] <= self.clock.now():
                self._event_time, _, action = heapq.heappop(self._due)
                try:
                    action()
                finally:
                    self._event_time = None

    def run_until_idle(self, limit_s: float = 7200) -> None:
        """Advance a virtual clock until nothing is under way."""
        end = self.clock.now() + limit_s
        self.settle()
        while self._due and self._due[0][0] <= end:
            self.clock.advance(max(0.0, self._due[0][0] - self.clock.now()))
            self.settle()

    def jitter(self, name: str) -> float:
        """A factor around 1 that depends only on the seed and the name, so one resource does not shift another."""
        return random.Random(f"{self.seed} {name}").uniform(0.8, 1.3)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-0{self._ids.getrandbits(64):016x}"

    def next_octet(self) -> int:
        return 10 + next(self._octets) % 240

    def new_uuid(self) -> str:
        return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))

    # --- what exists ------------------------------------------------------------------------------------------------

    def region(self, name: str) -> Region:
        return self.regions.setdefault(name, Region(self, name))

    def quota(self, code: str) -> float:
        return self.faults.quotas.get(code, DEFAULT_QUOTAS[code])

    def inventory(self) -> list[Thing]:
        """Everything that exists in every region, by type and id. Stacks are not things."""
        with self._lock:
            self.settle()
            every = [t for r in self.regions.values() for t in r.things.values()]
        return sorted(every, key=lambda t: (t.type, t.id))

    def plant(
        self,
        type_: str,
        tags: dict[str, str] | None = None,
        *,
        region: str = "",
        id: str = "",  # noqa: A002 - what it is called everywhere else
        **props: Any,
    ) -> Any:
        """Make a foreign thing and return it. A stack: plant("AWS::CloudFormation::Stack", name=..., status=...)."""
        where = self.region(region or self.home)
        if type_ == "AWS::CloudFormation::Stack":
            from tests.aws.double.stacks import plant_stack

            return plant_stack(where, tags or {}, **props)
        if type_ == ENI:
            props = {"Status": "available", "Groups": [], "Description": ""} | props
        if type_ == SECURITY_GROUP:
            props = {"GroupName": "planted", "Rules": []} | props
        if type_ == CLUSTER:
            made = {"ResourcesVpcConfig": {"SubnetIds": []}, "Version": "1.34", "RoleArn": "", "Hash": "0"}
            props = made | {"ClusterSecurityGroupId": "sg-0", "VpcId": "vpc-0"} | props
        kind = KINDS[type_]
        name = id or props.get(kind.name, "") or (kind.identify(self, props) if kind.identify else "")
        thing = Thing(type_, name or self.new_id(kind.prefix), "", props, dict(tags or {}), "planted", self.now())
        return where.add(thing)

    def make_load_balancer(self, cluster: str, vpc_id: str, *, classic: bool = False, region: str = "") -> Thing:
        """What a Service of type LoadBalancer leaves: the balancer, its interfaces, and a security group that a rule
        of the cluster's own group refers to."""
        where, by = self.region(region or self.home), f"kubernetes {cluster}"
        owned = {f"kubernetes.io/cluster/{cluster}": "owned"}
        name = f"k8s-{self._ids.getrandbits(40):010x}"
        subnets = [s.id for s in where.of(SUBNET, VpcId=vpc_id)][:2]
        group = where.make(
            SECURITY_GROUP, by, owned, GroupName=f"k8s-elb-{name}", VpcId=vpc_id, Rules=[], GroupDescription="k8s"
        )
        tags = owned | {"service.k8s.aws/stack": "default/web", "elbv2.k8s.aws/cluster": cluster}
        kind = CLASSIC_LB if classic else NETWORK_LB
        balancer = Thing(kind, name, where.name, {}, owned if classic else tags, by, self.now())
        if not classic:
            balancer.id = f"net/{name}/{self._ids.getrandbits(64):016x}"
        balancer.props = {"Name": name, "VpcId": vpc_id, "Subnets": subnets, "SecurityGroups": [group.id]}
        description = f"ELB {name if classic else balancer.id}"
        for subnet in subnets:
            where.make(
                ENI, f"service {balancer.id}", SubnetId=subnet, VpcId=vpc_id, Groups=[group.id], Status="in-use",
                Description=description, RequesterManaged=True, Owner=balancer.id, PublicIp="203.0.113.7",
            )  # fmt: skip
        thing = where.get(CLUSTER, cluster)
        own = where.get(SECURITY_GROUP, thing.props.get("ClusterSecurityGroupId", "")) if thing else None
        if own:
            rule = {"IpProtocol": "tcp", "FromPort": 30000, "ToPort": 32767, "SourceSecurityGroupId": group.id}
            own.props["Rules"].append(rule | {"Id": self.new_id("sgr")})
        return where.add(balancer)

    def make_volume(self, cluster: str, *, region: str = "") -> Thing:
        """The EBS volume of a PersistentVolumeClaim that was not deleted."""
        where = self.region(region or self.home)
        tags = {f"kubernetes.io/cluster/{cluster}": "owned", "kubernetes.io/created-for/pvc/name": "data-0"}
        return where.make(VOLUME, f"kubernetes {cluster}", tags, Size=20, State="available", Zone=where.zones[0])

    def renew_credentials(self) -> None:
        self.faults.expire_credentials_at = None

    # --- calls ------------------------------------------------------------------------------------------------------

    def handle(self, request: wire.Request) -> wire.Response:
        """Answer one request. Refusals are answers; an exception is a fault of the double."""
        with self._lock:
            try:
                decoded = wire.decode(request)
            except ApiError as e:
                self.contract_violations.append(f"{request.method} {request.url}: {e}")
                protocol = "json" if "x-amz-target" in request.headers else "query"
                return wire.encode_error(protocol, e, self.new_uuid())
            self.settle()
            try:
                result = self._perform(decoded)
            except ApiError as e:
                return wire.encode_error(decoded.protocol, e, self.new_uuid())
            return wire.encode(decoded, result, self.new_uuid())

    def _perform(self, decoded: wire.Decoded) -> dict[str, Any] | None:
        service, name, protocol = decoded.service, decoded.operation.name, decoded.protocol
        principal = self.principals.get(decoded.access_key, f"arn:aws:iam::{self.account}:user/tester")
        self.calls.append((service, name, principal, self.now()))
        expires = self.faults.expire_credentials_at
        if expires is not None and self.now() >= expires:
            raise _EXPIRED.get(protocol, ApiError("ExpiredTokenException", _EXPIRED["query"].message))
        if self.chance(self.faults.throttle):
            raise _THROTTLES.get(protocol, ApiError("ThrottlingException", "Rate exceeded"))
        if decoded.violations:
            self.contract_violations += [f"{service}:{name}: {v}" for v in decoded.violations]
            raise ApiError("ValidationError", "; ".join(decoded.violations))
        is_global = service in ("iam", "route53")
        call = Call(
            self, self.region(self.home if is_global else decoded.region), service, name, decoded.params, principal
        )
        policy.authorize(self, principal, policy.action_of(service, name), request_context(call))
        if decoded.params.get("DryRun"):
            raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        function = OPERATIONS.get((service, name))
        if function is None:
            self.contract_violations.append(f"{service}:{name} is not modelled by the double")
            raise ApiError("NotModelled", f"the AWS double does not model {service}:{name}", 501)
        fails, before = self.chance(self.faults.server_error), self.chance(0.5)
        failure = ApiError("InternalFailure", "We encountered an internal error. Please try again.", 500)
        if fails and before:
            raise failure
        result = function(call)
        if fails:
            raise failure
        return result


def request_context(call: Call) -> policy.Context:
    """What policies can see of a direct call: the ARN where it is easy to derive, and tags in the request."""
    params, world = call.params, call.world
    context = policy.Context(keys={"aws:RequestedRegion": call.region.name})
    base = f"{call.region.name}:{world.account}"
    name = params.get("StackName")
    if call.service == "cloudformation" and name:
        stack = next((s for s in reversed(call.region.stacks) if name in (s.name, s.id)), None)
        context.arn = (
            stack.id if stack else name if name.startswith("arn:") else f"arn:aws:cloudformation:{base}:stack/{name}/*"
        )
        context.resource_tags = dict(stack.tags) if stack else {}
    elif call.service == "eks":
        name = params.get("clusterName") or (params.get("name") if call.operation == "DescribeCluster" else None)
        context.arn = f"arn:aws:eks:{base}:cluster/{name}" if name else None
    elif call.service == "ec2":
        context = _ec2_context(call, context)
    elif call.service == "iam" and "RoleName" in params:
        context.arn = f"arn:aws:iam::{world.account}:role/{params['RoleName']}"
    if params.get("RoleARN"):
        context.keys["cloudformation:RoleArn"] = params["RoleARN"]
    tags = params.get("Tags")
    if isinstance(tags, list):
        context.request_tags = {t["Key"]: t["Value"] for t in tags}
    return context


def _ec2_context(call: Call, context: policy.Context) -> policy.Context:
    """The ARN and tags of what an EC2 call deletes or changes."""
    targets = {"NetworkInterfaceId": ENI, "GroupId": SECURITY_GROUP, "VolumeId": VOLUME}
    for key, type_ in targets.items():
        thing = call.region.get(type_, call.params.get(key, ""))
        if thing:
            context.arn, context.resource_tags = thing.arn(call.world.account), dict(thing.tags)
    return context


def load_faults(world: World, text: str) -> None:
    """Set faults from JSON, for the command line."""
    for key, value in json.loads(text).items():
        current = getattr(world.faults, key)
        setattr(world.faults, key, set(value) if isinstance(current, set) else value)
