"""What `bireme delete` takes away, what it leaves to others, and what it says of the volume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.kube.making import PLAIN, make
from tests.unit.kube.volume.test_helper_pod import Memory

from bireme.api.where import Where
from bireme.cli.jobs.control import delete as command
from bireme.core.errors import NetworkError, UsageError
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, JOB
from bireme.kube.jobs import lifecycle
from bireme.kube.jobs.lifecycle import delete
from bireme.kube.submit.objects import build

ON_REVIEWS = "kubernetes: {volume: {claim: reviews}}\n"
ON_SHARED = "kubernetes: {volume: {claim: shared}}\n"


class Near(Memory):
    """A cluster that a command can be sent to."""

    server = "https://near:6443"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Near:
    made = Near()
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None: made)
    monkeypatch.setattr("bireme.api.where.has_cluster", lambda: True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    return made


def submit(memory: Memory, folder: Path, name: str = "reviews", more: str = "") -> None:
    folder.mkdir(exist_ok=True)
    for made in build(make(folder, PLAIN.replace("name: reviews", f"name: {name}") + more)):
        memory.things[made["kind"], made["metadata"]["name"]] = made


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments))


def left(memory: Memory, name: str) -> set[str]:
    return {kind for (kind, called) in memory.things if called in (name, f"{name}-tls")}


def test_a_job_goes_and_its_volume_stays(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    done = invoke("reviews")
    assert done.output.splitlines() == [
        "reviews is deleted; its volume is still there",
        "models can be brought from it with `bireme fetch reviews DIR --image bireme:test --namespace ns`",
    ]
    assert left(memory, "reviews") == {"PersistentVolumeClaim"}
    assert invoke("reviews", "--volume").output == "reviews is deleted, with its volume\n"
    assert memory.things == {}


def test_a_volume_that_other_jobs_use_keeps_all_from_deletion(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    for name in ("second", "first"):
        submit(memory, tmp_path / name, name, ON_REVIEWS)
    submit(memory, tmp_path / "apart", "apart")
    before = dict(memory.things)
    refused = invoke("reviews", "--volume").exception
    assert isinstance(refused, UsageError)
    assert refused.what == "the volume claim reviews is used by other jobs too: first, second"
    assert refused.why == "their models and data would be gone with it; nothing was deleted"
    keeps = "`bireme delete reviews --namespace ns` keeps the volume"
    assert refused.fix == f"delete those first, or leave --volume away: {keeps}"
    assert memory.things == before and memory.deleted == []
    for name in ("second", "first", "reviews"):
        delete(memory.as_cluster(), name, with_volume=name == "reviews")
    assert {called for _, called in memory.things} == {"apart", "apart-tls"}


def test_a_deleted_jobs_volume_is_kept_for_others_too(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    submit(memory, tmp_path / "second", "second", ON_REVIEWS)
    delete(memory.as_cluster(), "reviews", with_volume=False)
    with pytest.raises(UsageError, match="other jobs too: second"):
        delete(memory.as_cluster(), "reviews", with_volume=True)


def test_a_job_that_could_still_be_resumed_uses_its_volume(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    submit(memory, tmp_path / "second", "second", ON_REVIEWS)
    memory.things.pop((JOB.kind, "second"))
    with pytest.raises(UsageError, match="other jobs too: second"):
        delete(memory.as_cluster(), "reviews", with_volume=True)


def test_data_that_is_split_for_a_job_uses_its_volume(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    volumes = [{"name": "volume", "persistentVolumeClaim": {"claimName": "reviews"}}]
    made = memory.put(JOB, "later-split", spec={"template": {"spec": {"volumes": volumes}}})
    made["metadata"]["labels"] = {naming.MANAGED_BY: "bireme", naming.VOLUME_OF: "later"}
    with pytest.raises(UsageError, match="other jobs too: later"):
        delete(memory.as_cluster(), "reviews", with_volume=True)
    made["metadata"]["labels"][naming.VOLUME_OF] = "reviews"
    assert delete(memory.as_cluster(), "reviews", with_volume=True).volume == "deleted"


def test_a_claim_that_is_not_ours_is_kept_and_that_is_reported(memory: Near, tmp_path: Path) -> None:
    memory.put(CLAIM, "shared")
    submit(memory, tmp_path, more=ON_SHARED)
    assert invoke("reviews", "--volume").output.splitlines() == [
        "reviews is deleted; its volume shared is still there",
        "--volume was ignored: bireme did not make the claim shared; `kubectl delete pvc shared -n ns` deletes it",
        "models can be brought from it with `bireme fetch JOB.yaml DIR --image bireme:test --namespace ns`",
    ]
    assert set(memory.things) == {(CLAIM.kind, "shared")}


def test_a_claim_of_another_job_is_kept_and_that_is_reported(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    submit(memory, tmp_path / "second", "second", ON_REVIEWS)
    answer = json.loads(invoke("second", "--volume", "--json").output)
    deletes = "`bireme delete reviews --volume --namespace ns` deletes it"
    assert answer["note"] == f"--volume was ignored: the claim reviews was made for the job reviews; {deletes}"
    assert (answer["claim"], answer["volume"]) == ("reviews", "kept")
    assert "Job second" in answer["deleted"] and "PersistentVolumeClaim reviews" not in answer["deleted"]


def test_models_outside_the_usual_output_come_by_the_jobs_file(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path, more="output: elsewhere\n")
    assert "`bireme fetch JOB.yaml DIR --image" in invoke("reviews").output


@pytest.mark.parametrize("is_going", [False, True])
def test_a_volume_that_is_gone_is_not_said_to_be_there(memory: Near, tmp_path: Path, is_going: bool) -> None:
    submit(memory, tmp_path)
    if is_going:
        memory.things[CLAIM.kind, "reviews"]["metadata"]["deletionTimestamp"] = "now"
    else:
        memory.things.pop((CLAIM.kind, "reviews"))
    assert invoke("reviews").output == "reviews is deleted; its volume claim reviews is not there any more\n"


def test_unreadable_objects_do_not_keep_a_job_from_deletion(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path, more=ON_SHARED)
    memory.put(CLAIM, "shared")
    data = memory.things["ConfigMap", "reviews"]["data"]
    data |= {"settings.json": "torn", "job.json": "[]"}
    assert "`bireme fetch JOB.yaml DIR --image NAME --namespace ns`" in invoke("reviews").output
    assert set(memory.things) == {(CLAIM.kind, "shared")}


def test_a_job_is_deleted_without_reading_others_secrets(memory: Near, tmp_path: Path) -> None:
    submit(memory, tmp_path)
    memory.things["Secret", "reviews-tls"] = {
        "metadata": {"name": "reviews-tls", "labels": naming.labels_of("reviews")}
    }
    listed: list[str] = []
    real = memory.list
    memory.list = lambda kind, labels: listed.append(kind.kind) or real(kind, labels)  # type: ignore[method-assign,func-returns-value]
    assert invoke("reviews").exit_code == 0
    assert "Secret" not in listed and left(memory, "reviews") == {"PersistentVolumeClaim"}


def test_an_api_server_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "WAIT_EVERY_S", 0.0)
    answers = iter([NetworkError("busy"), False, NetworkError("busy"), True])

    def is_so() -> bool:
        answer = next(answers)
        if isinstance(answer, NetworkError):
            raise answer
        return bool(answer)

    assert lifecycle.wait_until(is_so, 60.0)


def test_an_api_server_that_stays_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_so() -> bool:
        raise NetworkError("gone")

    with pytest.raises(NetworkError, match="gone"):
        lifecycle.wait_until(is_so, -1.0)
