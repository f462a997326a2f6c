"""The objects of a job, pinned as files and by what must never change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.kube.making import ALL, GROUPED, PLAIN, load, make, write_job

from bireme import __version__
from bireme.core.errors import SpecError
from bireme.kube.api import naming
from bireme.kube.submit.indexed_jobs import HOPELESS
from bireme.kube.submit.objects import as_yaml, build
from bireme.kube.submit.placement import place
from bireme.kube.submit.submission import MAX_NBYTES, read_program
from bireme.kube.volume.helper_pod import VolumePlace, volume_pod

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "text", "image"),
    [("plain", PLAIN, "bireme:test"), ("all", ALL, None), ("grouped", GROUPED, "bireme:test")],
    ids=["plain", "all", "grouped"],
)
def test_objects_are_those_of_the_golden_file(tmp_path: Path, name: str, text: str, image: str | None) -> None:
    made = as_yaml(build(make(tmp_path, text, image))).replace(__version__, "VERSION")
    golden = GOLDEN / f"{name}.yaml"
    if not golden.exists():
        golden.write_text(made)
        pytest.fail(f"{golden} was missing and is written: look it through")
    assert made == golden.read_text()


def containers(thing: Any) -> Iterator[dict[str, Any]]:
    if isinstance(thing, dict):
        yield from thing.get("containers", ())
        for value in thing.values():
            yield from containers(value)


def pod_specs(thing: Any) -> Iterator[dict[str, Any]]:
    if isinstance(thing, dict):
        if "containers" in thing:
            yield thing
        for value in thing.values():
            yield from pod_specs(value)


def test_every_pod_keeps_to_the_restricted_profile(tmp_path: Path) -> None:
    submission = make(tmp_path)
    beside = volume_pod(VolumePlace("reviews", "i", submission.settings), "default", "volume-1", ["bireme"])
    specs = [spec for thing in [*build(submission), beside] for spec in pod_specs(thing)]
    assert len(specs) == 2
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        kinds = {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]}
        assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
        for box in spec["containers"]:
            assert box["securityContext"]["allowPrivilegeEscalation"] is False
            assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert box["securityContext"]["readOnlyRootFilesystem"] is True


def test_all_but_the_claim_can_be_found_by_the_jobs_labels(tmp_path: Path) -> None:
    for thing in build(make(tmp_path)):
        assert naming.labels_of("reviews").items() <= thing["metadata"]["labels"].items()


def test_what_pods_need_comes_before_the_jobs_that_make_them(tmp_path: Path) -> None:
    kinds = [thing["kind"] for thing in build(make(tmp_path))]
    assert kinds[-1] == "Job" and kinds.count("Job") == 1
    assert [thing["kind"] for thing in build(make(tmp_path, ALL, None))][-2:] == ["Job", "Job"]


def test_paths_of_the_file_become_paths_on_the_volume(tmp_path: Path) -> None:
    job = place(load(tmp_path), "ns")
    assert (job.config, job.data, job.output) == (
        "/etc/bireme/program/config.py",
        "/job/reviews",
        "/job/reviews/output",
    )
    assert job.hosts == tuple(f"reviews-{rank}.reviews.ns.svc" for rank in range(3))
    assert (job.port, job.tls, job.snapshots.path) == (7164, "/etc/bireme/tls", "/job/reviews/output/snapshots")
    apart = place(load(tmp_path, ALL), "training")
    assert apart.hosts == tuple(f"reviews-pserver-{rank}.reviews.training.svc" for rank in range(2))
    assert (apart.port, apart.tls, apart.data) == (9000, "", "/job/sets/reviews")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("data: {shards: 3}", "data: {path: ../elsewhere, shards: 3}"), "data.path: ../elsewhere is not below"),
        (("passes: 4", "output: /var/out"), "output: /var/out is not below"),
        (("name: reviews", f"name: {'a' * 52}"), ""),
        (("data: {shards: 3}", "kubernetes: {volume: {data: ../up}}\ndata: {shards: 3}"), "is not on the volume"),
    ],
)
def test_what_has_no_place_on_the_volume_is_refused(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    text = PLAIN.replace(*change)
    if not expected:
        place(load(tmp_path, text), "ns")  # fits with one Job
        text, expected = text + "pservers: 1\ntrainers: 2\n", "too long for a cluster"
    with pytest.raises(SpecError, match=expected):
        place(load(tmp_path, text), "ns")


def test_a_program_is_sent_without_data_and_leftovers(tmp_path: Path) -> None:
    write_job(tmp_path, PLAIN)
    found = read_program(tmp_path / "quick", without=tmp_path / "output")
    assert sorted(found) == ["config.py", "lib/words.py", "table.bin"]


def test_a_program_beside_job_yaml_leaves_shards_and_output_out(tmp_path: Path) -> None:
    for name in ("config.py", "0/data/train.txt", "1/data/train.txt", "results/pass-00000/done"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert list(read_program(tmp_path, without=tmp_path / "results")) == ["config.py"]


def test_a_large_program_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("x")
    (tmp_path / "weights").write_bytes(bytes(MAX_NBYTES))
    with pytest.raises(SpecError, match="holds 900,001 bytes") as caught:
        read_program(tmp_path, without=tmp_path / "output")
    assert "weights" in caught.value.why and "image build --with" in caught.value.fix


def test_an_image_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no image is given"):
        make(tmp_path, image=None)


def test_a_digest_covers_program_and_settings_not_certificates(tmp_path: Path) -> None:
    from dataclasses import replace

    submission = make(tmp_path)
    assert replace(submission, certificates={}).digest == submission.digest
    others = [
        replace(submission, program={**submission.program, "config.py": b"other"}).digest,
        replace(submission, image="other").digest,
        make(tmp_path, PLAIN.replace("passes: 4", "passes: 5")).digest,
        make(tmp_path, PLAIN + "kubernetes: {spread: false}\n").digest,
    ]
    assert len({submission.digest, *others}) == 5


def test_lost_pods_are_replaced_or_a_policy_ends_hopeless_jobs(tmp_path: Path) -> None:
    """Kubernetes refuses a pod failure policy together with replacing pods that are not surely gone."""
    at_once = build(make(tmp_path))[-1]["spec"]
    assert at_once["podReplacementPolicy"] == "TerminatingOrFailed" and "podFailurePolicy" not in at_once
    when_gone = build(make(tmp_path, ALL, None))[-1]["spec"]
    assert when_gone["podReplacementPolicy"] == "Failed"
    ignored, failing = when_gone["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore" and failing["onExitCodes"]["values"] == HOPELESS
    assert not {0, 8, 9, 13, 130, 137, 143} & set(HOPELESS)
