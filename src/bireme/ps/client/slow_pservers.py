"""Which pserver holds up a trainer, as a share of its time. No clock: times come in.

A trainer writes to and reads from its pservers in turn, each round with another one at the end. If the last one has
not answered yet, the trainer waits for it alone, so that wait counts for as many rounds as there are pservers. The time
in which bytes go to or come from a pserver counts too: one without time for its work empties its buffers late. Not
counted are what is usual among the other pservers, a single long wait, and the time between two passes. Costs a few
additions for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bireme.ps.lanes.slow_trainers import WINDOW_S, Slowest

TURNS = 8  # so often each pserver must have been last before one is called slow


class _Stretch:
    """Some rounds: how long they took, and how much of that for each pserver."""

    def __init__(self, pservers: int) -> None:
        self.spent_s = 0.0
        self.rounds = 0
        self.moved = [0.0] * pservers
        self.waited = [0.0] * pservers
        self.longest = [0.0] * pservers  # of all waits for one alone: it may have been an accident

    def slowest(self) -> Slowest:
        """The pserver that takes most of the time, and how much more of it than the others do."""
        pservers = len(self.moved)
        turns = self.rounds // pservers
        # The longest wait counts as if it had been like all others.
        usually = turns / (turns - 1) * pservers
        parts = zip(self.moved, self.waited, self.longest, strict=True)
        took = [moved + usually * (waited - longest) for moved, waited, longest in parts]
        rank = took.index(max(took))
        others = median(took[:rank] + took[rank + 1 :])
        return Slowest(rank, min((took[rank] - others) / self.spent_s, 1.0), self.spent_s)


class SlowPservers:
    """What one trainer has seen of its pservers in a view."""

    def __init__(self, pservers: int, last: int = 0) -> None:
        """`last` differs between trainers, so that all pservers have something to do at once."""
        self._pservers = pservers
        self.last = last % pservers  # the pserver that is written to and read from last in this round
        self.slowest: Slowest | None = None
        """The pserver that this trainer waited for most in the last full window."""
        self._now = _Stretch(pservers)
        self._since_s: float | None = None
        """When the last answers were in; None before the first round of a pass."""

    def rest(self) -> None:
        """A pass is over: what follows is no round."""
        self._since_s = None

    def orders(self, lanes: Sequence[int]) -> list[list[int]]:
        """Numbers of lanes, given the pserver of each, in the order of a round; one order for each that may be last."""
        turns = range(1, self._pservers + 1)
        return [sorted(range(len(lanes)), key=lambda i: (lanes[i] - turn) % self._pservers) for turn in turns]

    def begun(self, pserver: int, seconds: float) -> None:
        """An answer of this one took so long to begin after those before it; that of the last is awaited alone."""
        if self._since_s is not None and pserver == self.last:
            self._now.waited[pserver] += seconds
            self._now.longest[pserver] = max(self._now.longest[pserver], seconds)

    def moved(self, pserver: int, seconds: float) -> None:
        if self._since_s is not None:
            self._now.moved[pserver] += seconds

    def answered(self, now_s: float) -> None:
        now = self._now
        if self._since_s is not None:
            now.spent_s += now_s - self._since_s
            now.rounds += 1
            if self._pservers > 1 and now.spent_s >= WINDOW_S and now.rounds >= TURNS * self._pservers:
                self.slowest = now.slowest()
                self._now = _Stretch(self._pservers)
            # Only now: else, with short passes, always the same ones would be last in rounds that count.
            self.last = (self.last + 1) % self._pservers
        self._since_s = now_s
