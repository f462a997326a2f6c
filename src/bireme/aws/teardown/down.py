"""Take a cluster down, in the one order that works, from whatever state it is in.

Jobs, then what Kubernetes made at AWS (load balancers, volumes), then workers, then the platform; the data only with
`--delete-data`. Every step is awaited and may be repeated. The final report is `audit`'s list of existing resources,
not the stacks' state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, to_error
from bireme.aws.cloudformation.decide import FAILED, Stack, Step, next_down
from bireme.aws.cloudformation.stacks import Stacks, find_stack
from bireme.aws.layout import STACKS, StackKind, stack_name
from bireme.aws.teardown.audit import LeftResource, audit, delete_log_group, file_systems
from bireme.aws.teardown.sweep import balancers, find_scope, sweep
from bireme.aws.up import foreign
from bireme.core.errors import BiremeError, CloudError

ATTEMPTS = 8
PAUSE_S = 30.0
"""EKS releases its network interfaces some minutes after a machine is gone."""
BALANCERS_S = 300.0
LOOKS = 4
ROUNDS = 3
Note = Callable[[str], None]


class StuckError(Exception):
    """A stack that CloudFormation cannot delete, and why."""

    def __init__(self, cause: BiremeError) -> None:
        super().__init__(cause.what)
        self.cause = cause


class Workloads(Protocol):
    """The workloads of the cluster; injected, because this package does not import Kubernetes."""

    def clear(self, note: Note) -> None:
        """Delete jobs, load balancers' Services and claims; a BiremeError if the cluster cannot be reached."""


@dataclass(frozen=True, slots=True)
class ExistingStacks:
    """A cluster's stacks before anything is done."""

    cluster: str
    stacks: dict[StackKind, Stack]

    @property
    def is_empty(self) -> bool:
        """Whether there is no stack at all."""
        return not self.stacks


def find_stacks(aws: Aws, cluster: str) -> ExistingStacks:
    """Read the state of the cluster's stacks."""
    stacks = {kind: find_stack(aws, stack_name(cluster, kind)) for kind in STACKS}
    there = {kind: stack for kind, stack in stacks.items() if stack and stack.status != "DELETE_COMPLETE"}
    return ExistingStacks(cluster, there)


def other_regions(aws: Aws, cluster: str) -> list[str]:
    """Other regions of the account with a cluster of this name, for a hint where the wrong region was named."""
    answer = aws.call("ec2", "DescribeRegions")
    names = [each["RegionName"] for each in answer["Regions"] if each["RegionName"] != aws.region]
    regions = []
    for name in names:
        try:
            there = find_stacks(aws.elsewhere(name), cluster)
        except AwsError:
            continue  # a region that this account may not use holds no cluster
        if any(stack.is_of(cluster) for stack in there.stacks.values()):
            regions.append(name)
    return regions


@dataclass(frozen=True, slots=True)
class Teardown:
    """The result of taking a cluster down."""

    left: list[LeftResource]
    """Its existing resources, kept data included."""
    failure: BiremeError | None = None
    """Why a stack could not be deleted."""


def take_down(stacks: Stacks, cluster: str, workloads: Workloads | None, note: Note, *, deletes_data: bool) -> Teardown:
    """Take a cluster down as far as AWS allows, and list what is left of it."""
    try:
        there = find_stacks(stacks.aws, cluster)
        for stack in there.stacks.values():
            if not stack.is_of(cluster):
                raise foreign(stack.name, cluster)
        if "platform" in there.stacks:
            _clear_workloads(stacks, cluster, workloads, note)
        for _ in range(ROUNDS):
            try:
                _remove_all(stacks, cluster, note, deletes_data=deletes_data)
            except StuckError as e:
                # The list names what blocks the stack, and what is billed meanwhile.
                return Teardown(audit(stacks.aws, cluster), e.cause)
            left = _look_for_leftovers(stacks.aws, cluster, deletes_data=deletes_data)
            # A stack that another run has just begun may have been invisible at first (eventual consistency).
            if not [
                resource for resource in left if resource.kind == "stack" and (deletes_data or not resource.is_data)
            ]:
                break
        return Teardown(left)
    except AwsError as e:
        raise to_error(e, f"take {cluster} down") from e


def _remove_all(stacks: Stacks, cluster: str, note: Note, *, deletes_data: bool) -> None:
    remove(stacks, cluster, "workers", note)
    # Volumes are detached once the machines are gone, and no longer attributable once the cluster is gone.
    sweep(stacks, cluster, note)
    remove(stacks, cluster, "platform", note)
    if delete_log_group(stacks.aws, cluster):
        note("deleted the control plane's log group")
    _storage(stacks, cluster, note, deletes_data=deletes_data)


def _look_for_leftovers(aws: Aws, cluster: str, *, deletes_data: bool) -> list[LeftResource]:
    """List what is left, with pauses, because AWS lists deleted resources for a while."""
    for _ in range(LOOKS):
        left = audit(aws, cluster)
        if not [resource for resource in left if deletes_data or not resource.is_data]:
            break
        aws.clock.sleep(PAUSE_S)
    return left


def _clear_workloads(stacks: Stacks, cluster: str, workloads: Workloads | None, note: Note) -> None:
    aws, platform = stacks.aws, stacks.find(stack_name(cluster, "platform"))
    scope = find_scope(aws, cluster, platform)
    # A platform that failed because the name was taken has no cluster: the one of that name is not ours.
    if workloads is not None and scope.owns_cluster:
        try:
            workloads.clear(note)
        except BiremeError as e:
            note(f"the API server cannot be reached ({e.what}); what its jobs have made is cleared at AWS instead")
    if not scope.vpc:
        return
    until = aws.clock.now() + BALANCERS_S
    while left := balancers(aws, scope):
        if workloads is None or aws.clock.now() >= until:
            break  # the API server will not delete them: `sweep` does
        note(f"waiting for {len(left)} load balancer(s) to go")
        aws.clock.sleep(PAUSE_S)


def remove(stacks: Stacks, cluster: str, kind: StackKind, note: Note) -> None:
    """Delete one stack, sweeping what blocks it, until it is gone."""
    name = stack_name(cluster, kind)
    last: Stack | None = None
    for attempt in range(ATTEMPTS):
        stack = stacks.find(name)
        step = next_down(stack, cluster)
        if step is Step.DONE:
            return
        assert stack is not None, "an absent stack is done with; this is a bug"
        if step is Step.REFUSE:
            raise foreign(name, cluster)
        if step is Step.FOLLOW:
            note(f"{name} is {stack.status}; following it")
            last = stacks.follow(stack.id, name)
            continue
        if step is Step.SWEEP and not sweep(stacks, cluster, note) and attempt:
            stacks.aws.clock.sleep(PAUSE_S)
        note(f"deleting {name}")
        last = stacks.delete(stack)
        if last.status == "DELETE_COMPLETE":
            return
    raise StuckError(stacks.why_failed(last) if last is not None else CloudError(f"{name} cannot be deleted"))


def _storage(stacks: Stacks, cluster: str, note: Note, *, deletes_data: bool) -> None:
    """Keep the data unless `deletes_data`; a stack without resources is deleted in any case."""
    stack = stacks.find(stack_name(cluster, "storage"))
    if stack is not None and stack.is_moving:
        stack = stacks.follow(stack.id, stack.name)
    if deletes_data or (stack is not None and (stack.status in FAILED or stack.status == "REVIEW_IN_PROGRESS")):
        remove(stacks, cluster, "storage", note)
    if deletes_data:
        _delete_file_systems(stacks.aws, cluster, note)


def _delete_file_systems(aws: Aws, cluster: str, note: Note) -> None:
    """Delete the file systems, found by tag: CloudFormation retains them when their stack is deleted."""
    for resource in list(file_systems(aws, cluster)):
        note(f"deleting the file system {resource.id} ({resource.note})")
    for attempt in range(ATTEMPTS):
        there = list(file_systems(aws, cluster))
        if not there:
            return
        if attempt:
            aws.clock.sleep(PAUSE_S)
        for resource in there:
            try:
                aws.call("efs", "DeleteFileSystem", FileSystemId=resource.id)
            except AwsError as e:
                # In use: its mount targets were deleted a moment ago.
                if not e.is_absent and e.code != "FileSystemInUse":
                    raise
    for resource in file_systems(aws, cluster):
        note(f"the file system {resource.id} is still mounted, by another cluster perhaps; it stays")
