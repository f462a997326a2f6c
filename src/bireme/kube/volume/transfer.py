"""Files to and from a job's volume: files that exist there are not sent, and partial ones are resumed.

Both ends hash what they have before bytes move, so a second run of the same command only reads the files. A lost
connection is retried. The pod is not trusted with this machine's files: names that lead out of the target, and files
that were not requested, are refused.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from bireme.core.errors import BiremeError, DataError, NetworkError, OutputExistsError
from bireme.core.files import storage_errors
from bireme.kube.volume.pod_end import (
    BrokenOffError,
    FileChunk,
    inside,
    list_files,
    part_of,
    prefix_digest,
    read_pieces,
    send_piece,
    write_piece,
)
from bireme.spec.load import is_shard_name

PAUSES_S = (1.0, 2.0, 4.0)
"""How long a transfer pauses after a lost connection, before each retry."""
Tell = Callable[[int, int], None]
Pause = Callable[[float], None]
Agree = Callable[[list[str]], None]
"""Gets the local files that a fetch would replace, before the first write; raises to refuse."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class TransferEnd(Protocol):
    """The other end of a transfer."""

    def run(self, command: list[str], *, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        """Run a command there."""

    def ask(self, command: list[str], *, stdin: BinaryIO | None = None) -> Any:
        """Run a command there that answers in JSON."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The result of a transfer."""

    files: int
    nbytes: int
    """Bytes that were missing and were sent."""
    skipped: int
    """Files that existed already."""
    resumed: int
    """Files that existed in part."""


class Pieces(io.RawIOBase):
    """Chunks of bytes as a stream to read from."""

    def __init__(self, chunks: Iterator[bytes], on_bytes: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = b""
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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
    return io.BytesIO(json.dumps(value).encode())


def shard_files(data: Path) -> dict[str, Path]:
    folders = sorted((d for d in data.iterdir() if is_shard_name(d.name)), key=lambda d: int(d.name))
    files = {f"{d.name}/data/{name}": d / "data" / name for d in folders for name in list_files(d / "data")}
    if (data / "shards.json").is_file():
        files["shards.json"] = data / "shards.json"
    return files


def persist(attempt: Callable[[], T], pause: Pause) -> T:
    for rest_s in PAUSES_S:
        try:
            return attempt()
        except NetworkError as e:
            log.warning("retry pause_s=%.0f cause=%s", rest_s, e.what)
            pause(rest_s)
    return attempt()


class _Tally:
    """Counts bytes by the first comparison of both ends; later attempts only finish it."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.total = sum(lengths.values())
        self._lengths = lengths
        self._first: Mapping[str, int] | None = None

    def done(self, starts: Mapping[str, int]) -> int:
        """How many bytes need not move, given the offset that each file is sent from."""
        self._first = starts if self._first is None else self._first
        return self.total - sum(self._lengths[name] - start for name, start in starts.items())

    def outcome(self) -> Transfer:
        assert self._first is not None
        first, files = self._first, len(self._lengths)
        resumed = sum(start > 0 for start in first.values())
        return Transfer(files, self.total - self.done(first), files - len(first), resumed)


def push(
    pod: TransferEnd, files: Mapping[str, Path], root: str, on_progress: Tell | None = None, pause: Pause = time.sleep
) -> Transfer:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    tally = _Tally(sizes)

    def attempt() -> None:
        there = pod.ask(["have", root], stdin=as_input(sizes))
        first_bytes = {name: push_start(files[name], sizes[name], there.get(name)) for name in files}
        starts = {name: start for name, start in first_bytes.items() if start >= 0}
        done = tally.done(starts)
        chunks = (chunk for name, start in starts.items() for chunk in send_piece(files[name], name, start))
        if starts:
            pod.run(["put", root], stdin=_counting(chunks, done, tally.total, on_progress))

    persist(attempt, pause)
    return tally.outcome()


def _counting(chunks: Iterator[bytes], done: int, total: int, on_progress: Tell | None) -> BinaryIO:
    sent = done

    def count(nbytes: int) -> None:
        nonlocal sent
        sent += nbytes
        if on_progress is not None:
            on_progress(min(sent, total), total)

    return io.BufferedReader(Pieces(chunks, count), 1 << 20)


def push_start(path: Path, nbytes: int, there: Mapping[str, Any] | None) -> int:
    """The offset that a file must be sent from; -1 if it is complete there."""
    if there is None:
        return 0
    if there.get("nbytes") == nbytes and there.get("sha256") == prefix_digest(path, nbytes):
        return -1
    part = there.get("part") or {}
    if 0 < part.get("nbytes", 0) <= nbytes and part["sha256"] == prefix_digest(path, part["nbytes"]):
        return int(part["nbytes"])
    return 0


def listing(pod: TransferEnd, root: str, pause: Pause = time.sleep) -> dict[str, int]:
    lengths = persist(lambda: pod.ask(["list", root]), pause)
    if not isinstance(lengths, dict) or not all(isinstance(n, int) and n >= 0 for n in lengths.values()):
        raise DataError(f"the pod on the volume sent no list of the files in {root}")
    for name in lengths:
        inside(Path(root), name)
    return lengths


def fetch(
    pod: TransferEnd,
    root: str,
    wanted: Mapping[str, int],
    target: Path,
    on_progress: Tell | None = None,
    pause: Pause = time.sleep,
    agree: Agree | None = None,
) -> Transfer:
    """Fetch files from a directory on the volume; `wanted` are their lengths. Nothing outside `target` changes."""
    places = {name: place_below(target, name) for name in wanted}
    refuse_obstacles(target, wanted)
    tally = _Tally(wanted)

    def attempt() -> None:
        starts = fetch_starts(pod, root, wanted, places)
        done = tally.done(starts)
        if agree is not None:
            agree([name for name in starts if places[name].is_file()])
        if starts:
            _go_on_from(starts, places)
            _receive(pod, root, starts, places, lambda n: _tell(on_progress, done + n, tally.total))

    persist(attempt, pause)
    return tally.outcome()


def refuse_obstacles(target: Path, names: Collection[str] = ()) -> None:
    """Refuse a target where a file is in the way of a directory, or a directory in the way of a file."""
    files = [target / name for name in names]
    folders = {target, *target.parents} | {above for file in files for above in file.parents}
    for each in sorted(folders):
        if each.exists() and not each.is_dir():
            what = f"{each} is a file, and what is fetched needs a directory there"
            raise OutputExistsError(what, fix="name another directory, or move the file away")
    for each in files:
        if each.is_dir():
            what = f"{each} is a directory, and what is fetched has a file of that name"
            raise OutputExistsError(what, fix="name another directory, or move it away")


def place_below(target: Path, name: str) -> Path:
    """The path of a file below the target; refuse one outside of it, also through a link."""
    path, root = inside(target, name), target.resolve()
    for each in (path, part_of(path)):
        if not each.resolve().is_relative_to(root):
            raise DataError(
                f"{name!r} would be written outside of {target}: to {each.resolve()}",
                why="a link here leads there",
                fix="remove the link, or choose another directory",
            )
    return path


def _tell(on_progress: Tell | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(min(done, total), total)


def fetch_starts(pod: TransferEnd, root: str, wanted: Mapping[str, int], places: Mapping[str, Path]) -> dict[str, int]:
    """The offset that each file must be fetched from; complete files are left out."""
    here = {}
    for name, path in places.items():
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
        is_part = name in here and here[name] != places[name]
        if is_same and start == nbytes and not is_part:
            continue
        starts[name] = start if is_same and start <= nbytes else 0
    return starts


def _go_on_from(starts: Mapping[str, int], places: Mapping[str, Path]) -> None:
    """Start the partial file of a log that has grown with its local copy, which stays until the rest has arrived."""
    for name, start in starts.items():
        path = places[name]
        if start and path.is_file() and path.stat().st_size == start:
            with storage_errors(str(path)):
                shutil.copyfile(path, part_of(path))


def _receive(
    pod: TransferEnd, root: str, starts: Mapping[str, int], places: Mapping[str, Path], tell: Callable[[int], None]
) -> None:
    """Fetch files while a thread writes the pieces.

    Only that thread touches `due` and `failed` until it is joined. If it fails it closes its end of the pipe, so that
    the fetch gets a BrokenPipeError instead of blocking.
    """
    ours, theirs = os.pipe()
    due = dict(starts)
    failed: list[BaseException] = []
    lost: Exception | None = None

    def write() -> None:
        with os.fdopen(ours, "rb") as source:
            try:
                _write_pieces(source, due, places, tell)
            except BaseException as e:
                failed.append(e)

    writer = threading.Thread(target=write, name="fetch")
    writer.start()
    try:
        with os.fdopen(theirs, "wb") as sink:
            pod.run(["get", root], stdin=as_input(dict(starts)), stdout=sink)
    except (NetworkError, BrokenPipeError) as e:
        lost = e
    finally:
        writer.join()
    if failed and not (lost and isinstance(failed[0], BrokenOffError)):
        raise failed[0] if isinstance(failed[0], BiremeError) else NetworkError(f"the transfer failed: {failed[0]}")
    if lost:
        raise lost
    if due:
        raise NetworkError(f"the transfer ended, and {len(due)} of {len(starts)} files have not come")


def _write_pieces(
    source: BinaryIO, due: dict[str, int], places: Mapping[str, Path], tell: Callable[[int], None]
) -> None:
    taken = 0

    def counted(content: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal taken
        for chunk in content:
            yield chunk
            taken += len(chunk)
            tell(taken)

    for piece, content in read_pieces(source):
        if due.get(piece.path) != piece.offset:
            raise _unasked(piece)
        write_piece(piece, counted(content), places[piece.path])
        del due[piece.path]


def _unasked(piece: FileChunk) -> DataError:
    return DataError(
        f"the pod on the volume sends {piece.path!r} from byte {piece.offset:,}, which was not asked for",
        why="nothing is written here but what was asked for",
        fix="look at the image that runs in this pod: `--image` chooses another one",
    )
