"""Training into a directory that was used says how to go on instead."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bireme.core.errors import OutputExistsError
from bireme.local.runner import check_output
from bireme.spec.job import Job
from bireme.spec.model import Snapshots


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of four passes of which two are done."""
    monkeypatch.delenv("BIREME_COMMAND", raising=False)
    for name in ("pass-00000", "pass-00001"):
        (tmp_path / name).mkdir()
    job = Job(
        name="small", config="c.py", config_args={}, data="", shards=2, pservers=1, trainers=1, port=None, ports_num=1,
        ports_num_for_sparse=1, passes=4, seed=1, output=str(tmp_path), log_period=50, connect_timeout_s=1.0,
        snapshots=Snapshots(path=str(tmp_path / "snapshots")),
    )  # fmt: skip
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
    told = fix_for(job)
    assert told.startswith(f"go on with `bireme resume {job.output}`, as if it had never stopped")
    assert "`--passes N` for more passes" in told and "--output DIR" in told
    assert "--start-pass" not in told


def test_other_passes_than_before_are_asked_for_when_resuming(job: Job) -> None:
    commit(job)
    more = msgspec.structs.replace(job, passes=9)
    assert fix_for(more).startswith(f"go on with `bireme resume {job.output} --passes 9`")
    fewer = msgspec.structs.replace(job, passes=2)
    assert fix_for(fewer).startswith(f"train more passes with `bireme resume {job.output} --passes N`")


def test_without_a_snapshot_the_other_bits_of_a_later_start_are_told(job: Job) -> None:
    told = fix_for(job)
    assert told.startswith("give another directory with `--output DIR`")
    assert "`--start-pass 2`, which starts with fresh optimizer state, so that the bits differ" in told
    assert "resume" not in told


def test_without_a_snapshot_and_with_all_passes_done_only_another_directory_is_left(job: Job) -> None:
    assert fix_for(msgspec.structs.replace(job, passes=2)) == "give another directory with `--output DIR`"
