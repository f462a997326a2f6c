"""Runs on this machine are distinguished by more than their process id."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from bireme.core.errors import OutputExistsError, StorageError, UsageError
from bireme.local import registry
from bireme.local.runner import lock_output


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_run_of_this_process_is_found_by_name_and_id() -> None:
    record, run = registry.new_run("job", "job.yaml", "/out")
    assert run.is_dir()
    assert registry.find_run("job") == registry.find_run(record.id) == registry.find_run(None) == record
    assert record.state == "running"


def test_another_process_with_the_same_id_is_not_the_run() -> None:
    record, _ = registry.new_run("job", "job.yaml", "/out")
    registry.save(msgspec.structs.replace(record, birth="another boot/1"))
    assert registry.find_run("job").state == "died"


def test_of_each_output_directory_only_the_newest_run_counts() -> None:
    runs = [registry.new_run("job", "job.yaml", output)[0] for output in ("/one", "/two", "/one")]
    for number, record in enumerate(runs):
        registry.save(msgspec.structs.replace(record, started=float(number)))
    assert [(r.id, r.output) for r in registry.newest_runs()] == [(runs[2].id, "/one"), (runs[1].id, "/two")]
    assert len(registry.all_runs()) == 3


def test_a_name_of_several_running_jobs_names_none_of_them() -> None:
    first, _ = registry.new_run("job", "job.yaml", "/one")
    registry.check_one("job")
    second, _ = registry.new_run("job", "job.yaml", "/two")
    for name in ("job", None):
        with pytest.raises(UsageError, match="2 jobs") as caught:
            registry.check_one(name)
        assert f"{first.id} in /one" in caught.value.fix and f"{second.id} in /two" in caught.value.fix
    registry.check_one(second.id)
    registry.check_one("/two")


def test_an_unknown_job_is_refused_with_the_known_ones() -> None:
    registry.new_run("job", "job.yaml", "/out")
    with pytest.raises(UsageError, match="there is no job 'jab'") as caught:
        registry.find_run("jab")
    assert caught.value.fix == "known jobs: job"


def test_an_unmakeable_state_directory_is_a_storage_error(state: Path) -> None:
    state.write_text("a file")
    with pytest.raises(StorageError, match="cannot write"):
        registry.new_run("job", "job.yaml", "/out")


def test_an_output_directory_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    held = lock_output(tmp_path)
    with pytest.raises(OutputExistsError, match=f"belongs to a job that runs now .process {os.getpid()}."):
        lock_output(tmp_path)
    os.close(held)
    os.close(lock_output(tmp_path))
