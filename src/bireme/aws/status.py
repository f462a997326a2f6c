"""A cluster's state at AWS: stacks, control plane, groups of machines, add-ons, age and cost so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from bireme.aws import prices
from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, explain
from bireme.aws.cloudformation.decide import Stack
from bireme.aws.cloudformation.stacks import POLL_S
from bireme.aws.layout import CLUSTER_TAG, EXPIRY_TAG, StackKind
from bireme.aws.teardown.audit import describe_cluster
from bireme.aws.teardown.down import find_stacks


@dataclass(frozen=True, slots=True)
class Group:
    """One group of machines."""

    name: str
    status: str
    capacity: str
    types: tuple[str, ...]
    wanted: int
    issues: tuple[str, ...] = ()

    def usd_h(self, region: str) -> float | None:
        """What it costs an hour."""
        if not self.types:
            return None
        each = prices.machine_usd_h(self.types[0], region, self.capacity.lower())
        return None if each is None else each * self.wanted


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster at AWS."""

    name: str
    region: str
    stacks: dict[StackKind, Stack] = field(default_factory=dict)
    version: str = ""
    control_plane: str = "absent"
    endpoint: str = ""
    groups: tuple[Group, ...] = ()
    addons: dict[str, str] = field(default_factory=dict)
    drift: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The state in one word: up, down, changing or broken."""
        if not self.stacks:
            return "down"
        if any(stack.is_moving for stack in self.stacks.values()):
            return "changing"
        if set(self.stacks) == {"storage"} and self.stacks["storage"].is_up:
            return "down, data kept"
        is_up = all(stack.is_up for stack in self.stacks.values()) and {"platform", "workers"} <= set(self.stacks)
        return "up" if is_up else "broken"

    @property
    def usd_h(self) -> float:
        """The hourly price now, of the items that have one; without disks, which cost little."""
        total = prices.CONTROL_PLANE_USD_H if self.control_plane != "absent" else 0.0
        total += sum(item.usd_h or 0.0 for item in self._way_out())
        return total + sum(group.usd_h(self.region) or 0.0 for group in self.groups)

    def _way_out(self) -> list[prices.Item]:
        """The price of a network that bireme created: with a VPC of the user's own the stack has no zone parameters."""
        platform = self.stacks.get("platform")
        if platform is None or not platform.outputs or "ZoneA" not in platform.parameters:
            return []
        machines = sum(group.wanted for group in self.groups)
        return prices.way_out(self.region, has_nat=platform.outputs.get("Egress") == "nat", machines=machines)

    def age_h(self, now: float) -> float:
        """Hours since its platform was made."""
        platform = self.stacks.get("platform")
        if platform is None or platform.created is None:
            return 0.0
        return max(0.0, (now - platform.created.timestamp()) / 3600)

    def expiry(self, now: float) -> str:
        """The expiry that `--ttl` set, and whether it has passed; empty without one."""
        until = next((s.tags[EXPIRY_TAG] for s in self.stacks.values() if EXPIRY_TAG in s.tags), "")
        if not until:
            return ""
        is_over = datetime.fromisoformat(until) < datetime.fromtimestamp(now, UTC)
        return f"{until} (over: take it down with `bireme cluster down`)" if is_over else until


def status(aws: Aws, cluster: str, *, with_drift: bool = False) -> ClusterStatus:
    """Query the state of a cluster."""
    there = find_stacks(aws, cluster)
    ours = {kind: stack for kind, stack in there.stacks.items() if stack.is_of(cluster)}
    described = describe_cluster(aws, cluster) if "platform" in ours else None
    # The platform stack may have failed because the name was taken: do not show a foreign EKS cluster of that name.
    if described is None or (described.get("tags") or {}).get(CLUSTER_TAG) != cluster:
        return ClusterStatus(cluster, aws.region, ours)
    return ClusterStatus(
        cluster,
        aws.region,
        ours,
        described.get("version", ""),
        described.get("status", ""),
        described.get("endpoint", ""),
        tuple(groups(aws, cluster)),
        _addons(aws, cluster),
        _drift(aws, ours) if with_drift else {},
    )


def shortages(aws: Aws, cluster: str) -> str:
    """Why machines are missing, from the health issues of their groups; empty without any."""
    try:
        issues = [(group.name, issue) for group in groups(aws, cluster) for issue in group.issues]
    except AwsError as e:
        return f"the reason is unknown ({e.code})"
    known_issues = [(name, explain(issue), issue) for name, issue in issues]
    return "; ".join(f"{name}: {known.what if known else issue}" for name, known, issue in known_issues)


def groups(aws: Aws, cluster: str) -> list[Group]:
    """The groups of machines."""
    all_groups = []
    for name in aws.pages("eks", "ListNodegroups", "nodegroups", clusterName=cluster):
        answer = aws.call("eks", "DescribeNodegroup", clusterName=cluster, nodegroupName=name)["nodegroup"]
        issues = tuple(each.get("message", "") for each in answer.get("health", {}).get("issues", ()))
        label = (answer.get("labels") or {}).get("bireme.dev/group", name)
        capacity, types = answer.get("capacityType", ""), tuple(answer.get("instanceTypes") or ())
        wanted = answer.get("scalingConfig", {}).get("desiredSize", 0)
        all_groups.append(Group(label, answer.get("status", ""), capacity, types, wanted, issues))
    return sorted(all_groups, key=lambda group: group.name)


def _addons(aws: Aws, cluster: str) -> dict[str, str]:
    names = aws.pages("eks", "ListAddons", "addons", clusterName=cluster)
    return {
        name: aws.call("eks", "DescribeAddon", clusterName=cluster, addonName=name)["addon"].get("status", "")
        for name in names
    }


def _drift(aws: Aws, stacks: dict[StackKind, Stack]) -> dict[str, str]:
    """Run CloudFormation's drift detection: whether a stack's resources were changed by hand."""
    drift: dict[str, str] = {}
    for stack in stacks.values():
        try:
            answer = aws.call("cloudformation", "DetectStackDrift", StackName=stack.name)
            begun = answer["StackDriftDetectionId"]
        except AwsError as e:
            drift[stack.name] = f"not checked: {e.message}"
            continue
        look = 0
        while True:
            check = aws.call("cloudformation", "DescribeStackDriftDetectionStatus", StackDriftDetectionId=begun)
            if check["DetectionStatus"] != "DETECTION_IN_PROGRESS":
                drift[stack.name] = str(check.get("StackDriftStatus", check["DetectionStatus"]))
                break
            aws.clock.sleep(POLL_S[min(look, len(POLL_S) - 1)])
            look += 1
    return drift
