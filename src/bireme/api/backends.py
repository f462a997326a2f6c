"""What can be done with a job, wherever it runs: the interface of both backends, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bireme.diagnose.facts import Cause
    from bireme.job.output.logs import LogFilter, LogLine

Note = Callable[[str], None]


def no_note(text: str) -> None:
    """Drop a remark."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a job does not run, or what it waits for."""

    job: str
    where: str
    namespace: str
    causes: list[Cause]
    """The most urgent first."""
    notes: list[str]
    """What could not be looked at."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A job that was cancelled."""

    job: str
    state: str
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.job}: {self.state}{'; ' if self.next_step else ''}{self.next_step}"


class Backend(Protocol):
    """Jobs in one place: on this machine or in a namespace of a cluster. A job is named as on the command line."""

    def logs(
        self, name: str | None, wanted: LogFilter, *, image: str | None = None, note: Note = no_note
    ) -> Iterator[LogLine]:
        """Lines of a job's logs by time; remarks go to `note`."""

    def why(self, name: str | None) -> Diagnosis:
        """What keeps a job from running, or what it waits for."""

    def cancel(self, name: str | None, *, now: bool = False) -> Stopped:
        """Stop a job cleanly, or at once; finished passes stay."""
