"""Files to and from a job's volume: what is there already is not sent, and what was broken off goes on.

Both ends hash what they have before anything moves, so a second run of the same command costs a reading of the files
and nothing else.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from bireme.core.errors import BiremeError, NetworkError
from bireme.kube.volume_end import (
    PART,
    list_files,
    part_of,
    prefix_digest,
    read_pieces,
    send_piece,
    write_piece,
)
from bireme.spec.load import is_shard_name

ATTEMPTS = 4
"""How often a transfer that loses its connection is taken up again."""
Tell = Callable[[int, int], None]


class End(Protocol):
    """The other end of a transfer."""

    def run(self, command: list[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        """Run a command there."""

    def ask(self, command: list[str], *, stdin: BinaryIO | None = None) -> Any:
        """Run a command there that answers in JSON."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a transfer came to."""

    files: int
    nbytes: int
    """Bytes that were sent."""
    skipped: int
    """Files that were there already."""
    resumed: int
    """Files of which a part was there."""


class Pieces(io.RawIOBase):
    """Chunks of bytes as a stream to read from."""

    def __init__(self, chunks: Iterator[bytes], on_bytes: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = b""
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next, at most one chunk."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        taken = self._rest[: len(buffer)]
        buffer[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        if self._on_bytes is not None:
            self._on_bytes(len(taken))
        return len(taken)


def as_input(value: Any) -> BinaryIO:
    """A value as the input of a command."""
    return io.BytesIO(json.dumps(value).encode())


def shard_files(data: Path) -> dict[str, Path]:
    """The files of all shards of a data directory, and the split's own description, by their path below it."""
    folders = sorted((d for d in data.iterdir() if is_shard_name(d.name)), key=lambda d: int(d.name))
    found = {f"{d.name}/data/{name}": d / "data" / name for d in folders for name in list_files(d / "data")}
    if (data / "shards.json").is_file():
        found["shards.json"] = data / "shards.json"
    return found


def push(pod: End, files: Mapping[str, Path], root: str, on_progress: Tell | None = None) -> Transfer:
    """Bring files onto the volume, below a directory."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total, moved = sum(sizes.values()), 0
    first: dict[str, int] | None = None
    for attempt in range(ATTEMPTS):
        there = pod.ask(["have", root], stdin=as_input(sizes))
        starts = {
            name: start for name in files if (start := push_start(files[name], sizes[name], there.get(name))) >= 0
        }
        first = starts if first is None else first
        done = total - sum(sizes[name] - start for name, start in starts.items())
        try:
            chunks = (chunk for name, start in starts.items() for chunk in send_piece(files[name], name, start))
            if starts:
                pod.run(["put", root], stdin=_counting(chunks, done, total, on_progress))
            moved += total - done
            break
        except NetworkError:
            if attempt == ATTEMPTS - 1:
                raise
    assert first is not None
    return Transfer(len(files), moved, len(files) - len(first), sum(start > 0 for start in first.values()))


def _counting(chunks: Iterator[bytes], done: int, total: int, on_progress: Tell | None) -> BinaryIO:
    sent = done

    def count(nbytes: int) -> None:
        nonlocal sent
        sent += nbytes
        if on_progress is not None:
            on_progress(min(sent, total), total)

    return io.BufferedReader(Pieces(chunks, count), 1 << 20)


def push_start(path: Path, nbytes: int, there: Mapping[str, Any] | None) -> int:
    """From which byte a file must be sent; -1 if it is there."""
    if there is None:
        return 0
    if there.get("nbytes") == nbytes and there.get("sha256") == prefix_digest(path, nbytes):
        return -1
    part = there.get("part") or {}
    if 0 < part.get("nbytes", 0) <= nbytes and part["sha256"] == prefix_digest(path, part["nbytes"]):
        return int(part["nbytes"])
    return 0


def fetch(pod: End, root: str, wanted: Mapping[str, int], target: Path, on_progress: Tell | None = None) -> Transfer:
    """Bring files from a directory on the volume here; `wanted` are their lengths."""
    total, moved = sum(wanted.values()), 0
    first: dict[str, int] | None = None
    for attempt in range(ATTEMPTS):
        starts = fetch_starts(pod, root, wanted, target)
        first = starts if first is None else first
        done = total - sum(wanted[name] - start for name, start in starts.items())
        try:
            if starts:
                moved += _receive(pod, root, starts, target, lambda n, done=done: _tell(on_progress, done + n, total))  # type: ignore[misc]
            break
        except NetworkError:
            if attempt == ATTEMPTS - 1:
                raise
    assert first is not None
    return Transfer(len(wanted), moved, len(wanted) - len(first), sum(start > 0 for start in first.values()))


def _tell(on_progress: Tell | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(min(done, total), total)


def fetch_starts(pod: End, root: str, wanted: Mapping[str, int], target: Path) -> dict[str, int]:
    """From which byte each file must be fetched; those that are here are left out."""
    here = {}
    for name in wanted:
        path = target / name
        if path.is_file() and path.stat().st_size <= wanted[name]:
            here[name] = path
        elif part_of(path).is_file():
            here[name] = part_of(path)
    lengths = {name: path.stat().st_size for name, path in here.items()}
    there = pod.ask(["have", root], stdin=as_input(lengths)) if lengths else {}
    starts = {}
    for name, nbytes in wanted.items():
        start = lengths.get(name, 0)
        is_same = name in here and (there.get(name) or {}).get("sha256") == prefix_digest(here[name], start)
        if is_same and start == nbytes and here[name].suffix != PART:
            continue
        if is_same and here[name].suffix != PART:
            here[name].replace(part_of(here[name]))  # a log that has grown
        starts[name] = start if is_same and start < nbytes else 0
    return starts


def _receive(pod: End, root: str, starts: Mapping[str, int], target: Path, tell: Callable[[int], None]) -> int:
    """Fetch files while a thread of its own writes what comes."""
    ours, theirs = os.pipe()
    failed: list[BaseException] = []
    taken = 0

    def write() -> None:
        nonlocal taken
        with os.fdopen(ours, "rb") as source:
            try:
                for piece, content in read_pieces(source):
                    write_piece(piece, _counted(content), target / piece.path)
            except BaseException as e:
                failed.append(e)
                while source.read(1 << 20):
                    pass  # whoever writes must not hang

    def _counted(content: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal taken
        for chunk in content:
            yield chunk
            taken += len(chunk)
            tell(taken)

    writer = threading.Thread(target=write, name="fetch")
    writer.start()
    try:
        with os.fdopen(theirs, "wb") as sink:
            pod.run(["get", root], stdin=as_input(dict(starts)), stdout=sink)
    finally:
        writer.join()
    if failed:
        raise failed[0] if isinstance(failed[0], BiremeError) else NetworkError(f"the transfer failed: {failed[0]}")
    return taken
