"""The status is read alike by every reader, also where another version wrote it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from bireme.job.coordination import messages as m
from bireme.job.status import JobStatus, PassSummary, TrainerStatus, decode_status

PASS = PassSummary(pass_id=0, round=2, samples=8, samples_so_far=8, seconds=1.0, cost=0.5, evals={"error": 0.25})


def test_passes_of_earlier_runs_count() -> None:
    two = (PASS, replace(PASS, pass_id=1))
    resumed = JobStatus(first_pass=0, passes=10, saved=6, passes_done=two)
    assert (resumed.done, resumed.total) == (7, 10)
    started_later = JobStatus(first_pass=4, passes=6)
    assert (started_later.done, started_later.total) == (4, 10)
    assert (JobStatus().done, JobStatus().total) == (0, 0)


@pytest.mark.parametrize(
    ("phase", "ending"), [("finished", "finished"), ("failed", "failed"), ("training", None), ("", None)]
)
def test_a_status_knows_whether_the_job_has_ended(phase: str, ending: str | None) -> None:
    assert JobStatus(phase=phase).ending == ending


def test_a_status_of_another_version_is_read() -> None:
    text = '{"phase": "training", "pass": 3, "trainers": [{"trainer": 1, "mood": "good"}], "weather": {"rain": true}}'
    status = JobStatus(phase="training", pass_id=3, trainers=(TrainerStatus(trainer=1),))
    assert decode_status(text) == status


@pytest.mark.parametrize("text", ["", "{half", "[]", "7", '{"phase": 3}', b"\xff"])
def test_a_text_that_is_no_status_is_an_empty_one(text: str | bytes) -> None:
    assert decode_status(text) == JobStatus()


def test_a_trainer_without_progress_has_no_pass_in_json() -> None:
    new, busy = TrainerStatus(trainer=0), TrainerStatus(trainer=1, pass_id=0)
    assert "pass" not in msgspec.to_builtins(new)
    assert msgspec.to_builtins(busy)["pass"] == 0


def test_fields_of_a_cluster_are_absent_elsewhere() -> None:
    keys = set(msgspec.to_builtins(JobStatus()))
    assert not keys & {"version", "error", "certificate_until"}
    assert {"phase", "pass", "waits_for", "snapshot"} <= keys


def test_the_message_about_a_closed_pass_is_read_as_its_summary() -> None:
    fields = {name: getattr(PASS, name) for name in PASS.__struct_fields__}
    status = JobStatus(phase="training", passes_done=(m.PassClosed(**fields),))
    assert decode_status(msgspec.json.encode(status)).passes_done == (PASS,)
