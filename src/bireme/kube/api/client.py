"""The client of a cluster's API server, in plain values: every object is a dict, every refusal a BiremeError.

lightkube does credentials, TLS, requests and watches. Its own resource classes are not used: a kind here is a name, a
version and a plural, and an object is the dict that the server sent, so that code which decides depends on no client.
Imported only by commands that contact a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from bireme.core.errors import BiremeError, ClusterError, MissingError, NetworkError, UsageError
from bireme.kube.api.kubeconfig import KubeTarget, config_of
from bireme.kube.api.naming import FIELD_MANAGER, Object
from bireme.spec.load import kubeconfig_files

if TYPE_CHECKING:
    from bireme.kube.api.pod_exec import Login

Objects = list[Object]
TIMEOUT_S = 20.0
QUIET_S = 30.0
VOLUME_CONTAINER = "volume"
"""The container of a pod on a volume; admission webhooks may have added others."""


class Kind(NamedTuple):
    """A kind of object in a namespace."""

    group: str
    version: str
    kind: str
    plural: str


JOB = Kind("batch", "v1", "Job", "jobs")
POD = Kind("", "v1", "Pod", "pods")
CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "Workload", "workloads")
"""A job as Kueue sees it; the kind exists only where Kueue is installed."""
_RBAC = "rbac.authorization.k8s.io"
KINDS = {
    kind.kind: kind
    for kind in (
        JOB, POD, CLAIM, CONFIG_MAP, SECRET,
        Kind("", "v1", "Service", "services"),
        Kind("", "v1", "ServiceAccount", "serviceaccounts"),
        Kind("", "v1", "Event", "events"),
        Kind(_RBAC, "v1", "Role", "roles"),
        Kind(_RBAC, "v1", "RoleBinding", "rolebindings"),
        Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
        Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    )
}  # fmt: skip
_GLOBAL = {
    "Namespace": Kind("", "v1", "Namespace", "namespaces"),
    "PersistentVolume": Kind("", "v1", "PersistentVolume", "persistentvolumes"),
    "StorageClass": Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
}
"""Kinds outside of namespaces."""


class AbsentError(ClusterError):
    """The requested object does not exist."""


class ConflictError(ClusterError):
    """The object exists already, or was changed meanwhile."""


class ForbiddenError(ClusterError):
    """The user lacks the permission."""


class Cluster:
    """A connection to one namespace of a cluster."""

    def __init__(self, target: KubeTarget, *, timeout_s: float = TIMEOUT_S) -> None:
        with _needs_client():
            import httpx2
            from lightkube import Client
            from lightkube.models.meta_v1 import Status

        # msgspec builds its decoder of a type at the first use, and two threads doing so at once crash the process.
        Status.from_dict({})
        self._target = target
        self._config = config = config_of(target)
        self.context = config.context_name
        with _api_errors(f"the cluster of context {self.context}"):
            self._client: Any = Client(
                config=config,
                namespace=target.namespace,
                timeout=httpx2.Timeout(timeout_s),
                field_manager=FIELD_MANAGER,
            )
        self.namespace: str = self._client.namespace
        self.server: str = config.cluster.server

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def impatient(self, timeout_s: float) -> Cluster:
        return Cluster(self._target, timeout_s=timeout_s)

    def get(self, kind: Kind, name: str) -> Object:
        """One object; `AbsentError` if there is none."""
        with _api_errors(f"{kind.kind} {name}"):
            return dict(self._client.get(_resource(kind), name, namespace=self.namespace))

    def find(self, kind: Kind, name: str) -> Object | None:
        try:
            return self.get(kind, name)
        except AbsentError:
            return None

    def list(self, kind: Kind, labels: Mapping[str, str]) -> Objects:
        return self._list(kind, namespace=self.namespace, labels=dict(labels), chunk_size=2000)

    def everywhere(self, kind: Kind) -> Objects:
        return self._list(kind, namespace="*")

    def _list(self, kind: Kind, **where: Any) -> Objects:
        with _api_errors(f"the list of {kind.plural}"):
            return [dict(each) for each in self._client.list(_resource(kind), **where)]

    def nodes(self) -> Objects:
        """All machines of the cluster; `ForbiddenError` for users of a namespace only."""
        from lightkube.resources.core_v1 import Node

        with _api_errors("the list of nodes"):
            return [node.to_dict() for node in self._client.list(Node)]

    def apply(self, made: Object, *, is_trial: bool = False, namespace: str = "") -> Object:
        """Create an object or bring it up to date by server-side apply; a trial changes nothing."""
        name = made["kind"]
        resource = _resource(_GLOBAL.get(name) or KINDS[name])
        with _api_errors(f"{name} {made['metadata']['name']}"):
            # Force: take back fields of ours that another manager has changed.
            return dict(
                self._client.apply(resource(made), namespace=namespace or self.namespace, force=True, dry_run=is_trial)
            )

    def create(self, made: Object) -> Object:
        """Create an object; `ConflictError` if there is one of that name."""
        kind = KINDS[made["kind"]]
        with _api_errors(f"{kind.kind} {made['metadata']['name']}"):
            return dict(self._client.create(_resource(kind)(made), namespace=self.namespace))

    def patch(self, kind: Kind, name: str, change: Object) -> Object:
        from lightkube.types import PatchType

        with _api_errors(f"{kind.kind} {name}"):
            return dict(
                self._client.patch(_resource(kind), name, change, namespace=self.namespace, patch_type=PatchType.MERGE)
            )

    def delete(self, kind: Kind, name: str, *, grace_s: int | None = None, namespace: str = "") -> bool:
        """Delete an object and, in the background, what it owns; False if there was none."""
        from lightkube.types import CascadeType

        where = namespace or self.namespace
        try:
            with _api_errors(f"{kind.kind} {name}"):
                self._client.delete(
                    _resource(kind), name, namespace=where, cascade=CascadeType.BACKGROUND, grace_period=grace_s
                )
        except AbsentError:
            return False
        return True

    def watch_all(self, kind: Kind, labels: Mapping[str, str]) -> Iterator[tuple[str, Object]]:
        """All objects with these labels as `LISTED`, then their events; NetworkError after QUIET_S without one.

        A lost connection is a NetworkError too.
        """
        where = {"namespace": self.namespace, "labels": dict(labels)}
        # lightkube waits for ever for the next event, even on a dead connection. The timeout stays set on this client,
        # so every watch has a `Cluster` of its own.
        self._client._client._watch_timeout.read = QUIET_S
        with _api_errors(f"the list of {kind.plural}"):
            listing = self._client.list(_resource(kind), **where)
            yield "LISTED", {"items": [dict(each) for each in listing]}
            since = listing.resourceVersion
            for what, thing in self._client.watch(_resource(kind), **where, resource_version=since):
                yield str(what), dict(thing)

    def log(
        self, pod: str, *, container: str | None = None, is_following: bool = False, since_s: int | None = None,
        tail: int | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """A pod's log, line by line, each line beginning with its time; a pod of several containers needs a name."""
        with _api_errors(f"the log of {pod}"):
            yield from self._client.log(
                pod, namespace=self.namespace, container=container, follow=is_following, since=since_s,
                tail_lines=tail, timestamps=True, newlines=False,
            )  # fmt: skip

    def run(
        self, pod: str, command: Sequence[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None
    ) -> tuple[int, bytes, str]:
        """Run a command in a pod on a volume: its exit code, its output (empty with `stdout`), its stderr."""
        from urllib.parse import urlencode

        with _needs_client():
            from bireme.kube.api.pod_exec import STDOUT, execute

        wanted = [("command", word) for word in command] + [(s, "true") for s in ("stdin", "stdout", "stderr")]
        wanted.append(("container", VOLUME_CONTAINER))
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/exec?{urlencode(wanted)}"
        output, errors = bytearray(), bytearray()

        def take(channel: int, content: bytes) -> None:
            if channel != STDOUT:
                errors.extend(content)
            elif stdout is not None:
                stdout.write(content)
            else:
                output.extend(content)

        code = execute(_login(self._config), path, stdin, take)
        return code, bytes(output), errors.decode(errors="replace")


def connect(context: str | None, namespace: str | None, *, timeout_s: float = TIMEOUT_S) -> Cluster:
    """Connect by kubeconfig, or by the service account of the pod that this runs in."""
    return Cluster(KubeTarget(kubeconfig_files(), context, namespace), timeout_s=timeout_s)


@contextmanager
def _needs_client() -> Iterator[None]:
    try:
        yield
    except ImportError as e:
        raise MissingError(
            f"talking to a cluster needs the package {e.name}, which is not installed here",
            fix="pip install 'bireme[kube,tls]'",
        ) from e


def _login(config: Any) -> Login:
    """How to reach the API server without lightkube, as the same user."""
    import httpx2
    from lightkube.config.client_adapter import user_auth, verify_cluster

    from bireme.kube.api.pod_exec import Login

    server, headers = config.cluster.server, {}
    auth = user_auth(config.user)
    if auth is not None:
        request = httpx2.Request("GET", server)
        # A kubeconfig's program may fail: a cloud's credentials expire during a long transfer.
        with _api_errors("a login"):
            next(auth.sync_auth_flow(request))
        headers = {"Authorization": request.headers["Authorization"]}
    is_plain = server.startswith("http://")
    return Login(server, None if is_plain else verify_cluster(config.cluster, config.user, config.abs_file), headers)


# Threads share it without a lock: two may build the same class at once, and it does not matter which one stays.
_resources: dict[Kind, Any] = {}


def _resource(kind: Kind) -> Any:
    """lightkube's class for a kind; kept out of its global registry, which other users of it share."""
    if kind not in _resources:
        from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info

        base: Any = GenericGlobalResource if kind.kind in _GLOBAL else GenericNamespacedResource
        info = create_api_info(kind.group, kind.version, kind.kind, kind.plural)
        _resources[kind] = type(kind.kind, (base,), {"_api_info": info})
    return _resources[kind]


@contextmanager
def _api_errors(what: str) -> Iterator[None]:
    import httpx2
    from lightkube.core.exceptions import ApiError, ConfigError

    try:
        yield
    except ApiError as e:
        raise refusal(what, e.status.code or 0, e.status.reason or "", e.status.message or str(e)) from e
    except httpx2.TimeoutException as e:
        raise NetworkError(f"the API server did not answer in time, asked for {what}") from e
    except httpx2.HTTPError as e:
        fix = "is the cluster up, and is this the right context? --context chooses another one"
        raise NetworkError(f"cannot reach the API server: {e or type(e).__name__}", fix=fix) from e
    except (ConfigError, OSError) as e:
        raise UsageError(f"cannot log in to the cluster: {e}") from e


def refusal(what: str, code: int, reason: str, message: str) -> BiremeError:
    lacks = re.match(r'namespaces "([^"]+)" not found', message)
    if code == 404 and lacks:
        fix = f"`kubectl create namespace {lacks[1]}`, or name another one with --namespace"
        return ClusterError(f"there is no namespace {lacks[1]}", fix=fix)
    if code == 404:
        return AbsentError(f"there is no {what}: {message}")
    if code == 409:
        return ConflictError(f"{what}: {message}")
    if code == 403 and "exceeded quota" in message:
        return ClusterError(f"{what} was refused: {message}", fix="free something, or ask for less in job.yaml")
    if code == 429 or code >= 500:
        return NetworkError(f"the API server cannot answer now, asked for {what}: {message or reason}")
    if code == 401:
        fix = "log in to the cluster again, as for kubectl; `kubectl auth whoami` shows your user there"
        return ClusterError("the cluster does not accept your login (any more)", why=message, fix=fix)
    if code == 403:
        fix = "`bireme submit --permissions` prints a Role with all that is needed"
        return ForbiddenError(f"{what}: {message}", why="the API server does not let you", fix=fix)
    return ClusterError(f"{what} was refused ({reason or code}): {message}")
