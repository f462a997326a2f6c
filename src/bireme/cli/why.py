"""`bireme why`: one sentence of cause and one of advice, for a job on this machine or on a cluster."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from bireme.api.live import local_facts
from bireme.cli.cluster import Where, either_options, local_run

if TYPE_CHECKING:
    from bireme.diagnose.facts import Cause, Facts


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
    facts, notes = (local_facts(record), []) if record else _cluster_facts(job or "", where)
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


def _cluster_facts(job: str, where: Where) -> tuple[Facts, list[str]]:
    from dataclasses import replace

    from bireme import __version__
    from bireme.diagnose.gather import gather, notes
    from bireme.spec.load import command_name

    with where.connect() as cluster:
        facts = gather(cluster, job, time.time())
    facts = replace(facts, version=__version__, command=command_name())
    return facts, notes(facts)
