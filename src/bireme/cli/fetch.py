"""`bireme fetch`: bring a job's models and logs from the cluster's volume here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bireme.cli.cluster import Where, cluster_options
from bireme.core.errors import SpecError, UsageError
from bireme.spec.load import command_name

if TYPE_CHECKING:
    from bireme.kube.client import Cluster
    from bireme.kube.volume import Place

STAYS = ("snapshots/", "run/")
"""What is only of use where the job runs."""


@click.command(epilog="\b\nExample: bireme fetch quick-start results --namespace training")
@click.argument("job")
@click.argument("directory", metavar="DIR", type=Path)
@click.option("--all", "wants_all", is_flag=True, help="Snapshots too, so that `bireme resume` can go on here.")
@click.option("--model", "only_model", is_flag=True, help="Only the model of the last pass.")
@click.option("--image", help="Image for the pod on the volume, where the job itself is gone.")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def fetch(
    job: str, directory: Path, wants_all: bool, only_model: bool, image: str | None, where: Where, as_json: bool
) -> None:
    """Bring the models and logs of JOB, which runs or ran on a cluster, into the directory DIR.

    What is there already with the same content is not brought again, and what was broken off goes on. Works also
    when the job is deleted but its volume is not; then name an image.
    """
    from bireme.cli.data import progress
    from bireme.kube import transfer
    from bireme.kube.volume import VolumePod

    with where.connect() as cluster, VolumePod(cluster, place_of(cluster, job, image)) as pod:
        output = output_of(cluster, job)
        wanted = chosen(pod.ask(["list", output]), wants_all=wants_all, only_model=only_model)
        if not wanted:
            raise UsageError(f"{job} has left nothing yet in {output} on its volume")
        with progress("fetching", as_json) as on_progress:
            done = transfer.fetch(pod, output, wanted, directory, on_progress)
    models = sorted({Path(name).parts[0] for name in wanted if name.startswith("pass-")})
    if as_json:
        click.echo(json.dumps({"job": job, "directory": str(directory), "models": models, **asdict(done)}))
        return
    click.echo(f"{done.files - done.skipped} files, {done.nbytes:,} bytes into {directory}; {done.skipped} were there")
    if models:
        click.echo(f"the last model is {directory / models[-1]}")


def chosen(files: dict[str, int], *, wants_all: bool, only_model: bool) -> dict[str, int]:
    """The files that are brought, of all that there are."""
    found = {name: n for name, n in files.items() if not name.startswith(".") and "/." not in name}
    if only_model:
        last = max((name.partition("/")[0] for name in found if name.startswith("pass-")), default="none")
        return {name: n for name, n in found.items() if name.startswith(f"{last}/")}
    return found if wants_all else {name: n for name, n in found.items() if not name.startswith(STAYS)}


def place_of(cluster: Cluster, job: str, image: str | None) -> Place:
    """The volume of a job on the cluster, also of one that was deleted but for its volume."""
    import msgspec

    from bireme.core.errors import ClusterError
    from bireme.kube.client import CLAIM
    from bireme.kube.stopping import find_job
    from bireme.kube.submit import read_back
    from bireme.kube.volume import Place
    from bireme.spec.kubernetes import KubernetesFile

    try:
        told = read_back(cluster, job)
    except (ClusterError, msgspec.MsgspecError):
        if cluster.find(CLAIM, job) is None:
            find_job(cluster, job)
        if image is None:
            fix = f"`{command_name()} … --image NAME` names the image that a pod on the volume runs"
            raise SpecError(f"of {job} only the volume is left, and which image it ran is not known", fix=fix) from None
        return Place(job, image, KubernetesFile())
    return Place(job, image or told.image, told.settings)


def output_of(cluster: Cluster, job: str) -> str:
    """Where a job's output is on its volume."""
    import msgspec

    from bireme.core.errors import ClusterError
    from bireme.kube.placing import directory_of
    from bireme.kube.submit import read_back

    try:
        return read_back(cluster, job).job.output
    except (ClusterError, msgspec.MsgspecError):
        return str(directory_of(job) / "output")
