"""Splitting on a volume: which Job it is, what is shown while it waits, and that nothing is left of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.kube.volume.test_helper_pod import PLACE, Json, Memory

from bireme.core.errors import ClusterError, NetworkError, OutputExistsError
from bireme.kube.api import naming
from bireme.kube.api.client import JOB, KINDS, POD, ConflictError, Kind
from bireme.kube.jobs.listing import by_name
from bireme.kube.volume.helper_pod import START_S, Pacing, VolumePlace
from bireme.kube.volume.splitting import CLEAR_S, LOOK_EVERY_S, SILENCE_S, split_job, split_on_volume
from bireme.spec.kubernetes import KubernetesFile

REPORT = {"shards": 3, "job": "/job/reviews/cut", "lines": [1, 2, 3]}
UNSCHEDULABLE = "0/3 nodes are available: 3 Insufficient memory."
NAME = "reviews-split"


class Stage(Memory):
    """A cluster on which something happens during each rest."""

    def __init__(self, *acts: Callable[[Stage], None]) -> None:
        super().__init__()
        self.acts = list(acts)
        self.now_s = 0.0
        self.said: list[str] = []

    def rest(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < 10_000, "the wait never ends"
        if self.acts:
            self.acts.pop(0)(self)

    def split(self) -> Json:
        pace = Pacing(lambda: self.now_s, self.rest)
        return split_on_volume(self.as_cluster(), PLACE, ["bireme"], self.said.append, pace)

    def pod(self, status: Json, name: str = f"{NAME}-x") -> Json:
        owner = self.things["Job", NAME]["metadata"]
        made = self.put(POD, name, status=status)
        made["metadata"] |= {"labels": owner["labels"], "ownerReferences": [{"uid": owner["uid"]}]}
        return made

    def end(self, kind: str, *lines: object, **more: Any) -> None:
        self.things["Job", NAME]["status"] = {"conditions": [{"type": kind, "status": "True", **more}]}
        self.logs[f"{NAME}-x"] = [f"2026-01-01T00:00:00Z {line}" for line in lines]


def runs(stage: Stage) -> None:
    stage.pod({"phase": "Running"})


def waits(stage: Stage) -> None:
    refused = {"type": "PodScheduled", "status": "False", "message": UNSCHEDULABLE}
    stage.pod({"phase": "Pending", "conditions": [refused]})


def ends(stage: Stage) -> None:
    stage.end("Complete", "words", json.dumps(REPORT))


def test_the_job_that_splits_is_not_taken_for_the_job_itself() -> None:
    made = split_job(PLACE, "ns", ["bireme"])
    for labels in (made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]):
        assert labels[naming.COMPONENT] == "split" and labels[naming.VOLUME_OF] == "reviews"
        assert not naming.selector_of("reviews").items() <= labels.items()
    assert "reviews" not in by_name([made])
    assert "activeDeadlineSeconds" not in made["spec"]["template"]["spec"]


def test_what_is_patched_into_pods_is_in_the_pod_of_a_split_too() -> None:
    patch = {"Pod": {"metadata": {"annotations": {"a": "b"}}, "spec": {"runtimeClassName": "kata"}}}
    made = split_job(VolumePlace("reviews", "bireme:1", KubernetesFile(patch=patch)), "ns", ["bireme"])
    template = made["spec"]["template"]
    assert template["spec"]["runtimeClassName"] == "kata" and template["metadata"]["annotations"] == {"a": "b"}
    assert set(template["metadata"]) == {"labels", "annotations"} and made["metadata"]["name"] == NAME


def test_a_job_that_does_not_go_away_is_named_with_its_finalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.create(split_job(PLACE, "ns", ["bireme"]))["metadata"]["finalizers"] = ["example.com/never"]
    stage.end("Failed")
    monkeypatch.setattr(stage, "delete", lambda *_: True)
    with pytest.raises(ClusterError, match="was deleted 60 s ago and is still there") as caught:
        stage.split()
    assert caught.value.why == "it is held by: example.com/never"
    assert CLEAR_S < stage.now_s < CLEAR_S + 1


def test_a_split_gives_its_report_and_leaves_nothing() -> None:
    stage = Stage(runs, ends)
    assert stage.split() == REPORT
    assert (stage.find(JOB, NAME), stage.said) == (None, [])


def test_an_earlier_splits_report_is_not_taken_for_this_one() -> None:
    def old(stage: Stage) -> None:
        runs(stage)
        stage.pod({"phase": "Succeeded"}, "old")["metadata"]["ownerReferences"] = [{"uid": "another"}]
        stage.logs["old"] = ['2026-01-01T00:00:00Z {"shards": 1}']
        stage.things = dict(sorted(stage.things.items(), reverse=True))

    assert Stage(old, ends).split() == REPORT


def test_a_pod_that_no_machine_takes_is_reported_and_given_up() -> None:
    stage = Stage(waits)
    with pytest.raises(ClusterError, match=f"does not start: {UNSCHEDULABLE[:20]}"):
        stage.split()
    assert stage.said == [f"{NAME}-x: {UNSCHEDULABLE}"]
    assert START_S < stage.now_s < START_S + 5 and stage.find(JOB, NAME) is None


def test_a_pod_that_got_its_machine_at_last_may_run_for_long() -> None:
    rests = int(START_S / LOOK_EVERY_S) - 10
    stage = Stage(waits, *[lambda _: None] * rests, runs, *[lambda _: None] * (2 * rests), ends)
    assert stage.split() == REPORT


def test_a_job_without_a_pod_is_given_up_in_the_clusters_words() -> None:
    stage = Stage()
    event = stage.put(KINDS["Event"], "e", message="exceeded quota: none", lastTimestamp="2")
    event["involvedObject"] = {"kind": "Job", "name": NAME}
    stage.put(KINDS["Event"], "other", message="no", lastTimestamp="3")
    with pytest.raises(ClusterError, match="exceeded quota: none"):
        stage.split()
    assert stage.said == [f"{NAME} waits for a pod"]


def test_an_interrupted_split_takes_its_job_along() -> None:
    def interrupt(stage: Stage) -> None:
        raise KeyboardInterrupt

    stage = Stage(runs, interrupt)
    with pytest.raises(KeyboardInterrupt):
        stage.split()
    assert stage.find(JOB, NAME) is None
    stage.acts = [runs, ends]
    assert stage.split() == REPORT


def test_a_job_that_was_made_meanwhile_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()

    def taken(made: Json) -> Json:
        raise ConflictError("there is one")

    monkeypatch.setattr(stage, "create", taken)
    with pytest.raises(ConflictError):
        stage.split()
    assert stage.deleted == []


def test_an_absent_api_server_does_not_end_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, get, away = Stage(runs, *[lambda _: None] * 100, ends), Memory.get, 100

    def lost(kind: Kind, name: str) -> Json:
        nonlocal away
        away -= 1
        if away > 0:
            raise NetworkError("cannot reach the API server")
        return get(stage, kind, name)

    monkeypatch.setattr(stage, "get", lost)
    assert stage.split() == REPORT
    stage.acts, away = [], 10_000
    with pytest.raises(NetworkError, match="cannot reach") as caught:
        stage.split()
    assert "may continue" in caught.value.why and stage.find(JOB, NAME) is not None
    assert stage.now_s < SILENCE_S + 200


def test_a_split_without_a_word_is_an_error_that_says_so() -> None:
    with pytest.raises(ClusterError, match="the log of its pod is empty"):
        Stage(runs, lambda stage: stage.end("Complete")).split()


def test_a_failed_split_is_the_error_that_it_reported() -> None:
    log = json.dumps({"error": "OutputExistsError", "what": "cut is there already", "why": "", "fix": "f"})
    with pytest.raises(OutputExistsError, match="cut is there already"):
        Stage(runs, lambda stage: stage.end("Failed", log)).split()


def test_a_silent_failed_split_is_shown_in_the_clusters_words() -> None:
    def evicted(stage: Stage) -> None:
        stage.pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"})
        stage.end("Failed", message="backoff limit")

    with pytest.raises(ClusterError, match="its log does not say why: backoff limit") as caught:
        Stage(evicted).split()
    assert caught.value.why == f"{NAME}-x: Evicted: low on memory"


def test_a_job_of_the_same_name_that_does_something_else_is_left() -> None:
    stage = Stage()
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    stage.put(JOB, NAME, status=done)["metadata"]["labels"] = naming.labels_of(NAME)
    with pytest.raises(ClusterError, match="that does not split data"):
        stage.split()
    assert stage.deleted == []


def test_a_running_split_is_kept_and_an_ended_one_removed() -> None:
    stage = Stage(runs, ends)
    stage.create(split_job(PLACE, "ns", ["bireme"]))
    with pytest.raises(ClusterError, match="has not ended"):
        stage.split()
    stage.end("Failed")
    assert stage.split() == REPORT
