"""Taking a cluster down, in the one order that works, from whatever state it is in.

Jobs, then what Kubernetes made at AWS (load balancers, volumes), then workers, then the platform; the data only when
told. Every step is waited for and may be run again. At the end everything is looked for once more: `audit` decides
what is said, not the stacks' own word.
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
from bireme.aws.teardown.audit import Thing, audit, delete_log_group, file_systems
from bireme.aws.teardown.sweep import balancers, find_ground, sweep
from bireme.aws.up import foreign
from bireme.core.errors import BiremeError, CloudError

ATTEMPTS = 8
PAUSE_S = 30.0
"""EKS lets go of its network interfaces some minutes after a machine is gone."""
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
    """What runs on the cluster; handed in, because this room does not know Kubernetes."""

    def clear(self, note: Note) -> None:
        """Delete jobs, load balancers' Services and claims; a BiremeError if the cluster cannot be asked."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is of a cluster before anything is done."""

    cluster: str
    stacks: dict[StackKind, Stack]

    @property
    def is_empty(self) -> bool:
        """Whether there is no stack at all."""
        return not self.stacks


def standing(aws: Aws, cluster: str) -> Standing:
    """Look at the cluster's stacks."""
    found = {kind: find_stack(aws, stack_name(cluster, kind)) for kind in STACKS}
    there = {kind: stack for kind, stack in found.items() if stack and stack.status != "DELETE_COMPLETE"}
    return Standing(cluster, there)


def other_regions(aws: Aws, cluster: str) -> list[str]:
    """Other regions of the account with a cluster of this name, for when the wrong one was named."""
    answer = aws.call("ec2", "DescribeRegions")
    names = [each["RegionName"] for each in answer["Regions"] if each["RegionName"] != aws.region]
    found = []
    for name in names:
        try:
            there = standing(aws.elsewhere(name), cluster)
        except AwsError:
            continue  # a region that this account may not use holds nothing of ours
        if any(stack.is_of(cluster) for stack in there.stacks.values()):
            found.append(name)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """How taking a cluster down has ended."""

    left: list[Thing]
    """What is there of it, kept data included."""
    failure: BiremeError | None = None
    """Why a stack could not be deleted."""


def take_down(stacks: Stacks, cluster: str, workloads: Workloads | None, note: Note, *, deletes_data: bool) -> Outcome:
    """Take a cluster down as far as AWS lets us, and look for what is left of it."""
    try:
        there = standing(stacks.aws, cluster)
        for stack in there.stacks.values():
            if not stack.is_of(cluster):
                raise foreign(stack.name, cluster)
        if "platform" in there.stacks:
            _clear_workloads(stacks, cluster, workloads, note)
        for _ in range(ROUNDS):
            try:
                _remove_all(stacks, cluster, note, deletes_data=deletes_data)
            except StuckError as e:
                # What holds the stack is in the list, and so is what is billed meanwhile.
                return Outcome(audit(stacks.aws, cluster), e.cause)
            left = _look_for_leftovers(stacks.aws, cluster, deletes_data=deletes_data)
            # A stack that another run began a moment ago may have been unseen at the first look.
            if not [thing for thing in left if thing.kind == "stack" and (deletes_data or not thing.is_data)]:
                break
        return Outcome(left)
    except AwsError as e:
        raise to_error(e, f"take {cluster} down") from e


def _remove_all(stacks: Stacks, cluster: str, note: Note, *, deletes_data: bool) -> None:
    remove(stacks, cluster, "workers", note)
    # Volumes are free once the machines are gone, and nobody's once the cluster is.
    sweep(stacks, cluster, note)
    remove(stacks, cluster, "platform", note)
    if delete_log_group(stacks.aws, cluster):
        note("deleted the control plane's log group")
    _storage(stacks, cluster, note, deletes_data=deletes_data)


def _look_for_leftovers(aws: Aws, cluster: str, *, deletes_data: bool) -> list[Thing]:
    """What is left; what AWS still lists though it is gone gets the time to disappear."""
    for _ in range(LOOKS):
        left = audit(aws, cluster)
        if not [thing for thing in left if deletes_data or not thing.is_data]:
            break
        aws.clock.sleep(PAUSE_S)
    return left


def _clear_workloads(stacks: Stacks, cluster: str, workloads: Workloads | None, note: Note) -> None:
    aws, platform = stacks.aws, stacks.find(stack_name(cluster, "platform"))
    ground = find_ground(aws, cluster, platform)
    # A platform that failed because the name was taken has no cluster: the one of that name is somebody else's.
    if workloads is not None and ground.owns_cluster:
        try:
            workloads.clear(note)
        except BiremeError as e:
            note(f"the API server cannot be asked ({e.what}); what its jobs have made is cleared at AWS instead")
    if not ground.vpc:
        return
    until = aws.clock.now() + BALANCERS_S
    while found := balancers(aws, ground):
        if workloads is None or aws.clock.now() >= until:
            break  # nobody else will delete them: sweep does
        note(f"waiting for {len(found)} load balancer(s) to go")
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
    """Keep the data, or delete it when told; a shell that holds nothing goes in any case."""
    stack = stacks.find(stack_name(cluster, "storage"))
    if stack is not None and stack.is_moving:
        stack = stacks.follow(stack.id, stack.name)
    if deletes_data or (stack is not None and (stack.status in FAILED or stack.status == "REVIEW_IN_PROGRESS")):
        remove(stacks, cluster, "storage", note)
    if deletes_data:
        _delete_file_systems(stacks.aws, cluster, note)


def _delete_file_systems(aws: Aws, cluster: str, note: Note) -> None:
    """CloudFormation keeps the file system when its stack goes; it is found by its tag, also after a crash here."""
    for thing in list(file_systems(aws, cluster)):
        note(f"deleting the file system {thing.id} ({thing.note})")
    for attempt in range(ATTEMPTS):
        there = list(file_systems(aws, cluster))
        if not there:
            return
        if attempt:
            aws.clock.sleep(PAUSE_S)
        for thing in there:
            try:
                aws.call("efs", "DeleteFileSystem", FileSystemId=thing.id)
            except AwsError as e:
                # In use: its mount targets went a moment ago.
                if not e.is_absent and e.code != "FileSystemInUse":
                    raise
    for thing in file_systems(aws, cluster):
        note(f"the file system {thing.id} is still mounted, by another cluster perhaps; it stays")
