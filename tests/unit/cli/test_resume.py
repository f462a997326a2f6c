"""`bireme resume`: which job it means, when there is nothing to do, and where it says that it begins."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.unit.cli.conftest import Leave

from bireme.api.progress import job_in, progress_in
from bireme.api.resuming import describe_start, find_output, job_to_resume, moved_note
from bireme.cli.jobs.train import resume
from bireme.core.errors import OutputExistsError, SpecError, UsageError
from bireme.job.output.manifest import Inputs, Manifest
from bireme.job.output.model import model_hash
from bireme.local import registry


def run(*arguments: object) -> Any:
    return CliRunner().invoke(resume, [str(a) for a in arguments], catch_exceptions=False)


def record(output: Path, state: registry.State = "died", name: str = "small") -> registry.RunRecord:
    made, _ = registry.new_run(name, "job.yaml", str(output))
    made = msgspec.structs.replace(made, state=state)
    registry.save(made)
    return made


def test_a_finished_job_says_so_and_where_its_model_is(leave: Leave) -> None:
    output = leave(done=4)
    done = run(output)
    model = output / "pass-00003"
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"already finished, all 4 passes: the model is in {model}",
        f"hash: {model_hash(model)}",
        f"for more passes: `bireme resume {output} --passes N`",
    ]


def test_a_copied_outputs_program_and_data_are_named(leave: Leave, tmp_path: Path) -> None:
    output = leave(done=1)
    assert moved_note(output, job_to_resume(output, {}), {}) == []
    moved = output.rename(tmp_path / "moved")
    job = job_to_resume(moved, {})
    (note,) = moved_note(moved, job, {})
    assert f"was made in {output}" in note and job.config in note and "--job JOB.yaml" in note
    assert moved_note(moved, job, {"config": "c.py", "data": "d"}) == []


def test_a_finished_job_is_one_object_with_json(leave: Leave) -> None:
    output = leave(done=1, passes=1)
    answer = json.loads(run(output, "--json").output)
    assert answer["phase"] == "finished"
    assert answer["hash"] == model_hash(output / "pass-00000")
    assert (answer["passes"], answer["resumed"]) == (1, False)


def test_as_many_passes_is_nothing_to_do_and_fewer_a_mistake(leave: Leave) -> None:
    output = leave(done=3, passes=9)
    assert "already finished, all 3 passes" in run(output, "--passes", 3).output
    with pytest.raises(SpecError, match=r"--passes 2, but the job in .* has done 3 passes already") as caught:
        run(output, "--passes", 2)
    assert str(output / "pass-00001") in caught.value.fix


def test_a_pass_that_the_ledger_does_not_have_is_not_done(leave: Leave) -> None:
    output = leave(done=4)
    ledger = (output / "ledger.jsonl").read_text().splitlines(keepends=True)
    (output / "ledger.jsonl").write_text("".join(ledger[:-1]) + ledger[-1][:5])
    job = job_in(output)
    assert job is not None
    assert progress_in(output, job) == (3, 4)


def test_a_job_is_found_by_its_directory_its_name_and_its_run(leave: Leave) -> None:
    output = leave(done=1)
    made = record(output)
    assert find_output(str(output)) == find_output("small") == find_output(made.id) == find_output(None) == output


def test_without_a_name_the_newest_unfinished_job_is_meant(leave: Leave) -> None:
    first, second = leave("first", done=1), leave("second", done=2)
    record(first)
    record(second, "cancelled")
    record(leave("third", done=4), "finished")
    record(leave("fourth", done=0), "running")
    assert find_output(None) == second
    assert find_output("small") == second


def test_a_directory_that_is_no_output_hides_no_job(
    leave: Leave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = leave(done=1)
    record(output)
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_output("small") == output


def test_nothing_to_resume_is_reported(leave: Leave) -> None:
    record(leave(done=4), "finished")
    with pytest.raises(UsageError, match="no job on this machine waits to be resumed"):
        find_output(None)


def test_an_unknown_name_is_refused(leave: Leave) -> None:
    with pytest.raises(UsageError, match="there is neither a directory nor a job 'ghost'"):
        find_output("ghost")


def test_the_directory_above_the_output_gets_a_suggestion(leave: Leave, tmp_path: Path) -> None:
    leave("output", done=1)
    with pytest.raises(SpecError, match="is not a job's output") as caught:
        find_output(str(tmp_path))
    assert caught.value.fix == f"did you mean {tmp_path / 'output'}?"


def snapshot(created: float) -> Manifest:
    inputs = Inputs(program="", data="", rules="", shards=1, seed=1)
    return Manifest(
        job="small", round=1800, pass_id=21, batch=3, samples=9, view=1, incarnation=2, created=created,
        inputs=inputs, pservers=1, dense_lanes=1, sparse_lanes=1, parts=(),
    )  # fmt: skip


def test_where_it_begins_is_shown_with_the_time_of_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "localtime", lambda s=90_000.0: time.gmtime(s))
    assert describe_start(snapshot(86_400.0 + 43_390)) == (
        "resuming from round 1800, batch 3 of pass 21 (snapshot of 12:03:10)"
    )
    assert describe_start(snapshot(61.0)).endswith("(snapshot of 1970-01-01 00:01:01)")
    assert describe_start(None) == "no snapshot yet: from the beginning"


def test_a_job_that_runs_is_left_alone(leave: Leave) -> None:
    output = leave(done=4)
    registry.new_run("small", "job.yaml", str(output))
    with pytest.raises(UsageError, match="waits to be resumed"):
        find_output(None)
    with pytest.raises(OutputExistsError, match=f"belongs to a job that runs now .process {os.getpid()}."):
        run("small")


def test_a_job_that_runs_is_found_behind_a_later_run(leave: Leave) -> None:
    output = leave(done=2)
    registry.new_run("small", "job.yaml", str(output))
    time.sleep(0.001)  # the later run has a later time
    record(output, "failed")
    with pytest.raises(OutputExistsError, match="belongs to a job that runs now"):
        run(output)


def test_a_job_that_its_costs_have_ended_is_finished(leave: Leave) -> None:
    output = leave(done=3, passes=9, stop_after=2)  # without test costs, none is better than the first
    record(output, "finished")
    assert run(output).output.startswith("already finished, all 3 passes: the model is in")
    with pytest.raises(UsageError, match="no job on this machine waits to be resumed"):
        run()
    assert progress_in(output, job_to_resume(output, {})) == (3, 3)
    assert progress_in(leave("on", done=2, passes=9, stop_after=2), job_to_resume(output, {})) == (2, 9)
