"""`bireme why | cancel | fetch | delete`: what keeps a job from running, stop it; copy and delete it on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bireme.api.backends import Diagnosis
from bireme.api.where import Where, backend_of
from bireme.cli.options import either_options, job_argument, json_option, pod_image_option
from bireme.cli.output import emit, note, progress

if TYPE_CHECKING:
    from bireme.api.kube import Fetched


@click.command(epilog="\b\nExample: bireme why quick-start --namespace training")
@job_argument
@either_options
@json_option
def why(job: str | None, where: Where, as_json: bool) -> None:
    """Print why JOB does not run, or what it waits for, and what to do about it.

    JOB is a job's name, on this machine or on the cluster; for a job here also a run's id or its output directory
    (the newest when left out). What should be repaired first comes first. Nothing is changed.
    """
    result = backend_of(job, where, note).why(job)
    causes = [{"situation": c.situation, "cause": c.cause, "advice": c.advice, "about": c.about} for c in result.causes]
    value = {"job": result.job, "where": result.where, "namespace": result.namespace, "causes": causes}
    emit({**value, "notes": result.notes}, _describe_causes(result), as_json=as_json)
    for text in () if as_json else result.notes:
        note(f"({text})")


def _describe_causes(result: Diagnosis) -> Iterator[str]:
    for number, cause in enumerate(result.causes):
        if number == 1:
            yield "\nalso:"
        yield f"{cause.cause} {cause.advice}" if number else f"{cause.cause}\n{cause.advice}"


@click.command(epilog="\b\nExample: bireme cancel quick-start")
@job_argument
@click.option("--now", is_flag=True, help="Do not wait for a clean stop.")
@either_options
@json_option
def cancel(job: str | None, now: bool, where: Where, as_json: bool) -> None:
    """Stop JOB cleanly; finished passes stay.

    On a cluster its pods take a snapshot and leave; the job stays there, suspended, until it is resumed or deleted.
    """
    done = backend_of(job, where, note).cancel(job, now=now)
    emit({"job": done.job, "state": done.state}, str(done), as_json=as_json)


@click.command(epilog="\b\nExample: bireme fetch quick-start results --namespace training")
@click.argument("job", metavar="JOB|JOB.yaml")
@click.argument("directory", metavar="DIR", type=Path)
@click.option("--all", "wants_all", is_flag=True, help="Snapshots too, so that `bireme resume` can continue here.")
@click.option("--model", "only_model", is_flag=True, help="Only the model of the last pass.")
@pod_image_option
@either_options
@json_option
def fetch(
    job: str, directory: Path, wants_all: bool, only_model: bool, image: str | None, where: Where, as_json: bool
) -> None:
    """Bring the models and logs of JOB, which runs or ran on a cluster, into the directory DIR.

    What is there already with the same content is not brought again, and what was broken off resumes. Works also
    when the job is deleted but its volume is not: then name an image, and instead of JOB its file, which says where
    its volume and its output are (`bireme fetch first-job/job.yaml results --image registry.local/bireme:1`).
    """
    is_there = image is not None or Path(job).is_file()
    backend = where.backend() if is_there else backend_of(job, where, note, prefers_cluster=True)
    with progress("fetching", as_json) as on_progress:
        done = backend.fetch(
            job, directory, wants_all=wants_all, only_model=only_model, image=image, on_progress=on_progress
        )
    if done.note:
        note(f"note: {done.note}")
    row = {"job": done.job, "directory": str(directory), "models": done.models, **asdict(done.transfer)}
    emit({**row, "hash": done.hash} if done.hash else row, _describe_fetched(done), as_json=as_json)


def _describe_fetched(done: Fetched) -> Iterator[str]:
    files, kept = done.transfer.files - done.transfer.skipped, done.transfer.skipped
    yield f"{files} files, {done.transfer.nbytes:,} bytes into {done.directory}; {kept} were there"
    if done.models:
        yield f"the last model is {done.directory / done.models[-1]}"
    if done.hash:
        yield f"hash: {done.hash}"


@click.command(epilog="\b\nExample: bireme delete quick-start --namespace training")
@click.argument("job")
@click.option("--volume", "with_volume", is_flag=True, help="Its volume too, with all its models and data.")
@either_options
@json_option
def delete(job: str, with_volume: bool, where: Where, as_json: bool) -> None:
    """Take JOB from the cluster; its volume stays unless --volume is given.

    A volume claim that bireme did not make is never deleted.
    """
    done = backend_of(job, where, note, prefers_cluster=True).delete(job, with_volume=with_volume)
    value = {"job": job, "deleted": done.things, "claim": done.claim, "volume": done.volume}
    more = {"note": f"--volume was ignored: {done.ignored}"} if done.ignored else {}
    emit(value | more, done.words(job), as_json=as_json)
