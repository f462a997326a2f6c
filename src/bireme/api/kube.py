"""Jobs on a Kubernetes cluster: every use case, each over a connection of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bireme import __version__
from bireme.api.backends import Diagnosis, Note, Stopped, no_note
from bireme.api.where import Where
from bireme.core.errors import UsageError
from bireme.diagnose.explain import explain
from bireme.diagnose.gather import gather, notes
from bireme.job.output.logs import LogFilter, LogLine
from bireme.kube.api.permissions import role as permissions
from bireme.kube.jobs import fetching, lifecycle, logs, submitting, volumes
from bireme.kube.jobs.fetching import Fetched as Fetched
from bireme.kube.jobs.listing import is_ended
from bireme.kube.jobs.submitting import Submitted as Submitted
from bireme.kube.submit.certificates import JobIdentity, forget
from bireme.kube.submit.objects import build
from bireme.kube.submit.printing import as_yaml as as_yaml
from bireme.kube.submit.submission import Object
from bireme.kube.volume import transfer
from bireme.kube.volume.helper_pod import VolumePod
from bireme.spec.load import ClusterJob, command_name, load_cluster_job, places

__all__ = ["Fetched", "KubeBackend", "Submitted", "as_yaml", "permissions"]
OnProgress = Callable[[int, int], None] | None


@dataclass(frozen=True, slots=True)
class KubeBackend:
    """Jobs in one namespace of a cluster."""

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

    def submit_file(
        self, file: Path, changes: Mapping[str, Any], *, image: str | None = None, is_replacing: bool = False
    ) -> tuple[Submitted, Where]:
        """Submit the job of a job.yaml; what came of it, and the namespace where it is now."""
        spec = load_cluster_job(file, changes)
        _check_program(spec)
        with self.where.connect(spec.settings.namespace) as cluster:
            done = submitting.submit_job(cluster, spec, image, is_replacing=is_replacing)
            return done, Where(is_asked=True, context=cluster.context, namespace=cluster.namespace)

    def logs(
        self, name: str | None, wanted: LogFilter, *, image: str | None = None, note: Note = no_note
    ) -> Iterator[LogLine]:
        """Lines of a job's logs by time, from its pods or its volume."""
        with self.where.connect() as cluster:
            yield from logs.lines_of(cluster, known(name), wanted, image, note)

    def why(self, name: str | None) -> Diagnosis:
        """What keeps a job from running, or what it waits for."""
        with self.where.connect() as cluster:
            facts = gather(cluster, known(name), time.time())
        facts = replace(facts, version=__version__, command=command_name())
        return Diagnosis(facts.job, facts.where, facts.namespace, explain(facts), notes(facts))

    def cancel(self, name: str | None, *, now: bool = False) -> Stopped:
        """Suspend a job and wait until its pods have ended."""
        name = known(name)
        with self.where.connect() as cluster:
            view = lifecycle.view_of(cluster, name)
            if is_ended(view.state) or view.state == "suspended":
                raise UsageError(f"{name} does not run: its state is {view.state}")
            has_left = lifecycle.suspend(cluster, name, is_hasty=now)
        state = "suspended" if has_left else "suspended, but some pods have not left yet"
        return Stopped(name, state, f"go on with `{command_name()} resume {name} --namespace {cluster.namespace}`")

    def delete(self, name: str, *, with_volume: bool = False) -> lifecycle.Deleted:
        """Delete a job; its volume stays unless requested."""
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
        """Copy a job's shards, or another directory, to the job's volume."""
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


def known(name: str | None) -> str:
    """The name of a job on a cluster, where no job is the default."""
    if name is None:
        raise UsageError("which job?", fix="name it; `bireme list` shows the jobs on the cluster too")
    return name


def is_file_name(job: str) -> bool:
    """Whether a job is meant by its file: a name has neither dots nor slashes."""
    return "." in job or "/" in job


def _check_program(spec: ClusterJob) -> None:
    """Find mistakes that need no cluster: a config that does not load fails here, as it does for `train`."""
    if spec.has_data and spec.has_program:
        from bireme.job.preflight import check_program

        check_program(spec.job)
