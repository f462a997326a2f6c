"""What to do next with a stack, for every state that CloudFormation knows."""

from __future__ import annotations

import pytest

from bireme.aws.cloudformation.decide import Stack, Step, next_down, next_up
from bireme.aws.layout import CLUSTER_TAG

OURS = {CLUSTER_TAG: "paddle"}
TABLE = {
    "CREATE_IN_PROGRESS": (Step.FOLLOW, Step.DELETE),
    "UPDATE_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "UPDATE_ROLLBACK_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "ROLLBACK_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "DELETE_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "REVIEW_IN_PROGRESS": (Step.DELETE, Step.DELETE),
    "CREATE_COMPLETE": (Step.CHANGE, Step.DELETE),
    "UPDATE_COMPLETE": (Step.CHANGE, Step.DELETE),
    "UPDATE_ROLLBACK_COMPLETE": (Step.CHANGE, Step.DELETE),
    "ROLLBACK_COMPLETE": (Step.DELETE, Step.DELETE),
    "ROLLBACK_FAILED": (Step.DELETE, Step.DELETE),
    "CREATE_FAILED": (Step.DELETE, Step.DELETE),
    "UPDATE_ROLLBACK_FAILED": (Step.CONTINUE_ROLLBACK, Step.DELETE),
    "DELETE_FAILED": (Step.DELETE, Step.SWEEP),
    "DELETE_COMPLETE": (Step.CREATE, Step.DONE),
    "IMPORT_COMPLETE": (Step.CHANGE, Step.DELETE),
    "IMPORT_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "IMPORT_ROLLBACK_IN_PROGRESS": (Step.FOLLOW, Step.FOLLOW),
    "IMPORT_ROLLBACK_COMPLETE": (Step.CHANGE, Step.DELETE),
    "IMPORT_ROLLBACK_FAILED": (Step.STUCK, Step.DELETE),
    "UPDATE_FAILED": (Step.STUCK, Step.DELETE),
    "A_STATUS_OF_2030": (Step.STUCK, Step.DELETE),
}


@pytest.mark.parametrize("status", TABLE)
def test_every_state_has_a_next_step(status: str) -> None:
    stack = Stack("bireme-paddle-platform", "id", status, tags=OURS)
    assert (next_up(stack, "paddle"), next_down(stack, "paddle")) == TABLE[status]


def test_an_absent_stack_is_made_or_done_with() -> None:
    assert (next_up(None, "paddle"), next_down(None, "paddle")) == (Step.CREATE, Step.DONE)


@pytest.mark.parametrize("status", [status for status in TABLE if status != "DELETE_COMPLETE"])
def test_a_stack_without_our_tag_is_never_touched(status: str) -> None:
    for tags in ({}, {CLUSTER_TAG: "paddle-2"}):
        stack = Stack("bireme-paddle-platform", "id", status, tags=tags)
        assert (next_up(stack, "paddle"), next_down(stack, "paddle")) == (Step.REFUSE, Step.REFUSE)
