"""`bireme submit`: bring a job to a Kubernetes cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bireme.cli.cluster import Where, cluster_options
from bireme.core.errors import ClusterError, SpecError, UsageError
from bireme.spec.load import ClusterJob, command_name, load_cluster_job, places

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster
    from bireme.kube.api.cluster_facts import ClusterFacts
    from bireme.kube.jobs.listing import JobView
    from bireme.kube.submit.submission import Submission

PUSH_IMAGE = "`bireme image push IMAGE.tar`"


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
@click.option(
    "--replace",
    "is_replacing",
    is_flag=True,
    help="Take away a job of that name first if it differs, has failed or is suspended; its volume stays.",
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
def submit(  # noqa: PLR0913 - its flags
    job_file: Path | None, is_waiting: bool, dry_run: str | None, is_replacing: bool, image: str | None,
    shows_permissions: bool, where: Where, is_quiet: bool, as_json: bool, **overrides: Any,
) -> None:  # fmt: skip
    """Run the job described in JOB.yaml on a Kubernetes cluster.

    The same file as for `bireme train`; its section `kubernetes` says how pods are placed. The data goes to the job's
    volume with `bireme data push`. Submitting the same file twice is safe.
    """
    if shows_permissions:
        from bireme.kube.api.permissions import role

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
        from bireme.kube.api.cluster_facts import read_facts

        submission = prepare(told, cluster.namespace, image, read_facts(cluster))
        if dry_run == "server":
            from bireme.kube.submit.objects import build
            from bireme.kube.submit.submit import send

            send(cluster, build(submission), is_trial=True)
            _print_objects(submission, as_json=as_json)
            return
        is_replaced = is_replacing and take_away_old(cluster, submission)
        sent = _send(cluster, submission)
        outcome = "replaced" if is_replaced else sent
        there = None if sent == "created" else _find(cluster, submission, sent)
        if not (is_quiet or as_json):
            _tell(cluster, submission, outcome, there)
        if is_waiting and not _rests(there):
            from bireme.cli.following import follow_to_end

            follow_to_end(cluster, told.job.name, is_silent=is_quiet or as_json, as_json=as_json)
        elif as_json:
            place = {"namespace": cluster.namespace, "context": cluster.context}
            state = {"state": there.state} if there else {}
            click.echo(json.dumps({"job": told.job.name, **place, "outcome": outcome, **state}))
        elif is_waiting and is_quiet:
            click.echo(f"{told.job.name} is suspended: {_way_on(cluster, submission)}", err=True)


def check_here(told: ClusterJob) -> None:
    """Find what can be found without a cluster: a config that does not load fails here, as it does for `train`."""
    if told.has_data and told.has_program:
        from bireme.job.preflight import check_program

        check_program(told.job)


def prepare(told: ClusterJob, namespace: str, image: str | None, facts: ClusterFacts | None = None) -> Submission:
    """The submission that a file comes to on a cluster with these facts, still without certificates."""
    from bireme.kube.api.cluster_facts import with_facts
    from bireme.kube.submit.placement import place
    from bireme.kube.submit.program_files import read_program
    from bireme.kube.submit.submission import Submission

    told = with_facts(told, facts)
    chosen = image or told.settings.image
    if chosen is None:
        way = "name it with --image or `kubernetes.image` in job.yaml"
        raise SpecError(
            "no image is given",
            why="pods run an image that holds bireme",
            fix=f"build one with `bireme image build`, then {PUSH_IMAGE if facts else way}",
        )
    job = place(told, namespace)
    source = Path(told.job.config).parent
    program = {} if told.settings.program else read_program(source, without=Path(told.job.output))
    return Submission(job, told.settings, namespace, chosen, program)


def take_away_old(cluster: Cluster, submission: Submission) -> bool:
    """Make room for a submission that replaces a job; False where there is none, or one that may stay as it is.

    One that runs is not ended by the way. The volume stays, and so does what its pods have trained.
    """
    from bireme.kube.jobs.lifecycle import delete, jobs_of
    from bireme.kube.jobs.listing import job_view
    from bireme.kube.submit.objects import build
    from bireme.kube.submit.submit import is_as_told, look_up, refuse_foreign

    name = submission.job.name
    jobs = jobs_of(cluster, name)
    if not jobs:
        return False
    view = job_view(jobs)
    if view.state == "running" or (view.state == "starting" and view.status.get("trainers")):
        cancel = f"`{command_name()} cancel {name} --namespace {cluster.namespace}`"
        fix = f"cancel it first with {cancel}, then submit it again with `--replace`"
        raise UsageError(f"{name} is not replaced: it runs", fix=fix)
    if is_as_told(jobs, submission) and view.state not in ("failed", "cancelled", "suspended"):
        return False
    refuse_foreign(look_up(cluster, build(submission)), name)
    delete(cluster, name, with_volume=False)
    return True


def _send(cluster: Cluster, submission: Submission) -> str:
    """Bring a job to the cluster; if that fails, no authority is left here that nobody there knows."""
    from bireme.kube.api.client import SECRET
    from bireme.kube.submit.certificates import JobIdentity, forgotten_unless_used, make_certificates
    from bireme.kube.submit.submit import decoded, submit

    name, settings, state = submission.job.name, submission.settings, places().state
    if not settings.tls:
        return submit(cluster, submission)
    whose = JobIdentity(cluster.server, cluster.namespace, name)

    def in_use() -> bytes | None:
        return decoded(cluster.find(SECRET, f"{name}-tls")).get("ca.crt")

    with forgotten_unless_used(state, whose, in_use):
        return submit(cluster, submission, lambda: make_certificates(state, whose, settings.certificate_days))


def _find(cluster: Cluster, submission: Submission, outcome: str) -> JobView:
    """How the job is doing that was there already; one that has failed does not start again by itself."""
    from bireme.kube.jobs.lifecycle import view_of

    view = view_of(cluster, submission.job.name)
    if view.state != "failed":
        return view
    renewed = "; its certificate was renewed" if outcome == "renewed" else ""
    raise ClusterError(
        f"{view.name} is on the cluster as it is in the file, and has failed before: "
        f"{view.reason or 'Kubernetes says no more'}{renewed}",
        why="submitting it once more does not start it again",
        fix=f"{_way_on(cluster, submission)}; `--replace` takes it away and submits it anew",
    )


def _rests(there: JobView | None) -> bool:
    """Whether nothing comes of a job until somebody resumes it."""
    return there is not None and there.state == "suspended"


def _way_on(cluster: Cluster, submission: Submission) -> str:
    return f"`{command_name()} resume {submission.job.name} --namespace {cluster.namespace}` goes on with it"


def _tell(cluster: Cluster, submission: Submission, outcome: str, there: JobView | None) -> None:
    from bireme.view.plain import count

    name, job = submission.job.name, submission.job
    where = f"in the namespace {cluster.namespace} of context {cluster.context}"
    if there is not None:
        renewed = "; its certificate was renewed" if outcome == "renewed" else ""
        click.echo(f"{name} is {where} already, as it is in the file: {there.state}{renewed}")
    else:
        instead = " in place of the one before" if outcome == "replaced" else ""
        counted = ((job.pservers, "pserver"), (job.trainers, "trainer"), (job.shards, "shard"))
        counts = ", ".join(count(number, what) for number, what in counted)
        click.echo(f"submitted {name}{instead} {where}: {counts}")
    if _rests(there):
        click.echo(_way_on(cluster, submission))
        return
    named = f"{name} --namespace {cluster.namespace}"
    click.echo(f"how it is doing: `{command_name()} status {named}`; why it does not start: `… why {named}`")


def _print_objects(submission: Submission, *, as_json: bool) -> None:
    from bireme.kube.submit.objects import build

    made = build(submission)
    if as_json:
        click.echo(json.dumps({"objects": made}))
    else:
        _print_yaml(made)


def _print_yaml(made: list[dict[str, Any]]) -> None:
    from bireme.kube.submit.printing import as_yaml

    click.echo(as_yaml(made), nl=False)
