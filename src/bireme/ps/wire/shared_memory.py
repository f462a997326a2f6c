"""Memory that processes of one machine share, and arrays laid over it. Linux only.

A segment is a memfd: it has no name, it is handed on through a Unix socket, and it is gone when
the last process that maps it is gone, however that one died. So nothing can be left behind, and
no process can map a segment that was not passed to it. A `Region` is a stretch of addresses into
which pieces of segments are mapped side by side, so that slices of several lanes make one array.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import weakref

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core.errors import FrameError, StorageError
from bireme.ps.plan import BORDER
from bireme.ps.tree import Span

PAGE = mmap.PAGESIZE
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value
# Python's mmap cannot map at a chosen address, which pieces side by side need.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def make_segment(name: str, nbytes: int) -> int:
    """Make a segment whose memory is really there; returns its file descriptor."""
    if PAGE > 4 * BORDER:
        raise StorageError(f"pages of {PAGE} bytes are too large to share memory slice by slice")
    fd = -1
    try:
        fd = os.memfd_create(f"bireme-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(nbytes, PAGE))
        # Taken now, so that a lack of memory is an error here and not a bus error in the middle of a round.
        os.posix_fallocate(fd, 0, max(nbytes, PAGE))
        # Sealed: a peer that shrank the file would kill us with SIGBUS at the next read.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as e:
        close_quietly(fd)
        raise StorageError(f"cannot get {nbytes:,} bytes of shared memory: {e.strerror}") from e
    return fd


def check_segment(fd: int, nbytes: int) -> None:
    """Refuse a segment from a peer that is too small or could still shrink under us."""
    try:
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:
        is_sealed = 0  # not a memfd at all
    if os.fstat(fd).st_size < nbytes or not is_sealed:
        raise FrameError(f"a shared segment of {os.fstat(fd).st_size} bytes came, {nbytes} were due")


class Offer(msgspec.Struct, frozen=True):
    """A trainer's gradient segment, as its ATTACH describes it: the subtree of each row, and how long rows are."""

    spans: tuple[Span, ...]
    row_nbytes: int


class Region:
    """A stretch of addresses: private memory at first, pieces of segments once they are mapped."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(-(-nbytes // PAGE) * PAGE, PAGE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.address = _map(None, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        # Not at exit: threads that still run then would find their memory gone. The kernel unmaps for us.
        weakref.finalize(self, _libc.munmap, self.address, self.nbytes).atexit = False

    def map(self, offset: int, nbytes: int, fd: int, fd_offset: int, *, is_writable: bool) -> None:
        """Put a piece of a segment at `offset`; both ends must lie on page borders."""
        if nbytes == 0:
            return
        if offset % PAGE or fd_offset % PAGE or nbytes % PAGE or offset + nbytes > self.nbytes:
            raise AssertionError(f"mapping {nbytes} bytes at {offset} of {self.nbytes}: this is a bug")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
        _map(self.address + offset, nbytes, access, mmap.MAP_SHARED | _MAP_FIXED, fd, fd_offset)

    def unmap(self, offset: int, nbytes: int) -> None:
        """Put private memory back, so that other holders of the segment can write here no more."""
        if nbytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _map(self.address + offset, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)

    def floats(self, count: int, offset: int = 0) -> NDArray[np.float32]:
        """An array over this memory; the region lives at least as long as the array."""
        if offset + 4 * count > self.nbytes:
            raise AssertionError(f"{count} floats at {offset} of {self.nbytes} bytes: this is a bug")
        buffer = (ctypes.c_float * count).from_address(self.address + offset)
        buffer.region = self  # type: ignore[attr-defined]  # keeps the mapping alive
        return np.ctypeslib.as_array(buffer) if count else np.empty(0, dtype=np.float32)


def _map(address: int | None, nbytes: int, access: int, flags: int, fd: int, offset: int) -> int:
    mapped: int | None = _libc.mmap(address, nbytes, access, flags, fd, offset)
    if mapped is None or mapped == _MAP_FAILED:
        error = ctypes.get_errno()
        raise StorageError(f"cannot map {nbytes:,} bytes: {os.strerror(error)}")
    return mapped


def close_quietly(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
