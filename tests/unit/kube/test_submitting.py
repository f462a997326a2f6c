"""`bireme submit` where a job of that name is there already, and where nothing comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.kube.making import PLAIN, write_job
from tests.unit.kube.standing import Standing

from bireme.api.where import Where
from bireme.cli.jobs import submit as command
from bireme.cli.jobs.submit import submit
from bireme.core.errors import ClusterError, NetworkError, OutputExistsError, SpecError, UsageError
from bireme.kube.api import naming
from bireme.kube.api.client import POD, ConflictError
from bireme.kube.submit.certificates import JobIdentity
from bireme.spec.load import places

MORE = PLAIN.replace("passes: 4", "passes: 9")
RESUME = "`bireme resume reviews --namespace ns` continues it"


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Standing:
    made = Standing()
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None: made)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    monkeypatch.setattr(command, "follow_to_end", lambda *_, **__: pytest.fail("it is followed"))
    return made


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, standing: Standing) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(command, "follow_to_end", lambda _, name, **__: names.append(name))
    return names


def send(folder: Path, *flags: str, text: str = PLAIN) -> Any:
    return CliRunner().invoke(submit, [str(write_job(folder, text)), "--image", "b:1", *flags])


def passes_there(standing: Standing) -> int:
    return int(json.loads(standing.things["ConfigMap", "reviews"]["data"]["job.json"])["passes"])


def refuse_jobs(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    create = standing.create

    def refuse(made: Any) -> Any:
        if made["kind"] == "Job":
            raise ClusterError("no more jobs today")
        return create(made)

    monkeypatch.setattr(standing, "create", refuse)


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state").rglob("ca*"))


def test_a_failed_job_is_shown_with_the_ways_on_not_followed(standing: Standing, tmp_path: Path) -> None:
    assert send(tmp_path).exit_code == 0
    standing.fail()
    for flags in (("--wait",), ()):
        failed = send(tmp_path, *flags).exception
        assert isinstance(failed, ClusterError)
        assert failed.what == (
            "reviews is on the cluster as it is in the file, and has failed before: shard 0 of 3 is missing"
        )
        assert failed.why == "submitting it once more does not start it again"
        assert failed.fix == f"{RESUME}; `--replace` takes it away and submits it anew"


def test_a_suspended_job_is_shown_with_its_resume_not_followed(standing: Standing, tmp_path: Path) -> None:
    send(tmp_path)
    standing.suspend()
    done = send(tmp_path, "--wait")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "reviews is in the namespace ns of context near already, as it is in the file: suspended",
        RESUME,
    ]
    assert send(tmp_path, "--wait", "--quiet").stderr == f"reviews is suspended: {RESUME}\n"
    answer = json.loads(send(tmp_path, "--wait", "--json").output)
    assert (answer["outcome"], answer["state"]) == ("unchanged", "suspended")


def test_a_job_that_waits_in_a_queue_is_followed(standing: Standing, followed: list[str], tmp_path: Path) -> None:
    queued = PLAIN + "kubernetes: {queue: night}\n"
    send(tmp_path, text=queued)
    standing.suspend()
    assert send(tmp_path, "--wait", text=queued).exit_code == 0
    assert followed == ["reviews"]


def test_a_job_that_differs_is_refused_with_the_flag(standing: Standing, tmp_path: Path) -> None:
    send(tmp_path)
    refused = send(tmp_path, text=MORE).exception
    assert isinstance(refused, OutputExistsError)
    assert (refused.what, refused.why) == ("reviews was submitted before, and not as it is now", "passes 4 → 9")
    assert refused.fix == (
        "submit it with `--replace`, which takes the old one away first (the volume stays), and with another `output` "
        "if that one has trained already; or choose another `name`; or `bireme resume reviews --namespace ns` "
        "continues the job as it was"
    )
    placed = send(tmp_path, text=PLAIN + "kubernetes: {resources: {requests: {cpu: 1}}}\n").exception
    assert isinstance(placed, OutputExistsError)
    assert "--replace" in placed.fix and "output" not in placed.fix, "it continues where it was"


def test_a_job_is_replaced_on_request_and_its_volume_stays(standing: Standing, tmp_path: Path) -> None:
    send(tmp_path)
    done = send(tmp_path, "--replace", text=MORE)
    assert done.exit_code == 0
    assert done.output.startswith("submitted reviews in place of the one before in the namespace ns of context near: 3")
    assert "Job reviews" in standing.deleted and "PersistentVolumeClaim reviews" not in standing.deleted
    assert passes_there(standing) == 9


def test_a_job_of_another_shape_makes_room_with_both_its_parts(standing: Standing, tmp_path: Path) -> None:
    send(tmp_path, text=PLAIN + "pservers: 2\ntrainers: 3\n")
    assert send(tmp_path, "--replace", "--json").exit_code == 0
    assert [name for kind, name in standing.things if kind == "Job"] == ["reviews"]


@pytest.mark.parametrize("end", [Standing.fail, Standing.suspend])
def test_a_job_that_does_not_run_any_more_makes_room_for_itself(standing: Standing, tmp_path: Path, end: Any) -> None:
    send(tmp_path)
    end(standing)
    assert json.loads(send(tmp_path, "--replace", "--json").output)["outcome"] == "replaced"
    assert "Job reviews" in standing.deleted and "annotations" in standing.job()["metadata"]
    assert "status" not in json.dumps(standing.job()["metadata"]["annotations"]), "it is another one"


@pytest.mark.parametrize("status", [{}, {"phase": "gathering"}, {"phase": "finished"}])
def test_an_unchanged_waiting_or_finished_job_stays(standing: Standing, tmp_path: Path, status: dict[str, Any]) -> None:
    send(tmp_path)
    if status:
        standing.say(**status)
    assert json.loads(send(tmp_path, "--replace", "--json").output)["outcome"] == "unchanged"
    assert standing.deleted == []
    assert json.loads(send(tmp_path, "--replace", "--json", text=MORE).output)["outcome"] == "replaced"


@pytest.mark.parametrize("phase", ["training", "gathering"])
@pytest.mark.parametrize("text", [PLAIN, MORE])
def test_a_job_that_runs_is_not_replaced(standing: Standing, tmp_path: Path, phase: str, text: str) -> None:
    send(tmp_path)
    standing.say(phase=phase, trainers=[{"trainer": 0}])
    refused = send(tmp_path, "--replace", text=text).exception
    assert isinstance(refused, UsageError) and refused.what == "reviews is not replaced: it runs"
    assert refused.fix == (
        "cancel it first with `bireme cancel reviews --namespace ns`, then submit it again with `--replace`"
    )
    assert standing.deleted == [] and passes_there(standing) == 4


def test_without_a_job_there_is_nothing_to_replace(standing: Standing, tmp_path: Path) -> None:
    assert json.loads(send(tmp_path, "--replace", "--json").output)["outcome"] == "created"


def test_a_job_stays_where_its_successors_name_is_taken(standing: Standing, tmp_path: Path) -> None:
    send(tmp_path)
    standing.things["Job", "reviews-pserver"] = {"metadata": {"name": "reviews-pserver"}}
    refused = send(tmp_path, "--replace", text=PLAIN + "pservers: 2\ntrainers: 3\n").exception
    assert isinstance(refused, OutputExistsError) and "the name reviews-pserver is taken" in refused.what
    assert standing.deleted == []


@pytest.mark.parametrize("is_leaving", [True, False])
def test_new_pods_wait_for_old_ones_except_on_a_lost_machine(
    standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_leaving: bool
) -> None:
    from bireme.kube.api import naming
    from bireme.kube.jobs import lifecycle

    monkeypatch.setattr(lifecycle, "PATIENCE_S", -1.0)
    monkeypatch.setattr(lifecycle, "WAIT_EVERY_S", 0.0)
    send(tmp_path)
    pod = standing.put(POD, "reviews-0-x", status={"phase": "Running"})
    pod["metadata"]["labels"] = naming.selector_of("reviews")
    if is_leaving:
        pod["metadata"]["deletionTimestamp"] = "2026-11-16T17:26:32Z"
    done = send(tmp_path, "--replace", text=MORE)
    if is_leaving:
        assert done.exit_code == 0 and passes_there(standing) == 9
    else:
        assert isinstance(done.exception, UsageError)
        assert (done.exception.what, done.exception.fix) == (
            "the pods of reviews have not left yet",
            "try again in a moment",
        )


def test_no_key_is_left_by_a_submission_that_changes_nothing(standing: Standing, tmp_path: Path) -> None:
    standing.has_namespace = False
    lost = send(tmp_path).exception
    assert isinstance(lost, ClusterError) and lost.what == "there is no namespace ns"
    assert lost.fix == "`kubectl create namespace ns`, or name another one with --namespace"
    assert kept(tmp_path) == []
    standing.has_namespace, standing.error = True, NetworkError("cannot reach the API server")
    assert isinstance(send(tmp_path).exception, NetworkError)
    assert kept(tmp_path) == []


def test_the_key_stays_where_a_cluster_may_need_it(
    standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: Any, **__: Any) -> bool:
        raise NetworkError("the API server does not answer")

    refuse_jobs(standing, monkeypatch)
    monkeypatch.setattr(standing, "delete", lose)
    assert isinstance(send(tmp_path).exception, ClusterError)
    place = JobIdentity(standing.server, standing.namespace, "reviews").place(places().state)
    assert (place / "ca.key").is_file(), "its Secret is there"
    before = (place / "ca.key").read_bytes()
    standing.things.clear()
    monkeypatch.setattr(standing, "create", Standing(has_namespace=False).create)
    assert isinstance(send(tmp_path).exception, ClusterError)
    assert (place / "ca.key").read_bytes() == before, "an older one is not touched"


def test_a_partly_refused_submission_leaves_nothing(
    standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = {"metadata": {"name": "reviews", "labels": naming.labels_of("reviews")}}
    standing.things["PersistentVolumeClaim", "reviews"] = {"kind": "PersistentVolumeClaim", **volume}
    refuse_jobs(standing, monkeypatch)
    assert isinstance(send(tmp_path).exception, ClusterError)
    assert list(standing.things) == [("PersistentVolumeClaim", "reviews")], "the volume was there before"
    assert kept(tmp_path) == []


def test_what_was_made_meanwhile_is_left_alone(
    standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, create = standing.list, standing.create

    def be_faster(kind: Any, labels: Any) -> Any:
        if not standing.things:
            create({"kind": "Service", "metadata": {"name": "reviews", "labels": naming.labels_of("reviews")}})
        return looked(kind, labels)

    monkeypatch.setattr(standing, "list", be_faster)
    assert isinstance(send(tmp_path).exception, ConflictError)
    assert list(standing.things) == [("Service", "reviews")]


def test_a_job_whose_api_server_is_lost_on_the_way_stays(
    standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: Any) -> Any:
        raise NetworkError("the API server does not answer")

    monkeypatch.setattr(standing, "patch", lose)
    assert isinstance(send(tmp_path).exception, NetworkError)
    assert ("Job", "reviews") in standing.things


def test_a_volume_in_deletion_does_not_count_as_there(standing: Standing, tmp_path: Path) -> None:
    going = {"name": "reviews", "labels": naming.labels_of("reviews"), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    standing.things["PersistentVolumeClaim", "reviews"] = {"kind": "PersistentVolumeClaim", "metadata": going}
    refused = send(tmp_path).exception
    assert isinstance(refused, ClusterError) and refused.what.endswith("reviews is being deleted")


def test_submitting_renews_a_resumed_jobs_certificate(standing: Standing, tmp_path: Path) -> None:
    short = PLAIN + "kubernetes: {certificate_days: 10}\n"
    send(tmp_path, text=short)
    standing.job()["metadata"]["annotations"][naming.DIGEST] = "another since"
    before = standing.things["Secret", "reviews-tls"]["data"]["tls.crt"]
    refused = send(tmp_path, text=short).exception
    assert isinstance(refused, OutputExistsError) and refused.what.endswith("; its certificate was renewed")
    assert standing.things["Secret", "reviews-tls"]["data"]["tls.crt"] != before


def test_a_name_that_no_service_can_have_is_refused_unsent(standing: Standing, tmp_path: Path) -> None:
    refused = send(tmp_path, text=PLAIN.replace("name: reviews", "name: 2026-reviews")).exception
    assert isinstance(refused, SpecError) and "begins with '2'" in refused.what
    assert refused.fix == "choose another `name`, e.g. job-2026-reviews"
    assert standing.things == {}


def test_submitting_another_machines_job_makes_no_new_key(
    standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = PLAIN + "kubernetes: {certificate_days: 10}\n"
    send(tmp_path, text=short)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    refused = send(tmp_path, text=short).exception
    assert isinstance(refused, ClusterError) and "cannot be renewed from here" in refused.what
    assert list((tmp_path / "elsewhere").rglob("ca*")) == []
