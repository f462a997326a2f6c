from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.core.errors import StorageError
from bireme.core.files import make_directory, storage_errors, write_atomic


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 32 KiB, where this user may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("only root can mount a tiny disk; the same is proven without one below")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fail_with(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_write_replaces_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"a longer old content")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_reported_and_leaves_the_old_file(tiny_disk: Path) -> None:
    path = tiny_disk / "file"
    write_atomic(path, b"old")
    with pytest.raises(StorageError, match=f"the disk is full: cannot write {path}") as caught:
        write_atomic(path, bytes(100_000))
    assert "free some space" in caught.value.fix
    assert path.read_bytes() == b"old"
    assert list(tiny_disk.iterdir()) == [path]


def test_a_disk_that_fills_up_while_syncing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    fail_with(errno.ENOSPC, monkeypatch)
    with pytest.raises(StorageError, match="the disk is full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_place_is_reported_with_what_to_do(number: int) -> None:
    with pytest.raises(StorageError, match="cannot write the model") as caught, storage_errors("the model"):
        raise OSError(number, os.strerror(number))
    assert "choose an output directory" in caught.value.fix


def test_a_directory_and_those_above_are_made_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()))
    make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_directory(tmp_path / "a" / "b" / "c")  # its maker may have died before it was synced
    assert synced[3:] == [tmp_path / "a" / "b"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / 'file'}: File exists"):
        make_directory(tmp_path / "file" / "output")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(StorageError, match=f"cannot write {path}: No such file or directory"):
        write_atomic(path, b"x")


def test_other_errors_pass_through_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), storage_errors("x"):
        raise ZeroDivisionError
