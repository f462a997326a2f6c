"""What can be done with a job, wherever it runs: the interface of both backends, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bireme.job.status import JobStatus, PassSummary

if TYPE_CHECKING:
    from bireme.core.errors import BiremeError
    from bireme.diagnose.evidence import Cause
    from bireme.job.output.logs import LogFilter, LogLine
    from bireme.kube.jobs.fetching import Fetched
    from bireme.kube.jobs.lifecycle import Deleted
    from bireme.kube.jobs.listing import PodView
    from bireme.view.readers import View

Note = Callable[[str], None]
OnProgress = Callable[[int, int], None] | None


def no_note(_: str) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run is doing: its process or its pods, how far its job is, and what the coordinator reports."""

    name: str
    id: str
    """How the backend finds it again: a run's id, or a name on a cluster."""
    state: str
    """Here: running, finished, failed, cancelled or died. On a cluster also pending, starting, queued or suspended."""
    reason: str
    started: float
    job: JobStatus
    passes_done: int
    """Passes of the job that count, with those of earlier runs."""
    passes: int
    place: str
    """The output directory, or `kubernetes/NAMESPACE`."""
    output: Path | None = None
    """The output directory, if it is on this machine."""
    closed: Sequence[PassSummary] = ()
    """Finished passes, with those of earlier runs where they are known."""
    error: BiremeError | None = None
    next_step: str = ""
    """How to resume it, where it can be resumed."""
    where: str = ""
    hints: Sequence[str] = ()
    """What it waits for before it trains."""
    notices: Sequence[str] = ()
    pods: Sequence[PodView] = ()
    is_gone: bool = False
    """Whether nothing is left of it but its record."""
    row: Mapping[str, Any] = field(repr=False)
    """What `--json` prints of it in a list; `details` is what a list leaves out."""
    details: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def progress(self) -> str:
        """Passes for people; '' where they are not known."""
        return f"{self.passes_done}/{self.passes} passes" if self.passes else ""

    # What the coordinator reports, as `JobStatus` explains it, at hand for a notebook.

    @property
    def phase(self) -> str:
        return self.job.phase

    @property
    def round(self) -> int:
        return self.job.round

    @property
    def samples_per_s(self) -> float:
        return self.job.samples_per_s

    @property
    def waits_for(self) -> tuple[str, ...]:
        return self.job.waits_for

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.job.warnings


@dataclass(frozen=True, slots=True)
class Listing:
    """Jobs, newest first."""

    jobs: Sequence[RunStatus] = ()
    more: int = 0
    """Left out by the limit; `hidden` ones are those of which nothing is left but a record."""
    hidden: int = 0
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
    """What could not be examined."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A job that was cancelled."""

    job: str
    state: str
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.job}: {self.state}{'; ' if self.next_step else ''}{self.next_step}"


@dataclass(frozen=True, slots=True)
class Started:
    """A job that was started, or that was there already as its file describes it."""

    backend: Backend
    """The place where it is."""
    id: str
    is_suspended: bool = False
    """Whether it stays as it is until it is resumed."""


class Backend(Protocol):
    """Jobs in one place: on this machine, or in a namespace of a cluster. A job is named as on the command line."""

    stops_on_interrupt: ClassVar[bool]
    """Whether Ctrl-C in a call that waits for a job stops the job."""

    def submit(self, file: Path, changes: Mapping[str, Any]) -> Started:
        """Start the job of a job.yaml, with other values for some of its keys."""

    def list(self, limit: int | None = None) -> Listing:
        """The jobs there."""

    def status(self, name: str | None) -> RunStatus:
        """How a job is doing."""

    def follow(self, name: str | None, view: View, is_left: Callable[[], bool]) -> RunStatus | None:
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
        """Resume a job from its newest snapshot, with other values for some keys; its id."""

    def fetch(
        self,
        name: str,
        directory: Path,
        *,
        wants_all: bool = False,
        only_model: bool = False,
        image: str | None = None,
        on_progress: OnProgress = None,
    ) -> Fetched:
        """Copy a job's models and logs into a directory here."""

    def delete(self, name: str, *, with_volume: bool = False) -> Deleted:
        """Delete a job; its files stay unless requested."""
