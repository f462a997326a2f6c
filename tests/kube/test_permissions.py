"""The documented permissions are enough for every command, and they are what a user with that Role really has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bireme.kube.submit.objects import PERMISSIONS, user_role
from tests.kube.stage import There, small_job

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: me
contexts: [{{name: me, context: {{cluster: it, user: me, namespace: {namespace}}}}}]
clusters: [{{name: it, cluster: {{server: "{server}", certificate-authority-data: {authority}}}}}]
users: [{{name: me, user: {{token: {token}}}}}]
"""


@pytest.fixture
def user(there: There) -> Path:
    """A kubeconfig of a user who may do what the documented Role allows, in one namespace."""
    namespace, cluster = there.namespace, there.cluster
    cluster.apply(user_role(namespace))
    cluster.kubectl("create", "serviceaccount", "user", "-n", namespace)
    cluster.kubectl(
        "create", "rolebinding", "user", "-n", namespace, "--role=bireme-user",
        f"--serviceaccount={namespace}:user",
    )  # fmt: skip
    shown = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))["clusters"][0]["cluster"]
    token = cluster.kubectl("create", "token", "user", "-n", namespace, "--duration=1h").strip()
    text = KUBECONFIG.format(
        namespace=namespace, server=shown["server"], authority=shown["certificate-authority-data"], token=token
    )
    path = there.home / "user.yaml"
    path.write_text(text)
    return path


def test_the_role_allows_what_the_list_says_and_nothing_more(there: There, user: Path) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": there.namespace},
    }
    command = ("--kubeconfig", str(user), "create", "--validate=false", "-f", "-", "-o", "json")
    answer = json.loads(there.cluster.kubectl(*command, stdin=json.dumps(review)))
    found: dict[tuple[str, str], set[str]] = {}
    for rule in answer["status"]["resourceRules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    common = {key for key in found if key[0] in ("authorization.k8s.io", "authentication.k8s.io")}
    ours = {key: verbs for key, verbs in found.items() if key not in common}
    assert ours == {key: set(verbs) for key, verbs in PERMISSIONS.items()}


def test_every_command_works_with_these_permissions(there: There, user: Path, reviews: Path) -> None:
    job = small_job(there, reviews)
    env: dict[str, Any] = {"KUBECONFIG": str(user)}
    for command in (
        ("data", "push", job),
        ("data", "push", job, "--from", reviews, "--to", "raw"),
        ("data", "split", "raw", "--shards", "3", "--out", "again", "--on-volume", job),
        ("submit", job, "--dry-run=server"),
        ("submit", job, "--wait"),
        ("submit", job),
        ("list",),
        ("status", "small"),
        ("why", "small"),
        ("logs", "small"),
        ("logs", "small", "--from-volume"),
        ("resume", "small", "--passes", "20000"),
        ("cancel", "small"),
        ("resume", "small"),
        ("cancel", "small", "--now"),
        ("fetch", "small", there.home / "got"),
        ("delete", "small", "--volume"),
    ):
        done = there.do(*command, **env)
        assert "forbidden" not in done.out + done.err, f"{command}: {done.out}{done.err}"


def test_what_is_not_allowed_is_reported_with_where_the_list_is(there: There, user: Path, reviews: Path) -> None:
    there.cluster.kubectl("delete", "rolebinding", "user", "-n", there.namespace)
    refused = there.do("submit", small_job(there, reviews), code=18, KUBECONFIG=str(user))
    assert "forbidden" in refused.err and "bireme submit --permissions" in refused.err
