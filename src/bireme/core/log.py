"""Log lines in the format of the original, which scripts parse.

    I1116 06:31:44.123456  4711 loop.py:88]  Batch=50 samples=6400 AvgCost=0.61 …

Level letter, month and day, time, process id, file and line, then the text. Library code only
calls `logging.getLogger(__name__)`; processes call `start` once, with the file they write.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO


class GlogFormatter(logging.Formatter):
    """One line per record, the original's prefix first."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        when = f"{moment}.{int(record.created % 1 * 1e6):06d}"
        prefix = f"{record.levelname[0]}{when} {record.process:5d} {record.filename}:{record.lineno}] "
        text = prefix + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def start(stream: TextIO | None = None, *, level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(GlogFormatter())
    root = logging.getLogger("bireme")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
