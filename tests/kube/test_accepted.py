"""The fullest jobs that can be written are accepted by a real API server, field by field, and so are their pods.

Everything is sent with `dryRun=All` and `fieldValidation=Strict`: all checks are made, unknown fields are refused,
and nothing is kept.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.api import ApiError
from tools.kube.cluster import Cluster

from bireme.kube.api.client import KINDS
from bireme.spec import kubernetes as spec
from tests.kube.stage import There, restrict, small_job
from tests.unit.kube.making import ALL, write_job

Object = dict[str, Any]
OURS = "app.kubernetes.io/name=bireme"
BESIDE = "              - {name: beside, image: busybox}\n"
OWN = {
    "  service_account: trainers\n": "",
    "volume: {claim: shared-data, ": "volume: {size: 1Gi, storage_class: shared, access_modes: [ReadWriteOnce], ",
    "tls: false": "tls: true",
    "network_policy: false": "network_policy: true",
    "spread: false": "spread: true",
    "replace: when_gone": "replace: at_once",
    BESIDE: "",
}
"""What makes of the job that uses objects of others one that has all of its own, and no container of others."""


@pytest.fixture
def priority(cluster: Cluster) -> Iterator[int]:
    """The priority class that the jobs ask for; returns what it is worth."""
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "batch-low"}}
    cluster.apply({**made, "value": 7})
    yield 7
    cluster.kubectl("delete", "priorityclass", "batch-low")


@pytest.fixture
def anywhere(cluster: Cluster, namespace: str, tmp_path: Path) -> There:
    """The command line, logged in to a namespace that lets any pod in; no image is needed."""
    return There(tmp_path, cluster, namespace, "registry.example/bireme:1")


def objects_of(there: There, job: Path) -> list[Object]:
    """What would be sent."""
    found: list[Object] = there.ask("submit", job, "--dry-run")["objects"]
    return found


def try_out(there: There, made: Object) -> Object:
    """Have an object checked to the last field; returns it as it would be kept."""
    kind = KINDS[made["kind"]]
    root = f"/apis/{kind.group}" if kind.group else "/api"
    path = f"{root}/{kind.version}/namespaces/{there.namespace}/{kind.plural}?dryRun=All&fieldValidation=Strict"
    kept: Object = json.loads(there.cluster.api.request("POST", path, made))
    return kept


def holds(kept: Any, sent: Any) -> bool:
    """Whether all that was sent is kept; defaults may have been added, and what is empty left out."""
    if isinstance(sent, dict):
        said = {key: value for key, value in sent.items() if key in kept or value not in ({}, [])}
        return all(key in kept and holds(kept[key], value) for key, value in said.items())
    if isinstance(sent, list):
        return len(kept) == len(sent) and all(map(holds, kept, sent))
    return bool(kept == sent)


def pod_of(job: Object) -> Object:
    """The first pod that a Job would make."""
    template = copy.deepcopy(job["spec"]["template"])
    metadata = {**template["metadata"], "name": f"{job['metadata']['name']}-0"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def check_all(there: There, job: Path) -> list[Object]:
    """Try every object of a job out, by hand and by the command; returns the Jobs."""
    made = objects_of(there, job)
    for each in made:
        assert holds(try_out(there, each), each), each
    there.do("submit", job, "--dry-run=server")
    assert there.cluster.get("jobs,services,configmaps,pdb", "-n", there.namespace, "-l", OURS)["items"] == []
    return [each for each in made if each["kind"] == "Job"]


def check_pod(kept: Object, account: str, priority: int) -> None:
    """What admission has to look up is found, and what the file says of placing is there."""
    found = kept["spec"]
    assert (found["priorityClassName"], found["priority"]) == ("batch-low", priority)
    assert (found["serviceAccountName"], found["nodeSelector"]) == (account, {"disk": "fast"})
    assert found["imagePullSecrets"] == [{"name": "registry-key"}]
    assert {"key": "spot", "operator": "Exists", "effect": "NoSchedule"} in found["tolerations"]
    box = found["containers"][0]
    assert (box["resources"]["limits"], box["imagePullPolicy"]) == ({"memory": "2Gi"}, "Always")
    assert {"name": "DEBUG", "value": "loud"} in box["env"] and {"name": "WORKERS", "value": "2"} in box["env"]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in box["volumeMounts"]}
    assert (mounts["/scratch"], mounts["/words"]) == (False, True)


def test_a_job_with_every_key_and_foreign_objects_is_accepted(anywhere: There, priority: int) -> None:
    jobs = check_all(anywhere, write_job(anywhere.home / "job", ALL))
    assert [each["metadata"]["name"] for each in jobs] == ["reviews-pserver", "reviews-trainer"]
    anywhere.cluster.kubectl("create", "serviceaccount", "trainers", "-n", anywhere.namespace)
    for each in jobs:
        kept = try_out(anywhere, pod_of(each))
        check_pod(kept, "trainers", priority)
        assert [box["name"] for box in kept["spec"]["containers"]] == ["node", "beside"]
        assert each["spec"]["podReplacementPolicy"] == "Failed" and each["spec"]["activeDeadlineSeconds"] == 3600


def test_a_failure_policy_is_refused_where_pods_are_replaced(anywhere: There) -> None:
    made = objects_of(anywhere, write_job(anywhere.home / "job", ALL))
    job = next(each for each in made if each["kind"] == "Job")
    try_out(anywhere, job)
    job["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"
    with pytest.raises(ApiError, match="podReplacementPolicy") as caught:
        try_out(anywhere, job)
    assert caught.value.status == 422
    del job["spec"]["podFailurePolicy"]
    try_out(anywhere, job)
    job["spec"]["podFailurePolice"] = {}
    with pytest.raises(ApiError, match="unknown field"):
        try_out(anywhere, job)


def test_a_job_with_every_key_is_accepted_where_restricted(anywhere: There, priority: int) -> None:
    restrict(anywhere.cluster, anywhere.namespace)
    text = ALL
    for old, new in OWN.items():
        assert old in text
        text = text.replace(old, new)
    job = write_job(anywhere.home / "job", text)
    assert {each["kind"] for each in objects_of(anywhere, job)} == set(spec.KINDS)
    jobs = check_all(anywhere, job)
    anywhere.cluster.kubectl("create", "serviceaccount", "reviews", "-n", anywhere.namespace)
    for each in jobs:
        check_pod(try_out(anywhere, pod_of(each)), "reviews", priority)
    exposed = pod_of(jobs[0])
    exposed["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(ApiError, match="violates PodSecurity"):
        try_out(anywhere, exposed)


BAD = "\nimport os\nif 'POD_NAME' in os.environ:\n    fc_layerr(input=words)\n"


def test_a_hopeless_job_is_ended_by_its_pod_failure_policy(there: There, reviews: Path) -> None:
    job = small_job(there, reviews, more="  replace: when_gone\n")
    config = job.parent / "quick_start/trainer_config.lr.py"
    config.write_text(config.read_text() + BAD)
    there.do("data", "push", job)
    refused = there.ask("submit", job, "--wait", code=4)
    assert refused["error"] == "ConfigScriptError" and "fc_layerr" in refused["what"] + refused["why"]

    def failure() -> Object:
        conditions = there.cluster.get("job", "small", "-n", there.namespace)["status"].get("conditions", [])
        return next((each for each in conditions if (each["type"], each["status"]) == ("Failed", "True")), {})

    there.wait(failure, "Kubernetes has given it up")
    assert failure()["reason"] == "PodFailurePolicy" and "exit code 4" in failure()["message"]
    assert len(there.pods("batch.kubernetes.io/job-name=small")) <= 3, "no pod was tried again"
    assert there.ask("why", "small")["causes"][0]["situation"] == "config-error"
