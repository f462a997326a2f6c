"""Whose an output directory is: which job may write there, and the refusal of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.core.errors import DataError, OutputExistsError
from bireme.job.node.entry import read_job
from bireme.job.node.failure_reports import STATUS_FILE
from bireme.job.output.ownership import check_output, claim, job_file, ready_job, settled_job
from bireme.spec.job import Job
from bireme.spec.model import Restarts, Snapshots


def job_in(output: Path, **changes: object) -> Job:
    job = Job(
        name="small", config="c.py", config_args={}, data="", shards=2, pservers=1, trainers=1, port=None, ports_num=1,
        ports_num_for_sparse=1, passes=4, seed=1, output=str(output), log_period=50, connect_timeout_s=1.0,
        snapshots=Snapshots(path=str(output / "snapshots")),
    )  # fmt: skip
    return msgspec.structs.replace(job, **changes)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of four passes of which two are done."""
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    for name in ("pass-00000", "pass-00001"):
        (tmp_path / name).mkdir()
    job = job_in(tmp_path)
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
    return job


def fix_for(job: Job) -> str:
    with pytest.raises(OutputExistsError, match="already holds a run up to pass-00001") as caught:
        check_output(job)
    return caught.value.fix


def commit(job: Job) -> None:
    place = Path(job.snapshots.path) / "000000000007-0000000100000001"
    place.mkdir(parents=True)
    (place / "manifest.json").touch()


def test_with_a_snapshot_the_first_way_is_to_resume(job: Job) -> None:
    commit(job)
    fix = fix_for(job)
    assert fix.startswith(f"continue with `bireme resume {job.output}`, as if it had never stopped")
    assert "`--passes N` for more passes" in fix and "--output DIR" in fix
    assert "--start-pass" not in fix


def test_other_passes_than_before_are_asked_for_when_resuming(job: Job) -> None:
    commit(job)
    more = msgspec.structs.replace(job, passes=9)
    assert fix_for(more).startswith(f"continue with `bireme resume {job.output} --passes 9`")
    fewer = msgspec.structs.replace(job, passes=2)
    assert fix_for(fewer).startswith(f"train more passes with `bireme resume {job.output} --passes N`")


def test_without_a_snapshot_a_later_starts_changes_are_named(job: Job) -> None:
    fix = fix_for(job)
    assert fix.startswith("give another directory with `--output DIR`")
    assert "train JOB.yaml --start-pass 2`, which starts with fresh optimizer state, so that the bits differ" in fix
    assert "resume" not in fix


def test_a_done_job_without_snapshots_needs_another_directory(job: Job) -> None:
    assert fix_for(msgspec.structs.replace(job, passes=2)) == "give another directory with `--output DIR`"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job as a pod is given it, on a volume that holds its shards."""
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    for shard in range(2):
        (tmp_path / "data" / str(shard) / "data").mkdir(parents=True)
    return job_in(tmp_path / "output", data=str(tmp_path / "data"))


def end(job: Job, phase: str) -> Path:
    path = Path(job.output) / STATUS_FILE
    path.write_text(f'{{"phase": "{phase}"}}')
    return path


def test_a_job_is_settled_once_for_all_nodes(given: Job) -> None:
    assert settled_job(given) is None and not ready_job(given)
    settled = claim(given)
    assert settled.data_fingerprint and settled.run_incarnation == 1
    assert settled_job(given) == settled == read_job(job_file(given)) and ready_job(given)
    assert claim(given) == settled, "a node that comes back finds it there"


@pytest.mark.parametrize("phase", ["failed", "cancelled"])
def test_a_failed_run_stands_in_the_way_until_it_is_rerun(given: Job, phase: str) -> None:
    settled = claim(given)
    left = end(given, phase)
    assert not ready_job(given)
    assert claim(given) == settled
    assert ready_job(given) and not left.exists()


def test_a_run_that_is_finished_stays_so(given: Job) -> None:
    claim(given)
    left = end(given, "finished")
    claim(given)
    assert left.exists() and ready_job(given)


def test_another_job_is_refused_where_there_are_passes(given: Job) -> None:
    claim(given)
    (Path(given.output) / "pass-00000").mkdir()
    other = msgspec.structs.replace(given, seed=2)
    assert settled_job(other) is None
    with pytest.raises(OutputExistsError, match="already holds a run up to pass-00000 of another job") as caught:
        claim(other)
    assert caught.value.why == "seed 1 → 2; a new run would mix its logs and models with the old ones"
    assert caught.value.fix == (
        "set another `output` in job.yaml and submit it again with `--replace`; or submit it as it was, "
        "with `--replace` too"
    ), "resuming it would only come here again"
    assert settled_job(given) is not None, "nothing has changed"


def test_another_layout_of_a_job_is_shown_how_to_resume(given: Job) -> None:
    claim(given)
    commit(given)
    (Path(given.output) / "pass-00000").mkdir()
    other = msgspec.structs.replace(given, trainers=2, hosts=("a", "b"), passes=9, restarts=Restarts(limit=3))
    with pytest.raises(OutputExistsError) as caught:
        claim(other)
    assert caught.value.why.startswith("trainers 1 → 2; passes 4 → 9; restarts.limit 10 → 3; a new run")
    assert caught.value.fix.startswith(
        "continue from there with `bireme resume small --passes 9`; or set another `output`"
    )
    assert claim(msgspec.structs.replace(other, is_resumed=True)).run_incarnation == 2, "which is what that does"


@pytest.mark.parametrize("change", [{"passes": 1}, {"passes": 9, "seed": 2}])
def test_resuming_is_not_offered_where_it_cannot_work(given: Job, change: dict[str, Any]) -> None:
    claim(given)
    commit(given)
    (Path(given.output) / "pass-00000").mkdir()
    with pytest.raises(OutputExistsError) as caught:
        claim(msgspec.structs.replace(given, **change))
    assert "resume" not in caught.value.fix


def test_many_changes_are_cut_short(given: Job) -> None:
    claim(given)
    (Path(given.output) / "pass-00000").mkdir()
    args = {f"a{number}": "1" for number in range(9)}
    with pytest.raises(OutputExistsError, match="of another job") as caught:
        claim(msgspec.structs.replace(given, config_args=args))
    assert "config_args.a5 None → 1; and 3 more; a new run" in caught.value.why


def test_another_job_may_take_a_directory_without_work(given: Job) -> None:
    claim(given)
    reports = Path(given.output) / "run" / "reports"
    (reports / "trainer-1.json").touch()
    other = msgspec.structs.replace(given, seed=2)
    assert claim(other).run_incarnation == 2
    assert settled_job(given) is None and settled_job(other) is not None
    assert not list(reports.iterdir())


def test_a_resumed_job_continues_in_the_same_directory(given: Job) -> None:
    claim(given)
    (Path(given.output) / "pass-00000").mkdir()
    left = end(given, "finished")
    more = msgspec.structs.replace(given, passes=9, is_resumed=True)
    assert not ready_job(more)
    assert claim(more).run_incarnation == 2 and not left.exists()


def test_a_resume_before_the_first_snapshot_begins_anew(given: Job) -> None:
    claim(given)
    end(given, "failed")
    more = msgspec.structs.replace(given, passes=9, is_resumed=True)
    assert not claim(more).is_resumed
    assert settled_job(more) is not None


def test_other_data_are_noticed_when_a_pod_comes_back(given: Job) -> None:
    claim(given)
    (Path(given.output) / "pass-00000").mkdir()
    (Path(given.data) / "1" / "data" / "train.txt").write_text("new")
    with pytest.raises(OutputExistsError, match="already holds a run up to pass-00000 on other data") as caught:
        claim(given)
    back, elsewhere = caught.value.fix.split("; or ")
    assert back == "put the data back as they were and continue with `bireme resume small`"
    assert elsewhere == "set another `output` in job.yaml and submit it again with `--replace`"
    commit(given)
    with pytest.raises(OutputExistsError) as caught:
        claim(given)
    assert "; or continue with the new ones with `bireme resume small --accept-changes`; or " in caught.value.fix


def test_a_missing_shard_is_named(given: Job) -> None:
    (Path(given.data) / "1" / "data").rmdir()
    with pytest.raises(DataError, match="shard 1 of 2 is missing") as caught:
        claim(given)
    assert caught.value.fix == "put the shards there: `bireme data push` does, then `bireme resume small`"
    assert not Path(given.output).exists()


def test_a_file_of_another_bireme_is_another_job(given: Job) -> None:
    claim(given)
    job_file(given).write_text('{"name": "small", "from": "the future"}')
    assert settled_job(given) is None
    (Path(given.output) / "pass-00000").mkdir()
    with pytest.raises(OutputExistsError, match="of another job") as caught:
        claim(given)
    assert caught.value.why.startswith("it was begun by another version of bireme; ")
    assert caught.value.fix == "set another `output` in job.yaml and submit it again with `--replace`"


def test_changes_accepted_once_hold_for_later_pods(given: Job) -> None:
    accepted = claim(msgspec.structs.replace(given, accepts_changes=True))
    assert accepted.accepts_changes
    assert claim(given) == accepted and ready_job(given) == [accepted]


def test_who_accepts_changes_now_is_heard(given: Job) -> None:
    claim(given)
    assert settled_job(msgspec.structs.replace(given, accepts_changes=True)) is None
