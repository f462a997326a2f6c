"""What is shared in a cluster, and how a moment came about.

A `Moment` knows the one that it had to wait for. So the way to the last moment of a run can be followed
back to the start, and what was spent on it always adds up to the whole time. A `Port`
is one direction of a pserver's network card: its flows get equal parts, each at most what
the trainer at the other end can do (a trainer has one flow at a time). A `Turn` is something that does one
thing after the other.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class Limit(IntEnum):
    """What time can go to."""

    COMPUTE = 0
    TRAINER_NIC = 1
    PSERVER_NIC = 2
    LANE_CPU = 3
    TRAINER_CPU = 4
    LATENCY = 5

    @property
    def words(self) -> str:
        """The name for people."""
        return self.name.lower().replace("_nic", "_network").replace("_cpu", "_processor").replace("_", " ")


class Moment(NamedTuple):
    """A time, the moment that it follows, and what the time between them was spent on."""

    at: float
    before: Moment | None = None
    limit: Limit = Limit.COMPUTE


START = Moment(0.0)


def after(moment: Moment, limit: Limit, seconds: float) -> Moment:
    """The moment that comes when this much more was spent."""
    return Moment(moment.at + seconds, moment, limit) if seconds else moment


def spent(moment: Moment) -> dict[Limit, float]:
    """Seconds by what they went to, from the start to this moment."""
    found = dict.fromkeys(Limit, 0.0)
    while moment.before is not None:
        found[moment.limit] += moment.at - moment.before.at
        moment = moment.before
    return found


def later(a: Moment, b: Moment) -> Moment:
    """The one that holds the other up."""
    return a if a.at >= b.at else b


class Turn:
    """One thing after the other: whoever comes while it is busy waits."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._free = START

    def take(self, arrival: Moment, seconds: float) -> Moment:
        """When a thing that arrives then and takes that long is done; calls come in the order of arrivals."""
        self._free = after(later(arrival, self._free), self._limit, seconds)
        return self._free


class Rate(NamedTuple):
    """Bytes per second at most, and what sets that."""

    bytes_s: float
    limit: Limit


class Flow(NamedTuple):
    """A payload under way; the fields up to `order` decide which one of a port ends first."""

    end: float
    """What the port will have given to each of its flows, in bytes, when this one is through."""
    order: int
    owner: int
    lane: int
    begun: Moment
    ours_before: float
    nbytes: int


class Port:
    """One direction of a pserver's network card, in equal parts for all who use it."""

    def __init__(self, own: Rate, peer: Rate) -> None:
        self._own, self._peer = own, peer
        self._flows: list[Flow] = []
        self._now = 0.0
        self._given = 0.0
        """Bytes that a flow would have got that was there from the beginning."""
        self._ours = 0.0
        """Seconds in which the port, not the trainers, decided how fast flows were; half where both did."""
        self._started = 0
        self.version = 0
        """Changes whenever `next_end` does."""
        self.nbytes = 0
        """What has come through."""

    def start(self, moment: Moment, owner: int, lane: int, nbytes: int) -> None:
        """Let another payload begin."""
        self._advance(moment.at)
        self._started += 1
        self.version += 1
        flow = Flow(self._given + nbytes, self._started, owner, lane, moment, self._ours, nbytes)
        heapq.heappush(self._flows, flow)

    def next_end(self) -> float | None:
        """When the next payload is through, if no other one begins before."""
        if not self._flows:
            return None
        return self._now + max(self._flows[0].end - self._given, 0.0) / self._speed()

    def finish(self, now: float) -> tuple[Flow, Moment]:
        """Take out the flow whose end this is, and say what its time went to."""
        self._advance(now)
        flow = heapq.heappop(self._flows)
        self._given = max(self._given, flow.end)
        self.version += 1
        self.nbytes += flow.nbytes
        whole = now - flow.begun.at
        ours = min(self._ours - flow.ours_before, whole)
        return flow, after(after(flow.begun, self._own.limit, ours), self._peer.limit, whole - ours)

    def _speed(self) -> float:
        return min(self._own.bytes_s / len(self._flows), self._peer.bytes_s)

    def _advance(self, now: float) -> None:
        seconds, self._now = now - self._now, now
        if not self._flows or seconds <= 0.0:
            return
        part, most = self._own.bytes_s / len(self._flows), self._peer.bytes_s
        self._given += seconds * min(part, most)
        if abs(part - most) <= 1e-9 * most:
            self._ours += 0.5 * seconds
        elif part < most:
            self._ours += seconds
