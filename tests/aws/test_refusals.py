"""Every refusal that the double knows becomes a sentence with a next step, or is one that the tool handles itself."""

from __future__ import annotations

import pytest

from bireme.aws.cloudformation.causes import AwsError, Event, failure, to_error
from bireme.core.errors import BiremeError
from tests.aws.refusals import Refusal, refusals

HANDLED = {
    "ChangeSetNotFound": "a proposal that is gone is what we want",
    "InvalidNetworkInterfaceID.NotFound": "the sweep deletes what may be gone",
    "InvalidGroup.NotFound": "the sweep deletes what may be gone",
    "InvalidVolume.NotFound": "the sweep deletes what may be gone",
    "LoadBalancerNotFound": "the sweep deletes what may be gone",
    "NoSuchEntity": "without the role CloudFormation works with our permissions",
    "ResourceNotFoundException": "an add-on or a group that is gone while it is asked for",
    "No updates are to be performed.": "then the stack is as it should be",
    "CannotDelete": "the sweep leaves a VPC's default group alone",
    "Cannot have more than 20 resources described": "load balancers are asked for by the twenty",
}
"""By code or text: answers that are states to the tool, and why."""
UNASKED = {
    "404", "DryRunOperation", "InvalidAction", "NotModelled", "OperationNotPermitted", "UnknownOperationException",
    "InvalidPermission.NotFound", "You can specify either DisableRollback or OnFailure, but not both.",
    "Invalid operation on stack [x]. Resources can be retained only in DELETE_FAILED.",
    "the double does not model TemplateURL", "Resources to retain must be in DELETE_FAILED: [x]",
    "The specified NextToken is not valid",
}  # fmt: skip
"""Answers to what the tool never asks."""
IN_STACKS = ("eks.py", "network.py", "storage.py")
"""Where the refusals stand that CloudFormation's handlers meet, which hand on the text without the code."""
FOUND = [each for each in refusals() if each.code != "x"]
CALLED = [each for each in FOUND if not {each.code, each.text} & {*HANDLED, *UNASKED} and each.text != "x"]
MET = [each for each in CALLED if each.place.startswith(IN_STACKS)]


def name_of(each: Refusal) -> str:
    return f"{each.code} {each.place}"


def is_explained(error: BiremeError) -> bool:
    """Whether this is a row of the table, with AWS' own words beside it."""
    return bool(error.why and error.fix and "AWS says" in error.why and "AWS says" not in error.what)


@pytest.mark.parametrize("each", CALLED, ids=name_of)
def test_a_refused_call_is_explained(each: Refusal) -> None:
    error = to_error(AwsError("service.Call", each.code, each.text), "do this")
    assert is_explained(error), f"{each.place}: {error}"


@pytest.mark.parametrize("each", MET, ids=name_of)
def test_a_resource_that_failed_is_explained_without_its_code(each: Refusal) -> None:
    reason = f'Resource handler returned message: "{each.text} (Service: Eks, Status Code: 400)" (RequestToken: 2)'
    error = failure("stack", Event("1", "Thing", "AWS::X::Y", "CREATE_FAILED", reason), "")
    assert is_explained(error), f"{each.place}: {error}"


def test_the_double_is_read_completely() -> None:
    codes = {each.code for each in FOUND}
    assert len(FOUND) > 120
    assert {"MountTargetConflict", "ExpiredToken", "ChangeSetNotFound", "InvalidGroup.Duplicate"} <= codes
    assert set(HANDLED) | UNASKED <= codes | {each.text for each in FOUND}
