"""The job's books, `metrics.jsonl` and `ledger.jsonl`: lines are only ever appended, and mended after a crash.

A crash may leave half a line at the end, or some of a pass's lines of the ledger. A pass counts when its model is
finished and its lines are all there; whoever goes on from a snapshot first removes what does not count, as it will be
written again. Damage anywhere else is left for `bireme verify` to see.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bireme.core.files import storage_errors, sync_directory, volume, write_atomic
from bireme.job import messages as m
from bireme.job.headway import METRICS as METRICS
from bireme.job.model import finished_passes

LEDGER = "ledger.jsonl"
Row = dict[str, Any]


class Past(NamedTuple):
    """What the books say of a job that goes on."""

    saved: int = -1
    """The last pass that counts."""
    elapsed_s: float = 0.0
    """How long this run has gone on already; 0 for one that begins."""
    closed: Sequence[m.PassClosed] = ()
    """This run's passes."""


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


def mend(output: Path, shards: int, run: int) -> Past:
    """Remove half lines, and lines of passes that do not count; returns what there is of this run."""
    metrics = _cut_tail(output / METRICS, b'"begin"', b'"pass"')
    ledger = _cut_tail(output / LEDGER)
    _make_safe(output)
    saved = max(counted(ledger, shards) & finished_passes(output), default=-1)
    if any(_pass_of(row) > saved for row in ledger):
        kept = [row for row in ledger if _pass_of(row) <= saved]
        write_atomic(output / LEDGER, b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    begun = [i for i, row in enumerate(metrics) if (row.get("kind"), row.get("run")) == ("begin", run)]
    own = metrics[begun[-1] :] if begun else []
    closed = [one for row in own if (one := _closed(row)) is not None and one.pass_id <= saved]
    began = own[0].get("unix") if own else None
    # A date that was set back since must not make the job younger than it is; 0 would say that it begins now.
    elapsed_s = max(time.time() - began, 0.001) if isinstance(began, int | float) else 0.0
    return Past(saved, elapsed_s, closed)


def _make_safe(output: Path) -> None:
    """Sync what whoever died may not have come to sync, before anything is built on it."""
    with storage_errors(str(output)):
        if (output / LEDGER).is_file():
            with (output / LEDGER).open("rb") as f:
                volume().sync(f)
        if output.is_dir():
            sync_directory(output)


def _cut_tail(path: Path, *words: bytes) -> list[Row]:
    """A book's lines, after half a line at its end was cut off; of many, only those in which one of the words is."""
    try:
        data = path.read_bytes() if path.is_file() else b""  # a device would have no end
    except OSError:
        return []
    end = data.rfind(b"\n") + 1
    if end < len(data):
        write_atomic(path, data[:end])
    found = []
    for line in data[:end].splitlines():
        # Days of progress are a million lines, of which a few are asked for.
        if words and not any(word in line for word in words):
            continue
        try:
            found.append(msgspec.json.decode(line, type=Row))
        except msgspec.MsgspecError:
            continue  # a flipped bit is not ours to hide
    return found


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
