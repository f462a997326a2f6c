"""An output directory belongs to one run at a time, and to none that could not begin."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import pytest

from bireme.core import files
from bireme.core.errors import DataError
from bireme.job.node.failure_reports import STATUS_FILE
from bireme.local import runner
from bireme.local.runner import LOCK_FILE, LocalRun, lock_output, unlock_output
from bireme.spec.job import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(
        name="small", config="config.py", config_args={}, data=str(tmp_path), shards=1, pservers=1, trainers=1,
        port=None, ports_num=1, ports_num_for_sparse=0, passes=1, seed=1, output=str(tmp_path / "new" / "output"),
        log_period=50, connect_timeout_s=60.0,
    )  # fmt: skip


def open_files() -> str:
    """The names of what this process has open, removed files with a word that says so."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that we look with
            found.append(str(link.readlink()))
    return "\n".join(found)


def test_a_run_that_cannot_begin_gives_its_directory_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise DataError("no data")

    monkeypatch.setattr(runner, "data_fingerprint", refuse)
    with pytest.raises(DataError, match="no data"), LocalRun(job, "job.yaml"):
        pass
    output = Path(job.output)
    assert list(output.iterdir()) == []
    assert str(output / LOCK_FILE) not in open_files()


def test_a_new_directory_is_safe_before_anything_is_kept_in_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    monkeypatch.setattr(runner, "data_fingerprint", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), LocalRun(job, "job.yaml"):
        pass
    output = Path(job.output)
    assert synced[:2] == [output.parent.parent, output.parent]


def test_processes_of_a_job_that_none_has_joined_get_no_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRun, "_ask", lambda *_: True)
    output = Path(job.output)
    output.mkdir(parents=True)
    run = LocalRun(job, "job.yaml")
    run.cancel()
    assert run._patience_ends <= time.monotonic(), "its coordinator wrote no end: it would gather again"
    (output / STATUS_FILE).write_bytes(b'{"phase": "cancelled"}')
    run.cancel()
    assert run._patience_ends > time.monotonic()


def test_a_lock_that_its_owner_has_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lock_output(tmp_path)
    real, late = fcntl.flock, [True]

    def flock(fd: int, how: int) -> None:
        if late and late.pop():  # we have opened the file of before, and are held up
            unlock_output(tmp_path, before)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    fd = lock_output(tmp_path)
    assert os.path.samestat(os.fstat(fd), (tmp_path / LOCK_FILE).stat())
    assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    unlock_output(tmp_path, fd)
    assert not (tmp_path / LOCK_FILE).exists()
