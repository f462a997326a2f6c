"""Jobs and their runs from Python: on this machine, or on a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bireme.api.backends import Backend, Started, no_note
from bireme.api.backends import RunStatus as RunStatus
from bireme.api.local import LocalBackend
from bireme.api.models import Model
from bireme.api.where import Where, backend_of
from bireme.core.errors import BiremeError, UsageError
from bireme.diagnose.evidence import Cause
from bireme.job.output.logs import LogFilter
from bireme.spec.job import Job as JobSpec
from bireme.spec.load import load_cluster_job, load_job
from bireme.view.readers import choose_view


@dataclass(frozen=True, slots=True)
class Job:
    """A job.yaml, checked."""

    file: Path
    spec: JobSpec
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What replaces keys of the file."""

    def run(
        self,
        *,
        trainers: int | None = None,
        pservers: int | None = None,
        passes: int | None = None,
        seed: int | None = None,
        output: str | Path | None = None,
        wait: bool = True,
        progress: bool = True,
    ) -> Run:
        """Train it with processes on this machine; with `wait=False`, return as soon as the run has begun.

        Ctrl-C while waiting stops the run cleanly. What ends it early is raised.
        """
        changes = self._changes(trainers=trainers, pservers=pservers, passes=passes, seed=seed, output=output)
        load_job(self.file, changes)  # mistakes are raised from here, before a process starts
        return self._run_of(LocalBackend().submit(self.file, changes), wait=wait, progress=progress)

    def submit(  # noqa: PLR0913 - as many as the command has flags
        self,
        *,
        context: str | None = None,
        namespace: str | None = None,
        image: str | None = None,
        trainers: int | None = None,
        pservers: int | None = None,
        passes: int | None = None,
        seed: int | None = None,
        replace: bool = False,
        wait: bool = False,
        progress: bool = True,
    ) -> Run:
        """Run it on a Kubernetes cluster, as `bireme submit` does; submitting it twice is safe.

        `replace` deletes a job of that name first if it differs, has failed or is suspended; its volume stays. Ctrl-C
        while waiting leaves the job running.
        """
        changes = self._changes(trainers=trainers, pservers=pservers, passes=passes, seed=seed)
        backend = Where(context, namespace, is_kube=True).backend()
        started = backend.submit(self.file, changes, image=image, is_replacing=replace)
        return self._run_of(started, wait=wait, progress=progress)

    def _run_of(self, started: Started, *, wait: bool, progress: bool) -> Run:
        run = Run(started.backend, started.id, self.spec.name)
        return run.wait(progress=progress) if wait and not started.is_suspended else run

    def _changes(self, **flags: Any) -> dict[str, Any]:
        return {**self.overrides, **{key: value for key, value in flags.items() if value is not None}}


class Run:
    """A job that runs or ran, on this machine or on a cluster."""

    def __init__(self, backend: Backend, key: str, name: str) -> None:
        self._backend = backend
        self.id = key
        """Of the run; on a cluster, the job's name."""
        self.name = name

    def __repr__(self) -> str:
        return f"<bireme run {self.id}: {self.status().state}>"

    @property
    def output(self) -> Path:
        output = self.status().output
        if output is None:
            raise UsageError(f"the files of {self.name} are on a cluster", fix="`run.fetch(DIR)` copies them")
        return output

    def status(self) -> RunStatus:
        return self._backend.status(self.id)

    def wait(self, *, progress: bool = False) -> Run:
        """Wait until it has ended, and raise what ended it early; with `progress`, show it as the terminal does.

        Ctrl-C stops a run on this machine; a job on a cluster keeps running.
        """
        view = choose_view(is_silent=not progress)
        try:
            end = self._backend.follow(self.id, view, lambda: False)
        except KeyboardInterrupt:
            if self._backend.stops_on_interrupt:
                with suppress(UsageError):  # it has just ended by itself
                    self.cancel()
            raise
        if end is not None and end.error is not None:
            raise end.error
        for line in _result_of(end) if progress and end is not None else ():
            view.note(line)
        return self

    def cancel(self, *, now: bool = False) -> None:
        """Stop it; finished passes stay, and a snapshot is taken unless `now`."""
        self._backend.cancel(self.id, now=now)

    def resume(
        self,
        *,
        trainers: int | None = None,
        pservers: int | None = None,
        passes: int | None = None,
        wait: bool = True,
        progress: bool = True,
    ) -> Run:
        """Continue from the newest snapshot; here in a new run of the same output directory."""
        changes = {"trainers": trainers, "pservers": pservers, "passes": passes}
        run = Run(self._backend, self._backend.resume(self.id, changes), self.name)
        return run.wait(progress=progress) if wait else run

    def logs(self, last: int | None = None, *, node: int | None = None, role: str | None = None) -> list[str]:
        """Lines of all logs in the order of time, each behind its log's name; of each log the `last` ones if given."""
        lines = self._backend.logs(self.id, LogFilter(node=node, role=role, last=last))
        return [f"{line.log}: {line.text}" for line in lines]

    def why(self) -> list[Cause]:
        """What keeps it from running, or what it waits for: causes with advice, the most urgent first."""
        return self._backend.why(self.id).causes

    def fetch(self, directory: str | Path) -> Model | None:
        """Copy the models and logs of a job on a cluster into a directory here; the model of the last pass."""
        done = self._backend.fetch(self.id, Path(directory))
        return Model(done.directory / done.models[-1]) if done.hash else None

    def delete(self, *, volume: bool = False) -> None:
        """Delete a job from the cluster; its volume stays, with all models, unless `volume`."""
        self._backend.delete(self.id, with_volume=volume)

    def model(self, pass_id: int | None = None) -> Model:
        """The model that a pass has left, of the last finished pass if none is named."""
        from bireme.job.output.model import finished_passes, pass_name

        output = self.output
        finished = finished_passes(output)
        if pass_id not in finished and (pass_id is not None or not finished):
            raise BiremeError(f"{self.name} has no model of {'any pass' if pass_id is None else f'pass {pass_id}'} yet")
        return Model(output / pass_name(max(finished) if pass_id is None else pass_id))


def _result_of(end: RunStatus) -> Iterator[str]:
    """What the terminal prints when a job on this machine has finished: its model, the best pass and the hash."""
    from bireme.api.foreground import Finished
    from bireme.api.progress import job_in

    job = job_in(end.output) if end.output is not None and end.state == "finished" else None
    if job is not None:
        # The file may be of a later run in this directory, which has more passes or has deleted this run's models.
        finished = Finished(replace(job, passes=end.job.total), end.job)
        yield from finished.lines() if finished.model.is_dir() else ()


def load(file: str | Path, *, kube: bool = False, **overrides: Any) -> Job:
    """Read a job.yaml and check it; keyword arguments replace keys of the file, such as `trainers=3`.

    With `kube` its data may be on a cluster's volume only, and its program in an image.
    """
    path = Path(file)
    spec = load_cluster_job(path, overrides).job if kube else load_job(path, overrides)
    return Job(path, spec, overrides)


def runs(*, kube: bool = False, context: str | None = None, namespace: str | None = None) -> list[Run]:
    """The newest run of each job on this machine, newest first; or the jobs in a namespace of a cluster."""
    where = Where(context, namespace, kube)
    backend = where.backend() if where.is_asked else LocalBackend()
    return [Run(backend, job.id, job.name) for job in backend.list().jobs]


def run(
    name: str | None = None, *, kube: bool = False, context: str | None = None, namespace: str | None = None
) -> Run:
    """A run by its job's name, its id or its output directory; the newest of all if none is named.

    A name that no job on this machine has is looked up on the cluster; `kube`, `context` or `namespace` mean a cluster.
    """
    backend = backend_of(name, Where(context, namespace, kube), no_note)
    job = backend.status(name)
    return Run(backend, job.id, job.name)
