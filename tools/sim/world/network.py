"""Time, chance, processes and connections of one history.

Time jumps from event to event. An event belongs to a process: one that is paused gets it when it wakes up, one that is
dead never does. A connection is two ends with a stream each way, as TCP gives it: messages arrive in order; a
connection that is cut loses those under way; one whose cable is cut is silent until a timeout. Messages that a dying
process has sent arrive, or are lost.

`World.now` is the time of the world, which no process can read: each has clocks of its own (clocks.py), and its timers
follow its own clock.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from tools.sim.world.clocks import Clocks
from tools.sim.world.disk import Disk, Killed

SILENCE_S = 15.0
"""The kernel's timeout for a peer that does not answer."""
TRACE = 60
Event = tuple[float, int, "Process | None", Callable[..., None], tuple[Any, ...]]
"""Time, number, process, and the call with its arguments."""


class Broken(Exception):  # noqa: N818 - a finding, not a failure of the simulator
    """An invariant is violated: the history has found a bug."""


class Process:
    """A simulated process: it can be killed, paused, suspended and cut off."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = world.clocks.draw()
        self.is_running = True
        self.is_dead = False
        self.is_cut_off = False
        """No connection from or to this process can be opened."""
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.ends: dict[End, None] = {}
        self.fuse = -1
        """Disk steps until it dies; negative: it does not."""
        self.pid = 1
        self.stopped_s = float("inf")
        """The time at which it died or was paused."""
        self.woke_s = 0.0
        self.alarms: list[Event] | None = None
        """Its timers at the time when its machine was suspended; None: it is not."""

    def accept(self, end: End, port: int) -> None:
        """Accept a connection."""
        raise NotImplementedError

    def later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` after a delay by the process' own clock, unless it is dead by then."""
        world = self.world
        world.count += 1
        heappush(world.heap, (world.now + delay_s * self.clock.pace, world.count, self, act, args))

    def monotonic(self) -> float:
        """The process' `time.monotonic`."""
        return self.clock.monotonic(self.world.now)

    def wall(self) -> float:
        """The process' `time.time`."""
        return self.clock.wall(self.world.now)

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.world.trace.append((self.world.now, self.name, what))


class End:
    """One end of a connection."""

    __slots__ = ("_last_s", "is_open", "on_closed", "on_message", "opened_s", "peer", "port", "process", "tag")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.peer: End = self
        self.port = 0
        self.is_open = True
        self.on_message: Callable[[End, Any], None] = _ignore
        self.on_closed: Callable[[End], None] = _ignore_end
        self.tag: Any = None
        self.opened_s = process.world.now
        self._last_s = 0.0
        process.ends[self] = None

    def send(self, message: Any) -> None:
        """Send a message; it may be lost on the way."""
        if not self.is_open:
            return
        world = self.process.world
        arrives = world.now + world.delay()
        if arrives < self._last_s:
            arrives = self._last_s
        self._last_s = arrives
        peer = self.peer
        world.count += 1
        heappush(world.heap, (arrives, world.count, peer.process, peer.take, (message,)))

    def not_before(self, until_s: float) -> None:
        """Delay everything sent from now on until this time."""
        self._last_s = max(self._last_s, until_s)

    def take(self, message: Any) -> None:
        """Deliver a message."""
        if self.is_open:
            self.on_message(self, message)

    def close(self) -> None:
        """Close the connection; the peer gets the end of the stream after all messages."""
        if self.is_open:
            self.is_open = False
            self.process.ends.pop(self, None)
            self.send_end()

    def send_end(self) -> None:
        """Send the end of the stream, after all messages."""
        world = self.process.world
        arrives = max(self._last_s, world.now + world.delay())
        world.count += 1
        heappush(world.heap, (arrives, world.count, self.peer.process, self.peer.notice, ()))

    def notice(self) -> None:
        """Handle the end of the stream."""
        if self.is_open:
            self.is_open = False
            self.process.ends.pop(self, None)
            self.on_closed(self)

    def tear(self, after_s: float) -> None:
        """Break the connection on this side: nothing more arrives, and the process gets the error after a while."""
        if not self.is_open:
            return
        self.is_open = False
        self.process.ends.pop(self, None)
        self.process.later(after_s, self.on_closed, self)


def _ignore(end: End, message: Any) -> None:
    """Drop a message without a handler."""


def _ignore_end(end: End) -> None:
    """Ignore the end of a connection without a handler."""


class World:
    """One history: everything that happens in it follows from its seed."""

    def __init__(self, rng: random.Random, slow: float, clocks: Clocks) -> None:
        self.rng = rng
        self.clocks = clocks
        self.now = 0.0
        self.count = 0
        self.events = 0
        self.heap: list[Event] = []
        self.trace: deque[tuple[float, str, str]] = deque(maxlen=TRACE)
        self.disk = Disk()
        self.faults: Counter[str] = Counter()
        self.slow = slow
        """The share of slow messages."""
        self.strike_at = -1
        """The number of the event at which the next fault is due."""
        self.on_strike: Callable[[Process | None], None] = _ignore_process
        self.on_death: Callable[[Process], None] = _ignore_process
        self.is_over = False

    def delay(self) -> float:
        """Draw a message's delay."""
        random_ = self.rng.random
        draw = random_()
        if draw < self.slow:
            # Now and then a packet is lost repeatedly, and TCP resends it after ever longer times.
            again = random_()
            return 0.02 + 0.3 * again if again < 0.95 else 100 * (again - 0.94)
        return 0.0002 + 0.002 * draw

    def at(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` after a delay, by the world's clock and for no process."""
        self.count += 1
        heappush(self.heap, (self.now + delay_s, self.count, None, act, args))

    def connect(self, process: Process, to: Process | None, port: int) -> End | None:
        """Connect to a process; None if it is dead, or either is cut off."""
        if to is None or to.is_dead or to.is_cut_off or process.is_cut_off:
            return None
        here, there = End(process), End(to)
        here.peer, there.peer, there.port = there, here, port
        to.accept(there, port)
        return here

    def run(self, until_s: float) -> None:
        """Run events until none is left, the time is up, or the history is over."""
        heap, disk = self.heap, self.disk
        while heap and not self.is_over:
            at, _, owner, act, args = heappop(heap)
            if at > until_s:
                self.now = until_s
                return
            self.now = at
            if owner is not None:
                if not owner.is_running:
                    if not owner.is_dead:
                        owner.backlog.append((act, args))
                    continue
                self.events += 1
                if self.events == self.strike_at:
                    self.on_strike(owner)
                    if owner.is_dead:
                        continue
                disk.fuse, disk.pid = owner.fuse, owner.pid
            try:
                act(*args)
            except Killed:
                assert owner is not None
                disk.fuse = -1
                self.kill(owner, "at a step of its writing")
                continue
            if owner is not None and owner.fuse >= 0:
                owner.fuse = disk.fuse
            disk.fuse = -1

    def kill(self, process: Process, how: str, *, is_silent: bool = False, is_own_will: bool = False) -> None:
        """Kill a process; silently: its machine is gone too, and peers only get a timeout."""
        if process.is_dead:
            return
        process.note(f"dies: {how}")
        process.is_dead, process.is_running = True, False
        process.stopped_s = min(process.stopped_s, self.now)
        process.backlog.clear()
        process.alarms, process.fuse = None, -1
        for end in list(process.ends):
            end.is_open = False
            peer = end.peer
            if is_silent:
                peer.tear(SILENCE_S * (0.5 + 0.5 * self.rng.random()))
            elif self.rng.random() < 0.3 and not is_own_will:
                peer.tear(self.delay())  # a reset overtakes messages under way
            else:
                end.send_end()
        process.ends.clear()
        self.on_death(process)

    def cut(self, end: End, *, is_silent: bool = False) -> None:
        """Break one connection."""
        for one in (end, end.peer):
            one.tear(SILENCE_S * (0.5 + 0.5 * self.rng.random()) if is_silent else self.delay())

    def pause(self, process: Process) -> None:
        """Pause a process; its machine still accepts connections and messages."""
        if not process.is_dead and process.is_running:
            process.is_running, process.stopped_s = False, self.now
            process.note("is paused")

    def suspend(self, process: Process) -> None:
        """Pause a process and its clock: timers continue where they stood; messages arrive all the same."""
        if process.is_dead or not process.is_running:
            return
        self.pause(process)
        process.note("and its clock with it")
        process.alarms = [event for event in self.heap if _is_alarm_of(process, event)]
        self.heap[:] = [event for event in self.heap if not _is_alarm_of(process, event)]
        heapify(self.heap)

    def wake(self, process: Process) -> None:
        """Resume a paused process, with everything that arrived meanwhile."""
        if process.is_dead or process.is_running:
            return
        if process.alarms is not None:
            self._set_alarms(process, process.alarms)
        process.is_running, process.stopped_s, process.woke_s = True, float("inf"), self.now
        process.note("wakes up")
        backlog, process.backlog = process.backlog, []
        # Messages of one connection are read in order, connections in any order.
        turns: dict[object, float] = {}
        reads = []
        for act, args in backlog:
            source = getattr(act, "__self__", None)
            turns[source] = turns.get(source, 0.0) + 0.001 * self.rng.random()
            reads.append((turns[source], act, args))
        read_s = {end: self.now + wait_s * process.clock.pace for end, wait_s in turns.items() if isinstance(end, End)}
        later = self._hold_back(read_s)
        for wait_s, act, args in reads:
            process.later(wait_s, act, *args)
        for at, (_, _, owner, act, args) in later:
            self.count += 1
            heappush(self.heap, (at, self.count, owner, act, args))

    def _hold_back(self, read_s: dict[End, float]) -> list[tuple[float, Event]]:
        """Remove events that would overtake earlier messages of their connection; returns them with their new times."""
        held: list[tuple[float, Event]] = []
        for event in sorted(self.heap, key=lambda event: event[:2]):
            end = getattr(event[3], "__self__", None)
            if isinstance(end, End) and event[0] < read_s.get(end, 0.0):
                held.append((read_s[end], event))
        if held:
            early = {event[1] for _, event in held}
            self.heap[:] = [event for event in self.heap if event[1] not in early]
            heapify(self.heap)
        for end, until_s in read_s.items():
            end.peer.not_before(until_s)
        return held

    def _set_alarms(self, process: Process, alarms: list[Event]) -> None:
        slept_s, process.alarms = self.now - process.stopped_s, None
        process.clock.stand_still(slept_s)
        for at, number, owner, act, args in alarms:
            heappush(self.heap, (at + slept_s, number, owner, act, args))


def _is_alarm_of(process: Process, event: Event) -> bool:
    """Whether an event is a process' timer, and not a message."""
    return event[2] is process and not isinstance(getattr(event[3], "__self__", None), End)


def _ignore_process(process: Process | None) -> None:
    """Ignore a strike or a death without a handler."""
