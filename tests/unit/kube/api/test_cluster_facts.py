"""What a cluster says about itself, and how it fills in what job.yaml leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.kube.making import ALL, PLAIN, load, write_job
from tests.unit.kube.standing import Standing

from bireme.api.where import Where
from bireme.cli.jobs.submit import submit
from bireme.core.errors import ClusterError, NetworkError, SpecError
from bireme.kube.api import naming
from bireme.kube.api.client import CLAIM, CONFIG_MAP, ForbiddenError
from bireme.kube.api.cluster_facts import NAME, ClusterFacts, read_facts, record_image, with_facts
from bireme.kube.jobs.lifecycle import resumed
from bireme.kube.jobs.submitting import prepare
from bireme.kube.jobs.volumes import left_by_file, prepare_volume
from bireme.kube.submit.objects import build
from bireme.kube.submit.submit import read_back, submission_in
from bireme.kube.volume.helper_pod import volume_pod

SERVERS, TRAINERS = {"bireme.dev/group": "servers"}, {"bireme.dev/group": "trainers"}
WRITTEN: dict[str, Any] = {
    "name": "paddle",
    "region": "us-west-2",
    "repository": "1234.dkr.ecr.us-west-2.amazonaws.com/bireme-paddle",
    "image": "registry.example/bireme@sha256:12",
    "claim": "efsvol",
    "groups": {"pserver": SERVERS, "trainer": TRAINERS},
    "service_account": "bireme-job",
}
FACTS = ClusterFacts(**WRITTEN)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Standing:
    """A cluster with facts, which the commands find."""
    made = Standing()
    write(made, json.dumps(WRITTEN))
    made.put(CLAIM, "efsvol")
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None: made)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made


def write(standing: Standing, text: str) -> None:
    standing.put(CONFIG_MAP, NAME, data={"cluster.json": text})


def send(folder: Path, text: str, *flags: str) -> Any:
    return CliRunner().invoke(submit, [str(write_job(folder, text)), *flags])


def selectors(made: list[dict[str, Any]]) -> dict[str, Any]:
    """The node selector of each Job's pods."""
    jobs = [each for each in made if each["kind"] == "Job"]
    return {job["metadata"]["name"]: job["spec"]["template"]["spec"].get("nodeSelector") for job in jobs}


def test_facts_are_read_and_newer_keys_are_ignored(standing: Standing) -> None:
    assert read_facts(standing.as_cluster()) == FACTS
    write(standing, json.dumps({"name": "bare", "service_account": None, "claim": None, "zone": "a"}))
    assert read_facts(standing.as_cluster()) == ClusterFacts(name="bare")


def test_a_cluster_without_readable_facts_has_none() -> None:
    assert read_facts(Standing().as_cluster()) is None
    assert read_facts(Standing(error=ForbiddenError("you may not")).as_cluster()) is None
    with pytest.raises(NetworkError):
        read_facts(Standing(error=NetworkError("no answer")).as_cluster())


@pytest.mark.parametrize("data", [{}, {"cluster.json": '{"name": "pad'}, {"cluster.json": '{"name": 3}'}])
def test_torn_facts_are_refused_with_the_way_to_write_them_again(data: dict[str, str]) -> None:
    standing = Standing()
    standing.put(CONFIG_MAP, NAME, data=data)
    with pytest.raises(ClusterError, match="the ConfigMap bireme-cluster cannot be read") as torn:
        read_facts(standing.as_cluster())
    assert torn.value.fix == "`bireme cluster up` writes it again"


def test_what_the_file_leaves_out_comes_from_the_facts(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    settings = with_facts(loaded, FACTS).settings
    assert (settings.image, settings.volume.claim) == (FACTS.image, "efsvol")
    assert (settings.service_account, settings.groups) == ("bireme-job", FACTS.groups)
    assert with_facts(loaded, None) is loaded
    assert with_facts(loaded, ClusterFacts(name="bare")) == loaded


def test_what_the_file_says_wins(tmp_path: Path) -> None:
    loaded = load(tmp_path, ALL)
    assert with_facts(loaded, FACTS) == loaded
    apart = load(tmp_path, PLAIN + "kubernetes: {groups: {trainer: {pool: gpu}}}\n")
    assert with_facts(apart, FACTS).settings.groups == {"trainer": {"pool": "gpu"}}


@pytest.mark.parametrize("key", ["size: 10Gi", "storage_class: fast", "access_modes: [ReadWriteOnce]"])
def test_a_file_that_describes_a_claim_of_its_own_gets_one(tmp_path: Path, key: str) -> None:
    """`10Gi` is also what a claim has whose size is not given."""
    loaded = load(tmp_path, PLAIN + f"kubernetes: {{volume: {{{key}}}}}\n")
    assert with_facts(loaded, FACTS).settings.volume.claim is None
    shared = load(tmp_path, PLAIN + "kubernetes: {volume: {data: sets/reviews}}\n")
    volume = with_facts(shared, FACTS).settings.volume
    assert (volume.claim, volume.data) == ("efsvol", "sets/reviews")


def test_with_groups_pservers_have_as_many_pods_as_trainers(tmp_path: Path) -> None:
    made = prepare(load(tmp_path), "ns", None, FACTS)
    assert selectors(build(made)) == {"reviews-pserver": SERVERS, "reviews-trainer": TRAINERS}
    assert made.job.hosts == tuple(f"reviews-pserver-{rank}.reviews.ns.svc" for rank in range(3))
    assert made.main_job == "reviews-pserver"
    budget = next(each for each in build(made) if each["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 5
    chosen = prepare(load(tmp_path, PLAIN + "kubernetes: {node_selector: {disk: fast}}\n"), "ns", None, FACTS)
    assert selectors(build(chosen)) == {"reviews": {"disk": "fast"}}


def test_a_name_too_long_for_pods_of_their_own_is_refused(tmp_path: Path) -> None:
    loaded = load(tmp_path, PLAIN.replace("name: reviews", f"name: {'a' * 52}"))
    prepare(loaded, "ns", "i")
    with pytest.raises(SpecError, match="too long for a cluster"):
        prepare(loaded, "ns", "i", FACTS)


def test_groups_go_together_with_a_node_selector(tmp_path: Path) -> None:
    text = PLAIN + "kubernetes: {node_selector: {arch: arm}, groups: {pserver: {disk: fast}}}\n"
    made = build(prepare(load(tmp_path, text), "ns", "i"))
    assert selectors(made) == {"reviews-pserver": {"arch": "arm", "disk": "fast"}, "reviews-trainer": {"arch": "arm"}}


def test_the_volumes_pod_runs_anywhere_with_the_clusters_claim(standing: Standing, tmp_path: Path) -> None:
    place = prepare_volume(standing.as_cluster(), load(tmp_path), None)
    assert (place.claim, place.image) == ("efsvol", FACTS.image)
    assert "nodeSelector" not in volume_pod(place, "ns", "volume-1", ["bireme"])["spec"]
    assert ("PersistentVolumeClaim", "reviews") not in standing.things
    left = left_by_file(standing.as_cluster(), load(tmp_path), None)
    assert (left.place.claim, left.place.image) == ("efsvol", FACTS.image)


def test_a_job_submitted_with_facts_is_resumed_with_them(standing: Standing, tmp_path: Path) -> None:
    assert send(tmp_path, PLAIN).exit_code == 0
    assert [name for kind, name in standing.things if kind == "Job"] == ["reviews-pserver", "reviews-trainer"]
    assert ("ServiceAccount", "reviews") not in standing.things
    then = read_back(standing.as_cluster(), "reviews")
    assert (then.settings.volume.claim, then.image) == ("efsvol", FACTS.image)
    more = resumed(then, {"passes": 9})
    assert more.job.hosts == then.job.hosts and more.roles == ("pserver", "trainer")
    assert json.loads(send(tmp_path, PLAIN, "--json").output)["outcome"] == "unchanged"


def test_a_named_image_wins_over_the_pushed_one(standing: Standing, tmp_path: Path) -> None:
    assert send(tmp_path, PLAIN, "--image", "mine:1").exit_code == 0
    assert read_back(standing.as_cluster(), "reviews").image == "mine:1"


def test_a_dry_run_of_the_client_asks_no_cluster(standing: Standing, tmp_path: Path) -> None:
    standing.error = NetworkError("it was asked")
    made = json.loads(send(tmp_path, PLAIN, "--dry-run", "--image", "mine:1", "--json").output)["objects"]
    assert selectors(made) == {"reviews": None}


def test_without_an_image_the_error_says_how_to_push_one(standing: Standing, tmp_path: Path) -> None:
    write(standing, json.dumps({**WRITTEN, "image": ""}))
    refused = send(tmp_path, PLAIN).exception
    assert isinstance(refused, SpecError) and refused.what == "no image is given"
    assert refused.fix == "build one with `bireme image build`, then `bireme image push IMAGE.tar`"
    with pytest.raises(SpecError, match="no image is given") as also:
        prepare_volume(standing.as_cluster(), load(tmp_path), None)
    assert also.value.fix == refused.fix


def test_recording_an_image_leaves_the_other_facts_as_they_are() -> None:
    standing, changes = Standing(), []
    write(standing, json.dumps({**WRITTEN, "zone": "a"}))
    standing.patch = lambda kind, name, change: changes.append((name, change))  # type: ignore[assignment, method-assign, return-value]  # what is sent is what counts
    record_image(standing.as_cluster(), "r/x@sha256:34")
    ((name, change),) = changes
    assert name == NAME and json.loads(change["data"]["cluster.json"]) == {
        **WRITTEN, "zone": "a", "image": "r/x@sha256:34",
    }  # fmt: skip


def test_a_job_without_groups_keeps_its_digest_and_settings(tmp_path: Path) -> None:
    made = prepare(load(tmp_path), "default", "bireme:test")
    there = next(each for each in build(made) if each["kind"] == "ConfigMap")
    assert "groups" not in there["data"]["settings.json"], "an older bireme refuses keys that it does not know"
    assert submission_in(there, None).digest == made.digest
    grouped = prepare(load(tmp_path), "default", "bireme:test", ClusterFacts(name="x", groups=FACTS.groups))
    assert grouped.digest != made.digest
    assert naming.roles_of(made.job, is_apart=False) == ("",)
