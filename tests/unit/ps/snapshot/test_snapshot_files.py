from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.ps.failing_disk import FailingDisk, Forgets, PowerCut

from bireme.core.errors import SnapshotError, StorageError
from bireme.core.files import half_of
from bireme.ps.snapshot import snapshot_files
from bireme.ps.snapshot.snapshot_files import read_part, write_part

ARRAYS: dict[str, NDArray[Any]] = {
    "lane0.w": np.arange(1000, dtype=np.float32),
    "lane0.updates": np.array([7], np.int64),
    "rows0.emb.w.ids": np.array([0, 2**63, 2**64 - 1], np.uint64),
    "rows0.emb.w.values": np.arange(12, dtype=np.float32).reshape(3, 4),
    "none": np.empty((0, 4), np.float32),
    "scalar": np.array(-0.0),
    "flags": np.array([True, False]),
}
META = {"round": 12, "cost": (0.1).hex(), "largest": 2**64 - 1, "shards": [0, 1]}


def part_at(path: Path, **arrays: NDArray[Any]) -> Path:
    write_part(path, arrays or ARRAYS, META)
    return path


def reheaded(path: Path, old: bytes, new: bytes) -> Path:
    """The same part with something else in its header, and a checksum that says it is right."""
    data = bytearray(path.read_bytes())
    length, nbytes = struct.unpack_from("<QQ", data, 16)
    header = bytes(data[32 : 32 + length]).replace(old, new)
    assert len(header) == length and header != bytes(data[32 : 32 + length])
    data[32 : 32 + length] = header
    struct.pack_into("<I", data, 12, zlib.crc32(header, zlib.crc32(struct.pack("<QQ", length, nbytes))))
    path.write_bytes(data)
    return path


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "part-0.bin"
    written = write_part(path, ARRAYS, META)
    data = path.read_bytes()
    assert (written.sha256, written.nbytes) == (hashlib.sha256(data).hexdigest(), len(data))
    part = read_part(path, sha256=written.sha256)
    assert part.meta == META
    assert list(part.arrays) == list(ARRAYS)
    for name, array in part.arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert array.tobytes() == ARRAYS[name].tobytes()
        assert array.ctypes.data % 64 == 0 or not array.size
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    assert part_at(tmp_path / "a").read_bytes() == part_at(tmp_path / "b").read_bytes()


def test_what_was_read_cannot_be_written_to(tmp_path: Path) -> None:
    array = read_part(part_at(tmp_path / "part"), sha256=None).arrays["lane0.w"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0


def test_what_was_read_outlives_the_file(tmp_path: Path) -> None:
    path = part_at(tmp_path / "part")
    part = read_part(path, sha256=None)
    path.unlink()
    assert part.arrays["lane0.w"][999] == 999.0


@pytest.mark.parametrize("block", [1, 7, 48, 64, 1 << 22])
def test_blocks_of_any_size_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    grid = np.arange(60, dtype=np.float32).reshape(6, 10)
    whole = part_at(tmp_path / "whole", a=grid.T.copy(), b=grid[:, ::2].copy()).read_bytes()
    monkeypatch.setattr(snapshot_files, "BLOCK", block)
    assert part_at(tmp_path / "part", a=grid.T, b=grid[:, ::2]).read_bytes() == whole


def test_big_endian_arrays_are_turned(tmp_path: Path) -> None:
    path = part_at(tmp_path / "part", a=np.array([1.0, 2.0], ">f4"))
    found = read_part(path, sha256=None).arrays["a"]
    assert found.dtype == np.dtype("<f4") and found.tolist() == [1.0, 2.0]


def test_objects_are_never_saved(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        part_at(tmp_path / "part", a=np.array([{}], object))
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "part-0.bin"
    written = write_part(path, ARRAYS, META)
    good = path.read_bytes()
    for bit in np.random.default_rng(3).integers(0, 8 * len(good), 200):
        data = bytearray(good)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        with pytest.raises(SnapshotError, match=r"part-0\.bin"):
            read_part(path, sha256=written.sha256)


def test_a_flipped_bit_in_the_header_is_found_without_a_hash(tmp_path: Path) -> None:
    path = part_at(tmp_path / "part-0.bin")
    good = path.read_bytes()
    header_nbytes = struct.unpack_from("<Q", good, 16)[0]
    for bit in range(0, 8 * (32 + header_nbytes), 5):
        data = bytearray(good)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        with pytest.raises(SnapshotError, match=r"part-0\.bin"):
            read_part(path, sha256=None)


def test_a_part_cut_at_any_length_is_torn(tmp_path: Path) -> None:
    path = part_at(tmp_path / "part-0.bin")
    good = path.read_bytes()
    start = -(-(32 + struct.unpack_from("<Q", good, 16)[0]) // 64) * 64
    for length in {0, 1, 7, 8, 9, 31, 32, 33, start - 1, start, start + 1, start + 4000, len(good) - 64, len(good) - 1}:
        path.write_bytes(good[:length])
        with pytest.raises(SnapshotError, match=r"part-0\.bin is torn"):
            read_part(path, sha256=None)
    path.write_bytes(good + b"\0")
    with pytest.raises(SnapshotError, match=f"is torn: {len(good) + 1} bytes of {len(good)}"):
        read_part(path, sha256=None)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"part-3\.bin is missing"):
        read_part(tmp_path / "part-3.bin", sha256=None)


def test_a_directory_in_its_place_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be read: Is a directory"):
        read_part(tmp_path, sha256=None)


def test_a_foreign_file_is_named_by_how_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "part-0.bin"
    path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(SnapshotError, match=r"is not a part of a snapshot: it starts with b'PK"):
        read_part(path, sha256=None)


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = part_at(tmp_path / "part-0.bin")
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(SnapshotError, match="has format 9, this bireme reads format 1"):
        read_part(path, sha256=None)


@pytest.mark.parametrize(
    ("old", "new"), [(b'"<f4"', b'"|O8"'), (b'"<f4"', b'"??4"'), (b"[1000]", b"[9999]"), (b"[1000]", b"[-100]")]
)
def test_arrays_that_cannot_be_are_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = reheaded(part_at(tmp_path / "part-0.bin"), old, new)
    with pytest.raises(SnapshotError, match=r"part-0\.bin has array 'lane0\.w' of"):
        read_part(path, sha256=None)


def test_a_header_that_is_no_header_is_refused(tmp_path: Path) -> None:
    path = reheaded(part_at(tmp_path / "part-0.bin"), b'"arrays"', b'"arrows"')
    with pytest.raises(SnapshotError, match="a malformed header"):
        read_part(path, sha256=None)


def test_a_disk_that_is_full_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    path = part_at(tmp_path / "part-0.bin")
    old = path.read_bytes()
    half_of(tmp_path / "part-0.bin").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"the disk is full: cannot write .*part-0\.bin"):
        write_part(path, {"w": np.zeros(100_000, np.float32)}, {})
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_while_syncing_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = part_at(tmp_path / "part-0.bin")
    old = path.read_bytes()
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="the disk is full"):
        write_part(path, {}, {})
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("forgets", ["nothing", "everything", "the first"])
def test_a_power_cut_leaves_the_old_part_or_the_new_one(tmp_path: Path, forgets: Forgets) -> None:
    steps, is_done = 0, False
    while not is_done:
        place = tmp_path / str(steps)
        place.mkdir()
        write_part(place / "part", {"w": np.zeros(5000, np.float32)}, {})
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(place, patch, dies_at=steps, forgets=forgets)
            try:
                write_part(place / "part", {"w": np.ones(9000, np.float32)}, {})
                is_done = True
            except PowerCut:
                pass
            disk.after_the_cut(patch)
        found = read_part(place / "part", sha256=None).arrays["w"].tolist()
        assert found == [1.0] * 9000 or (not is_done and found == [0.0] * 5000)
        steps += 1
    assert steps > 3
