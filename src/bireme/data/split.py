"""Cut training data into shards: `<job>/<i>/data/` for each i.

Training files are cut by lines into runs that follow each other; shards differ by at most one
line in all. Every other file is copied to every shard. Bytes are never changed: a line ends at
b"\\n", whatever else it holds. Memory use does not grow with the data: the first walk counts
lines, the second writes. Nothing appears under its final name before everything is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from bireme.core.errors import DataError
from bireme.data.layout import FORMAT_VERSION, MANIFEST, FileFacts, ShardManifest, SplitManifest
from bireme.data.plan import SplitPlan, plan_split
from bireme.data.staging import UNFINISHED, Progress, move_all, staged

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The result of a split."""

    job: Path
    shards: int
    lines: tuple[int, ...]
    """Training lines in each shard."""
    nbytes: int
    """Bytes written in all."""
    split: tuple[str, ...]
    copied: tuple[str, ...]
    warnings: tuple[str, ...]


def split_lines(source: Path, job: Path, shards: int, *, on_progress: Progress | None = None) -> SplitReport:
    """Split the data directory `source` into `shards` shards under `job`.

    Refuses when `job` already holds shards. `on_progress` gets the bytes read and to read.
    """
    plan = plan_split(source, job, shards)
    reader = _Reader(plan.nbytes_to_read, on_progress)
    with staged(job) as stage:
        manifest, lines = _write_shards(plan, stage, reader)
        with (stage / MANIFEST).open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            file.flush()
            os.fsync(file.fileno())
        names = [*map(str, range(shards)), MANIFEST]
        move_all([(stage / name, job / name) for name in names])
    return SplitReport(
        job=job,
        shards=shards,
        lines=tuple(lines),
        nbytes=plan.nbytes_to_write,
        split=plan.split,
        copied=plan.copied,
        warnings=tuple(_warnings(job, lines)),
    )


def share_lines(lines: int, shards: int, first: int = 0) -> list[int]:
    """Deal `lines` to shards as evenly as whole lines allow; odd ones go to shard `first` and those after it.

    Starting where the file before left off keeps the sum over several files even, too.
    """
    each, odd = divmod(lines, shards)
    return [each + ((shard - first) % shards < odd) for shard in range(shards)]


class _Reader:
    """Reads files in chunks and reports progress."""

    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._on_progress = on_progress

    def chunks(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
                self._done += len(chunk)
                if self._on_progress is not None:
                    self._on_progress(min(self._done, self._total), self._total)

    def count_lines(self, path: Path) -> int:
        count, last = 0, b"\n"
        for chunk in self.chunks(path):
            count += chunk.count(b"\n")
            last = chunk[-1:]
        return count + (last != b"\n")


class _Output:
    """One file being written, with its entry for the manifest."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._hash = hashlib.sha256()
        self._lines = 0
        self._bytes = 0
        self._ends_line = True

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._lines += data.count(b"\n")
        self._bytes += len(data)
        self._ends_line = data.endswith(b"\n") if data else self._ends_line

    def facts(self) -> FileFacts:
        lines = self._lines + (not self._ends_line)
        return FileFacts(path=self._path, lines=lines, bytes=self._bytes, sha256=self._hash.hexdigest())


def _write_shards(plan: SplitPlan, stage: Path, reader: _Reader) -> tuple[SplitManifest, list[int]]:
    facts: list[list[FileFacts]] = [[] for _ in range(plan.shards)]
    lines = [0] * plan.shards
    first = 0
    for shard in range(plan.shards):
        (stage / str(shard) / "data").mkdir(parents=True)
    for name in plan.split:
        total = reader.count_lines(plan.source / name)
        quotas = share_lines(total, plan.shards, first)
        first = (first + total) % plan.shards
        for shard, written in enumerate(_split_file(plan.source / name, name, quotas, stage, reader)):
            facts[shard].append(written)
            lines[shard] += written.lines
    for name in plan.copied:
        for shard, written in enumerate(_copy_file(plan, name, stage, reader)):
            facts[shard].append(written)
    contents = tuple(ShardManifest(shard=i, files=tuple(sorted(f, key=lambda x: x.path))) for i, f in enumerate(facts))
    split = tuple(f"data/{name}" for name in plan.split)
    return SplitManifest(version=FORMAT_VERSION, shards=plan.shards, split=split, contents=contents), lines


def _split_file(path: Path, name: str, quotas: list[int], stage: Path, reader: _Reader) -> Iterator[FileFacts]:
    chunks = reader.chunks(path)
    rest = b""
    for shard, quota in enumerate(quotas):
        with _create(stage, shard, name) as file:
            output = _Output(file, f"data/{name}")
            left = quota
            while left > 0:
                rest = rest or next(chunks, b"")
                if not rest:
                    break  # a last line without its newline ends here
                head, rest = _cut(rest, left)
                output.write(head)
                left -= head.count(b"\n")
        written = output.facts()
        if written.lines != quota:
            raise _changed(path)
        yield written
    if rest or next(chunks, b""):
        raise _changed(path)


def _cut(data: bytes, lines: int) -> tuple[bytes, bytes]:
    """Cut after the given number of newlines, or at the end if there are fewer."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    if len(ends) < lines:
        return data, b""
    place = int(ends[lines - 1]) + 1
    return data[:place], data[place:]


def _copy_file(plan: SplitPlan, name: str, stage: Path, reader: _Reader) -> list[FileFacts]:
    """Write shard 0's copy, and that one's copies for the others: few open files, however many shards."""
    with _create(stage, 0, name) as file:
        output = _Output(file, f"data/{name}")
        for chunk in reader.chunks(plan.source / name):
            output.write(chunk)
    for shard in range(1, plan.shards):
        _create(stage, shard, name).close()
        shutil.copyfile(stage / "0" / "data" / name, stage / str(shard) / "data" / name)
    return [output.facts()] * plan.shards


def _create(stage: Path, shard: int, name: str) -> BinaryIO:
    path = stage / str(shard) / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def _changed(path: Path) -> DataError:
    return DataError(
        f"{path} changed while it was being split",
        why="its lines were counted first and are no longer the same",
        fix="wait until nothing writes to it, then split again",
    )


def _warnings(job: Path, lines: list[int]) -> Iterator[str]:
    empty = sum(1 for count in lines if count == 0)
    if empty:
        yield f"{empty} of {len(lines)} shards are empty: there are only {sum(lines)} training lines"
    for path in sorted(job.glob(UNFINISHED + "*")):
        yield f"{path} was left by a process that was killed; it can be removed"
