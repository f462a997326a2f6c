"""`bireme fetch`: copy a job's models and logs from its volume on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bireme.api.where import Where
from bireme.cli.options import cluster_options, json_option, pod_image_option
from bireme.cli.output import emit, note, progress

if TYPE_CHECKING:
    from bireme.api.kube import Fetched


@click.command(epilog="\b\nExample: bireme fetch quick-start results --namespace training")
@click.argument("job", metavar="JOB|JOB.yaml")
@click.argument("directory", metavar="DIR", type=Path)
@click.option("--all", "wants_all", is_flag=True, help="Snapshots too, so that `bireme resume` can continue here.")
@click.option("--model", "only_model", is_flag=True, help="Only the model of the last pass.")
@pod_image_option
@cluster_options
@json_option
def fetch(
    job: str, directory: Path, wants_all: bool, only_model: bool, image: str | None, where: Where, as_json: bool
) -> None:
    """Bring the models and logs of JOB, which runs or ran on a cluster, into the directory DIR.

    What is there already with the same content is not brought again, and what was broken off resumes. Works also
    when the job is deleted but its volume is not: then name an image, and instead of JOB its file, which says where
    its volume and its output are (`bireme fetch first-job/job.yaml results --image registry.local/bireme:1`).
    """
    from bireme.api.kube import KubeBackend

    with progress("fetching", as_json) as on_progress:
        done = KubeBackend(where).fetch(
            job, directory, wants_all=wants_all, only_model=only_model, image=image, on_progress=on_progress
        )
    if done.note:
        note(f"note: {done.note}")
    row = {"job": done.job, "directory": str(directory), "models": done.models, **asdict(done.transfer)}
    emit({**row, "hash": done.hash} if done.hash else row, _describe(done), as_json=as_json)


def _describe(done: Fetched) -> Iterator[str]:
    files, kept = done.transfer.files - done.transfer.skipped, done.transfer.skipped
    yield f"{files} files, {done.transfer.nbytes:,} bytes into {done.directory}; {kept} were there"
    if done.models:
        yield f"the last model is {done.directory / done.models[-1]}"
    if done.hash:
        yield f"hash: {done.hash}"
