"""What is reported to the cluster: what is new, seldom enough, small enough, and never at the job's expense."""

from __future__ import annotations

import json
import logging
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from bireme import __version__
from bireme.core.errors import BiremeError, ClusterError, DataError, NetworkError, ProcessError
from bireme.job.status import JobStatus, PassSummary, PserverStatus, TrainerStatus
from bireme.kube.api.client import JOB, Cluster, Kind
from bireme.kube.api.naming import STATUS
from bireme.kube.jobs.listing import status_in
from bireme.kube.pod import status_annotation
from bireme.kube.pod.status_annotation import Publisher, Reporter, compact, ending_of, give_up


def status(**changes: Any) -> JobStatus:
    return replace(JobStatus(phase="training", job="demo"), **changes)


class Received:
    """A receiver of statuses."""

    def __init__(self) -> None:
        self.all: list[JobStatus] = []

    def __call__(self, said: JobStatus) -> None:
        self.all.append(said)


@pytest.fixture
def received() -> Received:
    return Received()


def test_a_status_is_handed_on_at_most_every_two_seconds(received: Received) -> None:
    reporter = Reporter(lambda: None, received)
    for moment in (100.0, 100.5, 101.0, 102.5):
        reporter.hear(status(round=int(10 * moment)), moment)
    assert [each.round for each in received.all] == [1000, 1025]


def test_a_later_clock_alone_is_not_reported(received: Received) -> None:
    reporter = Reporter(lambda: None, received)
    for moment in (100.0, 103.0, 106.0):
        members = (PserverStatus(pserver=0, host="a", silent_s=moment),)
        reporter.hear(status(seconds=moment, pservers=members), moment)
    assert len(received.all) == 1


def test_the_last_word_is_reported_however_soon_it_comes(received: Received) -> None:
    reporter = Reporter(lambda: None, received)
    reporter.hear(status(), 100.0)
    reporter.finish(status(phase="finished"))
    assert [each.phase for each in received.all] == ["training", "finished"]
    assert received.all[-1].version == __version__


def test_a_failure_is_reported_with_what_why_and_fix(received: Received) -> None:
    reporter = Reporter(lambda: None, received)
    reporter.hear(status(round=7), 100.0)
    reporter.finish(None, DataError("a shard is torn", why="it ends early", fix="bring it again"))
    last = received.all[-1]
    assert (last.phase, last.round, last.reason) == ("failed", 7, "a shard is torn")
    assert last.error == {
        "kind": "DataError", "what": "a shard is torn", "why": "it ends early", "fix": "bring it again",
    }  # fmt: skip


def test_a_reporter_that_runs_asks_and_reports(received: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_annotation, "ASK_EVERY_S", 0.0)
    asked = iter([None, status(round=1)])
    reporter = Reporter(lambda: next(asked, None), received)
    reporter.start()
    while not received.all:
        pass
    reporter.finish()
    assert [each.round for each in received.all] == [1, 1]


def test_a_status_of_many_members_is_made_to_fit() -> None:
    many = tuple(TrainerStatus(trainer=rank, host="h" * 200) for rank in range(4000))
    one = PassSummary(pass_id=0, round=1, samples=1, samples_so_far=1, seconds=1.0, cost=1.0, evals={})
    passes = tuple(replace(one, pass_id=number) for number in range(500))
    small = compact(status(trainers=many, passes_done=passes))
    assert len(msgspec.json.encode(small)) < 262_144
    assert [each.pass_id for each in small.passes_done] == list(range(480, 500))
    assert len(small.trainers) > 100


class Namespace:
    """Jobs of a namespace, or a refusal."""

    def __init__(self, spec: dict[str, Any] | None = None, error: BiremeError | None = None) -> None:
        self._spec = spec or {}
        self._error = error
        self.patches: list[tuple[str, dict[str, Any]]] = []

    def connect(self) -> Cluster:
        return cast(Cluster, self)

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        known = {STATUS: msgspec.json.encode(status(round=5)).decode()}
        return {"metadata": {"name": name, "annotations": known}, "spec": self._spec}

    def patch(self, kind: Kind, name: str, change: dict[str, Any]) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        self.patches.append((name, change))
        return {}


def test_a_status_becomes_the_jobs_annotation() -> None:
    cluster = Namespace()
    Publisher(cluster.connect, "demo")(status(round=3))
    ((name, change),) = cluster.patches
    assert name == "demo"
    assert msgspec.json.decode(change["metadata"]["annotations"][STATUS])["round"] == 3


def test_a_silent_cluster_is_named_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    publish = Publisher(Namespace(error=ClusterError("not today")).connect, "demo")
    with caplog.at_level(logging.WARNING):
        publish(status())
        publish(status())
    assert [record.getMessage() for record in caplog.records] == ["failed to write status job=demo cause='not today'"]


def test_a_hopeless_jobs_reason_is_on_the_first_of_its_jobs() -> None:
    cluster = Namespace()
    give_up(cluster.connect, ("demo-pserver", "demo-trainer"), DataError("a shard is torn"))
    (first, change), (second, other) = cluster.patches
    assert (first, second) == ("demo-pserver", "demo-trainer")
    assert change["spec"] == other["spec"] == {"activeDeadlineSeconds": 1}
    left = json.loads(change["metadata"]["annotations"][STATUS])
    assert (left["phase"], left["round"], left["error"]["kind"]) == ("failed", 5, "DataError")
    assert "metadata" not in other


def test_a_job_with_its_own_policy_is_left_to_it() -> None:
    job = Namespace({"podFailurePolicy": {"rules": []}}).get(JOB, "demo")
    assert ending_of(job, DataError("x"), is_main=False) == {}
    change = ending_of(job, DataError("a shard is torn"), is_main=True)
    assert "spec" not in change
    job["metadata"]["annotations"] = change["metadata"]["annotations"]
    assert (status_in(job).error or {})["what"] == "a shard is torn"
    assert ending_of(job, DataError("a peer went away"), is_main=True) == {}, "which is a consequence, most likely"
    job["metadata"]["annotations"][STATUS] = json.dumps({"error": ProcessError("trainer 0 was killed").as_dict()})
    assert ending_of(job, DataError("a shard is torn"), is_main=True), "that was of an earlier try"
    assert ending_of(job, NetworkError("no peer came"), is_main=False), "which no policy has a rule for"


def test_a_hopeless_job_that_may_not_be_ended_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        give_up(Namespace(error=ClusterError("no")).connect, ("demo",), DataError("x"))
    assert "failed to end job=demo cause='no'" in caplog.text
