"""Walk over one data file once: count, hash, and check every line.

What is wrong with a line is found by a *line check*, a function from (number, line) to a finding
or None. Findings are capped per file: the first few are kept with their line, the rest are only
counted. Lines are read with a limit, so that a file without newlines cannot fill memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal

from bireme.core.text import shortened

Severity = Literal["error", "warning"]
Finding = tuple[Severity, str, str]
"""Severity, problem and fix."""
LineCheck = Callable[[int, str], Finding | None]
KEPT_PER_FILE = 5
LONGEST_LINE = 16 << 20
_BOM = b"\xef\xbb\xbf"
_LOOK_BYTES = 4096
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


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
        severity, what, fix = finding
        kept = self._kept[severity]
        if len(kept) < KEPT_PER_FILE:
            kept.append(Problem(severity, self.file, line, what, fix))
        else:
            kept[-1] = replace(kept[-1], more=kept[-1].more + 1)

    def problems(self) -> list[Problem]:
        return [*self._kept["error"], *self._kept["warning"]]


def scan_file(path: Path, file: str, check: LineCheck | None, on_bytes: Callable[[int], None]) -> Scan:
    """Read a file to its end and return its counts, hash and problems; `file` is its name in problems."""
    scan = Scan(file)
    digest = hashlib.sha256()
    windows_lines = first_windows_line = 0
    with path.open("rb") as stream:
        is_text = b"\0" not in stream.read(_LOOK_BYTES)
        stream.seek(0)
        for number, piece, is_whole in _pieces(stream):
            digest.update(piece)
            on_bytes(len(piece))
            scan.lines = number
            scan.nbytes += len(piece)
            if not is_text:
                continue
            if piece.endswith(b"\r\n"):
                windows_lines += 1
                first_windows_line = first_windows_line or number
            if (finding := _look(number, piece, is_whole, check)) is not None:
                scan.add(number, finding)
    if windows_lines:
        what = f"{windows_lines} lines end in CR LF, as on Windows"
        scan.add(first_windows_line, ("warning", what, "convert the file with dos2unix"))
    scan.sha256 = digest.hexdigest()
    return scan


def _pieces(stream: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (line number, bytes, whether these are the whole line)."""
    number, at_start = 0, True
    while piece := stream.readline(LONGEST_LINE):
        number += at_start
        is_end = piece.endswith(b"\n")
        yield number, piece, at_start and (is_end or len(piece) < LONGEST_LINE)
        at_start = is_end


def _look(number: int, piece: bytes, is_whole: bool, check: LineCheck | None) -> Finding | None:
    if not is_whole:
        return ("error", f"part of a line longer than {LONGEST_LINE >> 20} MiB", "break the line up")
    if number == 1 and piece.startswith(_BOM):
        what = "starts with a byte-order mark, which becomes part of the first word"
        return ("error", what, "save the file as UTF-8 without a byte-order mark")
    try:
        line = piece.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{piece[error.start]:02x} at column {error.start + 1} is not UTF-8"
        return ("error", what, "convert the file, e.g. iconv -f LATIN1 -t UTF-8")
    return check(number, line.rstrip("\r\n")) if check is not None else None


def looks_labelled(path: Path, labels: frozenset[int] | None) -> bool:
    """Whether the first line that is not blank is `label<TAB>text`; where the labels are known, a tab is enough."""
    with path.open("rb") as stream:
        head = stream.read(_LOOK_BYTES).removeprefix(_BOM)
    line = next((line for line in head.decode("utf-8", "replace").split("\n") if line.strip()), "")
    label, tab, _ = line.partition("\t")
    return bool(tab) and (labels is not None or _INTEGER.fullmatch(label) is not None)


def check_samples(labels: frozenset[int] | None) -> LineCheck:
    """Check lines of samples; `labels` are the legal ones, or None where any integer is."""

    def check(number: int, line: str) -> Finding | None:
        if not line.strip():
            return ("error", "the line is empty", "remove it")
        label, tab, text = line.partition("\t")
        if not tab:
            return ("error", "no tab between label and text", "write the label, a tab, then the text")
        if _INTEGER.fullmatch(label) is None:
            return ("error", f"label {shortened(label, 40)!r} is not an integer", "write an integer before the tab")
        if labels is not None and int(label) not in labels:
            known = ", ".join(map(str, sorted(labels)[:10]))
            return ("error", f"label {label} is not in labels.list ({known})", "correct the label or add it there")
        if not text.strip():
            return ("warning", "no text after the label", "remove the line if that is not meant")
        return None

    return check


def check_dictionary() -> LineCheck:
    """Check lines of dict.txt; a word's id is its line, so a word must not come twice."""
    seen: dict[str, int] = {}

    def check(number: int, line: str) -> Finding | None:
        word, tab, count = line.partition("\t")
        if not word or (tab and _INTEGER.fullmatch(count) is None):
            return ("error", f"{shortened(line, 40)!r} is not a word, a tab and a count", "write word<TAB>count")
        if word in seen:
            what = f"word {shortened(word, 40)!r} was already on line {seen[word]}"
            return ("error", what, "remove one of the two; all later ids then change")
        seen[word] = number
        if number == 1 and word != "unk":
            what = f"the first word is {shortened(word, 40)!r}, not unk"
            return ("warning", what, "put unk first: words that are not in the dictionary get id 0")
        return None

    return check


def check_label_list(labels: set[int]) -> LineCheck:
    """Check lines of labels.list (`name<TAB>id`) and collect the ids into `labels`."""

    def check(number: int, line: str) -> Finding | None:
        if not line.strip():
            return None
        fields = line.split()
        if len(fields) != 2 or _INTEGER.fullmatch(fields[1]) is None:
            return ("error", f"{shortened(line, 40)!r} is not a name, a tab and an id", "write name<TAB>id")
        label = int(fields[1])
        if label in labels:
            return ("error", f"id {label} is given to two labels", "give each label an id of its own")
        labels.add(label)
        return None

    return check
