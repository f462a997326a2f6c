"""The end of a transfer that runs in a pod on the job's volume: looks, takes and gives files through its own pipes.

    have ROOT     stdin {path: nbytes}, stdout {path: {nbytes, sha256, part}}: what is there, and the hash of as many
                  bytes of it as were asked for
    put ROOT      stdin pieces; each is checked, appended to NAME.part, and the file gets its name with its last one
    get ROOT      stdin {path: offset}, stdout pieces
    list ROOT     stdout {path: nbytes}

A piece is one line of JSON (path, offset, nbytes, total), the bytes, and 64 hex digits with their SHA-256. Nothing
outside of ROOT is touched. Failures are told as {"error": …} in the last line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from bireme.core.errors import DataError, NetworkError, StorageError
from bireme.core.files import storage_errors

CHUNK = 1 << 20
PART = ".part"
DIGEST_NBYTES = 64


class Piece(NamedTuple):
    """The head of a piece: which bytes of which file follow."""

    path: str
    offset: int
    nbytes: int
    total: int


class BrokenOffError(NetworkError):
    """The other end has gone in the middle of a file; what came before is kept."""


def inside(root: Path, path: str) -> Path:
    """A file below the root; anything else is refused."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise DataError(f"{path!r} is not a path below {root}")
    return root / path


def part_of(path: Path) -> Path:
    """Where a file is gathered until it is whole."""
    return path.with_name(path.name + PART)


def prefix_digest(path: Path, nbytes: int) -> str:
    """The hash of a file's first bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while nbytes > 0 and (chunk := f.read(min(CHUNK, nbytes))):
            digest.update(chunk)
            nbytes -= len(chunk)
    return digest.hexdigest()


def have(root: Path, wanted: Mapping[str, int]) -> dict[str, Any]:
    """What is there of some files, and the hash of as many bytes as were asked for, where there are so many."""
    found = {}
    for name, nbytes in wanted.items():
        path = inside(root, name)
        told: dict[str, Any] = {}
        if path.is_file():
            there = path.stat().st_size
            told |= {"nbytes": there, "sha256": prefix_digest(path, nbytes) if there >= nbytes else None}
        if part_of(path).is_file():
            there = part_of(path).stat().st_size
            told["part"] = {"nbytes": there, "sha256": prefix_digest(part_of(path), there)}
        if told:
            found[name] = told
    return found


def list_files(root: Path) -> dict[str, int]:
    """Every whole file below a directory with its length; empty where there is no such directory."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            path = Path(folder) / name
            if not name.endswith((PART, ".tmp")) and path.is_file():
                found[str(path.relative_to(root))] = path.stat().st_size
    return found


def read_pieces(source: BinaryIO) -> Iterator[tuple[Piece, Iterator[bytes]]]:
    """Pieces with their bytes; each must be used up before the next. Raises where the digest does not fit."""
    while line := source.readline():
        yield _read_piece(source, line)


def _read_piece(source: BinaryIO, line: bytes) -> tuple[Piece, Iterator[bytes]]:
    piece = Piece(**json.loads(line))

    def content() -> Iterator[bytes]:
        left, digest = piece.nbytes, hashlib.sha256()
        while left:
            chunk = source.read(min(CHUNK, left))
            if not chunk:
                raise BrokenOffError(f"{piece.path}: the transfer broke off {left:,} bytes before its end")
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if source.read(DIGEST_NBYTES) != digest.hexdigest().encode():
            raise DataError(f"{piece.path}: the bytes from {piece.offset:,} on are not those that were sent")

    return piece, content()


def write_piece(piece: Piece, content: Iterator[bytes], path: Path) -> bool:
    """Append a piece to what is there of its file; True once the file is whole.

    Of a piece with the wrong digest nothing is left; of one that broke off, what came: whoever goes on compares it.
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
    """A file's bytes from an offset on as one piece; as long as the file was when this began."""
    try:
        with path.open("rb") as f:
            total = os.fstat(f.fileno()).st_size
            left = total - offset
            yield json.dumps(Piece(name, offset, left, total)._asdict()).encode() + b"\n"
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
    """Take pieces; how many files became whole, and how many bytes came."""
    files = nbytes = 0
    for piece, content in read_pieces(source):
        files += write_piece(piece, content, inside(root, piece.path))
        nbytes += piece.nbytes
    return {"files": files, "nbytes": nbytes}


def get(root: Path, wanted: Mapping[str, int], sink: BinaryIO) -> None:
    """Give the rest of each file from an offset on."""
    for name, offset in wanted.items():
        for chunk in send_piece(inside(root, name), name, offset):
            sink.write(chunk)
    sink.flush()
