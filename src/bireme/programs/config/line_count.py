"""Counts the lines that a provider reads, as it may skip some: the number of a sample is not that of its line.

Counted is the data file alone, where the provider opens it with `open`, once, as text, and reads it line by line.
Otherwise no line is named rather than a wrong one: a provider that has read all lines before it yields has no line
for a sample. What is named is the last line read; a provider that looks ahead has read further than the sample.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Iterator
from typing import Any

_UNKNOWN = -(1 << 62)
"""So low that it stays below 1, however many lines are read after it."""


class LineCount:
    """How far one walk has read one data file; to be made on a visit."""

    def __init__(self, file: str) -> None:
        self.line = 0
        """The last line read, counted from 1; below that if it is not known."""
        self.marks = [0]
        """`line` as each sample of a turn was yielded, behind that of the sample before the turn."""
        self._path = os.path.realpath(file)
        self._file: _CountedFile | None = None

    def open(self, file: Any, *args: Any, **options: Any) -> Any:
        """What `open` returns, but for the data file one that counts its lines."""
        opened = builtins.open(file, *args, **options)  # noqa: PTH123, SIM115 - the user's call
        is_text = type(opened) is io.TextIOWrapper and not opened.writable()
        has_usual_ends = len(args) <= 4 and not options.get("newline")  # `newline` may also be the fifth
        is_named = isinstance(file, str | os.PathLike) and os.path.realpath(file) == self._path
        if not (is_text and has_usual_ends and is_named):
            return opened
        if self._file is not None:
            self.line = _UNKNOWN
            return opened
        encoding, errors = opened.encoding, opened.errors
        self._file = _CountedFile(opened.detach(), encoding, errors, options.get("newline"))
        self._file.mode = opened.mode
        self._file.count = self
        return self._file

    def words(self, before: int, line: int) -> str:
        """For an error: the last of the lines read since `before`; '' if there is none or it is unknown."""
        kinds = self._file.newlines if self._file is not None else None
        is_odd = "\r" in ((kinds,) if isinstance(kinds, str) else kinds or ())  # which editors do not count
        return f" (last line read: {line:,})" if line > max(before, 0) and not is_odd else ""


class _CountedFile(io.TextIOWrapper):
    count: LineCount
    mode: str

    def __iter__(self) -> Iterator[str]:  # type: ignore[override] # a generator is faster than a `__next__` in Python
        count = self.count
        for line in iter(super().readline, ""):
            count.line += 1
            yield line
        count.line = _UNKNOWN

    def __next__(self) -> str:  # type: ignore[override] # typeshed's base class is of bytes
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def readline(self, *size: int) -> str:  # type: ignore[override]
        line = super().readline(*size)
        self.count.line = self.count.line + 1 if line and not size else _UNKNOWN
        return line

    def read(self, size: int | None = -1, /) -> str:
        self.count.line = _UNKNOWN
        return super().read(size)

    def seek(self, cookie: int, whence: int = 0, /) -> int:
        self.count.line = _UNKNOWN
        return super().seek(cookie, whence)
