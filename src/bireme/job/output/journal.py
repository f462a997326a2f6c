"""The job's books, `metrics.jsonl` and `ledger.jsonl`: lines are only ever appended, and mended after a crash.

A crash may leave half a line at the end, or some of a pass's lines of the ledger. A pass counts when its model is
finished and its lines are all there; whoever goes on from a snapshot first removes what does not count, as it will be
written again. Damage anywhere else is left for `bireme verify` to see.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bireme.core.errors import StorageError
from bireme.core.files import storage_errors, sync_directory, volume, write_atomic
from bireme.job.coordination import messages as m
from bireme.job.node.headway import METRICS as METRICS
from bireme.job.output.kept import metrics_in
from bireme.job.output.model import finished_passes

LEDGER = "ledger.jsonl"
BLOCK_NBYTES = 1 << 20
"""What of a book is in memory at a time."""
Row = dict[str, Any]


class JournalSummary(NamedTuple):
    """What the books say of a job that goes on."""

    saved: int = -1
    """The last pass that counts."""
    elapsed_s: float = 0.0
    """How long this run has gone on already; 0 for one that begins."""
    closed: Sequence[m.PassClosed] = ()
    """This run's passes."""
    costs: Mapping[int, float | None] = {}
    """The test costs of all passes that count, where the end of the job depends on them."""


def append(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Add lines to a book, in one piece where the system lets us; the ledger's are on disk when this returns."""
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    with storage_errors(str(path)):
        is_new = not path.exists()
        with path.open("ab") as f:
            f.write(data)
            if path.name == LEDGER:
                f.flush()
                volume().sync(f)
        if is_new and path.name == LEDGER:
            sync_directory(path.parent)


def repair_tail(output: Path, shards: int, run: int) -> JournalSummary:
    """Remove half lines, and lines of passes that do not count; returns what there is of this run."""
    _cut_tail(output / METRICS)
    _cut_tail(output / LEDGER)
    ledger = list(_rows(output / LEDGER))[::-1]
    _make_safe(output)
    saved = max(counted(ledger, shards) & finished_passes(output), default=-1)
    if any(_pass_of(row) > saved for row in ledger):
        kept = [row for row in ledger if _pass_of(row) <= saved]
        write_atomic(output / LEDGER, b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    own = _since_begin(output / METRICS, run)
    closed = [one for row in own if (one := _closed(row)) is not None and one.pass_id <= saved]
    began = own[0].get("unix") if own else None
    # A date that was set back since must not make the job younger than it is; 0 would say that it begins now.
    elapsed_s = max(time.time() - began, 0.001) if isinstance(began, int | float) else 0.0
    return JournalSummary(saved, elapsed_s, closed)


def costs_in(output: Path, saved: int) -> dict[int, float | None]:
    """The test cost of each pass up to the last one that counts, from the words beside its model."""
    costs = {pass_id: each.get("test_cost") for pass_id, each in metrics_in(output).items() if pass_id <= saved}
    return {pass_id: float(cost) if isinstance(cost, int | float) else None for pass_id, cost in costs.items()}


def _make_safe(output: Path) -> None:
    """Sync what whoever died may not have come to sync, before anything is built on it."""
    with storage_errors(str(output)):
        if (output / LEDGER).is_file():
            with (output / LEDGER).open("rb") as f:
                volume().sync(f)
        if output.is_dir():
            sync_directory(output)


def _cut_tail(path: Path) -> None:
    """Cut half a line off a book's end, where it is: on a full disk there is no room for another one."""
    end = 0
    for begin, block in _blocks(path):
        end = end or begin + len(block)
        newline = block.rfind(b"\n")
        if newline >= 0 or not begin:
            whole = begin + newline + 1
            if whole < end:
                with storage_errors(str(path)):
                    volume().cut(path, whole)
            return


def _since_begin(path: Path, run: int) -> list[Row]:
    """How a run began and what it has told of its passes; nothing if it has not begun.

    There may be days of progress, and runs before this one: what is before the beginning is not read at all.
    """
    found = []
    for row in _rows(path, b':"begin"', b':"pass"'):
        found.append(row)
        if (row.get("kind"), row.get("run")) == ("begin", run):
            return found[::-1]
    return []


def _rows(path: Path, *words: bytes) -> Iterator[Row]:
    """A book's lines, the last one first; where words are given, only those in which one of them is."""
    rest = b""
    for begin, block in _blocks(path):
        head, newline, lines = (block + rest).partition(b"\n") if begin else (b"", b"", block + rest)
        rest = head + newline
        for line in reversed(lines.splitlines()):
            if words and not any(word in line for word in words):
                continue
            try:
                yield msgspec.json.decode(line, type=Row)
            except msgspec.MsgspecError:
                continue  # a flipped bit is not ours to hide


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's pieces and where they begin, the last one first. StorageError where one cannot be read.

    Nobody may take a part of a book for the whole of it.
    """
    try:
        if not path.is_file():
            return  # a device would have no end
        with path.open("rb") as f:
            end = f.seek(0, os.SEEK_END)
            while end:
                begin = max(0, end - BLOCK_NBYTES)
                f.seek(begin)
                yield begin, f.read(end - begin)
                end = begin
    except OSError as e:
        fix = "look after the disk or the volume, then `bireme resume`"
        raise StorageError(f"cannot read {path}: {e.strerror or e}", fix=fix) from e


def counted(ledger: Iterable[Row], shards: int) -> set[int]:
    """Passes of which every shard has its line."""
    seen: dict[int, set[object]] = {}
    for row in ledger:
        seen.setdefault(_pass_of(row), set()).add(row.get("shard"))
    return {pass_id for pass_id, found in seen.items() if found >= set(range(shards))}


def _pass_of(row: Row) -> int:
    found = row.get("pass")
    return found if isinstance(found, int) else -1


def _closed(row: Row) -> m.PassClosed | None:
    """A pass as it was told; None for any other line."""
    known = {name: row[name] for name in m.PassClosed.__struct_fields__ if name in row}
    try:
        return msgspec.convert(known, m.PassClosed) if row.get("event") == "pass" else None
    except msgspec.MsgspecError:
        return None  # a flipped bit is not ours to hide, nor to stumble over
