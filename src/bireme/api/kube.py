"""Jobs on a Kubernetes cluster: every use case, each over a connection of its own."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from bireme import __version__
from bireme.api import following
from bireme.api.backends import Diagnosis, Listing, Note, OnProgress, RunStatus, Started, Stopped, no_note
from bireme.api.where import Where, named
from bireme.core.errors import BiremeError, UsageError
from bireme.diagnose.explain import explain
from bireme.diagnose.gather import gather, notes
from bireme.job.output.logs import LogFilter, LogLine
from bireme.job.status import JobStatus
from bireme.kube.api import naming
from bireme.kube.api.client import JOB, POD, TIMEOUT_S
from bireme.kube.api.naming import Object
from bireme.kube.jobs import fetching, lifecycle, logs, submitting, volumes
from bireme.kube.jobs.fetching import Fetched
from bireme.kube.jobs.listing import JobView, PodView, by_name, gathering, is_ended, job_view, pod_views
from bireme.kube.jobs.submitting import Submitted
from bireme.kube.submit.certificates import RENEW_BELOW_DAYS, JobIdentity, forget
from bireme.kube.submit.objects import as_yaml, build
from bireme.kube.submit.objects import user_role as permissions
from bireme.kube.volume import transfer
from bireme.kube.volume.helper_pod import VolumePod
from bireme.spec.load import ClusterJob, command_name, load_cluster_job, places
from bireme.view.readers import View

__all__ = ["Fetched", "KubeBackend", "PodView", "Submitted", "as_yaml", "permissions"]
LIST_PATIENCE_S = 2.0


class Resumed(NamedTuple):
    """A job that continues, or that has no passes left."""

    job: str
    namespace: str
    outcome: Literal["resumed", "finished"]


@dataclass(frozen=True, slots=True)
class StartedThere(Started):
    """A job that was submitted."""

    done: Submitted = field(kw_only=True)
    where: Where = field(kw_only=True)
    """The namespace where it is."""


@dataclass(frozen=True, slots=True)
class KubeBackend:
    """Jobs in one namespace of a cluster."""

    stops_on_interrupt: ClassVar[bool] = False
    where: Where

    def objects(
        self, file: Path, changes: Mapping[str, Any], image: str | None, *, is_checked_there: bool
    ) -> list[Object]:
        """The objects of a job, not stored anywhere; checked by the API server on request."""
        spec = load_cluster_job(file, changes)
        if not is_checked_there:
            namespace = self.where.namespace or spec.settings.namespace or "default"
            return build(submitting.prepare(spec, namespace, image))
        _check_program(spec)
        with self.where.connect(spec.settings.namespace) as cluster:
            return build(submitting.try_out(cluster, spec, image))

    def submit(
        self, file: Path, changes: Mapping[str, Any], *, image: str | None = None, is_replacing: bool = False
    ) -> StartedThere:
        """Submit the job of a job.yaml; one that differs is deleted first on request."""
        spec = load_cluster_job(file, changes)
        _check_program(spec)
        with self.where.connect(spec.settings.namespace) as cluster:
            done = submitting.submit_job(cluster, spec, image, is_replacing=is_replacing)
            place = Where(cluster.context, cluster.namespace)
        return StartedThere(KubeBackend(place), spec.job.name, done.is_suspended, done=done, where=place)

    def list(self, limit: int | None = None, *, timeout_s: float = TIMEOUT_S) -> Listing:
        with self.where.connect(timeout_s=timeout_s) as cluster:
            groups = by_name(cluster.list(JOB, {naming.NAME: "bireme", naming.MANAGED_BY: "bireme"}))
        views = sorted((job_view(jobs) for jobs in groups.values()), key=lambda view: view.started, reverse=True)
        jobs = [report_of(view) for view in views[:limit]]
        return Listing(jobs, len(views) - len(jobs))

    def list_if_reachable(self, limit: int | None = None) -> Listing:
        """As `list`; a cluster that does not answer soon is left out, with a note."""
        answers: queue.Queue[Listing] = queue.Queue()

        # In a thread: a name look-up or a log-in program of the kubeconfig may last beyond any timeout of ours. An
        # answer that comes too late stays in the queue, and the thread ends with the process.
        def ask() -> None:
            try:
                answers.put(self.list(limit, timeout_s=LIST_PATIENCE_S))
            except BiremeError as e:
                answers.put(Listing(note=f"the cluster is left out: {e.what}"))

        threading.Thread(target=ask, name="list", daemon=True).start()
        try:
            return answers.get(timeout=LIST_PATIENCE_S)
        except queue.Empty:
            return Listing(note="the cluster is left out: it does not answer")

    def status(self, name: str | None) -> RunStatus:
        name = named(name)
        with self.where.connect() as cluster:
            view = lifecycle.view_of(cluster, name)
            pods = pod_views(cluster.list(POD, naming.selector_of(name)), view.status)
        hints = []
        if view.state in ("pending", "starting"):
            why = f"more: `{command_name()} why {name} --namespace {cluster.namespace}`"
            hints = [gathering(view, pods), why]
        where = f"in the namespace {cluster.namespace} of context {cluster.context}"
        status = msgspec.to_builtins(view.status)
        plain = [{**msgspec.to_builtins(pod), "trains": msgspec.to_builtins(pod.trains or {})} for pod in pods]
        return replace(
            report_of(view), where=where, hints=hints, pods=pods,
            notices=[] if is_ended(view.state) else list(certificate_lines(view.status, time.time())),
            details={"error": dict(view.error), "status": status, "pod_list": plain},
        )  # fmt: skip

    def follow(self, name: str | None, view: View, is_left: Callable[[], bool] = lambda: False) -> RunStatus | None:
        with self.where.connect() as cluster:
            last = following.follow(cluster, named(name), view, is_left)
        return report_of(last) if last is not None else None

    def logs(
        self, name: str | None, wanted: LogFilter, *, image: str | None = None, note: Note = no_note
    ) -> Iterator[LogLine]:
        with self.where.connect() as cluster:
            yield from logs.lines_of(cluster, named(name), wanted, image, note)

    def why(self, name: str | None) -> Diagnosis:
        with self.where.connect() as cluster:
            facts = gather(cluster, named(name), time.time())
        facts = replace(facts, version=__version__, command=command_name())
        return Diagnosis(facts.job, facts.where, facts.namespace, explain(facts), notes(facts))

    def cancel(self, name: str | None, *, now: bool = False) -> Stopped:
        """Suspend a job and wait until its pods have ended."""
        name = named(name)
        with self.where.connect() as cluster:
            view = lifecycle.view_of(cluster, name)
            if is_ended(view.state) or view.state == "suspended":
                raise UsageError(f"{name} does not run: its state is {view.state}")
            has_left = lifecycle.suspend(cluster, name, is_hasty=now)
        state = "suspended" if has_left else "suspended, but some pods have not left yet"
        return Stopped(name, state, f"continue with `{command_name()} resume {name} --namespace {cluster.namespace}`")

    def resume(self, name: str, changes: Mapping[str, Any]) -> str:
        self.resume_job(name, changes)
        return name

    def resume_job(self, name: str | None, changes: Mapping[str, Any]) -> Resumed:
        """Resume a job that was stopped, has failed, or gets more passes."""
        name = named(name)
        changes = {key: value for key, value in changes.items() if value is not None}
        with self.where.connect() as cluster:
            return Resumed(name, cluster.namespace, lifecycle.resume(cluster, name, changes))

    def delete(self, name: str, *, with_volume: bool = False) -> lifecycle.Deleted:
        with self.where.connect() as cluster:
            done = lifecycle.delete(cluster, name, with_volume=with_volume)
            forget(places().state, JobIdentity(cluster.server, cluster.namespace, name))
        return done

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
        """Fetch the models and logs of a job, named by its name or its file."""
        spec = load_cluster_job(Path(name), {}) if is_file_name(name) else None
        transfer.refuse_obstacles(directory)
        with self.where.connect(spec.settings.namespace if spec else None) as cluster:
            files = volumes.left_by_file(cluster, spec, image) if spec else volumes.left_by(cluster, name, image)
            return fetching.fetch(
                cluster, files, directory, wants_all=wants_all, only_model=only_model,
                fix="" if spec else volumes.BY_FILE, on_progress=on_progress,
            )  # fmt: skip

    def push(
        self, file: Path, source: Path | None, target: str | None, image: str | None, on_progress: OnProgress = None
    ) -> dict[str, Any]:
        spec = load_cluster_job(file, {})
        root, files = volumes.files_to_push(spec, source, target)
        with (
            self.where.connect(spec.settings.namespace) as cluster,
            VolumePod(cluster, volumes.prepare_volume(cluster, spec, image)) as pod,
        ):
            done = transfer.push(pod, files, root, on_progress)
        return {"job": spec.job.name, "namespace": cluster.namespace, "to": root, **asdict(done)}

    def split(
        self, file: Path, source: str, shards: int, out: str, image: str | None, note: Callable[[str], None]
    ) -> dict[str, Any]:
        """Split data that is on a job's volume, in a pod there."""
        spec = load_cluster_job(file, {})
        with self.where.connect(spec.settings.namespace) as cluster:
            return volumes.split(cluster, spec, source, shards, out, image, note)

    def probe_volume(self, file: Path, image: str | None) -> tuple[str, bool]:
        """Whether the volume of a job can hold its files, and a sentence about it: a pod tries."""
        spec = load_cluster_job(file, {})
        with self.where.connect(spec.settings.namespace) as cluster:
            return volumes.probe(cluster, volumes.left_by_file(cluster, spec, image))


def report_of(view: JobView) -> RunStatus:
    """How a job is doing, by its Jobs alone."""
    row = {k: v for k, v in msgspec.to_builtins(view).items() if k not in ("status", "error")}
    done, passes = view.status.done, view.status.total
    return RunStatus(
        name=view.name,
        id=view.name,
        state=view.state,
        reason=view.reason,
        started=view.started,
        job=view.status,
        passes_done=done,
        passes=passes,
        place=f"kubernetes/{view.namespace}",
        row={**row, "passes_done": done, "passes": passes, "where": "kubernetes"},
        closed=view.status.passes_done,
        error=following.error_of(view) if is_ended(view.state) else None,
    )


def certificate_lines(status: JobStatus, now: float) -> Iterator[str]:
    """A warning while there is time: nothing renews a job's certificate by itself."""
    left_days = ((status.certificate_until or math.inf) - now) / 86400
    if left_days < RENEW_BELOW_DAYS:
        left = f"{max(left_days, 0.0):.0f} more days"
        yield f"its certificate is good for {left}; to renew it, submit the same file again"


def is_file_name(job: str) -> bool:
    """Whether a job is meant by its file: a name has neither dots nor slashes."""
    return "." in job or "/" in job


def _check_program(spec: ClusterJob) -> None:
    """Find mistakes that need no cluster: a config that does not load fails here, as it does for `train`."""
    if spec.has_data and spec.has_program:
        from bireme.job.preflight import check_program

        check_program(spec.job)
