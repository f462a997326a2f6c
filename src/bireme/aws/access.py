"""Access to a cluster: tokens for the API server, the kubeconfig that requests them, and the registry's login.

A token is a presigned STS request, which EKS sends to STS to learn the caller's identity. It lasts fifteen minutes and
is signed locally, so neither the aws command nor kubectl is needed here; kubectl gets one from
`bireme cluster token`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from bireme.aws.client import Aws
from bireme.aws.cloudformation.causes import AwsError, to_error
from bireme.aws.layout import CLUSTER_TAG, NAMESPACE
from bireme.aws.teardown.audit import describe_cluster
from bireme.core.errors import CloudError, ImageError
from bireme.core.files import write_atomic

TOKEN_S = 60
"""Validity of the signature in a token; EKS accepts the token itself for fifteen minutes."""
LASTS_S = 14 * 60
EXEC_API = "client.authentication.k8s.io/v1beta1"
Config = dict[str, Any]


def token(aws: Aws, cluster: str) -> str:
    """A token that authenticates the caller to a cluster."""
    try:
        url = aws.presign_identity(cluster, TOKEN_S)
    except AwsError as e:
        raise to_error(e, f"make a token for {cluster}") from e
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def credential(aws: Aws, cluster: str) -> Config:
    """A token in the format of kubectl's credential plug-ins."""
    until = datetime.fromtimestamp(aws.clock.now() + LASTS_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"token": token(aws, cluster), "expirationTimestamp": until}
    return {"apiVersion": EXEC_API, "kind": "ExecCredential", "spec": {}, "status": status}


def context_name(cluster: str, region: str) -> str:
    """The context's name in the kubeconfig."""
    return f"bireme-{cluster}.{region}"


def kubeconfig(aws: Aws, cluster: str, command: Sequence[str]) -> Config:
    """A kubeconfig with this cluster alone; `command` is how bireme is run here."""
    try:
        described = describe_cluster(aws, cluster)
    except AwsError as e:
        raise to_error(e, f"ask for the address of {cluster}") from e
    if described is not None and (described.get("tags") or {}).get(CLUSTER_TAG) != cluster:
        raise CloudError(f"the EKS cluster {cluster} in {aws.region} was not made by bireme", fix="use its own tools")
    if described is not None and "certificateAuthority" not in described:
        raise CloudError(
            f"{cluster} is {described.get('status')}: its API server does not answer yet", fix="try again later"
        )
    if described is None:
        fix = "make it with `bireme cluster up`, or name its region"
        raise CloudError(f"there is no EKS cluster {cluster} in {aws.region}", fix=fix)
    name = context_name(cluster, aws.region)
    certificate = described["certificateAuthority"]["data"]
    program, *rest = command
    plugin = {
        "apiVersion": EXEC_API,
        "command": program,
        "args": [*rest, "cluster", "token", cluster, "--region", aws.region],
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": described["endpoint"], "certificate-authority-data": certificate}}
        ],
        "users": [{"name": name, "user": {"exec": plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": NAMESPACE}}],
        "current-context": name,
    }


def merge(old: Config, new: Config) -> Config:
    """Add the cluster's entries to a kubeconfig and keep all others."""
    merged = dict(old) or {"apiVersion": "v1", "kind": "Config"}
    for key in ("clusters", "users", "contexts"):
        names = {each["name"] for each in new[key]}
        kept = [each for each in old.get(key) or () if each.get("name") not in names]
        merged[key] = [*kept, *new[key]]
    merged["current-context"] = new["current-context"]
    return merged


def without(old: Config, name: str) -> Config:
    """A kubeconfig without the entries of this name."""
    merged = dict(old)
    for key in ("clusters", "users", "contexts"):
        if key in old:
            merged[key] = [each for each in old[key] or () if each.get("name") != name]
    if old.get("current-context") == name:
        merged["current-context"] = ""
    return merged


def read_kubeconfig(path: Path) -> Config:
    """Read a kubeconfig; an empty one if the file is absent."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    fix = "repair it, or write another one: `bireme cluster kubeconfig --file-out PATH`"
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (YAMLError, UnicodeDecodeError) as e:
        raise CloudError(f"{path} is not a kubeconfig: {e}", fix=fix) from e
    if not isinstance(content or {}, dict):
        raise CloudError(f"{path} is not a kubeconfig: it holds no keys", fix=fix)
    return dict(content or {})


def write_kubeconfig(path: Path, config: Config) -> None:
    """Write a kubeconfig atomically, readable by its owner only."""
    from ruamel.yaml import YAML

    text = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(config, text)
    path = path.resolve()  # write through a symbolic link, do not replace it
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
    write_atomic(path, text.getvalue().encode())
    path.chmod(0o600)


def registry_login(region: str, host: str) -> tuple[str, str]:
    """The user name and password that ECR accepts for twelve hours."""
    try:
        answer = Aws(region).call("ecr", "GetAuthorizationToken")["authorizationData"][0]
    except AwsError as e:
        raise to_error(e, f"log in to {host}") from e
    user, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
    if not password:
        raise ImageError(f"{host} gave no password", why="ECR's answer has an unexpected form")
    return user, password
