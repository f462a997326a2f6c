"""`bireme why`: one sentence of cause and one of advice, for a job on this machine or on a cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bireme.cli.cluster import Where, either_options, local_run

if TYPE_CHECKING:
    from bireme.diagnose.facts import Cause, Facts
    from bireme.local.registry import RunRecord


@click.command(epilog="\b\nExample: bireme why quick-start --namespace training")
@click.argument("job", required=False)
@either_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def why(job: str | None, where: Where, as_json: bool) -> None:
    """Say why JOB does not run, or what it waits for, and what to do about it.

    JOB is a job's name, on this machine or on the cluster; for a job here also a run's id or its output directory
    (the newest when left out). What should be mended first comes first. Nothing is changed.
    """
    from bireme.diagnose.explain import explain

    record = local_run(job, where)
    facts, notes = (_local_facts(record), []) if record else _cluster_facts(job or "", where)
    causes = explain(facts)
    if as_json:
        click.echo(json.dumps(_told(facts, causes, notes)))
        return
    for number, cause in enumerate(causes):
        if number == 1:
            click.echo("\nalso:")
        click.echo(f"{cause.cause} {cause.advice}" if number else f"{cause.cause}\n{cause.advice}")
    for note in notes:
        click.echo(f"({note})", err=True)


def _told(facts: Facts, causes: list[Cause], notes: list[str]) -> dict[str, Any]:
    told = [{"situation": c.situation, "cause": c.cause, "advice": c.advice, "about": list(c.about)} for c in causes]
    return {"job": facts.job, "where": facts.where, "namespace": facts.namespace, "causes": told, "notes": notes}


def _local_facts(record: RunRecord) -> Facts:
    from bireme.cli.jobs import status_of
    from bireme.cli.progress import progress_of
    from bireme.diagnose.facts import Facts
    from bireme.spec.load import command_name

    status = status_of(record)
    progress = progress_of(record, status)
    known = {**msgspec.to_builtins(record), "status": status}
    known |= {"passes_done": progress.done, "passes": progress.passes, "output": _short_path(record.output)}
    return Facts(job=record.name, where="local", now=time.time(), command=command_name(), record=known)


def _short_path(path: str) -> str:
    """A path as people would type it from here."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _cluster_facts(job: str, where: Where) -> tuple[Facts, list[str]]:
    from dataclasses import replace

    from bireme import __version__
    from bireme.diagnose.gather import gather, notes
    from bireme.spec.load import command_name

    with where.connect() as cluster:
        facts = gather(cluster, job, time.time())
    facts = replace(facts, version=__version__, command=command_name())
    return facts, notes(facts)
