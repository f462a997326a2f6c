"""Following a stack when CloudFormation's answers are older than one another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bireme.aws.cloudformation.decide import Stack
from bireme.aws.cloudformation.stacks import ChangeSet, Stacks

NAME, ID = "bireme-paddle-workers", "arn:stack/1"
BEGUN = datetime(2026, 11, 18, tzinfo=UTC)


class Answers:
    """CloudFormation whose update begins while the tool asks: statuses and new events, look by look.

    The double of the other tests cannot show this: its time does not pass between two calls.
    """

    def __init__(self, reads: list[str], batches: list[list[str]]) -> None:
        self._reads, self._batches = reads, batches
        self._events: list[dict[str, Any]] = [self._event("CREATE_COMPLETE")]
        self._seconds = 0.0
        self.clock = self
        self.is_marked = False

    def _event(self, status: str) -> dict[str, Any]:
        id_ = str(len(getattr(self, "_events", ())))
        return {"EventId": id_, "LogicalResourceId": NAME, "ResourceStatus": status, "Timestamp": BEGUN}

    def now(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds

    def call(self, service: str, operation: str, **_: Any) -> dict[str, Any]:
        if operation == "ExecuteChangeSet":
            return {}
        assert operation == "DescribeStacks"
        status = self._reads.pop(0) if len(self._reads) > 1 else self._reads[0]
        return {"Stacks": [{"StackName": NAME, "StackId": ID, "StackStatus": status}]}

    def pages(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        if self.is_marked and self._batches:
            self._events += [self._event(status) for status in self._batches.pop(0)]
        self.is_marked = True
        return self._events[::-1]


def execute(answers: Answers, before: str = "CREATE_COMPLETE") -> str:
    stacks = Stacks(answers)  # type: ignore[arg-type]
    return stacks.execute(ChangeSet("change", Stack(NAME, ID, before), ())).status


def test_a_status_older_than_the_events_is_not_the_end() -> None:
    answers = Answers(["CREATE_COMPLETE", "UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"], [["UPDATE_IN_PROGRESS"]])
    assert execute(answers) == "UPDATE_COMPLETE"


def test_a_status_that_stays_old_for_long_is_not_the_end() -> None:
    answers = Answers([*["CREATE_COMPLETE"] * 40, "UPDATE_COMPLETE"], [["UPDATE_IN_PROGRESS"]])
    assert execute(answers) == "UPDATE_COMPLETE"


def test_an_update_of_an_updated_stack_ends_with_its_event() -> None:
    reads = ["UPDATE_COMPLETE", "UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"]
    answers = Answers(reads, [["UPDATE_IN_PROGRESS"], [], ["UPDATE_COMPLETE"]])
    assert execute(answers, before="UPDATE_COMPLETE") == "UPDATE_COMPLETE"
    assert answers.now() < 30


def test_an_update_that_never_begins_is_given_up() -> None:
    answers = Answers(["UPDATE_COMPLETE"], [])
    assert execute(answers, before="UPDATE_COMPLETE") == "UPDATE_COMPLETE"
    assert answers.now() >= 120
