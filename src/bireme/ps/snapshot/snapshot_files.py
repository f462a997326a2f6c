"""One file of a snapshot: named arrays and a little JSON, hashed while it is written.

    magic, version, checksum, length of the header, length of the file    32 bytes, little-endian
    header: {"arrays": {name: {dtype, shape, offset}}, "meta": {…}}       JSON
    the arrays, little-endian, each on a 64-byte border                   raw

A file appears under its name in one rename, after it was synced, so a reader sees all of it or none. Later
damage is detected by the hash, which the manifest keeps. Arrays are streamed out in blocks and read as views
on mapped memory: neither way is there a second copy of a model.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from bireme.core import faults
from bireme.core.errors import SnapshotError
from bireme.core.files import half_of, storage_errors, sync_directory, volume

MAGIC = b"bireme\0P"
VERSION = 1
BORDER = 64  # arrays start on multiples of this, as kernels like it
BLOCK = 1 << 20  # how many bytes are hashed and handed to the system at once
_PREFIX = struct.Struct("<8sIIQQ")
_LENGTHS = struct.Struct("<QQ")
_Block = bytes | memoryview
_KINDS = "biuf"  # booleans and numbers; nothing that could refer to objects


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the border after the header


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arrays: dict[str, _Entry]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """What must be known of a file to recognise it later."""

    sha256: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A part file's content; the arrays are read-only."""

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    name: str = ""  # the file it comes from, for messages


def write_part(
    path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, object], rest: Callable[[], None] | None = None
) -> Written:
    """Write a part: all of it or, with a StorageError, nothing. `meta` must be JSON; floats as `float.hex()` say.

    The same arrays and the same meta give the same bytes. `rest` is called after each block, to
    leave the processor to other threads in between.
    """
    half = half_of(path)
    with storage_errors(str(path)):
        try:
            with half.open("wb") as f:
                written = _stream(f, _blocks(arrays, meta), rest)
                f.flush()
                faults.at("part.sync")
                # Content before name: after a power cut a renamed file without fsync may be empty.
                volume().sync(f)
            faults.at("part.rename")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        # The rename itself lasts only once the directory is synced, and the coordinator's manifest relies on it.
        sync_directory(path.parent)
    return written


def _stream(f: BinaryIO, blocks: Iterable[_Block], rest: Callable[[], None] | None) -> Written:
    digest, position = hashlib.sha256(), 0
    for block in blocks:
        f.write(block)
        digest.update(block)
        position += len(block)
        if rest is not None:
            rest()
    return Written(digest.hexdigest(), position)


def _blocks(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, object]) -> Iterator[_Block]:
    entries, end = {}, 0
    for name, array in arrays.items():
        entries[name] = _Entry(_little(array.dtype).str, array.shape, end)
        end = _border(end + array.nbytes)
    header = msgspec.json.encode(_Header(entries, dict(meta)))
    start = _border(_PREFIX.size + len(header))
    lengths = _LENGTHS.pack(len(header), start + end)
    prefix = _PREFIX.pack(MAGIC, VERSION, _checksum(lengths, header), len(header), start + end)
    yield prefix + header + bytes(start - _PREFIX.size - len(header))
    for array in arrays.values():
        yield from _blocks_of(array)
        yield bytes(-array.nbytes % BORDER)


def _blocks_of(array: NDArray[Any]) -> Iterator[memoryview]:
    """An array's bytes; only where they do not lie in order is a block of them copied."""
    if not array.size:
        return
    rows = array.reshape(-1) if array.flags.c_contiguous or not array.ndim else array
    step = max(1, BLOCK // (rows[0].nbytes or 1))
    for begin in range(0, len(rows), step):
        block = np.ascontiguousarray(rows[begin : begin + step], dtype=_little(array.dtype))
        yield block.reshape(-1).view(np.uint8).data


def _little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in _KINDS:
        raise AssertionError(f"an array of {dtype} cannot be saved; this is a bug")
    return dtype.newbyteorder("<")


def _border(position: int) -> int:
    return -(-position // BORDER) * BORDER


def _checksum(lengths: bytes, header: bytes) -> int:
    return zlib.crc32(header, zlib.crc32(lengths))


def read_part(path: Path, *, sha256: str | None) -> SnapshotFile:
    """Read a part; without its hash, only what is wrong with its header or its length is found."""
    try:
        with path.open("rb") as f:
            header, start = _read_header(path, f)
            if sha256 is not None and hash_of(f) != sha256:
                raise _damage(path, "has flipped bits or is another part: it does not have its hash")
            # The file is never written to again, so the map shows what was hashed.
            memory = volume().show(f)
    except FileNotFoundError as e:
        raise _damage(path, "is missing") from e
    except OSError as e:
        raise _damage(path, f"cannot be read: {e.strerror or e}") from e
    arrays = {name: _view(path, memory, name, entry, start) for name, entry in header.arrays.items()}
    return SnapshotFile(header.meta, arrays, str(path))


def hash_of(f: BufferedReader) -> str:
    f.seek(0)
    return hashlib.file_digest(f, "sha256").hexdigest()


def _read_header(path: Path, f: BufferedReader) -> tuple[_Header, int]:
    size = path.stat().st_size
    prefix = f.read(_PREFIX.size)
    if not prefix.startswith(MAGIC[: len(prefix)]):
        raise _damage(path, f"is not a part of a snapshot: it starts with {prefix[:8]!r}")
    if len(prefix) < _PREFIX.size:
        raise _damage(path, f"is torn: it has only {size} bytes")
    _, version, checksum, header_nbytes, nbytes = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise _damage(path, f"has format {version}, this bireme reads format {VERSION}")
    # The lengths may be the torn ones, so no more is read than the file has.
    header = f.read(min(header_nbytes, size))
    # A pserver reads parts without their sha256, which the coordinator has compared: this finds a file torn since then.
    if _checksum(_LENGTHS.pack(header_nbytes, nbytes), header) != checksum:
        raise _damage(path, "is torn or flipped: its header does not have its checksum")
    if size != nbytes:
        raise _damage(path, f"is torn: {size} bytes of {nbytes}")
    try:
        return msgspec.json.decode(header, type=_Header), _border(_PREFIX.size + header_nbytes)
    except msgspec.MsgspecError as e:
        raise _damage(path, f"has a malformed header: {e}") from e


def _view(path: Path, memory: mmap.mmap | bytes, name: str, entry: _Entry, start: int) -> NDArray[Any]:
    try:
        dtype = np.dtype(entry.dtype)
    except (TypeError, ValueError, SyntaxError) as e:
        raise _damage(path, f"has array {name!r} of an unknown type {entry.dtype!r}") from e
    count, begin = math.prod(entry.shape), start + entry.offset
    is_placed = entry.offset >= 0 and min(entry.shape, default=0) >= 0 and begin + count * dtype.itemsize <= len(memory)
    if dtype.kind not in _KINDS or not is_placed:
        raise _damage(path, f"has array {name!r} of type {entry.dtype} and shape {list(entry.shape)} outside the file")
    if not count:
        return np.empty(entry.shape, dtype)
    return np.frombuffer(memory, dtype, count, begin).reshape(entry.shape)


def _damage(path: Path, what: str) -> SnapshotError:
    return SnapshotError(f"{path} {what}", fix="use the snapshot before this one")


def snapshot_name(round_: int, view: int) -> str:
    """The directory of a snapshot; names sort by round."""
    return f"{round_:012d}-{view:016x}"


def part_name(pserver: int) -> str:
    return f"part-{pserver}.bin"


def part_path(snapshots: Path, round_: int, view: int, pserver: int) -> Path:
    """Where a pserver's part of a cut goes; makes the cut's directory, as any of the pservers may."""
    place = snapshots / snapshot_name(round_, view)
    with storage_errors(str(place)):
        place.mkdir(parents=True, exist_ok=True)
    return place / part_name(pserver)
