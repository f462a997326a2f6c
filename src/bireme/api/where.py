"""Which cluster is meant, if any; and whether a job of some name is here or there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bireme.api.backends import Backend, Listing
from bireme.core.errors import UsageError
from bireme.spec.load import kubeconfig_files, places

if TYPE_CHECKING:
    from bireme.api.kube import KubeBackend
    from bireme.kube.api.client import Cluster


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster by context and namespace, or this machine."""

    context: str | None = None
    namespace: str | None = None
    is_kube: bool = False
    """Whether a cluster is meant even if it is not named."""

    @property
    def is_asked(self) -> bool:
        """Whether a cluster is meant for certain."""
        return self.is_kube or self.context is not None or self.namespace is not None

    def backend(self) -> KubeBackend:
        """Jobs on that cluster: the current one, if none is named."""
        from bireme.api.kube import KubeBackend  # here: commands about jobs on this machine do without it

        return KubeBackend(self)

    def connect(self, namespace: str | None = None, **more: Any) -> Cluster:
        """Log in; `namespace` is the default where none is chosen."""
        from bireme.kube.api.client import connect

        return connect(self.context, self.namespace or namespace, **more)


def has_cluster() -> bool:
    return bool(kubeconfig_files()) or Path("/var/run/secrets/kubernetes.io/serviceaccount/token").is_file()


def named(job: str | None) -> str:
    """The name of a job on a cluster, where no job is the default."""
    if job is None:
        raise UsageError("which job?", fix="name it; `bireme list` shows the jobs on the cluster too")
    return job


def is_here(job: str | None, where: Where, note: Callable[[str], None], *, prefers_cluster: bool = False) -> bool:
    """Whether a job on this machine is meant; of two with one name the one here, unless the cluster is preferred."""
    from bireme.local import registry

    if where.is_asked:
        named(job)
        return False
    try:
        record = registry.find_run(job)
    except UsageError:
        if job is None or not has_cluster():
            raise
        return False
    # A job that was submitted from here, and not deleted since, has an authority of its own (submit/certificates.py).
    if job == record.name and any(path.name == job for path in (places().state / "ca").glob("*/*/*")):
        if prefers_cluster:
            return False
        note("note: this is the job on this machine; for the one on the cluster, add --kube")
    return True


def backend_of(job: str | None, where: Where, note: Callable[[str], None], *, prefers_cluster: bool = False) -> Backend:
    if is_here(job, where, note, prefers_cluster=prefers_cluster):
        from bireme.api.local import LocalBackend

        return LocalBackend()
    return where.backend()


def list_cluster(where: Where, limit: int | None) -> Listing:
    """The jobs on the cluster; one that was not asked for is left out if it does not answer soon."""
    if not (where.is_asked or has_cluster()):
        return Listing()
    backend = where.backend()
    return backend.list(limit) if where.is_asked else backend.list_if_reachable(limit)
