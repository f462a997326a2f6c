"""`bireme submit`: run a job on a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from bireme.api.where import Where
from bireme.cli.options import cluster_options, image_option, json_option, overrides
from bireme.cli.output import emit, note
from bireme.core.errors import Cancelled, UsageError
from bireme.spec.load import command_name
from bireme.view.plain import count
from bireme.view.readers import choose_view

if TYPE_CHECKING:
    from bireme.api.kube import Submitted


class _Submit(click.Command):
    """A command whose `--dry-run` needs no value, also before the file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
@image_option
@overrides
@click.option("--permissions", "shows_permissions", is_flag=True, help="Print a Role with all that bireme needs there.")
@cluster_options
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print only errors.")
@json_option
def submit(  # noqa: PLR0913 - its flags
    job_file: Path | None, is_waiting: bool, dry_run: str | None, is_replacing: bool, image: str | None,
    shows_permissions: bool, where: Where, is_quiet: bool, as_json: bool, **changes: Any,
) -> None:  # fmt: skip
    """Run the job described in JOB.yaml on a Kubernetes cluster.

    The same file as for `bireme train`; its section `kubernetes` says how pods are placed. The data goes to the job's
    volume with `bireme data push`. Submitting the same file twice is safe.
    """
    from bireme.api.kube import as_yaml, permissions

    if shows_permissions:
        click.echo(as_yaml([permissions(where.namespace or "default")]), nl=False)
        return
    if job_file is None:
        raise UsageError("which job?", fix="`bireme submit JOB.yaml`")
    backend = where.backend()
    if dry_run is not None:
        made = backend.objects(job_file, changes, image, is_checked_there=dry_run == "server")
        emit({"objects": made}, as_yaml(made).removesuffix("\n"), as_json=as_json)
        return
    started = backend.submit(job_file, changes, image=image, is_replacing=is_replacing)
    name, done, cluster = started.id, started.done, started.where
    for line in () if is_quiet or as_json else _describe(done, cluster):
        click.echo(line)
    if is_waiting and not done.is_suspended:
        follow_to_end(cluster, name, is_silent=is_quiet or as_json, as_json=as_json)
    elif as_json:
        state = {"state": done.view.state} if done.view else {}
        place = {"namespace": cluster.namespace, "context": cluster.context}
        emit({"job": name, **place, "outcome": done.outcome, **state}, (), as_json=True)
    elif is_waiting and is_quiet:
        note(f"{name} is suspended: {done.next_step}")


def follow_to_end(cluster: Where, name: str, *, is_silent: bool, as_json: bool) -> None:
    """Show a job until it ends, then name its model; raises what it has failed with.

    After Ctrl-C the exit code is that of a stop, though the job keeps running.
    """
    from bireme.api.foreground import watch

    last = watch(cluster.backend(), name, choose_view(is_silent=is_silent))
    if last is not None and last.error is not None:
        raise last.error
    value = {"job": name, "namespace": cluster.namespace, "state": last.state if last else "unknown"}
    if last is None or last.state != "finished":
        emit(value, (), as_json=as_json)
        raise SystemExit(Cancelled.exit_code)
    line = f"finished: bring the model here with `{command_name()} fetch {name} DIR --namespace {cluster.namespace}`"
    emit({**value, **to_builtins(last.job)}, [] if is_silent else line, as_json=as_json)


def _describe(done: Submitted, cluster: Where) -> Iterator[str]:
    job = done.submission.job
    name = job.name
    where = f"in the namespace {cluster.namespace} of context {cluster.context}"
    if done.view is not None:
        renewed = "; its certificate was renewed" if done.outcome == "renewed" else ""
        yield f"{name} is {where} already, as it is in the file: {done.view.state}{renewed}"
    else:
        instead = " in place of the one before" if done.outcome == "replaced" else ""
        counts = f"{count(job.pservers, 'pserver')}, {count(job.trainers, 'trainer')}, {count(job.shards, 'shard')}"
        yield f"submitted {name}{instead} {where}: {counts}"
    if done.is_suspended:
        yield done.next_step
        return
    named = f"{name} --namespace {cluster.namespace}"
    yield f"how it is doing: `{command_name()} status {named}`; why it does not start: `… why {named}`"
