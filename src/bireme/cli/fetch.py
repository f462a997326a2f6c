"""`bireme fetch`: bring a job's models and logs from the cluster's volume here."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from bireme.cli.cluster import Where, cluster_options
from bireme.core.errors import ModelError, OutputExistsError, SpecError, UsageError
from bireme.core.files import storage_errors, write_atomic
from bireme.core.text import first_of
from bireme.spec.load import ClusterJob, command_name, load_cluster_job

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster
    from bireme.kube.submit.submission import Submission
    from bireme.kube.volume.helper_pod import VolumePlace
    from bireme.kube.volume.transfer import Agree

STAYS = ("snapshots/", "run/")
"""What is only of use where the job runs."""
BY_FILE = "where a deleted job had another `output` or volume claim than most, its file says so: name JOB.yaml, not JOB"


MARKER = ".bireme-fetched.json"
"""The file in which a fetch leaves word of whose files a directory holds."""


class Left(NamedTuple):
    """What is known of a job on a cluster, there or gone: its volume, and where its output is on it."""

    name: str
    place: VolumePlace
    output: str


class Fetched(msgspec.Struct, frozen=True):
    """From which job on which cluster files were fetched, so that a later fetch may replace them by newer ones."""

    server: str
    namespace: str
    job: str
    volume: str
    """The uid of its claim: one that was deleted and made again is another volume."""
    output: str
    files: tuple[str, ...] = ()

    def is_of(self, other: Fetched) -> bool:
        """Whether both are of one job and one run of it; a cluster may be known under several addresses."""
        mine, theirs = ((each.namespace, each.job, each.volume, each.output) for each in (self, other))
        return mine == theirs


@click.command(epilog="\b\nExample: bireme fetch quick-start results --namespace training")
@click.argument("job", metavar="JOB|JOB.yaml")
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
    when the job is deleted but its volume is not: then name an image, and instead of JOB its file, which says where
    its volume and its output are (`bireme fetch first-job/job.yaml results --image registry.local/bireme:1`).
    """
    from bireme.cli.data import progress
    from bireme.kube.volume import transfer
    from bireme.kube.volume.helper_pod import VolumePod

    told = load_cluster_job(Path(job), {}) if is_file_name(job) else None
    transfer.refuse_obstacles(directory)
    with where.connect(told.settings.namespace if told else None) as cluster:
        left = left_by_file(cluster, told, image) if told else left_by(cluster, job, image)
        with VolumePod(cluster, left.place) as pod:
            wanted = chosen(transfer.listing(pod, left.output), wants_all=wants_all, only_model=only_model)
            if not wanted:
                raise _nothing(left, is_from_file=told is not None)
            agree = agreeing(directory, wanted, _origin(cluster, left))
            with progress("fetching", as_json) as on_progress:
                done = transfer.fetch(pod, left.output, wanted, directory, on_progress, agree=agree)
    models = sorted({Path(name).parts[0] for name in wanted if name.startswith("pass-")})
    digest = _hash_of(directory / models[-1]) if models and f"{models[-1]}/done" in wanted else None
    if as_json:
        row = {"job": left.name, "directory": str(directory), "models": models, **asdict(done)}
        click.echo(json.dumps({**row, "hash": digest} if digest else row))
        return
    click.echo(f"{done.files - done.skipped} files, {done.nbytes:,} bytes into {directory}; {done.skipped} were there")
    if models:
        click.echo(f"the last model is {directory / models[-1]}")
    if digest:
        click.echo(f"hash: {digest}")


def _hash_of(model: Path) -> str | None:
    """The hash of a model that was brought; where it has none, a note says why."""
    from bireme.job.output.model import model_hash

    try:
        return model_hash(model)
    except ModelError as e:
        click.echo(f"note: {e.what}", err=True)
        return None


def _origin(cluster: Cluster, left: Left) -> Fetched:
    from bireme.kube.api.client import CLAIM

    claim = cluster.get(CLAIM, left.place.claim)
    return Fetched(cluster.server, cluster.namespace, left.name, claim["metadata"].get("uid", ""), left.output)


def agreeing(directory: Path, wanted: Collection[str], origin: Fetched) -> Agree:
    """Whether files of a directory may be replaced: only such as were fetched into it from the same job before.

    Once that is settled, the directory is marked as this job's; it is asked again after each lost connection.
    """

    def agree(changed: list[str]) -> None:
        then = _marker_in(directory)
        is_same = then is not None and then.is_of(origin) and not _has_run_here(directory, origin)
        known = set(then.files) if then is not None and is_same else set()
        strange = sorted(set(changed) - known)
        if strange:
            raise _in_the_way(directory, strange, origin, then)
        now = msgspec.structs.replace(origin, files=tuple(sorted(known | set(wanted))))
        if now != then:
            with storage_errors(str(directory)):
                directory.mkdir(parents=True, exist_ok=True)
            write_atomic(directory / MARKER, msgspec.json.format(msgspec.json.encode(now), indent=2) + b"\n")

    return agree


def _marker_in(directory: Path) -> Fetched | None:
    try:
        return msgspec.json.decode((directory / MARKER).read_bytes(), type=Fetched)
    except (OSError, msgspec.MsgspecError):
        return None


def _has_run_here(directory: Path, origin: Fetched) -> bool:
    """Whether the directory is a local run's output, also of one that went on with what was fetched."""
    try:
        told = msgspec.json.decode((directory / "job.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return False
    return bool(told.get("output") != origin.output)


def _in_the_way(directory: Path, names: list[str], origin: Fetched, then: Fetched | None) -> OutputExistsError:
    why = "they were not fetched from this job, and would be overwritten"
    if _has_run_here(directory, origin):
        why = "the directory is the output of another run, and would be mixed with this one"
    elif then is not None and not then.is_of(origin):
        why = f"they were fetched from another run, of {then.job} in the namespace {then.namespace} of {then.server}"
    return OutputExistsError(
        f"{directory} has files that differ from those of {origin.job}: {first_of(names, 3)}",
        why=why,
        fix="name another directory; nothing was written",
    )


def is_file_name(job: str) -> bool:
    """Whether a job is meant by its file: a name has neither dots nor slashes."""
    return "." in job or "/" in job


def _nothing(left: Left, *, is_from_file: bool) -> UsageError:
    what = f"{left.name} has left nothing yet in {left.output} on the volume {left.place.claim}"
    return UsageError(what, fix="" if is_from_file else BY_FILE)


def chosen(files: dict[str, int], *, wants_all: bool, only_model: bool) -> dict[str, int]:
    """The files that are brought, of all that there are."""
    found = {name: n for name, n in files.items() if not name.startswith(".") and "/." not in name}
    if only_model:
        last = max((name.partition("/")[0] for name in found if name.startswith("pass-")), default="none")
        return {name: n for name, n in found.items() if name.startswith(f"{last}/")}
    return found if wants_all else {name: n for name, n in found.items() if not name.startswith(STAYS)}


def left_by(cluster: Cluster, job: str, image: str | None) -> Left:
    """What a job has left, by its name; of one that was deleted, the volume and the output are where most have them."""
    from bireme.kube.api.client import CLAIM
    from bireme.kube.jobs.lifecycle import find_job
    from bireme.kube.submit.placement import directory_of
    from bireme.kube.volume.helper_pod import VolumePlace
    from bireme.spec.kubernetes import KubernetesFile

    told = _submitted(cluster, job)
    if told is not None:
        return Left(job, VolumePlace(job, image or told.image, told.settings), told.job.output)
    if cluster.find(CLAIM, job) is None:
        try:
            find_job(cluster, job)
        except UsageError as e:
            raise UsageError(e.what, why=e.why, fix=f"{e.fix}; {BY_FILE}") from e
    if image is None:
        raise _no_image(job)
    return Left(job, VolumePlace(job, image, KubernetesFile()), str(directory_of(job) / "output"))


def left_by_file(cluster: Cluster, told: ClusterJob, image: str | None) -> Left:
    """What the job of a file has left; the file and the cluster's facts say where its volume and its output are."""
    from bireme.kube.api.cluster_facts import read_facts, with_facts
    from bireme.kube.submit.placement import place
    from bireme.kube.volume.helper_pod import VolumePlace

    told = with_facts(told, read_facts(cluster))
    name, settings = told.job.name, told.settings
    found = image or settings.image
    if found is None and (submitted := _submitted(cluster, name)) is not None:
        found = submitted.image
    if found is None:
        raise _no_image(name)
    return Left(name, VolumePlace(name, found, settings), place(told, cluster.namespace).output)


def _submitted(cluster: Cluster, job: str) -> Submission | None:
    """What a job was submitted with; None where it is not on the cluster any more."""
    from bireme.kube.api import naming
    from bireme.kube.api.client import CONFIG_MAP
    from bireme.kube.submit.submit import read_back

    there = cluster.find(CONFIG_MAP, job)
    return read_back(cluster, job) if there is not None and naming.is_ours(there) else None


def _no_image(job: str) -> SpecError:
    fix = f"`{command_name()} … --image NAME` names the image that a pod on the volume runs"
    return SpecError(f"of {job} only the volume is left, and which image it ran is not known", fix=fix)
