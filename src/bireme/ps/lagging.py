"""Which pserver holds up a trainer, as a share of its last seconds. No clock: times come in.

Answers are read pserver by pserver, each time with another one at the end. Who is read last and has not answered yet
is waited for alone, so it stands for as many rounds as there are pservers. What passes while a pserver takes or gives
bytes counts too: one without time for its work empties its buffers late. Of all that, what is usual among the other
pservers counts for nobody. Costs a few additions for each round.
"""

from __future__ import annotations

from statistics import median

from bireme.ps.waiting import WINDOW_S, Slowest, Window


class Lagging:
    """What one trainer has seen of its pservers in a view."""

    def __init__(self, pservers: int) -> None:
        self._pservers = pservers
        self._old, self._new = Window(), Window()
        self._since_s: float | None = None

    def awaited(self, pserver: int, seconds: float) -> None:
        """All others had answered, and this one took so long to begin."""
        self._new.add(0.0, pserver, self._pservers * seconds)

    def moved(self, pserver: int, seconds: float) -> None:
        """Bytes to or from this one took so long."""
        self._new.add(0.0, pserver, seconds)

    def answered(self, now_s: float) -> None:
        """All answers are in."""
        if self._since_s is not None:
            self._new.spent_s += now_s - self._since_s
            if self._new.spent_s >= WINDOW_S:
                self._old, self._new = self._new, Window()
        self._since_s = now_s

    def slowest(self) -> Slowest | None:
        """Who takes most of this trainer's time, and how much more of it than the others do; None if not known."""
        spent_s = self._old.spent_s + self._new.spent_s
        if self._pservers < 2 or spent_s < WINDOW_S:
            return None
        took = [self._old.waits.get(p, 0.0) + self._new.waits.get(p, 0.0) for p in range(self._pservers)]
        rank = took.index(max(took))
        usual = median(took[:rank] + took[rank + 1 :])
        return Slowest(rank, min((took[rank] - usual) / spent_s, 1.0), spent_s)
