"""Clocks of simulated processes: none shows the time of the world, and no two show the same.

A process has two clocks, and the product asks each for things of its own:

    monotonic   every wait, rest and deadline: patience, beats, cuts, reports, the lives of children. It counts from the
                start of a machine, too fast or too slow, stands still while the machine is suspended, and never goes
                back. What a process has set an alarm for stands still with it
    wall        dates for people, in manifests and metrics; and how long a run has gone on, which a coordinator reckons
                from a date that another one wrote. It may be wrong by any amount, and be set either way at any time

What waits with a timeout, also inside the kernel, goes by the monotonic one. Reports of processes that failed, and
certificates, have dates too: neither is in a history, as a failing process breaks it and connections are not secured.

Clocks and their faults have a generator of their own, so nothing else that is drawn from a seed depends on them. In
every second history they only differ in what they show: its events come as they would if all looked at one clock.
"""

from __future__ import annotations

import random

FASTEST = 1.1
"""The rate of the fastest clock; the slowest loses as much. Far more than crystals do, to be on the safe side."""
_APART = 0x636C6F636B
"""Makes another generator of a history's seed."""
_RATES = (0.0, 0.0, 0.0002, FASTEST - 1.0)
_UPTIMES_S = (1.0, 1e3, 1e7)
_ERRORS_S = (0.0, 1.0, 1e4, 1e8)
_NOW_S = 1.8e9
"""The date at which histories begin."""


class Clock:
    """Both clocks of one process."""

    __slots__ = ("_date_s", "_zero_s", "pace", "rate")

    def __init__(self, zero_s: float = 0.0, rate: float = 1.0, date_s: float = _NOW_S) -> None:
        """Show `zero_s` and the date `date_s` when the world begins."""
        self.rate = rate
        """Seconds that pass here in one of the world's."""
        self.pace = 1.0 / rate
        """Seconds of the world that pass in one of ours."""
        self._zero_s = zero_s
        self._date_s = date_s

    def monotonic(self, now_s: float) -> float:
        """`time.monotonic` at a time of the world."""
        return self._zero_s + self.rate * now_s

    def wall(self, now_s: float) -> float:
        """`time.time` at a time of the world."""
        return self._date_s + now_s

    def stand_still(self, for_s: float) -> None:
        """Skip a suspension that ends now; only the monotonic clock stood still, the date is set by NTP at wake-up."""
        self._zero_s -= self.rate * for_s

    def set_wall(self, by_s: float) -> None:
        """Set the date forward or back."""
        self._date_s += by_s


class Clocks:
    """Draws the clocks of one history."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed ^ _APART)
        self._spread = rng.choice(_RATES)
        self._error_s = rng.choice(_ERRORS_S)
        self.is_calm = self._spread == 0.0
        """All clocks go at the right rate, and nothing happens to them."""
        self.writes_dates = not self.is_calm and rng.random() < 0.5
        """Metrics, the one file with dates that is read again, are written too, which takes its time."""

    def draw(self) -> Clock:
        """The clock of a process that is about to start: its machine may be any."""
        rng = self._rng
        zero_s, date_s = rng.choice(_UPTIMES_S) * rng.random(), _NOW_S + self._error_s * rng.uniform(-1.0, 1.0)
        return Clock(zero_s, self._rate(), date_s)

    def draw_supervisor(self) -> Clock:
        """A supervisor's clock; it counts from zero, where floats are most exact: equal restart times stay equal."""
        return Clock(rate=self._rate())

    def _rate(self) -> float:
        return 1.0 + self._spread * self._rng.uniform(-1.0, 1.0)

    def fault_for(self, kind: str, share: float) -> str:
        """The fault to cause where this kind was drawn: mostly the same, else a fault of a clock."""
        if self.is_calm:
            return kind
        if kind == "pause" and self._rng.random() < 0.5:
            return "suspend"
        return "set a clock" if self._rng.random() < share else kind

    def jump_s(self) -> float:
        """Draw how far a clock is set."""
        return self._rng.choice((1.0, 100.0, 1e5, 1e9)) * self._rng.uniform(-1.0, 1.0)
