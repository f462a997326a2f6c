"""`bireme data push`, and `bireme data split` on a cluster: data onto a job's volume."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.cluster import Where, cluster_options
from bireme.core.errors import ClusterError, DataError, SpecError
from bireme.spec.load import ClusterJob, load_cluster_job

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster
    from bireme.kube.volume.helper_pod import VolumePlace


@click.command(epilog="\b\nExample: bireme data push first-job/job.yaml --image registry.local/bireme:1")
@click.argument("job_file", metavar="JOB.yaml", type=Path)
@click.option("--from", "source", type=Path, help="Another directory than the job's shards: all that is in it.")
@click.option("--to", "target", help="Where it goes with --from, relative to the job's directory on the volume.")
@click.option("--image", help="Image instead of what the file says.")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def push(
    job_file: Path, source: Path | None, target: str | None, image: str | None, where: Where, as_json: bool
) -> None:
    """Bring the shards of the job described in JOB.yaml onto its volume.

    The volume claim is made if there is none. Every byte is checked; what is there already is not sent again, and a
    transfer that was broken off goes on.
    """
    from bireme.cli.data import progress
    from bireme.kube.volume import transfer
    from bireme.kube.volume.helper_pod import VolumePod
    from bireme.kube.volume.pod_end import list_files

    told = load_cluster_job(job_file, {})
    root, files = _what(told, source, target, list_files)
    with where.connect(told.settings.namespace) as cluster:
        with VolumePod(cluster, prepare_volume(cluster, told, image)) as pod, progress("pushing", as_json) as tell:
            done = transfer.push(pod, files, root, tell)
        if as_json:
            click.echo(json.dumps({"job": told.job.name, "namespace": cluster.namespace, "to": root, **asdict(done)}))
            return
    sent = done.files - done.skipped
    click.echo(f"{sent} files, {done.nbytes:,} bytes to {root} on the volume; {done.skipped} were there already")


def _what(told: ClusterJob, source: Path | None, target: str | None, list_files: Any) -> tuple[str, dict[str, Path]]:
    """Where files go on the volume, and which."""
    from bireme.kube.submit.placement import data_on_volume, directory_of
    from bireme.kube.volume.transfer import shard_files

    if source is None:
        if not told.has_data:
            raise DataError(f"there are no shards here: {told.job.data}", fix="split the data with `bireme data split`")
        return str(data_on_volume(told)), shard_files(Path(told.job.data))
    if not source.is_dir():
        raise DataError(f"there is no directory {source}")
    below = target or source.resolve().name
    if below.startswith("/") or ".." in Path(below).parts:
        raise SpecError(f"--to {below} is not below the job's directory on the volume", fix="give a path such as `raw`")
    return str(directory_of(told.job.name) / below), {name: source / name for name in list_files(source)}


def prepare_volume(cluster: Cluster, told: ClusterJob, image: str | None) -> VolumePlace:
    """The job's volume, claimed if it is not yet."""
    from bireme.cli.submit import PUSH_IMAGE
    from bireme.kube.api import naming
    from bireme.kube.api.client import CLAIM
    from bireme.kube.api.cluster_facts import read_facts, with_facts
    from bireme.kube.submit.objects import claim
    from bireme.kube.submit.patching import merge
    from bireme.kube.volume.helper_pod import VolumePlace

    facts = read_facts(cluster)
    settings, name = with_facts(told, facts).settings, told.job.name
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


def split_there(where: Where, job_file: Path, source: str, shards: int, out: str, image: str | None) -> dict[str, Any]:
    """Run `bireme data split` in a Kubernetes Job on the job's volume; what it reported."""
    from bireme.kube.submit.placement import directory_of
    from bireme.kube.volume.splitting import split_on_volume

    told = load_cluster_job(job_file, {})
    base = directory_of(told.job.name)
    paths = [str(base / source), "--out", str(base / out)]
    command = ["bireme", "data", "split", *paths, "--shards", str(shards), "--json"]
    with where.connect(told.settings.namespace) as cluster:
        place = prepare_volume(cluster, told, image)
        return split_on_volume(cluster, place, command, lambda line: click.echo(line, err=True))
