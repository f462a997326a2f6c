"""The shared resources of a cluster, and the critical path of a run.

A `Moment` links to the one that it had to wait for. So the critical path can be followed from the last
moment of a run back to the start, and the times on it always add up to the whole. A `Port` is one
direction of a pserver's network card: its flows get equal parts, each at most the rate of the trainer
at the other end (a trainer has one flow at a time). A `Turn` serves one request after the other.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class Limit(IntEnum):
    """The resources that time can be spent on."""

    COMPUTE = 0
    TRAINER_NIC = 1
    PSERVER_NIC = 2
    LANE_CPU = 3
    TRAINER_CPU = 4
    LATENCY = 5

    @property
    def words(self) -> str:
        return self.name.lower().replace("_nic", "_network").replace("_cpu", "_processor").replace("_", " ")


class Moment(NamedTuple):
    """A time, the moment that it follows, and the resource that the time between them was spent on."""

    at: float
    before: Moment | None = None
    limit: Limit = Limit.COMPUTE


START = Moment(0.0)


def after(moment: Moment, limit: Limit, seconds: float) -> Moment:
    return Moment(moment.at + seconds, moment, limit) if seconds else moment


def spent(moment: Moment) -> dict[Limit, float]:
    """Seconds by resource, from the start to this moment."""
    seconds = dict.fromkeys(Limit, 0.0)
    while moment.before is not None:
        seconds[moment.limit] += moment.at - moment.before.at
        moment = moment.before
    return seconds


def later(a: Moment, b: Moment) -> Moment:
    return a if a.at >= b.at else b


class Turn:
    """A queue with one server: a request that arrives while it is busy waits."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._free = START

    def take(self, arrival: Moment, seconds: float) -> Moment:
        # Calls come in the order of arrivals.
        self._free = after(later(arrival, self._free), self._limit, seconds)
        return self._free


class Rate(NamedTuple):
    """The most bytes per second, and the resource that limits them."""

    bytes_s: float
    limit: Limit


class Flow(NamedTuple):
    """A payload under way; the fields up to `order` decide which one of a port ends first."""

    end: float
    """The port's `_given` at which this flow is through."""
    order: int
    owner: int
    lane: int
    begun: Moment
    ours_before: float
    nbytes: int


class Port:
    """One direction of a pserver's network card, in equal parts for all flows."""

    def __init__(self, own: Rate, peer: Rate) -> None:
        self._own, self._peer = own, peer
        self._flows: list[Flow] = []
        self._now = 0.0
        self._given = 0.0
        """Bytes that a flow from the beginning would have got: an end by this counter never moves as flows come."""
        self._ours = 0.0
        """Seconds in which the port, not the trainers, decided how fast flows were; half where both did."""
        self._started = 0
        self.version = 0
        """Changes whenever `next_end` does."""
        self.nbytes = 0
        """Bytes of all finished flows."""

    def start(self, moment: Moment, owner: int, lane: int, nbytes: int) -> None:
        self._advance(moment.at)
        self._started += 1
        self.version += 1
        flow = Flow(self._given + nbytes, self._started, owner, lane, moment, self._ours, nbytes)
        heapq.heappush(self._flows, flow)

    def next_end(self) -> float | None:
        """The time at which the next flow ends, if no other one starts before."""
        if not self._flows:
            return None
        return self._now + max(self._flows[0].end - self._given, 0.0) / self._speed()

    def finish(self, now: float) -> tuple[Flow, Moment]:
        """Remove the flow that ends now; returns it with the moment, its time split between port and peer."""
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
