"""Jobs on a cluster from Python: the same handle as for a run here, with the same errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.cli.test_fetch import Near
from tests.unit.kube.jobs.test_logs import Pods, stamped
from tests.unit.kube.making import PLAIN, write_job
from tests.unit.kube.standing import Standing

import bireme
from bireme.api import following
from bireme.api.backends import Backend
from bireme.api.kube import KubeBackend
from bireme.api.local import LocalBackend
from bireme.api.where import Where
from bireme.core.errors import Cancelled, ClusterError, DataError, UsageError
from bireme.job.output.model import model_hash, save_model
from bireme.kube.api.client import CLAIM
from bireme.kube.jobs import lifecycle


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster"))
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    monkeypatch.setattr(following, "POLL_S", 0.0)
    monkeypatch.setattr(lifecycle, "WAIT_EVERY_S", 0.0)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> Standing:
    made = Standing()
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None, **more: made)
    return made


def submit(folder: Path, **options: Any) -> bireme.Run:
    job = bireme.load(write_job(folder, PLAIN), kube=True)
    return job.submit(image="b:1", namespace="ns", **options)


def passes_there(standing: Standing) -> int:
    return int(json.loads(standing.things["ConfigMap", "reviews"]["data"]["job.json"])["passes"])


def test_a_job_is_submitted_and_found_again(standing: Standing, tmp_path: Path) -> None:
    run = submit(tmp_path)
    assert ("Job", "reviews") in standing.things
    assert (run.name, run.status().state, run.status().output) == ("reviews", "pending", None)
    assert submit(tmp_path).id == run.id, "submitting twice is safe"
    assert [each.name for each in bireme.runs(kube=True)] == ["reviews"] and bireme.runs() == []
    assert bireme.run("reviews", namespace="ns").status().state == "pending"
    with pytest.raises(UsageError, match="there is no job 'other'"):
        bireme.run("other", kube=True)
    with pytest.raises(UsageError, match="which job"):
        bireme.run(kube=True)


def test_other_values_replace_those_of_the_file(standing: Standing, tmp_path: Path) -> None:
    submit(tmp_path, passes=7)
    assert passes_there(standing) == 7
    submit(tmp_path, passes=8, replace=True)
    assert passes_there(standing) == 8


def test_the_status_is_that_of_the_coordinator(standing: Standing, tmp_path: Path) -> None:
    run = submit(tmp_path)
    standing.say(phase="training", passes=4, round=7, trainers=[{"trainer": 0, "rate": 5.0}], waits_for=["trainer 1"])
    status = run.status()
    assert (status.state, status.phase, status.round, status.samples_per_s) == ("running", "training", 7, 5.0)
    assert (status.passes_done, status.passes, status.waits_for) == (0, 4, ("trainer 1",))


def test_waiting_shows_progress_and_ends_with_the_job(
    standing: Standing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submit(tmp_path)
    standing.say(phase="finished", passes=4)
    assert run.wait(progress=True) is run
    standing.say(phase="training", passes=4, trainers=[{"trainer": 0}])
    standing.job()["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert run.wait(progress=True) is run
    assert "training" in capsys.readouterr().out


def test_what_a_job_fails_with_is_raised(standing: Standing, tmp_path: Path) -> None:
    run = submit(tmp_path)
    standing.fail()
    with pytest.raises(DataError, match="shard 0 of 3 is missing"):
        run.wait()
    with pytest.raises(ClusterError, match="has failed before"):
        submit(tmp_path)
    standing.job()["status"] = {}
    standing.say(phase="cancelled")
    with pytest.raises(Cancelled, match="reviews was stopped"):
        run.wait()


def test_a_job_is_cancelled_resumed_and_deleted(standing: Standing, tmp_path: Path) -> None:
    run = submit(tmp_path)
    standing.say(phase="training", passes=4, trainers=[{"trainer": 0}])
    standing.suspend()
    assert submit(tmp_path, wait=True).status().state == "suspended", "nothing to wait for"
    standing.job()["spec"]["suspend"] = False
    run.cancel()
    standing.suspend()
    with pytest.raises(UsageError, match="its state is suspended"):
        run.cancel()
    assert run.resume(passes=9, wait=False).id == run.id
    assert passes_there(standing) == 9
    assert run.status().state == "pending"
    run.delete()
    assert "Job reviews" in standing.deleted and ("PersistentVolumeClaim", "reviews") in standing.things
    with pytest.raises(UsageError, match="there is no job"):
        run.status()


def test_files_of_a_job_on_a_cluster_are_fetched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standing: Standing
) -> None:
    run = submit(tmp_path)
    with pytest.raises(UsageError, match="the files of reviews are on a cluster") as refused:
        run.model()
    assert "fetch" in refused.value.fix
    near = Near(tmp_path / "there")
    near.things |= standing.things
    near.put(CLAIM, "reviews")["metadata"]["uid"] = "first"
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None, **more: near)
    (tmp_path / "there").mkdir()
    config = tmp_path / "config.py"
    config.touch()
    save_model(tmp_path / "there/pass-00000", {"w": np.ones(3, np.float32)}, config, {})
    model = run.fetch(tmp_path / "got")
    assert model is not None and model.path == tmp_path / "got/pass-00000"
    assert model.hash == bireme.model(tmp_path / "there/pass-00000").hash == model_hash(model.path)


class Logged(Pods):
    """A cluster with one pod, to log in to."""

    context = "near"

    def __enter__(self) -> Logged:
        return self

    def __exit__(self, *_: object) -> None:
        return


def test_logs_are_lines_behind_their_log_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = Logged([stamped(1, "trainer 0 | one"), stamped(2, "pserver 0 | two")], is_over=True)
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None, **more: pods)
    run = bireme.Run(KubeBackend(Where(is_kube=True)), "small", "small")
    assert run.logs(last=5) == ["node_0/train.log: one", "node_0/server.log: two"]


def test_a_job_that_is_not_there_is_explained(standing: Standing) -> None:
    run = bireme.Run(KubeBackend(Where(is_kube=True)), "ghost", "ghost")
    (cause,) = run.why()
    assert cause.situation == "not-found" and "ghost" in cause.cause


def test_every_backend_has_the_same_methods() -> None:
    names = {name for name in vars(Backend) if not name.startswith("_")}
    assert names >= {"list", "status", "follow", "logs", "why", "cancel", "resume", "fetch", "delete", "submit"}
    for backend in (LocalBackend, KubeBackend):
        assert names <= set(vars(backend))
