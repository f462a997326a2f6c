"""The volume of a job on a cluster: where the job's files are, also when it was deleted, and copying data there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bireme.core.errors import ClusterError, DataError, SpecError, UsageError
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, Cluster
from bireme.kube.api.cluster_facts import read_facts, with_facts
from bireme.kube.jobs.lifecycle import find_job
from bireme.kube.submit.objects import claim
from bireme.kube.submit.patching import merge
from bireme.kube.submit.placement import data_on_volume, directory_of, place
from bireme.kube.submit.submission import Submission
from bireme.kube.submit.submit import read_back, submitted_map
from bireme.kube.volume.helper_pod import VolumePlace, VolumePod
from bireme.kube.volume.pod_end import list_files
from bireme.kube.volume.splitting import split_on_volume
from bireme.kube.volume.transfer import shard_files
from bireme.spec.kubernetes import KubernetesFile
from bireme.spec.load import ClusterJob, command_name

PUSH_IMAGE = "`bireme image push IMAGE.tar`"
BY_FILE = "where a deleted job had another `output` or volume claim than most, its file says so: name JOB.yaml, not JOB"


class JobFiles(NamedTuple):
    """Where the files of a job on a cluster are, whether it still exists or not."""

    name: str
    place: VolumePlace
    output: str


def left_by(cluster: Cluster, job: str, image: str | None) -> JobFiles:
    """The files of a job, by its name; a deleted job's volume and output are assumed to be in the usual place."""
    submitted = _submitted(cluster, job)
    if submitted is not None:
        place = VolumePlace(job, image or submitted.image, submitted.settings)
        return JobFiles(job, place, submitted.job.output)
    if cluster.find(CLAIM, job) is None:
        try:
            find_job(cluster, job)
        except UsageError as e:
            raise UsageError(e.what, why=e.why, fix=f"{e.fix}; {BY_FILE}") from e
    if image is None:
        raise _no_image(job)
    return JobFiles(job, VolumePlace(job, image, KubernetesFile()), str(directory_of(job) / "output"))


def left_by_file(cluster: Cluster, spec: ClusterJob, image: str | None) -> JobFiles:
    spec = with_facts(spec, read_facts(cluster))
    name, settings = spec.job.name, spec.settings
    chosen = image or settings.image
    if chosen is None and (submitted := _submitted(cluster, name)) is not None:
        chosen = submitted.image
    if chosen is None:
        raise _no_image(name)
    return JobFiles(name, VolumePlace(name, chosen, settings), place(spec, cluster.namespace).output)


def _submitted(cluster: Cluster, job: str) -> Submission | None:
    return read_back(cluster, job) if submitted_map(cluster, job) is not None else None


def _no_image(job: str) -> SpecError:
    fix = f"`{command_name()} … --image NAME` names the image that a pod on the volume runs"
    return SpecError(f"of {job} only the volume is left, and which image it ran is not known", fix=fix)


def files_to_push(spec: ClusterJob, source: Path | None, target: str | None) -> tuple[str, dict[str, Path]]:
    """Where files go on the volume, and which: the job's shards, or all below `source`."""
    if source is None:
        if not spec.has_data:
            raise DataError(f"there are no shards here: {spec.job.data}", fix="split the data with `bireme data split`")
        return str(data_on_volume(spec)), shard_files(Path(spec.job.data))
    if not source.is_dir():
        raise DataError(f"there is no directory {source}")
    below = target or source.resolve().name
    if below.startswith("/") or ".." in Path(below).parts:
        raise SpecError(f"--to {below} is not below the job's directory on the volume", fix="give a path such as `raw`")
    return str(directory_of(spec.job.name) / below), {name: source / name for name in list_files(source)}


def prepare_volume(cluster: Cluster, spec: ClusterJob, image: str | None) -> VolumePlace:
    """The job's volume; its claim is created if it does not exist."""
    facts = read_facts(cluster)
    settings, name = with_facts(spec, facts).settings, spec.job.name
    chosen = image or settings.image
    if chosen is None:
        fix = "name it with --image or `kubernetes.image` in job.yaml; `bireme image build` makes one"
        if facts is not None:
            fix = f"build one with `bireme image build`, then {PUSH_IMAGE}"
        raise SpecError("no image is given for the pod on the volume", fix=fix)
    if settings.volume.claim is None:
        there = cluster.find(CLAIM, name)
        if there is None:
            made = claim(name, cluster.namespace, settings)
            cluster.apply(merge(made, settings.patch.get("PersistentVolumeClaim", {})))
        elif not naming.is_ours(there):
            raise ClusterError(
                f"there is a volume claim {name} that is not bireme's",
                fix=f"to use it, say `kubernetes.volume.claim: {name}`; else choose another `name`",
            )
    return VolumePlace(name, chosen, settings)


def split(
    cluster: Cluster, spec: ClusterJob, source: str, shards: int, out: str, image: str | None,
    note: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    base = directory_of(spec.job.name)
    paths = [str(base / source), "--out", str(base / out)]
    command = ["bireme", "data", "split", *paths, "--shards", str(shards), "--json"]
    return split_on_volume(cluster, prepare_volume(cluster, spec, image), command, note)


def probe(cluster: Cluster, files: JobFiles) -> tuple[str, bool]:
    """Whether a volume can hold a job, and a sentence about it; a pod tries it out."""
    with VolumePod(cluster, files.place) as pod:
        verdict = pod.ask(["probe", naming.VOLUME_ROOT])
    return f"the volume {files.place.claim}: {verdict['words']}", not verdict["lacks"]
