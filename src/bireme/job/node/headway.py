"""How far a job has got, for those who look after its processes: they outlive the coordinator and have no line to it.

They read it off the end of `metrics.jsonl`, where the coordinator, whoever that is by now, notes what trainers tell.
What was noted before they began to look is of an earlier run, or of nobody they look after, and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

METRICS = "metrics.jsonl"
TAIL_NBYTES = 1 << 18
"""What is read of it: some hundred lines at least, of which the last few matter."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a job was when somebody looked."""

    history: int = 0
    """In which lanes have gone on without going back."""
    round: int = -1
    """Of this history; -1 before the first."""
    highest: int = -1
    """Of all histories."""

    def is_past(self, before: JobProgress) -> bool:
        """Whether the job has got further since.

        Within a history every round counts, as nothing takes it back. A job that was taken back to a snapshot
        has got further only once it is past all it had done before: else it may be on its way to the same end.
        """
        if self.history == before.history:
            return self.round > before.round
        return self.highest > before.highest

    def after(self, history: int, round_: int) -> JobProgress:
        """What is known when this round of a history is heard of too; older histories' rounds are no news."""
        if history < self.history:
            return self
        within = max(self.round, round_) if history == self.history else round_
        return JobProgress(history, within, max(self.highest, round_))


NOWHERE = JobProgress()


class _Line(msgspec.Struct):
    """What matters of a line; all others have no history."""

    history: int = 0
    round: int = -1


class Headway:
    """Looks at one job's metrics."""

    def __init__(self, output: Path) -> None:
        self._path = output / METRICS
        self._begin = self._size()
        self._reached = NOWHERE

    def look(self) -> JobProgress:
        """How far the job is by now, as far as can be seen."""
        for line in self._tail():
            if line.history:
                self._reached = self._reached.after(line.history, line.round)
        return self._reached

    def _size(self) -> int:
        try:
            return self._path.stat().st_size if self._path.is_file() else 0
        except OSError:
            return 0

    def _tail(self) -> Iterator[_Line]:
        size = self._size()
        begin = min(self._begin, size)  # half a line that a crash left was cut off meanwhile
        try:
            with self._path.open("rb") as f:
                f.seek(max(begin, size - TAIL_NBYTES))
                data = f.read(TAIL_NBYTES)
        except OSError:
            return
        for line in data.splitlines():
            try:
                yield msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError:
                continue  # half of one
