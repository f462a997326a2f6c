"""The job's journal files, `metrics.jsonl` and `ledger.jsonl`: append-only, repaired after a crash.

A crash may leave half a line at the end, or some of a pass's lines of the ledger. A pass counts when its model is
finished and all of its lines are there; a resumed job first removes lines that do not count, as it will write them
again. Damage anywhere else is left for `bireme verify` to report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bireme.core.errors import StorageError
from bireme.core.files import storage_errors, sync_directory, volume, write_atomic
from bireme.job.coordination import messages as m
from bireme.job.node.headway import METRICS as METRICS
from bireme.job.output.kept import metrics_in
from bireme.job.output.model import finished_passes
from bireme.job.status import PassSummary

LEDGER: Final = "ledger.jsonl"
BLOCK_NBYTES = 1 << 20
"""Bytes of a file in memory at a time."""
Row = dict[str, Any]


class JournalSummary(NamedTuple):
    """A resumed job's past, from its journal files."""

    saved: int = -1
    """The last pass that counts."""
    elapsed_s: float = 0.0
    """The age of this run; 0 for one that begins."""
    closed: Sequence[m.PassClosed] = ()
    """This run's passes."""
    costs: Mapping[int, float | None] = {}
    """The test costs of all passes that count, where the end of the job depends on them."""


def append(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Append lines in one write, so that a crash rarely splits them; the ledger's are on disk when this returns."""
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    with storage_errors(str(path)):
        is_new = not path.exists()
        # Append mode: while a coordinator is being replaced, two may write here for a moment.
        with path.open("ab") as f:
            f.write(data)
            if path.name == LEDGER:
                f.flush()
                volume().sync(f)
        if is_new and path.name == LEDGER:
            sync_directory(path.parent)


def repair_tail(output: Path, shards: int, run: int) -> JournalSummary:
    """Remove half lines, and lines of passes that do not count; returns the past of this run."""
    _cut_tail(output / METRICS)
    _cut_tail(output / LEDGER)
    ledger = list(rows_of(output / LEDGER))[::-1]
    # Files that a crashed writer may have left unsynced, before decisions depend on them.
    with storage_errors(str(output)):
        if (output / LEDGER).is_file():
            with (output / LEDGER).open("rb") as f:
                volume().sync(f)
        if output.is_dir():
            sync_directory(output)
    saved = max(counted(ledger, shards) & finished_passes(output), default=-1)
    if any(_pass_of(row) > saved for row in ledger):
        kept = [row for row in ledger if _pass_of(row) <= saved]
        write_atomic(output / LEDGER, b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    own = _since_begin(output / METRICS, run)
    closed = [one for row in own if (one := _closed(row)) is not None and one.pass_id <= saved]
    began = own[0].get("unix") if own else None
    # The date may have been set back since: never return 0, which means that the run begins now.
    elapsed_s = max(time.time() - began, 0.001) if isinstance(began, int | float) else 0.0
    return JournalSummary(saved, elapsed_s, closed)


def costs_in(output: Path, saved: int) -> dict[int, float | None]:
    """The test cost of each pass up to the last one that counts, from the metrics.json beside its model."""
    return {pass_id: each.test_cost for pass_id, each in metrics_in(output).items() if pass_id <= saved}


def passes_in(output: Path) -> dict[int, PassSummary]:
    """The results of all passes of a job that has finished, whether their models were kept or not; reads all metrics.

    Of a pass that was trained again after a rewind, the last results count.
    """
    passes: dict[int, PassSummary] = {}
    for row in rows_of(output / METRICS, b':"pass"'):
        if (closed := _closed(row)) is not None:
            passes.setdefault(closed.pass_id, closed)
    return {**passes, **metrics_in(output)}


def _cut_tail(path: Path) -> None:
    """Cut half a line off a file's end, in place: a full disk has no room for a copy."""
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
    """A run's first line and those of its passes; none if it has not begun.

    The file may hold days of progress and earlier runs: nothing before the run's first line is read.
    """
    rows = []
    for row in rows_of(path, b':"begin"', b':"pass"'):
        rows.append(row)
        if (row.get("kind"), row.get("run")) == ("begin", run):
            return rows[::-1]
    return []


def rows_of(path: Path, *texts: bytes) -> Iterator[Row]:
    """A file's lines, the last one first; with `texts`, only those that contain one of them."""
    rest = b""
    for begin, block in _blocks(path):
        head, newline, lines = (block + rest).partition(b"\n") if begin else (b"", b"", block + rest)
        rest = head + newline
        for line in reversed(lines.splitlines()):
            if texts and not any(text in line for text in texts):
                continue
            try:
                yield msgspec.json.decode(line, type=Row)
            except msgspec.MsgspecError:
                continue  # left in the file for `bireme verify`


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's pieces and where they begin, the last one first.

    StorageError where one cannot be read: a caller must not take a part of the file for the whole.
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
    """Passes with a line of every shard."""
    seen: dict[int, set[object]] = {}
    for row in ledger:
        seen.setdefault(_pass_of(row), set()).add(row.get("shard"))
    return {pass_id for pass_id, owners in seen.items() if owners >= set(range(shards))}


def _pass_of(row: Row) -> int:
    pass_id = row.get("pass")
    return pass_id if isinstance(pass_id, int) else -1


def _closed(row: Row) -> m.PassClosed | None:
    fields = {name: row[name] for name in m.PassClosed.__struct_fields__ if name in row}
    try:
        return msgspec.convert(fields, m.PassClosed) if row.get("event") == "pass" else None
    except msgspec.MsgspecError:
        return None  # left in the file for `bireme verify`
