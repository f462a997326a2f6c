"""`bireme submit`: bring a job to a Kubernetes cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.cluster import Where, cluster_options
from bireme.core.errors import SpecError, UsageError
from bireme.spec.load import ClusterJob, command_name, load_cluster_job, places

if TYPE_CHECKING:
    from bireme.kube.client import Cluster
    from bireme.kube.submission import Submission


class _Submit(click.Command):
    """A command whose `--dry-run` may stand alone, also before the file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give a bare `--dry-run` its value."""
        return super().parse_args(ctx, ["--dry-run=client" if a == "--dry-run" else a for a in args])


@click.command(cls=_Submit, epilog="\b\nExample: bireme submit first-job/job.yaml --image registry/bireme:1 --wait")
@click.argument("job_file", metavar="JOB.yaml", type=Path, required=False)
@click.option("--wait", "is_waiting", is_flag=True, help="Follow the job until it ends; Ctrl-C leaves it running.")
@click.option(
    "--dry-run",
    type=click.Choice(["client", "server"]),
    help="Print the objects as YAML and send nothing; with `server`, have the API server check them too.",
)
@click.option("--image", help="Image instead of what the file says.")
@click.option("--trainers", type=int, help="Trainers instead of what the file says.")
@click.option("--pservers", type=int, help="Pservers instead of what the file says.")
@click.option("--ports-num", type=int, help="Dense lanes of each pserver.")
@click.option("--passes", type=int, help="Passes over the data, counted from the first.")
@click.option("--seed", type=int, help="Decides first values and shuffling.")
@click.option("--permissions", "shows_permissions", is_flag=True, help="Print a Role with all that bireme needs there.")
@cluster_options
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Say only what went wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def submit(
    job_file: Path | None, is_waiting: bool, dry_run: str | None, image: str | None, shows_permissions: bool,
    where: Where, is_quiet: bool, as_json: bool, **overrides: Any,
) -> None:  # fmt: skip
    """Run the job described in JOB.yaml on a Kubernetes cluster.

    The same file as for `bireme train`; its section `kubernetes` says how pods are placed. The data goes to the job's
    volume with `bireme data push`. Submitting the same file twice is safe.
    """
    if shows_permissions:
        from bireme.kube.permissions import role

        _print_yaml([role(where.namespace or "default")])
        return
    if job_file is None:
        raise UsageError("which job?", fix="`bireme submit JOB.yaml`")
    told = load_cluster_job(job_file, overrides)
    if dry_run == "client":
        _print_objects(prepare(told, where.namespace or told.settings.namespace or "default", image), as_json=as_json)
        return
    check_here(told)
    with where.connect(told.settings.namespace) as cluster:
        submission = prepare(told, cluster.namespace, image)
        if dry_run == "server":
            from bireme.kube.objects import build
            from bireme.kube.submit import send

            send(cluster, build(submission), is_trial=True)
            _print_objects(submission, as_json=as_json)
            return
        outcome = _send(cluster, submission)
        if not (is_quiet or as_json):
            _tell(cluster, submission, outcome)
        if is_waiting:
            from bireme.cli.following import follow_to_end

            follow_to_end(cluster, told.job.name, is_silent=is_quiet or as_json, as_json=as_json)
        elif as_json:
            name, namespace = told.job.name, cluster.namespace
            place = {"namespace": namespace, "context": cluster.context}
            click.echo(json.dumps({"job": name, **place, "outcome": outcome}))


def check_here(told: ClusterJob) -> None:
    """Find what can be found without a cluster: a config that does not load fails here, as it does for `train`."""
    if told.has_data and told.has_program:
        from bireme.job.preflight import check_program

        check_program(told.job)


def prepare(told: ClusterJob, namespace: str, image: str | None) -> Submission:
    """The submission that a file comes to, still without certificates."""
    from bireme.kube.placing import place
    from bireme.kube.program import read_program
    from bireme.kube.submission import Submission

    chosen = image or told.settings.image
    if chosen is None:
        raise SpecError(
            "no image is given",
            why="pods run an image that holds bireme",
            fix="build one with `bireme image build`, then name it with --image or `kubernetes.image` in job.yaml",
        )
    job = place(told, namespace)
    source = Path(told.job.config).parent
    program = {} if told.settings.program else read_program(source, without=Path(told.job.output))
    return Submission(job, told.settings, namespace, chosen, program)


def _send(cluster: Cluster, submission: Submission) -> str:
    from dataclasses import replace

    from bireme.kube.certifying import Whose, make_certificates
    from bireme.kube.submit import submit

    name, settings = submission.job.name, submission.settings
    made = {}
    if settings.tls:
        whose = Whose(cluster.server, cluster.namespace, name)
        made = make_certificates(places().state, whose, settings.certificate_days)
    return submit(cluster, replace(submission, certificates=made))


def _tell(cluster: Cluster, submission: Submission, outcome: str) -> None:
    name, job = submission.job.name, submission.job
    where = f"in the namespace {cluster.namespace} of context {cluster.context}"
    if outcome != "created":
        from bireme.kube.stopping import view_of

        renewed = "; its certificate was renewed" if outcome == "renewed" else ""
        click.echo(f"{name} is {where} already, as it is in the file: {view_of(cluster, name).state}{renewed}")
    else:
        click.echo(f"submitted {name} {where}: {job.pservers} pservers, {job.trainers} trainers, {job.shards} shards")
    named = f"{name} --namespace {cluster.namespace}"
    click.echo(f"how it is doing: `{command_name()} status {named}`; why it does not start: `… why {named}`")


def _print_objects(submission: Submission, *, as_json: bool) -> None:
    from bireme.kube.objects import build

    made = build(submission)
    if as_json:
        click.echo(json.dumps({"objects": made}))
    else:
        _print_yaml(made)


def _print_yaml(made: list[dict[str, Any]]) -> None:
    from bireme.kube.printing import as_yaml

    click.echo(as_yaml(made), nl=False)
