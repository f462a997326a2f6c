"""Faults of one history: kind, victim and time are drawn from its seed.

Faults strike at events, not at times: so they hit processes in the middle of their work, and again while they
recover from the fault before. A profile gives the likelihood of each kind. Faults of clocks replace others and
have a generator of their own (clocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tools.sim.case import SNAPSHOTS
from tools.sim.harness import Harness
from tools.sim.processes.pserver import SimPserver
from tools.sim.world.network import SILENCE_S, Process

from bireme.job.output.snapshots import candidates

Kind = str


@dataclass(frozen=True, slots=True)
class Profile:
    """The likelihood of each fault, their mean number, and the share of slow messages."""

    weights: Mapping[Kind, float]
    clocks: float = 0.0
    """The share of faults that set a clock instead, where clocks are not calm."""
    mean: float = 4.0
    slow: tuple[float, ...] = (0.0, 0.002, 0.02, 0.05)


PROFILES: Mapping[str, Profile] = {
    "mixed": Profile({
        "kill": 6, "kill while writing": 4, "kill a node": 2, "kill all": 1, "lose a machine": 1, "cut": 4,
        "cut silently": 1, "pause": 3, "replace": 2, "power cut": 3, "disk full": 1, "rot": 1, "leave": 2,
    }, clocks=0.2),
    "network": Profile({"cut": 6, "cut silently": 1, "pause": 2, "replace": 2, "kill": 1}),
    "mends": Profile({"cut": 8, "kill": 1}, mean=8.0, slow=(0.05, 0.2)),
    "disk": Profile({"power cut": 4, "kill while writing": 6, "disk full": 1, "kill all": 1, "rot": 2}),
    "zombies": Profile({"replace": 6, "pause": 3, "kill": 1, "cut": 1}),
    "kills": Profile({"kill": 6, "kill a node": 2, "kill all": 1, "cut": 2}),
    "clocks": Profile({"pause": 6, "kill": 4, "kill a node": 2, "kill all": 1, "power cut": 1, "cut": 2}, clocks=0.5),
}  # fmt: skip
MOST = 14
"""Faults in one history: a trainer that loses its connections more often without a round gives up, and rightly."""


class FaultInjector:
    """Draws and causes the faults of one history."""

    def __init__(self, harness: Harness, profile: Profile) -> None:
        self._harness = harness
        self._world = harness.world
        self._rng = harness.world.rng
        self._kinds = list(profile.weights)
        self._weights = list(profile.weights.values())
        self._clocks = profile.clocks
        self.left = min(int(self._rng.expovariate(1 / profile.mean)), MOST)
        self._is_spoiled = False
        self.last_s = 0.0
        """The time of the last fault, or of the end of its consequences."""
        self._world.on_strike = self._strike
        if self.left:
            self._aim(1, 250)

    def _aim(self, soonest: int, latest: int) -> None:
        self._world.strike_at = self._world.events + self._rng.randint(soonest, latest)

    def _strike(self, process: Process | None) -> None:
        self.left -= 1
        drawn = self._rng.choices(self._kinds, self._weights)[0]
        kind = self._world.clocks.fault_for(drawn, self._clocks)
        victim = process if process is not None and self._rng.random() < 0.5 else self._draw_process()
        if self._harness.is_ended:
            return
        if victim is not None:
            self._world.faults[kind] += 1
            self.last_s = max(self.last_s, self._world.now)
            self._act(kind, victim)
        if self.left > 0:
            near = self._rng.random() < 0.6
            self._aim(1, 40 if near else 250)

    def _draw_process(self) -> Process | None:
        alive = [role.holder for role in self._harness.roles if role.holder is not None and not role.holder.is_dead]
        return self._rng.choice(alive) if alive else None

    def _act(self, kind: Kind, victim: Process) -> None:
        acts: dict[Kind, Callable[[Process], None]] = {
            "kill": lambda p: self._world.kill(p, "killed"),
            "kill while writing": self._kill_writing,
            "kill a node": self._kill_node,
            "kill all": lambda p: self._kill_all(),
            "lose a machine": self._lose_machine,
            "cut": self._cut,
            "cut silently": self._cut_silently,
            "pause": lambda p: self._stop(p, self._world.pause),
            "suspend": lambda p: self._stop(p, self._world.suspend),
            "set a clock": self._set_clock,
            "replace": self._replace,
            "power cut": lambda p: self._cut_power(),
            "disk full": lambda p: self._fill_disk(),
            "rot": lambda p: self._spoil(),
            "leave": self._leave,
        }
        acts[kind](victim)

    def _kill_writing(self, victim: Process) -> None:
        victim.fuse = self._rng.randint(0, 12)

    def _node_of(self, victim: Process) -> list[Process]:
        rank = victim.name.split()[1]
        return [p for r in self._harness.roles if (p := r.holder) is not None and p.name.split()[1] == rank]

    def _kill_node(self, victim: Process) -> None:
        for process in self._node_of(victim):
            self._world.kill(process, "its node was killed")

    def _leave(self, victim: Process) -> None:
        """Request a snapshot and exit a while later, as a node does on a signal."""
        victim.note("asks for a snapshot, to leave")
        for process in self._harness.processes:
            if isinstance(process, SimPserver) and process.coordinator is not None:
                process.coordinator.save_soon()
        after_s = 0.2 * self._rng.random()
        self.last_s = max(self.last_s, self._world.now + after_s)
        self._world.at(after_s, self._kill_node, victim)

    def _kill_all(self) -> None:
        for process in list(self._harness.processes):
            self._world.kill(process, "all were killed")

    def _lose_machine(self, victim: Process) -> None:
        self.last_s = self._world.now + SILENCE_S
        for process in self._node_of(victim):
            self._world.kill(process, "its machine is gone", is_silent=True)

    def _cut(self, victim: Process) -> None:
        if victim.ends:
            self._world.cut(self._rng.choice(list(victim.ends)))
            victim.note("loses a connection")

    def _cut_silently(self, victim: Process) -> None:
        if victim.ends:
            self.last_s = self._world.now + SILENCE_S
            self._world.cut(self._rng.choice(list(victim.ends)), is_silent=True)
            victim.note("loses a connection and does not know")

    def _set_clock(self, victim: Process) -> None:
        by_s = self._world.clocks.jump_s()
        victim.clock.set_wall(by_s)
        victim.note(f"has its date set {'forward' if by_s > 0 else 'back'} by {abs(by_s):.1f} s")

    def _stop(self, victim: Process, stop: Callable[[Process], None]) -> None:
        for_s = self._rng.choice((0.05, 0.5, 2.0, 8.0)) * self._rng.random()
        stop(victim)
        self.last_s = max(self.last_s, self._world.now + for_s)
        self._world.at(for_s, self._world.wake, victim)

    def _replace(self, victim: Process) -> None:
        """Cut a process off and start its replacement; the old one comes back for a while."""
        role = next((r for r in self._harness.roles if r.holder is victim), None)
        if role is None or role.holder is None or not role.holder.incarnation:
            return  # without an incarnation yet, it would take a later one than its successor
        victim.note("is cut off")
        if self._rng.random() < 0.7:
            self._world.pause(victim)
        for end in list(victim.ends):
            end.peer.tear(SILENCE_S * (0.5 + 0.5 * self._rng.random()))
            end.tear(SILENCE_S * (0.5 + 0.5 * self._rng.random()))
        victim.is_cut_off = True
        self._harness.fill_role(role, 0.2 + 5 * self._rng.random())
        back_s = 0.5 + 25 * self._rng.random()
        self.last_s = self._world.now + back_s + SILENCE_S
        self._world.at(back_s, self._bring_back, victim)
        self._world.at(back_s + 10.0, self._world.kill, victim, "its machine was taken away")

    def _bring_back(self, victim: Process) -> None:
        if not self._harness.is_needed(victim):
            victim.is_cut_off = False
            self._world.wake(victim)

    def _cut_power(self) -> None:
        world = self._world
        for process in list(self._harness.processes):
            world.kill(process, "the power is cut", is_silent=True)
        world.disk.cut_power(self._rng)
        world.trace.append((world.now, "everything", "has lost power"))
        if self._rng.random() < 0.5:
            self._harness.resume()
            world.trace.append((world.now, "everything", "is resumed as another run"))

    def _spoil(self) -> None:
        """Flip a bit of the newest snapshot, as disks do, if there is another one."""
        place = self._world.disk.at(SNAPSHOTS)
        manifests, problems = candidates(place)
        if len(manifests) > 1 and not problems and not self._is_spoiled:
            self._is_spoiled = True
            newest, before = manifests[:2]
            self._world.disk.spoil(place / newest.name / newest.parts[0].file, self._rng)
            self._harness.checks.spoiled(newest, before)
            self._kill_all()
            self._world.trace.append((self._world.now, "the disk", f"has spoiled the snapshot of round {newest.round}"))

    def _fill_disk(self) -> None:
        self._world.disk.is_full = True
        for_s = 0.5 * self._rng.random()
        self._world.at(for_s, self._empty_disk)
        self.last_s = max(self.last_s, self._world.now + for_s)
        self._world.trace.append((self._world.now, "the disk", "is full"))

    def _empty_disk(self) -> None:
        self._world.disk.is_full = False
