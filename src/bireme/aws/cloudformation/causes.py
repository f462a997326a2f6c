"""The meaning of AWS' refusals and a fix for each: one table, from a code or a text to a sentence. No I/O.

The same text arrives in two ways: as the code of a refused call, and inside the reason of a stack's event
(`Resource handler returned message: "…" (Service: Ec2, Status Code: 400 …)`). A row matches both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bireme.core.errors import BiremeError, CloudError


class AwsError(Exception):
    """A call that AWS refused, with its own code and text. Decisions use the code; users see `explain`."""

    def __init__(self, call: str, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(f"{call}: {code}: {message}")
        self.call, self.code, self.message = call, code, message
        self.is_passing = is_passing
        """Whether the same call may work in a moment."""

    @property
    def is_absent(self) -> bool:
        """Whether the requested resource does not exist."""
        if self.code in ("ProfileNotFound", "ConfigNotFound"):
            return False  # raised by boto3 for this machine's configuration: no request was sent
        return bool(_ABSENT.search(self.code)) or "does not exist" in self.message


_ABSENT = re.compile(r"NotFound|NoSuch|NotExist|Absent", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """One kind of failure at AWS: how to recognise it, what it means, how to fix it."""

    name: str
    pattern: str
    """A regular expression over `CODE: text`."""
    what: str
    """What it means; `{0}`, `{1}` are the pattern's groups."""
    fix: str


QUOTA = "ask for more at https://console.aws.amazon.com/servicequotas, or choose fewer machines or smaller types"
LOGIN = "log in again (`aws sso login`, new keys, …) and run the same command: it continues where this one stopped"
GRANT = (
    "attach what `bireme cluster policy` prints, and where there is no role bireme-cloudformation also what "
    "`bireme cluster policy --execution` prints (`--template` has both, for an administrator); then run the same "
    "command again"
)
CAUSES: tuple[Failure, ...] = (
    Failure("no credentials", r"^NoCredentials|Unable to locate credentials",
          "there are no AWS credentials here",
          "log in as you do for other AWS tools: AWS_PROFILE, `aws sso login`, or AWS_ACCESS_KEY_ID"),
    Failure("no such profile", r"^ProfileNotFound|config profile \((.+?)\) could not be found",
          "AWS_PROFILE names a profile that ~/.aws/config does not have",
          "correct AWS_PROFILE, or run `aws configure sso`"),
    Failure("expired credentials", r"^(ExpiredToken|RequestExpired|TokenRefreshRequired)|security token .* expired|"
          r"Request has expired",
          "the AWS credentials have expired; what AWS has begun continues there", LOGIN),
    Failure("wrong keys", r"InvalidClientTokenId|UnrecognizedClientException|InvalidAccessKeyId",
          "AWS does not know this access key",
          "check AWS_ACCESS_KEY_ID and AWS_PROFILE; `aws sts get-caller-identity` must answer"),
    Failure("wrong secret", r"SignatureDoesNotMatch|IncompleteSignature",
          "the secret key does not belong to the access key, or this machine's clock is off",
          "check AWS_SECRET_ACCESS_KEY and the clock"),
    Failure("region not enabled", r"OptInRequired|region .* is (?:not enabled|disabled)|AuthFailure",
          "this account may not use the region",
          "enable the region in the account's settings, or choose another `region`"),
    Failure("explicit deny", r"not authorized to perform: (\S+).*explicit deny",
          "a policy denies the action {0} outright",
          "ask the account's administrator: a service control policy or permissions boundary forbids it"),
    Failure("pass role", r"not authorized to perform: (iam:PassRole)",
          "the permission iam:PassRole is missing: CloudFormation may not be given its role",
          "attach the policy that `bireme cluster policy` prints"),
    Failure("denied", r"not authorized to perform: ([a-z0-9-]+:\w+)",
          "the permission {0} is missing", GRANT),
    Failure("denied without a name", r"AccessDenied|UnauthorizedOperation|AuthorizationError",
          "AWS refuses this action", GRANT),
    Failure("vCPU quota", r"VcpuLimitExceeded|vCPU capacity|VCPU limit|Max ?Spot ?Instance ?Count ?Exceeded",
          "the account's quota of vCPUs is used up", QUOTA),
    Failure("address quota", r"AddressLimitExceeded|maximum number of addresses",
          "the account's quota of elastic addresses in this region is used up",
          "release one, set `network.egress: public`, or ask for more at https://console.aws.amazon.com/servicequotas"),
    Failure("VPC quota", r"VpcLimitExceeded|maximum number of VPCs",
          "the account's quota of VPCs in this region is used up",
          "delete one, name an existing one with `network.vpc`, or ask for more VPCs per Region"),
    Failure("gateway quota", r"InternetGatewayLimitExceeded|NatGatewayLimitExceeded|maximum number of (?:internet|NAT)",
          "the account's quota of gateways in this region is used up",
          "delete one, or ask for more at https://console.aws.amazon.com/servicequotas"),
    Failure("cluster quota", r"(?:Cluster limit exceeded|ResourceLimitExceeded.*[Cc]luster|L-1194D53C)",
          "the account's quota of EKS clusters in this region is used up",
          "delete one, or choose another `region`"),
    Failure("role quota", r"Cannot exceed quota for (RolesPerAccount|PoliciesPerRole)|LimitExceeded.*[Rr]ole",
          "the account's quota of IAM roles is used up", "delete unused roles, or ask for more"),
    Failure("node group quota", r"[Nn]odegroups? limit exceeded|NodegroupsPerCluster",
          "the cluster has as many node groups as EKS allows", "delete one of them"),
    Failure("zone not supported", r"UnsupportedAvailabilityZoneException|does not currently have sufficient capacity",
          "EKS has no capacity in one of the zones",
          "name two others with `zones: […]` in cluster.yaml; AWS' text names those that work"),
    Failure("type not in zone", r"instance type .* is not supported in your requested Availability Zone|"
          r"Unsupported: .*requested configuration is currently not supported",
          "the zone does not offer this instance type",
          "name other `types`, or another first zone in `zones`; `bireme cluster plan` shows which fit"),
    Failure("bad type", r"Invalid ?Instance ?Type|instance types? .* (?:is|are) (?:not valid|invalid)|"
          r"instance types do not exist|InvalidParameterValue.*instance ?[tT]ype",
          "EC2 does not know one of the instance types", "correct `types` in cluster.yaml"),
    Failure("no capacity", r"InsufficientInstanceCapacity|UnfulfillableCapacity|no Spot capacity|insufficient capacity|"
          r"AsgInstanceLaunchFailures",
          "AWS has no free machine of these types in the zone now",
          "wait, add more `types`, or set `capacity: on_demand`; then run the same command again"),
    Failure("nodes did not join", r"NodeCreationFailure|failed to join the (?:kubernetes )?cluster",
          "the machines started but did not reach the control plane",
          "in a VPC of your own, its subnets need a way to EKS, EC2, ECR and S3 (NAT or endpoints)"),
    Failure("add-on degraded", r"Addon.*(?:DEGRADED|CREATE_FAILED)|InsufficientNumberOfReplicas|"
          r"ADDON_.*FAILED|have the desired number of replicas",
          "an add-on did not become active, because no machine could run it",
          "look at `bireme cluster status`; at least one worker must be Ready"),
    Failure("add-on unknown", r"Addon .* (?:not supported|specified is not supported)|AddonName.*not (?:found|valid)",
          "EKS has no such add-on for this Kubernetes version", "choose a `kubernetes` version that is in support"),
    Failure("bad version", r"unsupported Kubernetes version|Kubernetes version .* (?:not supported|is unavailable)",
          "EKS does not offer this Kubernetes version",
          "choose another `kubernetes:`; `bireme cluster plan` lists those in support"),
    Failure("role cannot be assumed", r"(?:[Rr]ole .* (?:could not|cannot) be assumed|RoleArn .* can ?not be assumed)",
          "a role that was just made is not known everywhere yet",
          "run the same command again in a minute"),
    Failure("mount target conflict", r"MountTargetConflict|mount target already exists in this AZ",
          "the file system has a mount target in this zone already",
          "it can be mounted from one VPC only: delete its mount targets, or leave `storage.file_system` out"),
    Failure("taken by another", r"AlreadyExists|EntityAlreadyExists|already exists|already in use on this cluster",
          "something of that name exists already, made by other means",
          "choose another `name`, or delete it if it is a leftover of yours"),
    Failure("bad file system", r"FileSystemNotFound|File ?[Ss]ystem .* does not exist",
          "there is no such file system in this region", "correct `storage.file_system`, or leave it out"),
    Failure("file system in use", r"FileSystemInUse|has mount targets",
          "the file system is still mounted somewhere", "delete the cluster that uses it first"),
    Failure("bad key", r"KMS.*(?:NotFound|Disabled|invalid|does not exist)|KMSInvalidState|KmsKeyNotFound|"
          r"NotFoundException: Key",
          "the KMS key does not exist here, or is disabled", "correct `kms_key`, or leave it out"),
    Failure("bad key pair", r"InvalidKeyPair|key pair '?([\w.-]*)'? does not exist",
          "there is no such EC2 key pair in this region", "correct `workers.key_pair`, or leave it out"),
    Failure("bad VPC", r"InvalidVpcI[dD]|InvalidSubnetI[dD]|[Vv]pc ID .* does not exist|[Ss]ubnet ID .* does not exist",
          "there is no such VPC or subnet in this region", "correct `network.vpc` and `network.subnets`"),
    Failure("range conflict", r"InvalidSubnet\.(?:Range|Conflict)|CIDR .* (?:conflicts|is invalid)|InvalidVpc\.Range",
          "an address range is invalid or in use", "correct `network.cidr`"),
    Failure("two zones", r"[Ss]ubnets specified must be in at least two different AZs",
          "the subnets of the control plane are in one zone", "name subnets in two zones"),
    Failure("still in use", r"DependencyViolation|has a dependent object|has dependencies|DeleteConflict|"
          r"is (?:currently )?in use|Cannot delete (?:entity|a policy)|mapped public address",
          "something that bireme did not make still uses it",
          "`bireme cluster down` lists what is left; delete what is yours, then run it again"),
    Failure("bucket or repository not empty", r"BucketNotEmpty|RepositoryNotEmpty|still contains images|"
          r"bucket .* is not empty",
          "it still holds something", "empty it, then run the same command again"),
    Failure("protected", r"TerminationProtection is enabled|termination protection",
          "the stack is protected against deletion",
          "data goes only with `bireme cluster down --delete-data NAME`"),
    Failure("capabilities", r"InsufficientCapabilities|Requires capabilities",
          "CloudFormation lacks the capability to make roles", "this is a bug of bireme: please report it"),
    Failure("template too large", r"at '?templateBody'? failed|51,?200",
          "the template is larger than CloudFormation takes",
          "use fewer `tags` and `labels`"),
    Failure("stack is moving", r"is in (\S+_IN_PROGRESS) state and can ?not",
          "CloudFormation is at work on the stack ({0})",
          "wait, or run `bireme cluster status`; the same command continues from there"),
    Failure("roll-back failed", r"UPDATE_ROLLBACK_FAILED",
          "CloudFormation could not undo a change", "run `bireme cluster up` again: it continues the roll-back"),
    Failure("stack state", r"is in (\S+) state and can ?not|InvalidChangeSetStatus|cannot be executed in its current|"
          r"cannot be (?:deleted|called|performed) .*status (\S*)",
          "CloudFormation does not do this in the stack's present state",
          "look at `bireme cluster status`; the same command continues from there"),
    Failure("node groups left", r"has nodegroups attached",
          "the control plane still has machines",
          "delete node groups that were made by other means, then run `bireme cluster down` again"),
    Failure("cluster busy", r"is not in ACTIVE status",
          "the control plane is being made or changed",
          "wait until `bireme cluster status` calls it ACTIVE, then run the same command again"),
    Failure("volume attached", r"VolumeInUse|currently attached to an instance",
          "a volume is still attached to a machine", "run the same command again in some minutes"),
    Failure("DNS zone not empty", r"HostedZoneNotEmpty|non-required resource record sets",
          "the private DNS zone holds records that we did not make",
          "delete them in Route 53, then run the same command again"),
    Failure("request not signed", r"MissingAuthenticationToken|missing Authentication Token",
          "requests reach AWS without their signature", "check the proxy and AWS_ENDPOINT_URL"),
    Failure("no gateway", r"Gateway\.NotAttached|no Internet gateway attached|belong to different networks",
          "the network lost its internet gateway while it was being made", "run the same command again"),
    Failure("bad zone", r"parameter availabilityZone is invalid",
          "this account has no such availability zone",
          "correct `zones` in cluster.yaml; `bireme cluster plan` names those on offer"),
    Failure("version jump", r"Unsupported Kubernetes minor version update",
          "a cluster goes up by one version of Kubernetes at a time, and never back",
          "set `kubernetes` to the next version and run `bireme cluster up`, once for each version"),
    Failure("reserved tag", r"prefixed tag key|[Tt]ag key.*reserved",
          "a tag's key is reserved", "choose another key under `tags`"),
    Failure("reserved label", r"[Ll]abel.*(?:reserved|not allowed|prohibited)",
          "a node label is reserved", "choose another name under `workers.labels`"),
    Failure("account not ready", r"PendingVerification|SubscriptionRequired|account is currently blocked|NotSignedUp",
          "AWS has not verified the account yet", "wait for AWS' mail, or ask AWS Support"),
    Failure("throttled", r"Throttl|Request ?[Ll]imit ?[Ee]xceeded|Rate exceeded|TooManyRequests",
          "AWS asks us to call less often, also after many tries", "run the same command again in a minute"),
    Failure("AWS is down", r"InternalFailure|[Ii]nternal ?[Ee]rror|InternalServerError|ServiceUnavailable|"
          r"ServerException",
          "AWS itself had an error, also after many tries",
          "look at https://health.aws.amazon.com, and run the same command again later"),
    Failure("endpoint", r"EndpointResolution|UnknownRegion|InvalidRegion|Could not resolve",
          "this region does not answer, and boto3 does not know it", "correct `region`, or update boto3 if it is new"),
    Failure("no connection", r"^Connection|EndpointConnectionError|Could not connect",
          "AWS cannot be reached from here", "check the network, the proxy and AWS_ENDPOINT_URL"),
    Failure("invalid name", r"(stackName|clusterName)\W* failed to satisfy|"
          r"failed to satisfy constraint.*(stackName|clusterName)",
          "AWS refuses the name", "use lower-case letters, digits and dashes, a letter first"),
    Failure("timed out at AWS", r"NotStabilized|did not stabilize|timed out waiting",
          "AWS did not finish one resource in its own time", "run the same command again"),
    Failure("cancelled", r"[Rr]esource (?:creation|update) [Cc]ancelled",
          "stopped because another resource failed", "look at that resource"),
    Failure("bad template", r"[Tt]emplate (?:format )?error|Unresolved resource dependenc|Circular dependency|"
          r"[Ii]nvalid template|Template URL or Template Body|Parameters?:? .*(?:must|do not exist|failed to satisfy)",
          "CloudFormation does not accept the template", "this is a bug of bireme: please report it"),
    Failure("gone", r"does not exist|(?:was not|cannot be|could not be) found|No (?:cluster|node group) found",
          "something that this needs does not exist, or no longer",
          "look at `bireme cluster status`, then run `bireme cluster up`, which makes what is missing"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explained:
    """A refusal in one sentence, with advice."""

    name: str
    what: str
    fix: str


def explain(text: str) -> Explained | None:
    """Explain a refusal by the first cause that matches; None for an unknown text."""
    for cause in CAUSES:
        if match := re.search(cause.pattern, text, re.DOTALL):
            groups = [group or "" for group in match.groups()]
            return Explained(cause.name, cause.what.format(*groups, "", ""), cause.fix)
    return None


def to_error(error: AwsError, doing: str) -> BiremeError:
    """A refused call as an error for users."""
    known = explain(f"{error.code}: {error.message}")
    detail = f"AWS says ({error.call}): {error.code}: {_short(error.message)}"
    if known is None:
        return CloudError(f"cannot {doing}: {detail}", fix="run the same command again; it continues with what exists")
    return CloudError(f"cannot {doing}: {known.what}", why=detail, fix=known.fix)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a stack or to one of its resources."""

    id: str
    resource: str
    """Its name in the template."""
    kind: str
    status: str
    reason: str = ""
    time: float = 0.0


def root_cause(events: Iterable[Event]) -> Event | None:
    """The first failure of a stack's last operation that is not the echo of another; events come oldest first."""
    failed = [event for event in events if event.status.endswith("_FAILED") and event.reason and not _is_echo(event)]
    return failed[0] if failed else None


def _is_echo(event: Event) -> bool:
    is_stack = event.kind == "AWS::CloudFormation::Stack"
    return is_stack or bool(re.search(r"[Cc]ancelled|following resource\(s\) failed", event.reason))


def failure(stack: str, event: Event | None, reason: str) -> BiremeError:
    """Why a stack failed, for people: one sentence for the root cause, with advice."""
    if event is None:
        known = explain(reason)
        return CloudError(f"{stack} failed: {known.what if known else _short(reason)}", fix=known.fix if known else "")
    known = explain(event.reason)
    where = f"{stack} failed at {event.resource} ({event.kind})"
    if known is None:
        fix = "run the same command again once that is fixed: it continues with what was made"
        return CloudError(f"{where}: {_short(event.reason)}", fix=fix)
    return CloudError(f"{where}: {known.what}", why=f"AWS says: {_short(event.reason)}", fix=known.fix)


def _short(text: str) -> str:
    """AWS' own text without request ids."""
    plain = re.sub(r"\s*\((?:Service|RequestToken|Request ID|SDK Attempt)[^)]*\)", "", text)
    return plain.strip().removeprefix("Resource handler returned message: ").strip('" ')[:400]
