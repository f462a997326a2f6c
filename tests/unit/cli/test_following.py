"""Following a job on a cluster: what is shown of one that rests, and the message after Ctrl-C."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.unit.kube.making import make
from tests.unit.kube.standing import Standing

from bireme.api import following, foreground
from bireme.api.following import parting_words
from bireme.api.where import Where
from bireme.cli.jobs.submit import follow_to_end
from bireme.core.errors import ClusterError, DataError
from bireme.kube.submit.objects import build

NAMED = "reviews --namespace ns"
WHERE = Where("near", "ns")


class Staying:
    """A user who does not press Ctrl-C."""

    count = 0

    def __enter__(self) -> Staying:
        return self

    def __exit__(self, *_: object) -> None:
        return


class Leaving(Staying):
    """A user who has pressed it."""

    count = 1


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Standing:
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    monkeypatch.setattr(foreground, "Interrupts", Leaving)
    made = Standing()
    monkeypatch.setattr(Where, "connect", lambda self: made)
    for each in build(make(tmp_path)):
        made.create(each)
    return made


def leave(standing: Standing, *, as_json: bool = False) -> None:
    with pytest.raises(SystemExit) as left:
        follow_to_end(WHERE, "reviews", is_silent=as_json, as_json=as_json)
    assert left.value.code == 130


def test_leaving_has_a_stops_exit_code_and_the_job_continues(
    standing: Standing, capsys: pytest.CaptureFixture[str]
) -> None:
    standing.say(phase="training", trainers=[{"trainer": 0}], passes_done=[])
    leave(standing)
    captured = capsys.readouterr()
    assert captured.out == "training\n"
    assert captured.err == (
        f"reviews keeps running; come back with `bireme status {NAMED}`, stop it with `… cancel {NAMED}`\n"
    )
    leave(standing, as_json=True)
    assert json.loads(capsys.readouterr().out)["state"] == "running"


def test_a_job_that_does_not_run_yet_is_not_said_to_continue(
    standing: Standing, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(standing)
    captured = capsys.readouterr()
    assert captured.out == "0 of 3 pods run\n"
    assert captured.err == (
        "reviews does not run yet: it is pending, and starts as soon as it can; "
        f"`bireme why {NAMED}` shows what it waits for, `… cancel {NAMED}` stops it\n"
    )


def test_of_a_job_that_is_suspended_no_old_status_is_shown(
    standing: Standing, capsys: pytest.CaptureFixture[str]
) -> None:
    standing.suspend()
    leave(standing)
    captured = capsys.readouterr()
    assert captured.out == "suspended\n"
    assert captured.err == f"reviews is suspended; `bireme resume {NAMED}` resumes it\n"


def test_a_cluster_that_never_answered_is_reported_as_such() -> None:
    assert parting_words("reviews", "ns", "").startswith("the cluster has not reported the state of reviews; come back")
    assert "keeps running" not in parting_words("reviews", "ns", "queued")


def test_a_job_that_has_ended_is_reported_also_after_ctrl_c(standing: Standing) -> None:
    standing.fail()
    with pytest.raises(DataError, match="shard 0 of 3 is missing"):
        follow_to_end(WHERE, "reviews", is_silent=False, as_json=False)


@pytest.fixture
def ended(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> Standing:
    """A job that Kubernetes has ended, and that has not said why."""
    monkeypatch.setattr(foreground, "Interrupts", Staying)
    monkeypatch.setattr(following, "REASON_S", 1.0)
    message = "exit code 5 matching FailJob rule"
    standing.job()["status"] = {"conditions": [{"type": "FailureTarget", "status": "True", "message": message}]}
    return standing


def test_a_job_that_kubernetes_ended_has_time_to_say_why(ended: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: ended.fail())
    with pytest.raises(DataError, match="shard 0 of 3 is missing"):
        follow_to_end(WHERE, "reviews", is_silent=True, as_json=False)


def test_a_job_that_never_says_why_ends_with_kubernetes_words(ended: Standing) -> None:
    with pytest.raises(ClusterError, match="exit code 5 matching FailJob rule") as caught:
        follow_to_end(WHERE, "reviews", is_silent=True, as_json=False)
    assert "`bireme why reviews" in caught.value.fix


def test_ctrl_c_does_not_wait_for_the_reason(
    ended: Standing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foreground, "Interrupts", Leaving)
    monkeypatch.setattr(following, "REASON_S", 3600.0)
    with pytest.raises(ClusterError, match="exit code 5"):
        follow_to_end(WHERE, "reviews", is_silent=False, as_json=False)
    assert "keeps running" not in capsys.readouterr().err
