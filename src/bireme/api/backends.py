"""What can be done with a job, wherever it runs: the interface of both backends, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bireme.job.status import JobStatus, PassSummary

if TYPE_CHECKING:
    from bireme.core.errors import BiremeError
    from bireme.diagnose.facts import Cause
    from bireme.job.output.logs import LogFilter, LogLine
    from bireme.kube.jobs.listing import PodView
    from bireme.view.readers import View

Note = Callable[[str], None]


def no_note(text: str) -> None:
    """Drop a remark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """How a job is doing."""

    name: str
    id: str
    """How the backend finds it again: a run's id, or a name on a cluster."""
    state: str
    reason: str
    started: float
    status: JobStatus
    done: int
    """Passes of the job that count, with those of earlier runs."""
    passes: int
    """How many passes the job is to have."""
    place: str
    """The output directory, or `kubernetes/NAMESPACE`."""
    output: Path | None = None
    """The output directory, if it is on this machine."""
    row: Mapping[str, Any]
    """For programs, as in a list."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """For programs, what a list leaves out."""
    closed: Sequence[PassSummary] = ()
    """Finished passes, with those of earlier runs where they are known."""
    next_step: str = ""
    """How to resume it, where it can be resumed."""
    where: str = ""
    """A line with the place."""
    hints: Sequence[str] = ()
    """What it waits for before it trains."""
    notices: Sequence[str] = ()
    pods: Sequence[PodView] = ()
    is_gone: bool = False
    """Whether nothing is left of it but its record."""
    error: BiremeError | None = None
    """What ended it early."""

    @property
    def progress(self) -> str:
        """Passes for people; '' where they are not known."""
        return f"{self.done}/{self.passes} passes" if self.passes else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Jobs, newest first."""

    jobs: Sequence[JobReport] = ()
    more: int = 0
    """Left out by the limit."""
    hidden: int = 0
    """Left out because nothing is left of them."""
    note: str = ""
    """Why the list is not complete."""


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
    """Jobs in one place: on this machine, or in a namespace of a cluster. A job is named as on the command line."""

    def submit(self, file: Path, changes: Mapping[str, Any]) -> str:
        """Start the job of a job.yaml with other values for some keys; its id."""

    def list(self, limit: int | None = None) -> Listing:
        """The jobs there."""

    def status(self, name: str | None) -> JobReport:
        """How a job is doing."""

    def follow(self, name: str | None, view: View, is_left: Callable[[], bool]) -> JobReport | None:
        """Show a job until it ends or the user leaves; its last state, None where it is not known."""

    def logs(
        self, name: str | None, wanted: LogFilter, *, image: str | None = None, note: Note = no_note
    ) -> Iterator[LogLine]:
        """Lines of a job's logs by time; remarks go to `note`."""

    def why(self, name: str | None) -> Diagnosis:
        """What keeps a job from running, or what it waits for."""

    def cancel(self, name: str | None, *, now: bool = False) -> Stopped:
        """Stop a job cleanly, or at once; finished passes stay."""

    def resume(self, name: str, changes: Mapping[str, Any]) -> str:
        """Go on with a job from its newest snapshot, with other values for some keys; its id."""

    def fetch(self, name: str, directory: Path) -> Any:
        """Copy a job's models and logs into a directory here."""

    def delete(self, name: str, *, with_volume: bool = False) -> Any:
        """Delete a job; its files stay unless requested."""
