"""Which trainers a lane's rounds wait for, as shares of the last seconds. No clock: times come in.

When a round closes, the lane has seen which trainer was last, and since when all others were in. Where shards go apart,
the time between two updates counts for a trainer that all others are far ahead of. Time between two passes is not
counted: trainer 0 tests and saves then. Costs a few additions for each push.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bireme.ps.lanes.rounds import Closing, LaneRounds
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.tree import Span

WINDOW_S = 5.0
"""Shares are those of the last one or two windows of this length; before one is full there are none."""
STRAGGLES_ABOVE = 0.5
"""A trainer that the others wait for during a larger share of the time is a straggler. One with two shards where
others have one is just below."""
MOMENT_S = 0.001  # updates that follow each other sooner have waited for no trainer


class Slowest(NamedTuple):
    """The trainer or pserver that others have waited for most."""

    rank: int
    share: float  # of `of_s` seconds
    of_s: float


class Awaited(NamedTuple):
    """What a lane waits for."""

    missing: list[int]  # trainers that the open round still lacks
    seconds: float  # since its first push came; 0 where there is none, or there are no rounds
    slowest: Slowest | None = None
    behind: int | None = None
    """How many batches all others are ahead of the missing trainer; None where they would have to wait for it."""


@dataclass(slots=True)
class _Window:
    spent_s: float = 0.0
    waits: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))


class SlowTrainers:
    """What one lane has seen in its view."""

    def __init__(self) -> None:
        self.forget()

    def _clear_round(self) -> None:
        self.first_s: float | None = None  # when the open round's first push came
        self._last = -1
        self._last_s: float | None = None
        self._others_s: float | None = None  # when the last push of a trainer other than `_last` came

    def forget(self) -> None:
        self._old, self._new = _Window(), _Window()
        self.rest()

    def rest(self) -> None:
        self._since_s: float | None = None
        """When the last round closed; None before the first one of a pass has."""
        self._clear_round()

    def landed(self, trainer: int, now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
        if trainer != self._last:
            self._others_s, self._last = self._last_s, trainer
        self._last_s = now_s

    def closed(self, now_s: float) -> None:
        if self._since_s is not None:
            waited_s = 0.0 if self._others_s is None else now_s - self._others_s
            self._count(now_s - self._since_s, self._last, waited_s)
        self._since_s = now_s
        self._clear_round()

    def updated(self, now_s: float, laggard: Callable[[], int | None]) -> None:
        """Without rounds: an update is about to be made; `laggard` names the trainer that all were far ahead of."""
        if self._since_s is not None:
            spent_s = now_s - self._since_s
            trainer = laggard() if spent_s >= MOMENT_S else None
            self._count(spent_s, -1 if trainer is None else trainer, 0.0 if trainer is None else spent_s)
        self._since_s = self._last_s = now_s

    def _count(self, spent_s: float, trainer: int, waited_s: float) -> None:
        self._new.spent_s += spent_s
        if waited_s:
            self._new.waits[trainer] += waited_s
        if self._new.spent_s >= WINDOW_S:
            self._old, self._new = self._new, _Window()

    def slowest(self, now_s: float, missing: list[int]) -> Slowest | None:
        """The slowest trainer in the window, counting the open round, which lacks `missing`; None if unknown."""
        spent_s = self._old.spent_s + self._new.spent_s
        waits = self._old.waits.copy()
        for trainer, waited_s in self._new.waits.items():
            waits[trainer] += waited_s
        if self._since_s is not None:
            spent_s += now_s - self._since_s
            since_s = self._last_s if self._last not in missing else self._others_s
            if len(missing) == 1 and since_s is not None:
                waits[missing[0]] += now_s - since_s
        if spent_s < WINDOW_S or not waits:
            return None
        trainer = max(waits, key=lambda one: (waits[one], -one))
        return Slowest(trainer, waits[trainer] / spent_s, spent_s)


class Stragglers:
    """Watches a lane's machine for the trainers that it waits for. All calls are made under the lane's lock."""

    def __init__(self, rounds: LaneRounds | LaneStream, shares: Sequence[Span]) -> None:
        self._rounds = rounds
        self._waits = SlowTrainers()
        self._trainer_of = [rank for rank, share in enumerate(shares) for _ in share.shards]  # by shard

    def landed(self, span: Span, now_s: float) -> None:
        if isinstance(self._rounds, LaneStream):
            self._waits.updated(now_s, self._laggard)
        else:
            self._waits.landed(self._trainer_of[span.lo], now_s)

    def closed(self, closing: Closing, landed_s: float) -> None:
        if closing.ends_pass:
            self._waits.rest()
        elif isinstance(self._rounds, LaneRounds):
            self._waits.closed(landed_s)

    def forget(self) -> None:
        self._waits.forget()

    def awaited(self, now_s: float) -> Awaited:
        first_s, behind = self._waits.first_s, None
        if isinstance(self._rounds, LaneStream):
            laggard = self._rounds.laggard(self._trainer_of)
            missing = [laggard[0]] if laggard else []
            if self._rounds.staleness is None:
                behind = laggard[1] if laggard else 0
        else:
            spans = self._rounds.awaited() if first_s is not None else []
            missing = sorted({self._trainer_of[span.lo] for span in spans})
        waited_s = 0.0 if first_s is None else now_s - first_s
        return Awaited(missing, waited_s, self._waits.slowest(now_s, missing), behind)

    def _laggard(self) -> int | None:
        last = self._rounds.laggard(self._trainer_of) if isinstance(self._rounds, LaneStream) else None
        return last[0] if last else None
