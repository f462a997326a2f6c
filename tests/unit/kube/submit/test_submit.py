"""What makes a submission another one, and whose names are not touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.unit.kube.making import PLAIN, make
from tests.unit.kube.standing import Standing

from bireme.core.errors import OutputExistsError, SpecError
from bireme.kube.api import naming
from bireme.kube.jobs.lifecycle import resumed
from bireme.kube.submit.objects import build
from bireme.kube.submit.submission import program_key
from bireme.kube.submit.submit import changes_between, key_of, refuse_foreign, send, submission_in


def test_changes_are_reported_key_by_key(tmp_path: Path) -> None:
    then = make(tmp_path)
    now = make(tmp_path, PLAIN.replace("passes: 4", "passes: 9") + "kubernetes: {volume: {size: 1Gi}}\n")
    now = replace(now, program={"config.py": b"other", "lib/words.py": b"WORDS = 3\n", "new.py": b""})
    assert list(changes_between(then, now)) == [
        "passes 4 → 9",
        "volume.size 10Gi → 1Gi",
        "config.py has changed",
        "new.py is new",
        "table.bin is gone",
    ]
    assert list(changes_between(then, then)) == []


def test_a_name_that_is_not_bireme_s_is_left_alone(tmp_path: Path) -> None:
    ours = {key_of(each): each for each in build(make(tmp_path))}
    refuse_foreign(ours, "reviews")
    foreign = {("Service", "reviews"): {"metadata": {"name": "reviews"}}}
    with pytest.raises(OutputExistsError, match="the name reviews is taken: there is a Service of something"):
        refuse_foreign(foreign, "reviews")
    with pytest.raises(OutputExistsError, match="of the job reviews in the namespace"):
        refuse_foreign(ours, "another")


def test_a_resumed_job_is_as_it_was_but_for_what_is_changed(tmp_path: Path) -> None:
    then = make(tmp_path)
    again = resumed(then, {})
    assert again.job == then.job and again.digest == then.digest
    more = resumed(then, {"passes": 9, "trainers": 1})
    assert (more.job.passes, more.job.trainers, more.job.pservers, more.job.is_resumed) == (9, 1, 3, True)
    assert more.job.hosts == naming.hosts_of(more.job, "default", is_apart=False)
    assert more.job.hosts[0] == "reviews-pserver-0.reviews.default.svc"
    with pytest.raises(SpecError, match="4 trainers but only 3 data shards"):
        resumed(then, {"trainers": 4})


def test_files_of_any_name_get_a_key_of_their_own() -> None:
    paths = ["a.py", "lib/a.py", "lib_2fa.py", "lib a.py", "ä.py", "lib/_a.py", "program-path.a.py"]
    keys = [program_key(path) for path in paths]
    assert len(set(keys)) == len(paths)
    import re

    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in keys)


def test_a_submission_can_be_read_back_from_what_was_sent(tmp_path: Path) -> None:
    sent = make(tmp_path)
    made = {each["kind"]: each for each in build(sent)}
    found = submission_in(made["ConfigMap"], made["Secret"])
    assert list(changes_between(found, sent)) == []
    assert (found.job, found.program, found.certificates) == (sent.job, sent.program, sent.certificates)


def test_a_job_is_sent_in_full(tmp_path: Path) -> None:
    sent = make(tmp_path)
    data = next(each for each in build(sent) if each["kind"] == "ConfigMap")
    from bireme.spec.job import Job

    assert msgspec.json.decode(data["data"]["job.json"], type=Job) == sent.job
    assert data["data"]["program.config.py"] == "print('config')\n"
    assert set(data["binaryData"]) == {"program.table.bin"}


def test_a_part_sent_again_does_not_own_the_rest(tmp_path: Path) -> None:
    there = Standing()
    made = build(make(tmp_path, PLAIN + "pservers: 1\ntrainers: 2\n"))
    send(there.as_cluster(), made)
    trainer = next(each for each in made if each["metadata"]["name"] == "reviews-trainer" and each["kind"] == "Job")
    owners = {key: thing["metadata"].get("ownerReferences") for key, thing in there.things.items()}
    assert owners["Job", "reviews-pserver"] is None
    assert owners["Job", "reviews-trainer"][0]["name"] == owners["Service", "reviews"][0]["name"] == "reviews-pserver"
    del there.things["Job", "reviews-trainer"]
    send(there.as_cluster(), [trainer, *(each for each in made if each["kind"] == "Service")])
    for key in (("Job", "reviews-trainer"), ("Service", "reviews")):
        assert there.things[key]["metadata"]["ownerReferences"][0]["name"] == "reviews-pserver"
