"""Which volume and which output `bireme fetch` looks at, of jobs that are there and of jobs that are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.kube.making import ALL, PLAIN, load, make, write_job
from tests.unit.kube.test_volume import Json, Memory

from bireme.cli import fetch as fetching
from bireme.cli.cluster import Where
from bireme.cli.fetch import fetch, left_by, left_by_file
from bireme.core.errors import SpecError, UsageError
from bireme.kube.client import CLAIM, CONFIG_MAP, SECRET, ForbiddenError, Kind
from bireme.kube.objects import build
from bireme.kube.submission import Submission

OTHER = PLAIN + "output: results\nkubernetes: {volume: {claim: shared}}\n"


@pytest.fixture
def memory() -> Memory:
    return Memory()


def submit(memory: Memory, told: Submission) -> None:
    for made in build(told):
        if made["kind"] in (CONFIG_MAP.kind, SECRET.kind, CLAIM.kind):
            memory.things[made["kind"], made["metadata"]["name"]] = made


def test_of_a_job_that_is_there_all_is_known(memory: Memory, tmp_path: Path) -> None:
    submit(memory, make(tmp_path, OTHER))
    left = left_by(memory.as_cluster(), "reviews", None)
    assert (left.place.claim, left.output, left.place.image) == ("shared", "/job/reviews/results", "bireme:test")
    assert left_by(memory.as_cluster(), "reviews", "other:1").place.image == "other:1"


def test_of_a_job_that_is_gone_its_file_says_where_things_are(memory: Memory, tmp_path: Path) -> None:
    left = left_by_file(memory.as_cluster(), load(tmp_path, OTHER), "bireme:1")
    assert (left.name, left.place.claim, left.output) == ("reviews", "shared", "/job/reviews/results")
    with pytest.raises(SpecError, match="which image it ran is not known"):
        left_by_file(memory.as_cluster(), load(tmp_path, OTHER), None)
    assert left_by_file(memory.as_cluster(), load(tmp_path, ALL), None).place.image == "registry.example/bireme:1"


def test_a_file_without_an_image_is_helped_out_by_the_job_that_is_there(memory: Memory, tmp_path: Path) -> None:
    submit(memory, make(tmp_path, PLAIN))
    left = left_by_file(memory.as_cluster(), load(tmp_path, OTHER), None)
    assert (left.place.image, left.place.claim) == ("bireme:test", "shared")


def test_of_a_job_that_is_gone_only_the_volume_of_its_name_can_be_found(memory: Memory) -> None:
    memory.put(CLAIM, "reviews")
    with pytest.raises(SpecError, match="only the volume is left"):
        left_by(memory.as_cluster(), "reviews", None)
    left = left_by(memory.as_cluster(), "reviews", "bireme:1")
    assert (left.place.claim, left.output) == ("reviews", "/job/reviews/output")
    with pytest.raises(UsageError, match="there is no job 'other'") as told:
        left_by(memory.as_cluster(), "other", "bireme:1")
    assert "name JOB.yaml, not JOB" in told.value.fix


def test_who_may_not_look_is_told_that_and_nothing_else(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.put(CLAIM, "reviews")
    find = memory.find

    def refuse(kind: Kind, name: str) -> Json | None:
        if kind is CONFIG_MAP:
            raise ForbiddenError("ConfigMap reviews: you may not")
        return find(kind, name)

    monkeypatch.setattr(memory, "find", refuse)
    for image in (None, "bireme:1"):
        with pytest.raises(ForbiddenError, match="you may not"):
            left_by(memory.as_cluster(), "reviews", image)


@pytest.fixture
def connected(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Let the command find the cluster in memory; the namespaces that it asked for."""
    asked: list[str | None] = []

    def connect(self: Where, namespace: str | None = None) -> Memory:
        asked.append(namespace)
        return memory

    monkeypatch.setattr(Where, "connect", connect)
    return asked


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(fetch, [str(each) for each in arguments])


def test_fetch_takes_a_file_in_place_of_a_name(memory: Memory, connected: list[str | None], tmp_path: Path) -> None:
    memory.put(CLAIM, "shared-data")
    done = invoke(write_job(tmp_path, ALL), tmp_path / "x")
    assert connected == ["training"]
    assert isinstance(done.exception, UsageError) and done.exception.fix == ""
    assert done.exception.what == "reviews has left nothing yet in /job/reviews/out/here on the volume shared-data"


def test_a_name_under_which_nothing_is_found_is_told_to_try_the_file(
    memory: Memory, connected: list[str | None], tmp_path: Path
) -> None:
    memory.put(CLAIM, "reviews")
    done = invoke("reviews", tmp_path / "x", "--image", "bireme:1")
    assert connected == [None] and isinstance(done.exception, UsageError)
    assert done.exception.what.startswith("reviews has left nothing yet in /job/reviews/output")
    assert "name JOB.yaml" in done.exception.fix


def test_hostile_names_in_a_listing_change_nothing_here(
    memory: Memory, connected: list[str | None], tmp_path: Path
) -> None:
    memory.put(CLAIM, "reviews")
    memory.answers = [(0, json.dumps({"pass-0/x": 1, "a/../../../evil": 1}).encode(), "")]
    done = invoke("reviews", tmp_path / "x", "--image", "bireme:1")
    assert "is not a path below" in str(done.exception) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("job", "is_file"),
    [("reviews", False), ("a-1", False), ("job.yaml", True), ("first/job", True), (".", True), ("./reviews", True)],
)
def test_a_name_has_neither_dots_nor_slashes(job: str, is_file: bool) -> None:
    assert fetching.is_file_name(job) == is_file
