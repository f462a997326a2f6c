"""How a job looks from outside, from what Kubernetes and the coordinator say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from bireme.job.status import JobStatus, TrainerStatus, decode_status
from bireme.kube.api import naming
from bireme.kube.jobs.lifecycle import resume_patch
from bireme.kube.jobs.listing import by_name, gathering, job_view, pod_views

Json = dict[str, Any]


def job(name: str = "reviews", *, status: Json | None = None, **spec: Any) -> Json:
    annotations = {naming.STATUS: json.dumps(status)} if status is not None else {}
    labels = naming.labels_of("reviews")
    if "queue" in spec:
        labels[naming.QUEUE] = spec.pop("queue")
    conditions = [{"type": kind, "status": "True", "message": "too long"} for kind in spec.pop("conditions", ())]
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": labels, "annotations": annotations},
        "spec": {"completions": 3, **spec},
        "status": {"active": 2, "ready": 1, "conditions": conditions},
    }


def cancelled(job: Json) -> Json:
    job["metadata"]["annotations"][naming.CANCELLED] = "true"
    return job


def pod(rank: int, phase: str = "Running", *, role: str = "node", created: str = "1", **more: Any) -> Json:
    annotations = {naming.INDEX: str(rank), **more.pop("annotations", {})}
    return {
        "metadata": {
            "name": f"reviews-{rank}-{created}",
            "labels": {naming.COMPONENT: role},
            "annotations": annotations,
            "creationTimestamp": f"2026-01-01T00:00:0{created}Z",
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, **more},
    }


TRAINING: Json = {"phase": "training", "passes": 4, "trainers": [{"trainer": 1, "pass": 2, "rate": 10.0}]}
TRAINS = decode_status(json.dumps(TRAINING))


@pytest.mark.parametrize(
    ("jobs", "state"),
    [
        ([job()], "starting"),
        ([{**job(), "status": {}}], "pending"),
        ([job(suspend=True)], "suspended"),
        ([job(suspend=True, queue="night")], "queued"),
        ([job(suspend=True, queue="night", status=TRAINING)], "queued"),
        ([cancelled(job(suspend=True, queue="night", status=TRAINING))], "suspended"),
        ([job(status=TRAINING)], "running"),
        ([job(status={"phase": "gathering"})], "starting"),
        ([job(status=TRAINING, conditions=["Complete"])], "finished"),
        ([job(status=TRAINING, conditions=["Failed"])], "failed"),
        ([job(status={"phase": "failed"})], "starting"),
        ([job(status={"phase": "failed"}, conditions=["FailureTarget"])], "failed"),
        ([job("reviews-pserver", conditions=["Complete"]), job("reviews-trainer")], "starting"),
        ([job("reviews-pserver"), job("reviews-trainer", conditions=["Failed"])], "failed"),
        ([job(status={"phase": "training"} | {"junk": 1})], "running"),
    ],
)
def test_a_job_has_one_state(jobs: list[Json], state: str) -> None:
    assert job_view(jobs).state == state


def test_a_jobs_own_error_comes_before_kubernetes_words() -> None:
    error = {"kind": "DataError", "what": "shard 1 is empty", "why": "", "fix": ""}
    assert job_view([job(status={"phase": "failed", "error": error}, conditions=["Failed"])]).reason == error["what"]
    assert job_view([job(conditions=["Failed"])]).reason == "too long"


def test_a_status_that_is_no_json_is_none() -> None:
    broken = job()
    broken["metadata"]["annotations"][naming.STATUS] = "{half"
    assert job_view([broken]).status == JobStatus()


def test_a_jobs_two_jobs_belong_together_pservers_first() -> None:
    found = by_name([job("reviews-trainer"), job("reviews-pserver")])
    assert [each["metadata"]["name"] for each in found["reviews"]] == ["reviews-pserver", "reviews-trainer"]
    assert job_view(found["reviews"]).pods == 6


def test_a_job_that_only_splits_data_is_none_of_those_that_train() -> None:
    splitting = job("reviews-split")
    del splitting["metadata"]["labels"][naming.INSTANCE]
    assert list(by_name([splitting, job()])) == ["reviews"]


def test_a_pod_shows_its_rank_its_training_and_its_restarts() -> None:
    pods = [pod(1, "Failed", created="1"), pod(1, created="2", containerStatuses=[{"restartCount": 2}]), pod(0)]
    first, second = pod_views(pods, replace(TRAINS, waits_for=("trainer 1",)))
    assert (first.rank, first.restarts, first.trains, first.is_straggler) == (0, 0, None, False)
    assert (second.name, second.restarts, second.is_straggler) == ("reviews-1-2", 3, True)
    assert second.trains == TrainerStatus(trainer=1, pass_id=2, rate=10.0)


def test_a_straggler_is_not_one_whose_number_begins_alike() -> None:
    late = JobStatus(waits_for=("trainer 12, silent for 9 s",))
    found = {view.rank: view.is_straggler for view in pod_views([pod(1), pod(12), pod(2)], late)}
    assert found == {1: False, 12: True, 2: False}


def test_a_pserver_alone_has_no_training_of_its_own() -> None:
    found = pod_views([pod(1, role="pserver"), pod(1, role="trainer")], replace(TRAINS, waits_for=("pserver 1",)))
    assert [(view.role, bool(view.trains), view.is_straggler) for view in found] == [
        ("pserver", False, True),
        ("trainer", True, False),
    ]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}, ": 0/3 nodes"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}]}, "ErrImagePull"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, "its container"),
    ],
)
def test_what_a_pod_waits_for_is_reported_in_kubernetes_words(status: Json, expected: str) -> None:
    (waiting,) = pod_views([pod(2, "Pending", **status)], JobStatus())
    assert expected.lstrip(": ") in waiting.waits
    assert expected in gathering(job_view([job()]), [waiting])


def test_a_job_that_continues_does_not_look_as_if_it_ran_already() -> None:
    change = resume_patch(job(suspend=True, status=TRAINING))
    assert change["spec"] == {"suspend": False}
    status = json.loads(change["metadata"]["annotations"][naming.STATUS])
    assert (status["phase"], status["trainers"], status["passes"]) == ("gathering", [], 4)
    assert resume_patch(job(suspend=True))["metadata"]["annotations"] == {naming.CANCELLED: None}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}, "OOMKilled"),
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted"),
        ({}, ""),
    ],
)
def test_what_a_pod_has_failed_of_is_reported(status: Json, expected: str) -> None:
    (failed,) = pod_views([pod(2, "Failed", **status)], JobStatus())
    assert failed.waits == expected


def test_a_long_story_of_kubernetes_is_cut_short() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no " * 200}}
    (found,) = pod_views([pod(2, "Pending", containerStatuses=[{"state": waiting}])], JobStatus())
    assert len(found.waits) == 160 and found.waits.endswith("…")
