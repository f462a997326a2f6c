"""Create or update a cluster's stacks, one after the other, from whatever state they are in.

`settle` is a loop around `decide.next_up`: read the stack's state, do one step, read again. CloudFormation's state is
the only memory between two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, to_error
from bireme.aws.cloudformation.decide import Stack, Step, next_up
from bireme.aws.cloudformation.stacks import ChangeSet, Stacks
from bireme.aws.layout import EXECUTION_ROLE, EXPIRY_TAG, ClusterLayout, StackKind
from bireme.aws.teardown.audit import delete_log_group, file_systems
from bireme.aws.teardown.sweep import sweep
from bireme.aws.templates import body_of, template_of
from bireme.core.errors import CloudError

ATTEMPTS = 4
"""How often a stack that an earlier run left broken is deleted before `up` gives up."""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DesiredCluster:
    """The cluster that `up` creates."""

    layout: ClusterLayout
    admin: str
    """The administrator's ARN if the file names none."""
    expires: str = ""

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its stacks."""
        return self.layout.tags | ({EXPIRY_TAG: self.expires} if self.expires else {})

    def tags_for(self, stack: Stack) -> dict[str, str]:
        """The tags for an existing stack, which keeps its expiry unless a new one is given."""
        kept = {EXPIRY_TAG: stack.tags[EXPIRY_TAG]} if EXPIRY_TAG in stack.tags else {}
        return self.layout.tags | kept | ({EXPIRY_TAG: self.expires} if self.expires else {})


def parameters_of(
    wanted: DesiredCluster, kind: StackKind, outputs: Mapping[str, str], stack: Stack | None = None
) -> dict[str, str]:
    """A stack's parameters; an existing stack keeps its zones and administrator, whichever user runs the command."""
    layout, before = wanted.layout, stack.parameters if stack is not None else {}
    if kind == "storage":
        return {}
    if kind == "workers":
        workers = layout.file.workers
        passed_on = {name: outputs[name] for name in ("ClusterName", "NodeRoleArn", "WorkerSubnet")}
        return passed_on | {
            "ServersCount": str(workers.servers.count),
            "TrainersCount": str(workers.trainers.count),
        }
    parameters = {"FileSystemId": layout.file.storage.file_system or outputs["FileSystemId"]}
    if layout.makes_network:
        zones = dict(zip(("ZoneA", "ZoneB"), layout.zones, strict=True))
        parameters |= zones if layout.file.zones else zones | {name: before[name] for name in zones if name in before}
    if not layout.file.access.admins:
        parameters["AdminArn"] = before.get("AdminArn", wanted.admin)
    return parameters


def execution_role(aws: Aws) -> str | None:
    """CloudFormation's role, if an administrator has created it; without it the caller's own permissions apply."""
    try:
        return str(aws.call("iam", "GetRole", RoleName=EXECUTION_ROLE)["Role"]["Arn"])
    except AwsError as e:
        if e.is_absent or "Denied" in e.code:
            return None
        raise


def bring_up(stacks: Stacks, wanted: DesiredCluster, note: Note = lambda text: None) -> dict[str, str]:
    """Bring every stack up; return the outputs of all."""
    outputs: dict[str, str] = {}
    for kind in wanted.layout.stacks:
        try:
            outputs |= settle(stacks, wanted, kind, outputs, note).outputs
        except AwsError as e:
            raise to_error(e, f"bring {wanted.layout.stack(kind)} up") from e
    return outputs


def settle(stacks: Stacks, wanted: DesiredCluster, kind: StackKind, outputs: Mapping[str, str], note: Note) -> Stack:
    """Bring one stack up from any state."""
    layout, name = wanted.layout, wanted.layout.stack(kind)
    body = body_of(template_of(layout, kind))
    for _ in range(ATTEMPTS * 2):
        stack = stacks.find(name)
        step = next_up(stack, layout.name)
        if step is Step.CREATE:
            if kind == "storage":
                _refuse_second_file_system(stacks, layout.name)
            if kind == "platform":
                delete_log_group(stacks.aws, layout.name)
            note(f"creating {name}")
            parameters = parameters_of(wanted, kind, outputs)
            return _checked(stacks, stacks.create(name, body, parameters, wanted.tags, protects=kind == "storage"))
        assert stack is not None, "only an absent stack is created; this is a bug"
        if step is Step.REFUSE:
            raise foreign(name, layout.name)
        if step is Step.STUCK:
            fix = "end or roll back that change in CloudFormation's console, then run the same command again"
            raise CloudError(f"{name} is {stack.status}: it was changed by other means", fix=fix)
        if step is Step.CHANGE:
            return _change(stacks, wanted, kind, stack, outputs, note)
        if step is Step.FOLLOW:
            note(f"{name} is {stack.status}; following it")
            _follow(stacks, stack)
        elif step is Step.CONTINUE_ROLLBACK:
            note(f"{name} is {stack.status}; continuing the roll-back")
            stacks.continue_rollback(stack)
        else:
            _clear(stacks, layout.name, stack, note)
    raise CloudError(f"{name} cannot be brought into a usable state", fix="look at `bireme cluster status`")


def _refuse_second_file_system(stacks: Stacks, cluster: str) -> None:
    """Refuse to create an empty file system beside one that a former stack has kept."""
    kept = [thing.id for thing in file_systems(stacks.aws, cluster)]
    if kept:
        raise CloudError(
            f"the file system {kept[0]} of {cluster} is there without its stack",
            why="a new one would be empty, and both would be billed",
            fix=f"use it with `storage: {{file_system: {kept[0]}}}`, or delete it with "
            f"`bireme cluster down --delete-data {cluster}`",
        )


def foreign(name: str, cluster: str) -> CloudError:
    """The error for a stack of the cluster's name without its tag."""
    return CloudError(
        f"there is a stack {name} that bireme did not make for {cluster}",
        why="it does not carry our tag, so it is left alone",
        fix="choose another `name` in cluster.yaml",
    )


def _follow(stacks: Stacks, stack: Stack) -> None:
    """Follow an operation that another run has begun; if it fails, raise its root cause."""
    done = stacks.follow(stack.id, stack.name)
    if stack.status.startswith(("CREATE", "UPDATE_IN")):
        _checked(stacks, done)


def _checked(stacks: Stacks, stack: Stack) -> Stack:
    if not stack.is_up:
        raise stacks.why_failed(stack)
    return stack


def _clear(stacks: Stacks, cluster: str, stack: Stack, note: Note) -> None:
    """Delete what a failed creation or deletion has left, so that the stack can be created again."""
    if stack.status == "DELETE_FAILED":
        sweep(stacks, cluster, note)
    else:
        note(f"{stack.name} is {stack.status} from an earlier run: {stacks.why_failed(stack).what}")
    note(f"deleting {stack.name}, to make it again")
    done = stacks.delete(stack)
    if done.status == "DELETE_FAILED":
        sweep(stacks, cluster, note)


def _change(
    stacks: Stacks, wanted: DesiredCluster, kind: StackKind, stack: Stack, outputs: Mapping[str, str], note: Note
) -> Stack:
    changes = propose(stacks, wanted, kind, stack, outputs)
    if changes is None:
        note(f"{stack.name} is up, nothing to change")
        return stack
    refuse_loss(stacks, changes)
    note(f"changing {stack.name}: {', '.join(f'{each.action} {each.resource}' for each in changes.changes)}")
    return stacks.execute(changes)


def propose(
    stacks: Stacks, wanted: DesiredCluster, kind: StackKind, stack: Stack, outputs: Mapping[str, str]
) -> ChangeSet | None:
    """The change set for a stack that is up; None without changes."""
    body = body_of(template_of(wanted.layout, kind))
    return stacks.propose(stack, body, parameters_of(wanted, kind, outputs, stack), wanted.tags_for(stack))


LASTING = ("AWS::EKS::Cluster", "AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EFS::MountTarget")
"""Types that cannot be replaced while in use: their name or addresses are taken, or a zone allows only one."""


def replaced(changes: ChangeSet) -> list[str]:
    """The resources of a change that cannot be replaced while the cluster is up."""
    return [change.resource for change in changes.changes if change.kind in LASTING and change.replaces]


def refuse_loss(stacks: Stacks, changes: ChangeSet) -> None:
    """Refuse a change that would replace the file system by an empty one, or the cluster under its jobs."""
    moved = replaced(changes)
    if moved:
        stacks.forget(changes)
        raise CloudError(
            f"this change would replace {', '.join(moved)}, which cannot be done while the cluster is up",
            fix="undo it in cluster.yaml, or `bireme cluster down` and `up`: the data stays",
        )
    lost = [change for change in changes.changes if change.kind == "AWS::EFS::FileSystem" and change.replaces]
    if lost:
        stacks.forget(changes)
        raise CloudError(
            "this change would replace the file system by an empty one",
            why="its key or encryption cannot be changed in place",
            fix="undo the change in cluster.yaml, or make a cluster of another name and copy the data",
        )


def scale(stacks: Stacks, wanted: DesiredCluster) -> Stack:
    """Change the number of workers only."""
    name = wanted.layout.stack("workers")
    stack = stacks.find(name)
    if stack is None or not stack.is_of(wanted.layout.name):
        raise CloudError(f"there is no stack {name}", fix="make the cluster first: `bireme cluster up`")
    if stack.is_moving:
        stack = stacks.follow(stack.id, name)
    if not stack.is_up:
        raise CloudError(f"{name} is {stack.status}", fix="bring it up first: `bireme cluster up`")
    workers = wanted.layout.file.workers
    counts = {"ServersCount": str(workers.servers.count), "TrainersCount": str(workers.trainers.count)}
    # Keep the previous template: other edits of the file wait for `up`, which shows what they replace.
    changes = stacks.propose(stack, None, {**stack.parameters, **counts}, stack.tags)
    return stack if changes is None else stacks.execute(changes)
