"""What is understood of kubeconfigs and of the API server's refusals, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import BiremeError, ClusterError, NetworkError, UsageError
from bireme.kube.client import AbsentError, Cluster, ForbiddenError, Target, refusal

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
    with Cluster(Target(files(tmp_path, CONTEXT % user, CLUSTER))) as cluster:
        assert (cluster.namespace, cluster.context, cluster.server) == ("mine", "there", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("user", "others", "lacks"), [(", user: you", [CLUSTER], "user you"), (", user: me", [], "cluster far")]
)
def test_what_a_context_names_and_no_file_has_is_named(tmp_path: Path, user: str, others: Any, lacks: str) -> None:
    with pytest.raises(UsageError, match=f"the context there names the {lacks}, which no kubeconfig has"):
        Cluster(Target(files(tmp_path, CONTEXT % user, *others)))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, AbsentError), (403, ForbiddenError), (401, ClusterError), (422, ClusterError),
        (429, NetworkError), (500, NetworkError), (503, NetworkError), (504, NetworkError),
    ],
)  # fmt: skip
def test_who_cannot_answer_now_is_asked_again_later_and_who_says_no_is_not(code: int, kind: type[BiremeError]) -> None:
    assert type(refusal("jobs", code, "", "because")) is kind


def test_a_login_that_is_over_is_no_matter_of_permissions() -> None:
    error = refusal("jobs", 401, "Unauthorized", "Unauthorized")
    assert "login" in error.what and "Role" not in error.fix
