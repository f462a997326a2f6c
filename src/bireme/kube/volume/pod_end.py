"""The pod's end of a transfer, which runs on the job's volume: lists, receives and sends files over stdin and stdout.

    have ROOT     stdin {path: nbytes}, stdout {path: {nbytes, sha256, part}}: the files that exist, each with the hash
                  of its first nbytes
    put ROOT      stdin pieces; each is checked, appended to .NAME.bireme-part, and the last one makes it NAME
    get ROOT      stdin {path: offset}, stdout pieces
    list ROOT     stdout {path: nbytes}
    wait SECONDS  keeps the pod running; at most so long, and not long after its last command

A piece is one line of JSON (path, offset, nbytes, total), the bytes, and 64 hex digits with their SHA-256. Nothing
outside of ROOT is touched. A failure is a line {"error": …}, the last one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from bireme.core.errors import DataError, NetworkError, StorageError
from bireme.core.files import storage_errors

CHUNK = 1 << 20
PART = ".bireme-part"
DIGEST_NBYTES = 64
HEAD_NBYTES = 64 << 10
"""Longer than the head of any piece."""
IDLE_S = 600.0
"""A pod without a command for so long ends."""
LOOK_EVERY_S = 5.0


class FileChunk(NamedTuple):
    """The head of a piece: which bytes of which file follow."""

    path: str
    offset: int
    nbytes: int
    total: int


class BrokenOffError(NetworkError):
    """The other end closed in the middle of a file; the bytes before that are kept."""


def inside(root: Path, path: str) -> Path:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise DataError(f"{path!r} is not a path below {root}")
    return root / path


def part_of(path: Path) -> Path:
    """Where a file is gathered until it is complete; a name that no file of a user has."""
    name = path.name
    if len(os.fsencode(name)) > 200:  # a name has at most 255 bytes
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}{PART}")


def is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(PART)


def prefix_digest(path: Path, nbytes: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while nbytes > 0 and (chunk := f.read(min(CHUNK, nbytes))):
            digest.update(chunk)
            nbytes -= len(chunk)
    return digest.hexdigest()


def have(root: Path, wanted: Mapping[str, int]) -> dict[str, Any]:
    """The sizes of wanted files that exist, with the hash of the first `nbytes` where they are that long."""
    files = {}
    for name, nbytes in wanted.items():
        path = inside(root, name)
        facts: dict[str, Any] = {}
        if path.is_file():
            there = path.stat().st_size
            facts |= {"nbytes": there, "sha256": prefix_digest(path, nbytes) if there >= nbytes else None}
        if part_of(path).is_file():
            there = part_of(path).stat().st_size
            facts["part"] = {"nbytes": there, "sha256": prefix_digest(part_of(path), there)}
        if facts:
            files[name] = facts
    return files


def list_files(root: Path) -> dict[str, int]:
    """Every whole file below a directory with its length; empty where there is no such directory."""
    lengths = {}
    for folder, _, names in os.walk(root, onerror=_refuse_unless_gone):
        for name in sorted(names):
            path = Path(folder) / name
            if not is_part(name) and path.is_file():
                with contextlib.suppress(FileNotFoundError):  # a job that runs removes files
                    lengths[str(path.relative_to(root))] = path.stat().st_size
    return lengths


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error


def read_pieces(source: BinaryIO) -> Iterator[tuple[FileChunk, Iterator[bytes]]]:
    """Pieces with their bytes; read each to its end before the next. Raises where the digest does not match."""
    while line := source.readline(HEAD_NBYTES):
        if not line.endswith(b"\n") and len(line) < HEAD_NBYTES:
            raise BrokenOffError("the transfer broke off between two files")
        piece = _head(line)
        yield piece, _content(source, piece)


def _head(line: bytes) -> FileChunk:
    try:
        piece = FileChunk(**json.loads(line))
        offset, nbytes, total = (int(number) for number in piece[1:])
        if isinstance(piece.path, str) and offset >= 0 and nbytes >= 0 and offset + nbytes <= total:
            return FileChunk(piece.path, offset, nbytes, total)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise DataError(f"the line is not a piece of a file: {line[:80]!r}")


def _content(source: BinaryIO, piece: FileChunk) -> Iterator[bytes]:
    left, digest = piece.nbytes, hashlib.sha256()
    while left:
        chunk = source.read(min(CHUNK, left))
        if not chunk:
            raise BrokenOffError(f"{piece.path}: the transfer broke off {left:,} bytes before its end")
        digest.update(chunk)
        left -= len(chunk)
        yield chunk
    received = source.read(DIGEST_NBYTES)
    if len(received) < DIGEST_NBYTES:
        raise BrokenOffError(f"{piece.path}: the transfer broke off before its digest")
    if received != digest.hexdigest().encode():
        raise DataError(f"{piece.path}: the bytes from {piece.offset:,} on are not those that were sent")


def write_piece(piece: FileChunk, content: Iterator[bytes], path: Path) -> bool:
    """Append a piece to its partial file; True once the file is complete.

    A piece with the wrong digest leaves nothing; one that broke off leaves its bytes, which a retry compares by hash.
    """
    half = part_of(path)
    with storage_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        there = half.stat().st_size if half.is_file() else 0
        if piece.offset and there < piece.offset:
            raise DataError(f"{piece.path}: a piece from byte {piece.offset:,}, but only {there:,} bytes are there")
        with half.open("r+b" if there and piece.offset else "wb") as f:
            f.truncate(piece.offset)
            f.seek(piece.offset)
            try:
                for chunk in content:
                    f.write(chunk)
            except DataError:
                f.truncate(piece.offset)
                raise
            f.flush()
            os.fsync(f.fileno())
        if piece.offset + piece.nbytes < piece.total:
            return False
        half.replace(path)
    return True


def send_piece(path: Path, name: str, offset: int) -> Iterator[bytes]:
    """A file's bytes from an offset on as one piece, up to the file's length at the start."""
    try:
        with path.open("rb") as f:
            total = os.fstat(f.fileno()).st_size
            left = total - offset
            if left < 0:
                raise DataError(f"{path} has become shorter than the part that was fetched", fix="try again")
            yield json.dumps(FileChunk(name, offset, left, total)._asdict()).encode() + b"\n"
            f.seek(offset)
            digest = hashlib.sha256()
            while left:
                chunk = f.read(min(CHUNK, left))
                if not chunk:
                    raise DataError(f"{path} became shorter while it was read", fix="try again")
                digest.update(chunk)
                left -= len(chunk)
                yield chunk
            yield digest.hexdigest().encode()
    except OSError as e:
        raise StorageError(f"cannot read {path}: {e.strerror or e}") from e


def put(root: Path, source: BinaryIO) -> dict[str, int]:
    """Receive pieces; returns the numbers of completed files and received bytes."""
    files = nbytes = 0
    for piece, content in read_pieces(source):
        files += write_piece(piece, content, inside(root, piece.path))
        nbytes += piece.nbytes
    return {"files": files, "nbytes": nbytes}


def get(root: Path, wanted: Mapping[str, int], sink: BinaryIO) -> None:
    for name, offset in wanted.items():
        for chunk in send_piece(inside(root, name), name, offset):
            sink.write(chunk)
    sink.flush()


def stay(lifetime_s: float, is_busy: Callable[[], bool], pause: Callable[[float], None] = time.sleep) -> None:
    """Wait until `is_busy` was False for IDLE_S, at most `lifetime_s`."""
    lived_s = idle_s = 0.0
    while lived_s < lifetime_s and idle_s < IDLE_S:
        pause(LOOK_EVERY_S)
        lived_s += LOOK_EVERY_S
        idle_s = 0.0 if is_busy() else idle_s + LOOK_EVERY_S


def has_company(processes: Path = Path("/proc")) -> bool:
    for each in processes.iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
                command = (each / "cmdline").read_bytes()
                if b"\0volume\0" in command and b"\0volume\0wait\0" not in command:
                    return True
    return False
