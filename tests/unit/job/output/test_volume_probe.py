"""What a job needs of a file system, and how one that lacks it is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import SpecError, StorageError
from bireme.job.output import volume_probe
from bireme.job.output.volume_probe import check_volume, file_system_of, probe

MOUNTS = r"""overlay / overlay rw,relatime 0 0
fs-1.efs.us-west-2.amazonaws.com:/ /job nfs4 rw,vers=4.1 0 0
mountpoint-s3 /mnt/s3 fuse rw,nosuid,nodev,noatime 0 0
s3fs /mnt/with\040space fuse.s3fs rw 0 0
tmpfs /over tmpfs rw 0 0
/dev/sdb /over ext4 rw 0 0
"""


def fail(monkeypatch: pytest.MonkeyPatch, code: int, *, what: str) -> None:
    """Let the file system refuse to append to existing files, or an operation of `os`."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    if what != "append":
        monkeypatch.setattr(os, what, refuse)
        return
    real = Path.open

    def open_(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode == "ab" and self.exists():
            refuse()
        return real(self, mode, *more, **named)

    monkeypatch.setattr(Path, "open", open_)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that behaves like one of Mountpoint for S3."""
    fail(monkeypatch, errno.EPERM, what="append")
    fail(monkeypatch, errno.ENOSYS, what="replace")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nmountpoint-s3 {tmp_path} fuse rw 0 0\n")
    monkeypatch.setattr(volume_probe, "MOUNTS", mounts)
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


def test_a_plain_directory_is_fit_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    found = probe(tmp_path)
    assert found.lacks == () and found.words == f"{tmp_path} is on {found.kind}"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_mountpoint_for_s3_is_named_with_all_that_it_lacks(s3: Path) -> None:
    with pytest.raises(SpecError) as refused:
        check_volume(s3 / "output")
    assert refused.value.what == (
        f"{s3}/output is on Mountpoint for S3 (fuse.mountpoint-s3), which cannot append to a file; "
        "rename a file over an existing one"
    )
    assert refused.value.fix == "use a volume on EFS or NFS"
    assert list((s3 / "output").iterdir()) == []


@pytest.mark.parametrize(
    ("what", "code", "lack"),
    [
        ("fsync", errno.EINVAL, ("fsync a file", "fsync a directory")),
        ("replace", errno.ENOTSUP, ("rename a file over an existing one",)),
        ("unlink", errno.EPERM, ("delete a file",)),
    ],
)
def test_each_ability_that_is_refused_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, code: int, lack: tuple[str, ...]
) -> None:
    fail(monkeypatch, code, what=what)
    assert probe(tmp_path).lacks == lack


def test_creating_over_an_existing_file_is_not_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *more, **named: real(path, flags & ~os.O_EXCL, *more, **named))
    assert probe(tmp_path).lacks == ("create a file only if it is absent",)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_may_pass_is_no_lack_but_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fail(monkeypatch, code, what="replace")
    with pytest.raises(StorageError):
        check_volume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_is_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, errno.EROFS, what="mkdir")
    with pytest.raises(StorageError, match="Read-only file system"):
        probe(tmp_path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var", "overlay"),
        ("/job/reviews/output", "nfs4"),
        ("/jobs", "overlay"),
        ("/mnt/s3/x", "fuse.mountpoint-s3"),
        ("/mnt/with space/x", "fuse.s3fs"),
        ("/over/x", "ext4"),
    ],
)
def test_a_file_system_is_that_of_the_deepest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind
    assert file_system_of(Path(path), "") == "a file system of unknown type"
