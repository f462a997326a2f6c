"""What commands that may speak of a cluster share: their options, and which of two jobs of one name is meant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from bireme.core.errors import UsageError
from bireme.spec.load import kubeconfig_files

if TYPE_CHECKING:
    from bireme.kube.api.client import Cluster
    from bireme.local.registry import RunRecord


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster the command line names."""

    is_asked: bool = False
    """Whether it says at all that a cluster is meant."""
    context: str | None = None
    namespace: str | None = None

    def connect(self, namespace: str | None = None, **more: Any) -> Cluster:
        """Log in; `namespace` is for where the command line names none."""
        from bireme.kube.api.client import connect

        return connect(self.context, self.namespace or namespace, **more)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a cluster, as one value `where`."""

    @functools.wraps(command)
    def located(*args: Any, context: str | None, namespace: str | None, kube: bool = False, **rest: Any) -> Any:
        where = Where(kube or context is not None or namespace is not None, context, namespace)
        return command(*args, where=where, **rest)

    located = click.option("--namespace", metavar="NAME", help="Namespace on the cluster.")(located)
    return click.option("--context", metavar="NAME", help="Context of the kubeconfig; the current one if left out.")(
        located
    )


def either_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """As `cluster_options`, for commands that are about jobs on this machine too."""
    return click.option("--kube", is_flag=True, help="The job is on the cluster.")(cluster_options(command))


def has_cluster() -> bool:
    """Whether there is a cluster to talk to at all."""
    from pathlib import Path

    return bool(kubeconfig_files()) or Path("/var/run/secrets/kubernetes.io/serviceaccount/token").is_file()


def was_submitted(job: str) -> bool:
    """Whether a job of this name was submitted to some cluster from here, and not deleted there since."""
    from bireme.spec.load import places

    # Each has an authority of its own (kube/submit/certificates.py), by which it is known without asking a cluster.
    return any(path.name == job for path in (places().state / "ca").glob("*/*/*"))


def local_run(job: str | None, where: Where) -> RunRecord | None:
    """The run on this machine that is meant; None if the job is on a cluster."""
    from bireme.local import registry

    if where.is_asked:
        if job is None:
            raise UsageError("which job?", fix="name it; `bireme list` shows the jobs on the cluster too")
        return None
    try:
        found = registry.find_run(job)
    except UsageError:
        if job is None or not has_cluster():
            raise
        return None
    if job == found.name and was_submitted(job):
        click.echo("note: this is the job on this machine; for the one on the cluster, add --kube", err=True)
    return found
