"""What is understood of kubeconfigs and of the API server's refusals, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import BiremeError, ClusterError, NetworkError, UsageError
from bireme.kube.api import pod_exec
from bireme.kube.api.client import VOLUME_CONTAINER, AbsentError, Cluster, ForbiddenError, refusal
from bireme.kube.api.kubeconfig import KubeTarget, no_cluster

CONTEXT = """\
apiVersion: v1
kind: Config
current-context: there
contexts:
  - {name: there, context: {cluster: far, namespace: mine%s}}
clusters: []
"""
CLUSTER = """\
apiVersion: v1
kind: Config
contexts: []
clusters:
  - {name: far, cluster: {server: "http://127.0.0.1:1"}}
users:
  - {name: me, user: {token: abc}}
  - {name: helped, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: "echo"}}}
"""


def files(tmp_path: Path, *texts: str) -> list[Path]:
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
    return [tmp_path / f"{number}.yaml" for number in range(len(texts))]


@pytest.mark.parametrize("user", ["", ", user: me", ", user: helped"])
def test_a_context_may_have_its_cluster_and_user_in_another_file(tmp_path: Path, user: str) -> None:
    with Cluster(KubeTarget(files(tmp_path, CONTEXT % user, CLUSTER))) as cluster:
        assert (cluster.namespace, cluster.context, cluster.server) == ("mine", "there", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("user", "others", "lacks"), [(", user: you", [CLUSTER], "user you"), (", user: me", [], "cluster far")]
)
def test_what_a_context_names_and_no_file_has_is_named(tmp_path: Path, user: str, others: Any, lacks: str) -> None:
    with pytest.raises(UsageError, match=f"the context there names the {lacks}, which no kubeconfig has"):
        Cluster(KubeTarget(files(tmp_path, CONTEXT % user, *others)))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, AbsentError), (403, ForbiddenError), (401, ClusterError), (422, ClusterError),
        (429, NetworkError), (500, NetworkError), (503, NetworkError), (504, NetworkError),
    ],
)  # fmt: skip
def test_a_busy_server_is_asked_again_and_a_refusing_one_not(code: int, kind: type[BiremeError]) -> None:
    assert type(refusal("jobs", code, "", "because")) is kind


def test_a_missing_namespace_is_not_a_missing_object() -> None:
    error = refusal("ServiceAccount long", 404, "NotFound", 'namespaces "nowhere" not found')
    assert type(error) is ClusterError, "a lookup of an object must not take it for a missing object"
    assert error.what == "there is no namespace nowhere"
    assert error.fix == "`kubectl create namespace nowhere`, or name another one with --namespace"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("contexts: [}", "while parsing a flow node"), ("just words", "it is something else"),
        ("", "it is something else"), ("kind: Config\n", "it has no 'clusters'"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_kubeconfig_is_named_with_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    good, bad = files(tmp_path, CONTEXT % "", text)
    with pytest.raises(UsageError) as caught:
        Cluster(KubeTarget([good, bad]))
    assert (
        caught.value.what.startswith(f"{bad} cannot be read as a kubeconfig: {said}") and "\n" not in caught.value.what
    )
    assert caught.value.fix == (
        "repair the file (`kubectl config view` reads it too), or name another one with KUBECONFIG"
    )


def test_broken_yaml_is_reported_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at line 2, column 12"):
        Cluster(KubeTarget(files(tmp_path, "kind: Config\ncontexts: [}\n")))


def test_a_path_that_is_set_and_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    error = no_cluster()
    assert error.what == "no cluster is configured: there is no kubeconfig /nonexistent, which KUBECONFIG names"
    assert error.fix == "set KUBECONFIG to a file that is there; without it, ~/.kube/config is read"
    monkeypatch.delenv("KUBECONFIG")
    assert no_cluster().what == "no cluster is configured: there is no kubeconfig"


def test_a_login_that_is_over_is_no_matter_of_permissions() -> None:
    error = refusal("jobs", 401, "Unauthorized", "Unauthorized")
    assert "login" in error.what and "Role" not in error.fix


def test_logs_and_commands_name_their_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def execute(login: object, path: str, stdin: object, take: object) -> int:
        asked.append(path)
        return 0

    def log(pod: str, *, container: str, **_: object) -> list[str]:
        asked.append(container)
        return ["line"]

    monkeypatch.setattr(pod_exec, "execute", execute)
    with Cluster(KubeTarget(files(tmp_path, CONTEXT % "", CLUSTER))) as cluster:
        monkeypatch.setattr(cluster._client, "log", log)
        assert list(cluster.log("small-0-x", container="node")) == ["line"]
        assert cluster.run("small-volume-1", ["bireme", "volume"]) == (0, b"", "")
    assert asked[0] == "node" and f"container={VOLUME_CONTAINER}" in asked[1]
