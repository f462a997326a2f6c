"""`why` on a real cluster: pods that a namespace or the cluster's owners do not allow, and what we may not see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube.machine import wait_for
from tools.kube.running import RunningCluster

from bireme.core.errors import ProcessError
from bireme.diagnose.explain import explain
from bireme.diagnose.gather import gather, notes
from bireme.kube.api.client import Cluster
from bireme.kube.api.kubeconfig import KubeTarget
from tests.kube.why_stage import Json, Stage, asks, job, record

ADMISSION = "admissionregistration.k8s.io"


def test_a_quota_that_is_used_up_is_reported_with_its_figures(cluster: RunningCluster) -> None:
    with Stage(cluster, "why-quota") as stage:
        hard = {"requests.cpu": "200m", "limits.cpu": "200m"}
        stage.apply(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": hard}}
        )
        stage.apply(job("quota", parallelism=3, container=asks(cpu="100m")))
        cause = stage.until("quota", said="requests.cpu=200m is used")
        assert f"The quota small of namespace {stage.namespace}" in cause.cause
        stage.apply(job("quota-without-limits"))
        assert "limits.cpu for: node" in stage.until("quota", "quota-without-limits").cause


def test_a_limit_of_the_namespace_is_reported(cluster: RunningCluster) -> None:
    with Stage(cluster, "why-limits") as stage:
        limits = {"limits": [{"type": "Container", "max": {"memory": "10Mi"}}]}
        stage.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": limits})
        stage.apply(job("limit-range", container=asks(memory="20Mi")))
        assert "maximum memory usage per Container is 10Mi, but limit is 20Mi" in stage.until("limit-range").cause


def test_pod_security_names_what_it_refuses(cluster: RunningCluster) -> None:
    with Stage(cluster, "why-secure", {"pod-security.kubernetes.io/enforce": "restricted"}) as stage:
        stage.apply(job("pod-security"))
        cause = stage.until("pod-security")
        assert "restricted:latest" in cause.cause and "runAsNonRoot != true" in cause.cause


def policy(name: str) -> list[Json]:
    """A rule of the cluster's owners for one job's pods."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    is_ours = f"has(object.metadata.labels) && object.metadata.labels[?'job-name'].orValue('') == '{name}'"
    spec = {
        "failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "ours", "expression": is_ours}],
        "validations": [{"expression": "has(object.metadata.labels.team)", "message": "pods need the label team"}],
    }  # fmt: skip
    binding = {"policyName": "why-team", "validationActions": ["Deny"]}
    return [
        {
            "apiVersion": f"{ADMISSION}/v1",
            "kind": f"ValidatingAdmissionPolicy{tail}",
            "metadata": {"name": "why-team"},
            "spec": s,
        }
        for tail, s in (("", spec), ("Binding", binding))
    ]


def webhook(name: str) -> Json:
    """A webhook that must be asked about a job's pods, and does not answer."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "*"}]
    hook = {
        "name": "ask.why.example", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": rules,
        "failurePolicy": "Fail", "timeoutSeconds": 1, "objectSelector": {"matchLabels": {"job-name": name}},
        "clientConfig": {"service": {"namespace": "default", "name": "nobody", "port": 443}},
    }  # fmt: skip
    kind = "ValidatingWebhookConfiguration"
    return {"apiVersion": f"{ADMISSION}/v1", "kind": kind, "metadata": {"name": "why-ask"}, "webhooks": [hook]}


@pytest.fixture
def rules(cluster: RunningCluster) -> Iterator[Stage]:
    with Stage(cluster, "why-rules") as stage:
        cluster.apply(*policy("admission"), webhook("webhook-silent"))
        # A policy takes effect a moment after it was made: until then a pod may slip through.
        wait_for("the policy to take effect", lambda: is_refused(stage), seconds=60, every=0.3)
        yield stage
        kinds = ("validatingadmissionpolicybinding/why-team", "validatingadmissionpolicy/why-team")
        cluster.kubectl("delete", *kinds, "validatingwebhookconfiguration/why-ask")


def is_refused(stage: Stage) -> bool:
    """Whether the policy would refuse a pod by now."""
    try:
        stage.kubectl("run", "probe", "--image=none", "--labels=job-name=admission", "--dry-run=server")
    except ProcessError as e:
        return "why-team" in str(e)
    return False


def test_an_admission_policy_and_a_silent_webhook_are_named(rules: Stage) -> None:
    rules.apply(job("webhook-silent"))
    assert (
        "ask.why.example must allow every pod and does not answer" in rules.until("admission", "webhook-silent").cause
    )
    rules.apply(job("admission"))
    assert (
        "The admission policy why-team refuses the job's pods: pods need the label team"
        in rules.until("admission").cause
    )


def test_an_unknown_refusal_is_shown_in_the_servers_words(cluster: RunningCluster) -> None:
    with Stage(cluster, "why-own") as stage:
        notes_ = {"kubernetes.io/enforce-mountable-secrets": "true"}
        stage.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "strict", "annotations": notes_}}
        )
        volumes = [{"name": "x", "secret": {"secretName": "other"}}]
        stage.apply(job("not-created", pod={"serviceAccountName": "strict", "volumes": volumes}))
        assert "service account strict does not reference that secret" in stage.until("not-created").cause


def as_user(cluster: RunningCluster, namespace: str, account: str, directory: Path) -> Cluster:
    """The cluster as a service account sees it."""
    token = cluster.kubectl("-n", namespace, "create", "token", account).strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = directory / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    return Cluster(KubeTarget([path], namespace=namespace))


def test_what_we_may_not_see_is_a_cause_or_a_note(cluster: RunningCluster, tmp_path: Path) -> None:
    with Stage(cluster, "why-rbac") as stage:
        stage.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "guest"}})
        stage.apply(job("forbidden", container=asks(cpu="64")))
        with as_user(cluster, stage.namespace, "guest", tmp_path) as guest:
            stage.until("too-little-cpu", "forbidden", said="64 CPUs")
            facts = gather(guest, "forbidden", time.time())
            record("forbidden", facts)
            first = explain(facts)[0]
            assert (
                first.situation == "forbidden"
                and f"You may not list jobs in namespace {stage.namespace}" in first.cause
            )
            stage.kubectl("create", "role", "see", "--verb=list", "--resource=jobs,pods")
            stage.kubectl("create", "rolebinding", "see", "--role=see", f"--serviceaccount={stage.namespace}:guest")
            facts = gather(guest, "forbidden", time.time())
            assert explain(facts)[0].situation == "too-little-cpu"
            assert notes(facts) == [
                f"not looked at for lack of the permission to {what}" for what in ("list events", "list nodes")
            ]
