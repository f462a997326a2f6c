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
from bireme.kube.volume import pod_end
from bireme.kube.volume.pod_end import inside, list_files, part_of, prefix_digest
from bireme.spec.load import is_shard_name

PAUSES_S = (1.0, 2.0, 4.0)
"""How long a transfer pauses after a lost connection, before each retry."""
OnProgress = Callable[[int, int], None] | None
"""Gets the bytes that are on the other end, and those that are to be there."""
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


class _Stream(io.RawIOBase):
    """Chunks of bytes as a stream to read from, so that no more than one of them is in memory."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = b""

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
            log.warning("retry pause_s=%.0f cause=%r", rest_s, e.what)
            pause(rest_s)
    return attempt()


class _Tally:
    """Counts bytes: those that move now, and by the first comparison of both ends, those that had to."""

    def __init__(self, lengths: Mapping[str, int], on_progress: OnProgress) -> None:
        self._lengths = lengths
        self._on_progress = on_progress
        self._total = sum(lengths.values())
        self._done = 0
        self._first: Mapping[str, int] | None = None

    def begin(self, starts: Mapping[str, int]) -> None:
        """Begin an attempt that sends files from these offsets; files without one are complete."""
        self._first = starts if self._first is None else self._first
        self._done = self._total - self._missing(starts)

    def _missing(self, starts: Mapping[str, int]) -> int:
        return sum(self._lengths[name] - start for name, start in starts.items())

    def count(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The same chunks; each is reported once it was taken."""
        for chunk in chunks:
            yield chunk
            self._done += len(chunk)
            if self._on_progress is not None:
                self._on_progress(min(self._done, self._total), self._total)

    def outcome(self) -> Transfer:
        first, files = self._first or {}, len(self._lengths)
        return Transfer(files, self._missing(first), files - len(first), sum(start > 0 for start in first.values()))


def push(
    pod: TransferEnd, files: Mapping[str, Path], root: str, on_progress: OnProgress = None, pause: Pause = time.sleep
) -> Transfer:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    tally = _Tally(sizes, on_progress)

    def attempt() -> None:
        there = pod.ask(["have", root], stdin=as_input(sizes))
        first_bytes = {name: push_start(files[name], sizes[name], there.get(name)) for name in files}
        starts = {name: start for name, start in first_bytes.items() if start >= 0}
        tally.begin(starts)
        chunks = (chunk for name, start in starts.items() for chunk in pod_end.send_piece(files[name], name, start))
        if starts:
            pod.run(["put", root], stdin=io.BufferedReader(_Stream(tally.count(chunks)), pod_end.CHUNK))

    persist(attempt, pause)
    return tally.outcome()


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
    on_progress: OnProgress = None,
    pause: Pause = time.sleep,
    agree: Agree | None = None,
) -> Transfer:
    """Fetch files from a directory on the volume; `wanted` are their lengths. Nothing outside `target` changes."""
    places = {name: place_below(target, name) for name in wanted}
    refuse_obstacles(target, wanted)
    tally = _Tally(wanted, on_progress)

    def attempt() -> None:
        starts = fetch_starts(pod, root, wanted, places)
        tally.begin(starts)
        if agree is not None:
            agree([name for name in starts if places[name].is_file()])
        if starts:
            _keep_grown(starts, places)
            _receive(pod, root, starts, places, tally)

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


def _keep_grown(starts: Mapping[str, int], places: Mapping[str, Path]) -> None:
    """Start the partial file of a log that has grown with its local copy, which stays until the rest has arrived."""
    for name, start in starts.items():
        path = places[name]
        if start and path.is_file() and path.stat().st_size == start:
            with storage_errors(str(path)):
                shutil.copyfile(path, part_of(path))


def _receive(pod: TransferEnd, root: str, starts: Mapping[str, int], places: Mapping[str, Path], tally: _Tally) -> None:
    """Fetch files while a thread writes the pieces.

    Only that thread touches `due`, `failed` and the tally until it is joined. If it fails it closes its end of the
    pipe, so that the fetch gets a BrokenPipeError instead of blocking.
    """
    ours, theirs = os.pipe()
    due = dict(starts)
    failed: list[BaseException] = []
    lost: Exception | None = None

    def write() -> None:
        with os.fdopen(ours, "rb") as source:
            try:
                for piece, content in pod_end.read_pieces(source):
                    if due.get(piece.path) != piece.offset:
                        raise _unasked(piece)
                    pod_end.write_piece(piece, tally.count(content), places[piece.path])
                    del due[piece.path]
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
    if failed and not (lost and isinstance(failed[0], pod_end.BrokenOffError)):
        raise failed[0] if isinstance(failed[0], BiremeError) else NetworkError(f"the transfer failed: {failed[0]}")
    if lost:
        raise lost
    if due:
        raise NetworkError(f"the transfer ended, and {len(due)} of {len(starts)} files are missing")


def _unasked(piece: pod_end.FileChunk) -> DataError:
    return DataError(
        f"the pod on the volume sends {piece.path!r} from byte {piece.offset:,}, which was not requested",
        why="only requested files are written here",
        fix="look at the image that runs in this pod: `--image` chooses another one",
    )
