"""Which volume and output `bireme fetch` looks at, whose files it leaves alone, and what it says in the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.kube.making import ALL, PLAIN, load, make, write_job
from tests.unit.kube.volume.test_helper_pod import Json, Memory, Ran
from tests.unit.kube.volume.test_transfer import Volume, contents

from bireme.api import where as where_module
from bireme.api.kube import is_file_name
from bireme.api.where import Where
from bireme.cli.jobs.control import fetch
from bireme.core.errors import OutputExistsError, SpecError, UsageError
from bireme.job.output.model import model_hash, save_model
from bireme.kube.api.client import CLAIM, CONFIG_MAP, SECRET, ForbiddenError, Kind
from bireme.kube.jobs.fetching import MARKER
from bireme.kube.jobs.volumes import left_by, left_by_file
from bireme.kube.submit.objects import build
from bireme.kube.submit.submission import Submission

OTHER = PLAIN + "output: results\nkubernetes: {volume: {claim: shared}}\n"


@pytest.fixture
def memory() -> Memory:
    return Memory()


def submit(memory: Memory, submission: Submission) -> None:
    for made in build(submission):
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


def test_a_file_without_an_image_uses_the_existing_jobs(memory: Memory, tmp_path: Path) -> None:
    submit(memory, make(tmp_path, PLAIN))
    left = left_by_file(memory.as_cluster(), load(tmp_path, OTHER), None)
    assert (left.place.image, left.place.claim) == ("bireme:test", "shared")


def test_of_a_gone_job_only_the_volume_of_its_name_is_found(memory: Memory) -> None:
    memory.put(CLAIM, "reviews")
    with pytest.raises(SpecError, match="only the volume is left"):
        left_by(memory.as_cluster(), "reviews", None)
    left = left_by(memory.as_cluster(), "reviews", "bireme:1")
    assert (left.place.claim, left.output) == ("reviews", "/job/reviews/output")
    with pytest.raises(UsageError, match="there is no job 'other'") as caught:
        left_by(memory.as_cluster(), "other", "bireme:1")
    assert "name JOB.yaml, not JOB" in caught.value.fix


def test_a_refused_look_is_reported_and_nothing_else(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(where_module, "has_cluster", lambda: True)

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


def test_an_unknown_name_gets_the_advice_to_name_the_file(
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
    assert is_file_name(job) == is_file


# What is here already

ROOT = "/job/reviews/output"


class Near(Memory):
    """A cluster whose volume is a directory here."""

    server = "https://near:6443"

    def __init__(self, volume: Path) -> None:
        super().__init__()
        self.volume = volume

    def run(self, pod: str, command: Sequence[str], *, stdin: BinaryIO | None, stdout: BinaryIO | None) -> Ran:
        verb, root = command[2:]
        assert root == ROOT
        return 0, Volume().run([verb, str(self.volume)], stdin=stdin, stdout=stdout), ""


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Near:
    """A job that was deleted, with two models and a log on its volume."""
    made = Near(tmp_path / "there")
    made.put(CLAIM, "reviews")["metadata"]["uid"] = "first"
    monkeypatch.setattr(Where, "connect", lambda self, namespace=None: made)
    config = tmp_path / "config.py"
    config.touch()
    for number in range(2):
        values = {"w": np.full(3, number, np.float32)}
        made.volume.mkdir(exist_ok=True)
        save_model(made.volume / f"pass-0000{number}", values, config, {})
    (made.volume / "job.json").write_text(json.dumps({"output": ROOT}))
    (made.volume / "node_0").mkdir()
    (made.volume / "node_0/train.log").write_text("one\n")
    return made


def bring(target: Path, *more: str) -> Any:
    return invoke("reviews", target, "--image", "bireme:1", *more)


def brought(target: Path) -> dict[str, bytes]:
    found = contents(target)
    found.pop(MARKER)
    return found


def test_what_was_fetched_before_is_replaced_by_what_is_newer(near: Near, tmp_path: Path) -> None:
    target = tmp_path / "got"
    assert bring(target).exit_code == 0
    (near.volume / "node_0/train.log").write_text("one\ntwo\n")
    (near.volume / "job.json").write_text(json.dumps({"output": ROOT, "passes": 9}))
    (near.volume / "status.json").write_text("{}")
    near.server = "https://other-name-of-the-same:6443"
    again = bring(target)
    assert again.exit_code == 0 and "3 files" in again.output
    assert brought(target) == contents(near.volume)
    (near.volume / "status.json").write_text("[]")
    assert bring(target, "--model").exit_code == 0, "which does not forget what else was fetched"
    assert bring(target).exit_code == 0 and (target / "status.json").read_text() == "[]"


def test_the_marker_says_whose_files_these_are(near: Near, tmp_path: Path) -> None:
    bring(tmp_path / "got", "--model")
    marker = json.loads((tmp_path / "got" / MARKER).read_bytes())
    assert "pass-00001/w" in marker.pop("files")
    where = {"server": "https://near:6443", "namespace": "ns", "volume": "first"}
    assert marker == {**where, "job": "reviews", "output": ROOT}


def test_a_users_own_files_are_not_overwritten(near: Near, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    for name in ("job.json", "node_0/train.log", "pass-00000/w", "pass-00001/w", "notes.txt"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("mine")
    (target / "job.json").write_bytes((near.volume / "job.json").read_bytes())
    (target / "pass-00000/done").write_bytes((near.volume / "pass-00000/done").read_bytes())
    before = contents(target)
    refused = bring(target).exception
    assert isinstance(refused, OutputExistsError)
    which = "node_0/train.log, pass-00000/w, pass-00001/w"
    assert refused.what == f"{target} has files that differ from those of reviews: {which}"
    assert refused.why == "they were not fetched from this job, and would be overwritten"
    assert refused.fix == "name another directory; nothing was written"
    assert contents(target) == before


def test_at_most_three_files_in_the_way_are_named(near: Near, tmp_path: Path) -> None:
    bring(tmp_path / "got")
    (tmp_path / "got" / MARKER).unlink()
    for name in ("done", "path.txt", "metrics.json", "w"):
        (tmp_path / "got/pass-00000" / name).write_text("mine")
    refused = bring(tmp_path / "got").exception
    assert (
        str(refused)
        .partition("\n")[0]
        .endswith("pass-00000/done, pass-00000/metrics.json, pass-00000/path.txt and 1 more")
    )


def test_a_file_put_beside_fetched_ones_is_not_overwritten(near: Near, tmp_path: Path) -> None:
    bring(tmp_path / "got")
    (tmp_path / "got/status.json").write_text("mine")
    (near.volume / "status.json").write_text("{}")
    assert "those of reviews: status.json" in str(bring(tmp_path / "got").exception)


def test_the_output_of_a_local_run_is_left_alone(near: Near, tmp_path: Path) -> None:
    target = tmp_path / "output"
    target.mkdir()
    (target / "job.json").write_text(json.dumps({"output": str(target)}))
    before = contents(target)
    refused = bring(target).exception
    assert isinstance(refused, OutputExistsError) and "the output of another run" in refused.why
    assert contents(target) == before


def test_a_run_continued_here_from_fetched_files_is_left_alone(near: Near, tmp_path: Path) -> None:
    target = tmp_path / "got"
    bring(target)
    (target / "job.json").write_text(json.dumps({"output": str(target)}))
    refused = bring(target).exception
    assert isinstance(refused, OutputExistsError) and "the output of another run" in refused.why


def test_files_of_a_volume_that_is_gone_are_not_overwritten(near: Near, tmp_path: Path) -> None:
    bring(tmp_path / "got")
    near.things[CLAIM.kind, "reviews"]["metadata"]["uid"] = "second"
    (near.volume / "node_0/train.log").write_text("another run\n")
    refused = bring(tmp_path / "got").exception
    assert isinstance(refused, OutputExistsError)
    assert refused.why == "they were fetched from another run, of reviews in the namespace ns of https://near:6443"


def test_files_that_are_the_same_are_no_obstacle(near: Near, tmp_path: Path) -> None:
    bring(tmp_path / "got")
    for marker in ("", "torn", "{}"):
        (tmp_path / "got" / MARKER).write_text(marker)
        assert bring(tmp_path / "got").exit_code == 0
    assert brought(tmp_path / "got") == contents(near.volume)


def test_a_file_in_the_directorys_place_is_named_before_a_pod(near: Near, tmp_path: Path) -> None:
    (tmp_path / "got").write_text("mine")
    for target in (tmp_path / "got", tmp_path / "got/inside"):
        refused = bring(target).exception
        assert isinstance(refused, OutputExistsError)
        assert refused.what == f"{tmp_path / 'got'} is a file, and what is fetched needs a directory there"
    assert near.ran_in == [] and near.deleted == []


# The hash


@pytest.mark.parametrize("more", [(), ("--model",)])
def test_the_hash_of_the_last_model_is_reported(near: Near, tmp_path: Path, more: tuple[str, ...]) -> None:
    digest = model_hash(near.volume / "pass-00001")
    last = bring(tmp_path / "got", *more).output.splitlines()[-2:]
    assert last == [f"the last model is {tmp_path / 'got/pass-00001'}", f"hash: {digest}"]
    assert json.loads(bring(tmp_path / "got", *more, "--json").output)["hash"] == digest


def test_a_last_pass_that_is_not_whole_has_no_hash(near: Near, tmp_path: Path) -> None:
    (near.volume / "pass-00001/done").unlink()
    assert "hash" not in bring(tmp_path / "got").output
    assert "hash" not in json.loads(bring(tmp_path / "got", "--json").output)


def test_a_model_that_cannot_be_read_is_brought_with_a_note(near: Near, tmp_path: Path) -> None:
    (near.volume / "pass-00001/w").write_bytes(b"torn")
    done = bring(tmp_path / "got")
    assert done.exit_code == 0 and "hash:" not in done.stdout
    assert "w is torn: 4 bytes" in done.stderr
