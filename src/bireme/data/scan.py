"""Walk over one data file once: count, hash, and check every line.

What is wrong with a line is found by a *line check*, a function from (number, line) to a finding
or None. Findings are capped per file: the first few are kept with their line, the rest are only
counted. Lines are read with a limit, so that a file without newlines cannot fill memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal

Severity = Literal["error", "warning"]
Finding = tuple[Severity, str, str]
"""Severity, problem and fix."""
LineCheck = Callable[[int, str], Finding | None]
OnBytes = Callable[[int], None]

KEPT_PER_FILE = 5
LONGEST_LINE = 16 << 20
_BOM = b"\xef\xbb\xbf"
_LOOK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the data, and what to do about it."""

    severity: Severity
    file: str
    """Relative to the job."""
    line: int | None
    what: str
    fix: str
    more: int = 0
    """How many further problems of this severity the file has that are not listed."""


@dataclass(slots=True)
class Scan:
    """What one walk over a file found; errors and warnings are capped apart, so neither hides the other."""

    file: str
    lines: int = 0
    nbytes: int = 0
    sha256: str = ""
    _kept: dict[Severity, list[Problem]] = field(default_factory=lambda: {"error": [], "warning": []})

    def add(self, line: int | None, finding: Finding) -> None:
        """Keep a finding, or only count it beyond the limit."""
        severity, what, fix = finding
        kept = self._kept[severity]
        if len(kept) < KEPT_PER_FILE:
            kept.append(Problem(severity, self.file, line, what, fix))
        else:
            kept[-1] = replace(kept[-1], more=kept[-1].more + 1)

    def problems(self) -> list[Problem]:
        """Return what was kept, errors first."""
        return [*self._kept["error"], *self._kept["warning"]]


def scan_file(path: Path, file: str, check: LineCheck | None, on_bytes: OnBytes) -> Scan:
    """Read a file to its end and return its counts, hash and problems; `file` is its name in problems."""
    scan = Scan(file)
    digest = hashlib.sha256()
    windows_lines = first_windows_line = 0
    with path.open("rb") as stream:
        is_text = b"\0" not in stream.read(_LOOK_BYTES)
        stream.seek(0)
        for number, piece, is_whole in _pieces(stream, digest.update, on_bytes):
            scan.lines = number
            scan.nbytes += len(piece)
            if not is_text:
                continue
            if piece.endswith(b"\r\n"):
                windows_lines += 1
                first_windows_line = first_windows_line or number
            finding = _look(number, piece, is_whole, check)
            if finding is not None:
                scan.add(number, finding)
    if windows_lines:
        what = f"{windows_lines} lines end in CR LF, as on Windows"
        scan.add(first_windows_line, ("warning", what, "convert the file with dos2unix"))
    scan.sha256 = digest.hexdigest()
    return scan


def first_line(path: Path) -> str:
    """Return the beginning of the first line that is not blank, as far as it can be read as text."""
    with path.open("rb") as stream:
        head = stream.read(_LOOK_BYTES).removeprefix(_BOM)
    return next((line for line in head.decode("utf-8", "replace").split("\n") if line.strip()), "")


def _pieces(stream: BinaryIO, update: Callable[[bytes], None], on_bytes: OnBytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (line number, bytes, whether these are the whole line)."""
    number, at_start = 0, True
    while piece := stream.readline(LONGEST_LINE):
        update(piece)
        on_bytes(len(piece))
        number += at_start
        is_end = piece.endswith(b"\n")
        yield number, piece, at_start and (is_end or len(piece) < LONGEST_LINE)
        at_start = is_end


def _look(number: int, piece: bytes, is_whole: bool, check: LineCheck | None) -> Finding | None:
    if not is_whole:
        return ("error", f"part of a line longer than {LONGEST_LINE >> 20} MiB", "break the line up")
    if number == 1 and piece.startswith(_BOM):
        return (
            "error",
            "starts with a byte-order mark, which becomes part of the first word",
            "save the file as UTF-8 without a byte-order mark",
        )
    try:
        line = piece.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{piece[error.start]:02x} at column {error.start + 1} is not UTF-8"
        return ("error", what, "convert the file, e.g. iconv -f LATIN1 -t UTF-8")
    return check(number, line.rstrip("\r\n")) if check is not None else None
