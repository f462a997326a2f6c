"""Segments and regions: real memfds and mappings of this process."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from bireme.core.errors import BiremeError, StorageError
from bireme.ps.wire.shared_memory import PAGE, Region, check_segment, close_quietly, make_segment

FLOATS = PAGE // 4


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def segment(stack: ExitStack, nbytes: int, name: str = "test") -> int:
    fd = make_segment(name, nbytes)
    stack.callback(close_quietly, fd)
    return fd


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def access_at(address: int) -> str:
    """How this process may use a page, in the kernel's notation, e.g. `r--s`; empty where nothing is mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, access = line.split()[:2]
        begin, end = (int(part, 16) for part in ends.split("-"))
        if begin <= address < end:
            return access
    return ""


@pytest.mark.parametrize(("asked", "got"), [(0, PAGE), (1, PAGE), (PAGE, PAGE), (3 * PAGE, 3 * PAGE)])
def test_a_segment_is_at_least_a_page_and_as_long_as_asked(stack: ExitStack, asked: int, got: int) -> None:
    assert os.fstat(segment(stack, asked)).st_size == got


def test_a_segment_holds_its_memory_from_the_start(stack: ExitStack) -> None:
    assert os.fstat(segment(stack, 8 * PAGE)).st_blocks * 512 >= 8 * PAGE


@pytest.mark.parametrize("size", [0, PAGE, 3 * PAGE])
def test_a_segment_can_neither_shrink_nor_grow(stack: ExitStack, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(segment(stack, 2 * PAGE), size)


def test_a_segment_has_no_file_name_and_is_not_inherited(stack: ExitStack) -> None:
    fd = segment(stack, PAGE, "nameless")
    assert Path(f"/proc/self/fd/{fd}").readlink().name == "memfd:bireme-nameless (deleted)"
    assert not [p for p in Path("/dev/shm").iterdir() if "bireme" in p.name]
    assert not os.get_inheritable(fd)


def test_too_little_memory_is_reported_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = open_files()
    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(StorageError, match="cannot get 8,192 bytes of shared memory: No space left on device"):
        make_segment("full", 8192)
    assert open_files() == before


def test_a_kernel_without_memfd_reads_like_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", fail)
    with pytest.raises(StorageError, match="shared memory: Too many open files"):
        make_segment("none", 8192)


def test_a_sealed_segment_of_at_least_the_due_length_is_taken(stack: ExitStack) -> None:
    fd = segment(stack, 2 * PAGE)
    check_segment(fd, 2 * PAGE)
    check_segment(fd, 0)


def test_a_segment_that_is_too_small_is_refused(stack: ExitStack) -> None:
    with pytest.raises(BiremeError, match=f"a shared segment of {PAGE} bytes came, {2 * PAGE} were due"):
        check_segment(segment(stack, PAGE), 2 * PAGE)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_a_segment_that_could_still_shrink_is_refused(stack: ExitStack, seals: int) -> None:
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    stack.callback(os.close, fd)
    os.ftruncate(fd, PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(BiremeError):
        check_segment(fd, PAGE)


def test_a_descriptor_that_is_no_segment_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE))
    fd = os.open(tmp_path / "file", os.O_RDWR)
    stack.callback(os.close, fd)
    with pytest.raises(BiremeError):
        check_segment(fd, PAGE)


def test_a_region_is_private_zeros_at_first() -> None:
    region = Region(PAGE + 4)
    assert region.nbytes == 2 * PAGE
    assert access_at(region.address) == "rw-p"
    assert not region.floats(2 * FLOATS).any()


def test_pieces_of_several_segments_make_one_array(stack: ExitStack) -> None:
    left, right = segment(stack, 2 * PAGE, "left"), segment(stack, PAGE, "right")
    region, lane = Region(3 * PAGE), Region(2 * PAGE)
    region.map(0, PAGE, left, PAGE, is_writable=False)
    region.map(PAGE, PAGE, right, 0, is_writable=True)
    lane.map(0, 2 * PAGE, left, 0, is_writable=True)
    values = region.floats(3 * FLOATS)
    lane.floats(2 * FLOATS)[FLOATS:] = 7.0
    values[FLOATS : 2 * FLOATS] = 8.0
    assert os.pread(right, 4, 0) == np.float32(8.0).tobytes()
    assert (values == np.repeat(np.array([7, 8, 0], dtype=np.float32), FLOATS)).all()


def test_a_piece_is_mapped_read_only_unless_asked_otherwise(stack: ExitStack) -> None:
    fd, region = segment(stack, 2 * PAGE), Region(3 * PAGE)
    region.map(0, PAGE, fd, 0, is_writable=False)
    region.map(PAGE, PAGE, fd, PAGE, is_writable=True)
    assert [access_at(region.address + i * PAGE) for i in range(3)] == ["r--s", "rw-s", "rw-p"]


def test_what_is_unmapped_is_private_again_and_out_of_reach(stack: ExitStack) -> None:
    fd, region = segment(stack, PAGE), Region(PAGE)
    region.map(0, PAGE, fd, 0, is_writable=False)
    region.unmap(0, PAGE)
    os.pwrite(fd, np.float32(9.0).tobytes(), 0)
    assert access_at(region.address) == "rw-p"
    assert not region.floats(FLOATS).any()


def test_a_mapping_outlives_its_descriptor(stack: ExitStack) -> None:
    fd = os.dup(segment(stack, PAGE))
    region = Region(PAGE)
    region.map(0, PAGE, fd, 0, is_writable=True)
    os.close(fd)
    region.floats(1)[0] = 3.0
    assert region.floats(1)[0] == 3.0


@pytest.mark.parametrize(
    ("offset", "nbytes", "fd_offset"), [(4, PAGE, 0), (0, PAGE - 4, 0), (0, PAGE, 64), (PAGE, 2 * PAGE, 0)]
)
def test_a_piece_off_the_page_borders_or_outside_is_a_bug(
    stack: ExitStack, offset: int, nbytes: int, fd_offset: int
) -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        Region(2 * PAGE).map(offset, nbytes, segment(stack, 2 * PAGE), fd_offset, is_writable=False)


def test_an_array_outside_its_region_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="this is a bug"):
        Region(PAGE).floats(FLOATS, 4)


def test_nothing_can_be_mapped_and_laid_out_in_no_bytes() -> None:
    region = Region(0)
    region.map(0, 0, -1, 0, is_writable=False)
    region.unmap(0, 0)
    assert region.floats(0).shape == (0,)


def test_a_descriptor_that_cannot_be_mapped_is_reported() -> None:
    with pytest.raises(StorageError, match="cannot map 4,096 bytes: Bad file descriptor"):
        Region(PAGE).map(0, PAGE, -1, 0, is_writable=False)


def test_memory_lives_as_long_as_an_array_over_it_and_no_longer() -> None:
    region, fd = Region(PAGE), make_segment("lifetime", PAGE)
    region.map(0, PAGE, fd, 0, is_writable=True)
    close_quietly(fd)
    address, view = region.address, region.floats(FLOATS)[5:10].reshape(5, 1)
    del region
    gc.collect()
    view[:] = 1.0
    assert access_at(address) == "rw-s"
    del view
    gc.collect()
    assert "bireme-lifetime" not in Path("/proc/self/maps").read_text()


def test_closing_a_descriptor_twice_is_no_error() -> None:
    fd = make_segment("twice", PAGE)
    close_quietly(fd)
    close_quietly(fd)
    close_quietly(-1)


def test_threads_that_read_at_the_end_do_not_crash_the_process() -> None:
    code = """
import threading
from bireme.ps.wire.shared_memory import Region, make_segment
region = Region(1 << 22)
region.map(0, 1 << 22, make_segment("x", 1 << 22), 0, is_writable=True)
array = region.floats(1 << 20)
def read():
    while True:
        array.sum()
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
"""
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
