"""The settings of a cluster and a user: from kubeconfig files, as kubectl merges them, or of the pod this runs in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bireme.core.errors import UsageError
from bireme.spec.load import child_environment


class KubeTarget(NamedTuple):
    """The cluster that the command line selects; what it leaves out comes from the kubeconfig."""

    files: Sequence[Path] = ()
    """Kubeconfig files, the first one that sets a value wins; none: use the service account of this pod."""
    context: str | None = None
    namespace: str | None = None


def config_of(target: KubeTarget) -> Any:
    if not target.files:
        return _own_config()
    configs = [_read(path) for path in target.files]
    name = target.context or next((each.current_context for each in configs if each.current_context), None)
    for each in configs:
        if name is not None and name in each.contexts:
            return _chosen(name, each, configs)
    contexts = sorted(context for each in configs for context in each.contexts)
    where = ", ".join(map(str, target.files))
    if name is None:
        raise UsageError(f"{where} has no current context", fix=f"choose one with --context: {', '.join(contexts)}")
    raise UsageError(f"there is no context {name!r} in {where}", fix=f"known contexts: {', '.join(contexts)}")


def _own_config() -> Any:
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    try:
        return KubeConfig.from_service_account().get()
    except ConfigError as e:
        raise no_cluster() from e
    except (KeyError, OSError) as e:
        raise UsageError(f"cannot use the service account of this pod: {e}") from e


def _read(path: Path) -> Any:
    from lightkube.config.kubeconfig import KubeConfig

    try:
        return KubeConfig.from_file(path)
    except Exception as e:  # lightkube does not validate: a wrong file may raise anything
        cause = " ".join(str(e).replace('in "<unicode string>", ', "at ").split())
        if isinstance(e, AttributeError | TypeError):
            cause = "it is something else"
        raise UsageError(
            f"{path} cannot be read as a kubeconfig: {f'it has no {cause}' if isinstance(e, KeyError) else cause}",
            fix="repair the file (`kubectl config view` reads it too), or name another one with KUBECONFIG",
        ) from e


def _chosen(name: str, first: Any, configs: Sequence[Any]) -> Any:
    """A context with its cluster and user, which may be in other files than it is."""
    from lightkube.config.kubeconfig import SingleConfig
    from lightkube.config.models import User

    context = first.contexts[name]
    home = next((each for each in configs if context.cluster in each.clusters), None)
    users = [each.users[context.user] for each in configs if context.user in each.users]
    if home is None or (context.user and not users):
        lacks = f"user {context.user}" if home is not None else f"cluster {context.cluster}"
        raise UsageError(f"the context {name} names the {lacks}, which no kubeconfig has")
    user = users[0] if users else User()
    if user.exec is not None and user.exec.apiVersion == "client.authentication.k8s.io/v1":
        # It differs from its beta only in what such a program may ask for.
        user.exec.apiVersion = "client.authentication.k8s.io/v1beta1"
    return SingleConfig(name, context, home.clusters[context.cluster], user, home.fname)


def no_cluster() -> UsageError:
    named = child_environment().get("KUBECONFIG")
    if named:
        fix = "set KUBECONFIG to a file that is there; without it, ~/.kube/config is read"
        return UsageError(f"no cluster is configured: there is no kubeconfig {named}, which KUBECONFIG names", fix=fix)
    return UsageError(
        "no cluster is configured: there is no kubeconfig",
        fix="set KUBECONFIG, or put the file at ~/.kube/config; `bireme train` runs a job on this machine",
    )
