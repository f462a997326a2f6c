"""The logs of a job's processes, merged by time.

Lines begin with month, day and time (`I1116 06:31:44.123456 …`); those that do not belong to the line before them.
There is no year in them: it is the file's own, or the year before where a month lies ahead of the file's last change.
"""

from __future__ import annotations

import calendar
import heapq
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

FILES = {"trainer": "train.log", "pserver": "server.log", "node": "node.log"}
POLL_S = 0.2
_HEAD = re.compile(r"[A-Z](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(\.\d+) ")


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines to show."""

    node: int | None = None
    role: str | None = None
    last: int | None = None
    """Of each log at most this many lines."""
    since_s: float | None = None
    is_following: bool = False
    from_volume: bool = False
    """On a cluster: lines of earlier pods too, from the volume."""

    @property
    def since(self) -> float:
        return 0.0 if self.since_s is None else time.time() - self.since_s


class LogLine(NamedTuple):
    """One line of a log."""

    when: float
    log: str
    """`node_0/train.log`, whichever of its files it is in."""
    text: str


def log_files(output: Path, node: int | None, role: str | None) -> dict[str, list[Path]]:
    names = [FILES[role]] if role else list(FILES.values())
    folders = sorted(output.glob("node_*"), key=lambda d: int(d.name[5:]) if d.name[5:].isdecimal() else -1)
    logs = {}
    for folder in folders:
        if node is not None and folder.name != f"node_{node}":
            continue
        for name in names:
            aside = [p for p in folder.glob(f"{name}.*") if p.suffix[1:].isdecimal()]
            files = [*sorted(aside, key=lambda p: -int(p.suffix[1:])), folder / name]
            logs[f"{folder.name}/{name}"] = [path for path in files if path.is_file()]
    return {log: files for log, files in logs.items() if files}


def moment_of(text: str, year: int, latest: float, *, is_utc: bool = False) -> float | None:
    """When a line was written, in seconds since 1970; None for one that has no time. Pods live in UTC."""
    match = _HEAD.match(text)
    if match is None:
        return None
    month, day, hour, minute, second = (int(part) for part in match.groups()[:5])
    seconds = calendar.timegm if is_utc else time.mktime
    moment = seconds((year, month, day, hour, minute, second, 0, 0, -1)) + float(match[6])
    if moment > latest + 86400:
        moment = seconds((year - 1, month, day, hour, minute, second, 0, 0, -1)) + float(match[6])
    return moment


def lines_of(log: str, files: Iterable[Path]) -> Iterator[LogLine]:
    when = 0.0
    for path in files:
        latest = path.stat().st_mtime
        year = time.localtime(latest).tm_year
        with path.open(encoding="utf-8", errors="replace") as f:
            for text in f:
                when = max(when, moment_of(text, year, latest) or when)
                yield LogLine(when, log, text.rstrip("\n"))


def merged(logs: Mapping[str, Sequence[Path]], *, last: int | None = None, since: float = 0.0) -> Iterator[LogLine]:
    """All lines by time: of each log at most the `last` ones, none from before `since`."""
    streams: list[Iterable[LogLine]] = []
    for log, files in logs.items():
        lines = (line for line in lines_of(log, files) if line.when >= since)
        streams.append(lines if last is None else deque(lines, maxlen=last))
    return heapq.merge(*streams, key=lambda line: line.when)


def followed(
    logs: Mapping[str, Sequence[Path]], wanted: LogFilter, is_over: Callable[[], bool] = lambda: True
) -> Iterator[LogLine]:
    """Lines by time, then lines as they are written, until the job is over."""
    newest = {log: files[-1] for log, files in logs.items()}
    places = {path: (path.stat().st_ino, path.stat().st_size) for path in newest.values()}
    yield from merged(logs, last=wanted.last, since=wanted.since)
    while wanted.is_following:
        time.sleep(POLL_S)
        is_last = is_over()  # asked before the files are read, so that no line is left unread
        for log, path in newest.items():
            whole = b""
            with suppress(FileNotFoundError), path.open("rb") as f:  # (gone for a moment: it is being rotated)
                stat, at = os.fstat(f.fileno()), 0
                # A full log is truncated under its writer: then the whole file is new.
                if stat.st_ino == places[path][0] and stat.st_size >= places[path][1]:
                    at = f.seek(places[path][1])
                whole, end, _ = f.read().rpartition(b"\n")
                places[path] = stat.st_ino, at + len(whole) + len(end)
            for line in whole.decode(errors="replace").splitlines():
                yield LogLine(time.time(), log, line)
        if is_last:
            return


def write_logs(output: Path, wanted: Mapping[str, Any], sink: BinaryIO) -> None:
    """Print merged lines as JSON, for the command that runs this in a pod."""
    files = log_files(output, wanted.get("node"), wanted.get("role"))
    for line in merged(files, last=wanted.get("last"), since=wanted.get("since") or 0.0):
        sink.write(json.dumps({"log": line.log, "line": line.text}).encode() + b"\n")
    sink.flush()
