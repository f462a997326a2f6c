"""How far a job has got, for supervisors: they outlive the coordinator and have no connection to it.

They read the end of `metrics.jsonl`, where the current coordinator appends trainers' progress. Lines from before a
supervisor started do not count: they belong to an earlier run, or to processes that it does not supervise.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

METRICS = "metrics.jsonl"
TAIL_NBYTES = 1 << 18
"""Bytes read from its end: some hundred lines at least, of which the last few matter."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A job's position at one moment."""

    history: int = 0
    round: int = -1
    """The highest round of this history; -1 before the first."""
    highest: int = -1
    """The highest round of all histories."""

    def is_past(self, before: JobProgress) -> bool:
        """Whether the job has got further since.

        Within a history every round counts, as none is repeated. After a rewind the job has got further only once it
        is past all it had done before: until then it may be on its way to the same failure.
        """
        if self.history == before.history:
            return self.round > before.round
        return self.highest > before.highest

    def after(self, history: int, round_: int) -> JobProgress:
        """The progress with this round of a history included; rounds of older histories are ignored."""
        if history < self.history:
            return self
        within = max(self.round, round_) if history == self.history else round_
        return JobProgress(history, within, max(self.highest, round_))


NOWHERE = JobProgress()


class _Line(msgspec.Struct):
    history: int = 0
    """Progress lines have one."""
    round: int = -1


class Headway:
    """Reads one job's progress from its metrics."""

    def __init__(self, output: Path) -> None:
        self._path = output / METRICS
        self._begin = self._size()
        self._reached = NOWHERE

    def look(self) -> JobProgress:
        size = self._size()
        begin = min(self._begin, size)  # smaller if `journal.repair_tail` has cut off half a line
        with suppress(OSError), self._path.open("rb") as f:
            f.seek(max(begin, size - TAIL_NBYTES))
            for text in f.read(TAIL_NBYTES).splitlines():
                with suppress(msgspec.MsgspecError):  # half a line
                    line = msgspec.json.decode(text, type=_Line)
                    if line.history:
                        self._reached = self._reached.after(line.history, line.round)
        return self._reached

    def _size(self) -> int:
        try:
            return self._path.stat().st_size if self._path.is_file() else 0
        except OSError:
            return 0
