"""The next step with a stack, by the state that CloudFormation reports. No I/O, no clock.

There is no state file: every run reads the stacks and continues from there, so after an interruption, crash or failure
the same command is run again. The two tables below are the whole of `up` and `down`.

    status                                   up                          down
    absent, DELETE_COMPLETE                  create                      done
    CREATE_IN_PROGRESS                       follow                      delete
    UPDATE_…, ROLLBACK_…, DELETE_IN_PROGRESS follow                      follow, then look again
    REVIEW_IN_PROGRESS                       delete, then create         delete
    CREATE_COMPLETE, UPDATE_COMPLETE,
      UPDATE_ROLLBACK_COMPLETE               change set                  delete
    ROLLBACK_COMPLETE, CREATE_FAILED,
      ROLLBACK_FAILED                        delete, then create         delete
    UPDATE_ROLLBACK_FAILED                   continue the roll-back      delete
    DELETE_FAILED                            delete                      sweep strays, delete
    others (UPDATE_FAILED, …)                stop with an error          delete
    foreign (without our tag)                refuse                      refuse
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from bireme.aws.layout import CLUSTER_TAG


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as CloudFormation describes it."""

    name: str
    id: str
    status: str
    reason: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    created: datetime | None = None
    is_protected: bool = False

    def is_of(self, cluster: str) -> bool:
        """Whether we made it for this cluster."""
        return self.tags.get(CLUSTER_TAG) == cluster

    @property
    def is_moving(self) -> bool:
        """Whether CloudFormation is changing it."""
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def is_up(self) -> bool:
        """Whether all its resources exist."""
        return self.status in COMPLETE


COMPLETE = frozenset(
    {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE", "IMPORT_ROLLBACK_COMPLETE"}
)
FAILED = frozenset({"ROLLBACK_COMPLETE", "CREATE_FAILED", "ROLLBACK_FAILED"})


class Step(Enum):
    """One step with a stack."""

    CREATE = "create"
    FOLLOW = "follow"
    CHANGE = "change"
    DELETE = "delete"
    SWEEP = "sweep"
    CONTINUE_ROLLBACK = "continue the roll-back"
    REFUSE = "refuse"
    STUCK = "stuck"
    DONE = "done"


def next_up(stack: Stack | None, cluster: str) -> Step:
    """The next step of `up`."""
    if stack is None or stack.status == "DELETE_COMPLETE":
        return Step.CREATE
    if not stack.is_of(cluster):
        return Step.REFUSE
    if stack.is_moving:
        return Step.FOLLOW
    if stack.is_up:
        return Step.CHANGE
    if stack.status == "UPDATE_ROLLBACK_FAILED":
        return Step.CONTINUE_ROLLBACK
    # These can only be deleted: a failed creation or deletion, and the shell of a change set that was never made.
    if stack.status in FAILED or stack.status in ("DELETE_FAILED", "REVIEW_IN_PROGRESS"):
        return Step.DELETE
    # UPDATE_FAILED, IMPORT_ROLLBACK_FAILED, and states that CloudFormation may add: the stack is live, so leave it.
    return Step.STUCK


def next_down(stack: Stack | None, cluster: str) -> Step:
    """The next step of `down`."""
    if stack is None or stack.status == "DELETE_COMPLETE":
        return Step.DONE
    if not stack.is_of(cluster):
        return Step.REFUSE
    if stack.status == "DELETE_FAILED":
        return Step.SWEEP
    # CloudFormation takes a DeleteStack while it creates; while it updates or rolls back it does not.
    if stack.is_moving and stack.status != "CREATE_IN_PROGRESS":
        return Step.FOLLOW
    return Step.DELETE
