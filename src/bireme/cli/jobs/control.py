"""`bireme why | cancel | delete`: what keeps a job from running, stop it, and delete it from a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from bireme.api.where import Where, backend_of
from bireme.cli.options import cluster_options, either_options, job_argument, json_option
from bireme.cli.output import emit, note

if TYPE_CHECKING:
    from bireme.diagnose.facts import Cause


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
    emit({**value, "notes": result.notes}, _describe(result.causes), as_json=as_json)
    for text in () if as_json else result.notes:
        note(f"({text})")


def _describe(causes: list[Cause]) -> Iterator[str]:
    for number, cause in enumerate(causes):
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


@click.command(epilog="\b\nExample: bireme delete quick-start --namespace training")
@click.argument("job")
@click.option("--volume", "with_volume", is_flag=True, help="Its volume too, with all its models and data.")
@cluster_options
@json_option
def delete(job: str, with_volume: bool, where: Where, as_json: bool) -> None:
    """Take JOB from the cluster; its volume stays unless --volume is given.

    A volume claim that bireme did not make is never deleted.
    """
    from bireme.api.kube import KubeBackend

    done = KubeBackend(where).delete(job, with_volume=with_volume)
    value = {"job": job, "deleted": done.things, "claim": done.claim, "volume": done.volume}
    more = {"note": f"--volume was ignored: {done.ignored}"} if done.ignored else {}
    emit(value | more, done.words(job), as_json=as_json)
