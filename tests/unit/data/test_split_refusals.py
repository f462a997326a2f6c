"""What a split refuses, what it says, and what it leaves behind: nothing."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bireme.core.errors import BiremeError, DataError, OutputExistsError, StorageError, UsageError
from bireme.data.layout import read_manifest
from bireme.data.split import split_lines
from bireme.data.staging import move_all, storage_error


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "train.txt").write_text("0\ta\n1\tb\n0\tc\n1\td\n0\te\n")
    (directory / "test.txt").write_text("1\tx\n")
    (directory / "dict.txt").write_text("unk\t-1\na\t1\n")
    (directory / "train.list").write_text("data/train.txt\n")
    return directory


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "mine"


def _refusal(kind: type[BiremeError], source: Path, job: Path, shards: int = 2) -> str:
    with pytest.raises(kind) as caught:
        split_lines(source, job, shards)
    return str(caught.value)


def test_shards_lie_where_trainers_look_for_them(source: Path, job: Path) -> None:
    report = split_lines(source, job, 2)
    assert (job / "0/data/train.txt").read_text() == "0\ta\n1\tb\n0\tc\n"
    assert (job / "1/data/train.txt").read_text() == "1\td\n0\te\n"
    for name in ("test.txt", "dict.txt", "train.list"):
        assert (job / "1/data" / name).read_bytes() == (source / name).read_bytes()
    assert (report.lines, report.split, report.warnings) == ((3, 2), ("train.txt",), ())
    assert sorted(path.name for path in job.iterdir()) == ["0", "1", "shards.json"]


def test_manifest_says_what_each_shard_holds(source: Path, job: Path) -> None:
    split_lines(source, job, 2)
    manifest = read_manifest(job / "shards.json")
    files = {file.path: file for file in manifest.contents[1].files}
    assert (manifest.version, manifest.shards, manifest.split) == (1, 2, ("data/train.txt",))
    assert (files["data/train.txt"].lines, files["data/train.txt"].bytes) == (2, 8)
    assert len(files) == 4


def test_train_txt_is_split_where_there_is_no_list(source: Path, job: Path) -> None:
    (source / "train.list").unlink()
    assert split_lines(source, job, 5).lines == (1, 1, 1, 1, 1)


def test_files_in_subdirectories_keep_their_place(source: Path, job: Path) -> None:
    (source / "more").mkdir()
    (source / "more/part.txt").write_text("1\tz\n")
    (source / "train.list").write_text("./data/train.txt\r\n\ndata/more/part.txt\n")
    report = split_lines(source, job, 2)
    assert report.split == ("train.txt", "more/part.txt")
    assert (job / "1/data/more/part.txt").read_text() == "1\tz\n"
    assert report.lines == (3, 3)


def test_more_shards_than_lines_is_allowed_with_a_warning(source: Path, job: Path) -> None:
    report = split_lines(source, job, 7)
    assert report.warnings == ("2 of 7 shards are empty: there are only 5 training lines",)
    assert (job / "6/data/train.txt").read_bytes() == b""


def test_what_a_killed_split_left_is_reported(source: Path, job: Path) -> None:
    (job / ".unfinished-abc").mkdir(parents=True)
    assert "left by a process that was killed" in split_lines(source, job, 1).warnings[0]


def test_no_shards_is_refused(source: Path, job: Path) -> None:
    assert "cannot split into 0 shards" in _refusal(UsageError, source, job, 0)


def test_missing_source_is_refused(tmp_path: Path, job: Path) -> None:
    assert "nowhere does not exist" in _refusal(DataError, tmp_path / "nowhere", job)


def test_file_as_source_is_refused(source: Path, job: Path) -> None:
    assert "train.txt is not a directory" in _refusal(DataError, source / "train.txt", job)


def test_source_without_training_data_is_refused(source: Path, job: Path) -> None:
    (source / "train.list").unlink()
    (source / "train.txt").unlink()
    assert "holds neither train.list nor train.txt" in _refusal(DataError, source, job)


def test_empty_train_list_is_refused(source: Path, job: Path) -> None:
    (source / "train.list").write_text("\n\n")
    assert "train.list names no files" in _refusal(DataError, source, job)


def test_a_train_list_with_a_missing_file_is_refused_with_line(source: Path, job: Path) -> None:
    (source / "train.list").write_text("data/train.txt\ndata/gone.txt\n")
    message = _refusal(DataError, source, job)
    assert "train.list:2 names data/gone.txt, which does not exist" in message


@pytest.mark.parametrize("entry", ["/data/train.txt", "../data/train.txt", "train.txt", "data"])
def test_train_list_entry_outside_data_is_refused(source: Path, job: Path, entry: str) -> None:
    (source / "train.list").write_text(f"{entry}\n")
    assert f"names {entry}, which is not below data/" in _refusal(DataError, source, job)


def test_train_list_that_names_a_file_twice_is_refused(source: Path, job: Path) -> None:
    (source / "train.list").write_text("data/train.txt\n./data/train.txt\n")
    assert "a second time" in _refusal(DataError, source, job)


def test_train_list_that_is_not_text_is_refused(source: Path, job: Path) -> None:
    (source / "train.list").write_bytes(b"data/\xff.txt\n")
    assert "train.list is not UTF-8 text" in _refusal(DataError, source, job)


def test_broken_link_is_refused(source: Path, job: Path) -> None:
    (source / "old.txt").symlink_to("gone.txt")
    assert "old.txt is a link to nothing" in _refusal(DataError, source, job)


def test_link_to_a_directory_is_refused(source: Path, job: Path, tmp_path: Path) -> None:
    (source / "more").symlink_to(tmp_path)
    assert "more is a link to a directory" in _refusal(DataError, source, job)


@pytest.mark.parametrize("name", ["1", "7"])
def test_existing_shard_is_never_replaced(source: Path, job: Path, name: str) -> None:
    (job / name).mkdir(parents=True)
    message = _refusal(OutputExistsError, source, job)
    assert f"{job / name} is already there" in message
    assert "remove the old shards" in message


def test_existing_manifest_is_never_replaced(source: Path, job: Path) -> None:
    job.mkdir(parents=True)
    (job / "shards.json").write_text("{}")
    assert "shards.json is already there" in _refusal(OutputExistsError, source, job)


def test_file_as_job_directory_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file is a file" in _refusal(OutputExistsError, source, tmp_path / "file")


def test_job_inside_its_own_source_is_refused(source: Path) -> None:
    assert "is inside" in _refusal(UsageError, source, source / "job")


def test_too_small_a_disk_is_refused_before_writing(source: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    message = _refusal(StorageError, source, job)
    assert "2 shards need 80 bytes" in message
    assert not job.parent.exists()


def test_disk_that_fills_up_leaves_nothing(source: Path, job: Path) -> None:
    (source / "train.txt").write_bytes(b"0\ta\n" * 20_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, hard))
    try:
        message = _refusal(StorageError, source, job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "is full" in message
    assert not job.parent.exists()


def test_interrupt_leaves_nothing(source: Path, job: Path) -> None:
    calls: list[int] = []

    def interrupt(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split_lines(source, job, 2, on_progress=interrupt)
    assert not job.parent.exists()


@pytest.mark.parametrize(("call", "now"), [(1, "0\ta\n"), (2, "0\ta\n" * 9)])
def test_source_that_changes_meanwhile_is_refused(source: Path, job: Path, call: int, now: str) -> None:
    calls: list[int] = []

    def change(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == call:  # the first comes while lines are counted, the second while they are written
            (source / "train.txt").write_text(now)

    with pytest.raises(DataError, match="changed while it was being split"):
        split_lines(source, job, 2, on_progress=change)
    assert not job.parent.exists()


def test_move_that_fails_takes_back_the_moves_before_it(tmp_path: Path) -> None:
    for name in ("a", "b", "theirs"):
        (tmp_path / name).mkdir()
    moves = [(tmp_path / "a", tmp_path / "0"), (tmp_path / "b", tmp_path / "theirs")]
    with pytest.raises(OutputExistsError, match="appeared while it was being made"):
        move_all(moves)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "theirs"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "not allowed to use"),
        (errno.EACCES, "not allowed to use"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_disk_failures_are_reported_in_plain_words(tmp_path: Path, code: int, words: str) -> None:
    error = storage_error(OSError(code, os.strerror(code)), tmp_path)
    assert isinstance(error, StorageError)
    assert words in str(error)
    assert error.fix
