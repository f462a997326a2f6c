"""The harness of one history: the process in each role, discovery, and restarts after a death.

The product's own `RestartPolicy` decides when to restart each role. A role may be given to a new process while its old
holder is only cut off: that one is not restarted, but runs until it is killed.
"""

from __future__ import annotations

import msgspec
from tools.sim.case import OUTPUT, SNAPSHOTS, Shape, facts_of
from tools.sim.checks import Checks
from tools.sim.processes.pserver import SimPserver
from tools.sim.processes.trainer import SimTrainer
from tools.sim.world.clocks import Clock
from tools.sim.world.network import Broken, Process, World

from bireme.core.errors import BiremeError
from bireme.core.files import make_directory, write_atomic
from bireme.job.coordination import messages as m
from bireme.job.coordination.coordinator import NO_END, TAKEN_OVER
from bireme.job.coordination.effects import Leave
from bireme.job.node import incarnations
from bireme.job.node.failure_reports import STATUS_FILE, has_ended, last_status
from bireme.job.node.supervisor import LINGER_S, RestartPolicy
from bireme.job.output.snapshots import candidates
from bireme.spec.model import Restarts

ENDLESS = Restarts(limit=1_000_000)
RESUME_S = 1.0
"""After so long an operator has read why the job failed, and made room."""


class Role:
    """A process of the job that must run, as its supervisor sees it."""

    def __init__(self, kind: type[SimPserver] | type[SimTrainer], rank: int, clock: Clock) -> None:
        self.kind = kind
        self.rank = rank
        self.clock = clock
        """The supervisor's."""
        self.policy = RestartPolicy(ENDLESS)
        self.holder: SimPserver | SimTrainer | None = None


class Harness:
    """Everything in one history but its faults."""

    def __init__(self, shape: Shape, world: World) -> None:
        self.shape = shape
        self.world = world
        self.facts = facts_of(shape)
        self.checks = Checks(shape, world)
        self.writes_metrics = world.clocks.writes_dates
        self.is_fixed = world.rng.random() < 0.5
        """Pservers keep their address across restarts."""
        self.shares_pids = world.rng.random() < 0.5
        """Every process has a container of its own, and process id 1 in it."""
        clock = world.clocks.draw_supervisor
        self.roles = [Role(SimPserver, rank, clock()) for rank in range(shape.pservers)]
        self.roles += [Role(SimTrainer, rank, clock()) for rank in range(shape.trainers)]
        self.processes: list[Process] = []
        self._announced: dict[int, SimPserver] = {}
        self._hosts: dict[str, SimPserver] = {}
        world.on_death = self._died
        output = world.disk.at(OUTPUT)
        make_directory(output)
        self.checks.incarnation("runner", incarnations.take(output, "runner"))
        write_atomic(output / "job.json", b"{}")

    # Discovery

    def announce(self, pserver: SimPserver) -> None:
        """Publish a pserver's address; the latest incarnation counts."""
        before = self._announced.get(pserver.rank)
        if before is None or before.incarnation < pserver.incarnation:
            self._announced[pserver.rank] = pserver
        self._hosts[self.address_of(pserver).host] = pserver

    def address_of(self, process: Process) -> m.Address:
        """Where a pserver listens."""
        assert isinstance(process, SimPserver)
        host = f"p{process.rank}" if self.is_fixed else f"p{process.rank}-{process.incarnation}"
        return m.Address(host=host, ports=tuple(range(self.shape.lanes)))

    def pserver_at(self, rank: int) -> SimPserver | None:
        """The latest incarnation of a pserver that has announced itself."""
        return self._announced.get(rank)

    def at_address(self, address: m.Address) -> SimPserver | None:
        """The pserver that listens at an address."""
        return self._hosts.get(address.host)

    # Life and death

    def start_all(self) -> None:
        """Start every process of the job."""
        for role in self.roles:
            self.fill_role(role, 0.5 * self.world.rng.random())

    def fill_role(self, role: Role, after_s: float) -> None:
        """Give a role to a new process."""
        self.world.at(after_s, self._start, role, role.holder)

    def _start(self, role: Role, before: Process | None) -> None:
        if role.holder is not before or self.is_ended:
            self._look()
            return
        role.holder = role.kind(self, role.rank)
        role.policy.born_s = role.clock.monotonic(self.world.now)
        self.processes.append(role.holder)
        role.holder.pid = 1 if self.shares_pids else len(self.processes)
        role.holder.later(0.1 + 0.4 * self.world.rng.random(), role.holder.start)

    def resume(self) -> None:
        """Do as `bireme resume` does after everything has died: another run in the same directory."""
        output = self.world.disk.at(OUTPUT)
        run_incarnation = incarnations.take(output, "runner")
        self.checks.incarnation("runner", run_incarnation)
        (output / STATUS_FILE).unlink(missing_ok=True)
        write_atomic(output / "job.json", b"{}")
        is_resumed = bool(candidates(self.world.disk.at(SNAPSHOTS))[0])
        self.facts = msgspec.structs.replace(self.facts, is_resumed=is_resumed, run_incarnation=run_incarnation)

    @property
    def is_ended(self) -> bool:
        """Whether the coordinator has written its final status."""
        return has_ended(self.world.disk.at(OUTPUT))

    def _died(self, process: Process | None) -> None:
        for role in self.roles:
            if role.holder is process:
                if not self.is_ended:
                    now_s = role.clock.monotonic(self.world.now)
                    again_s = role.policy.again_s(now_s)
                    assert again_s is not None
                    self.fill_role(role, (again_s - now_s) * role.clock.pace)
                else:
                    self._look()

    def concluded(self) -> None:
        """The final status is written: supervisors end processes that linger."""
        self.world.at(LINGER_S, self._end_lingerers)

    def _end_lingerers(self) -> None:
        for role in self.roles if self.is_ended else ():
            if role.holder is not None:
                self.world.kill(role.holder, "ended by its supervisor", is_own_will=True)
        self._look()

    def _look(self) -> None:
        """End the history once the job has ended and all processes have exited."""
        if self.is_ended and all(role.holder is None or role.holder.is_dead for role in self.roles):
            if self._may_fail(last_status(self.world.disk.at(OUTPUT)).reason):
                self.world.at(RESUME_S, self._resume_failed)
            else:
                self.world.is_over = True

    def _may_fail(self, reason: str) -> bool:
        """Whether this reason is a legitimate failure, after which an operator resumes the job."""
        return self.shape.is_streamed and reason.startswith(NO_END) and self.world.faults["disk full"] > 0

    def _resume_failed(self) -> None:
        if self.is_ended:
            self.resume()
            self.world.trace.append((self.world.now, "everything", "is resumed as another run"))
            self.start_all()

    def is_needed(self, process: Process) -> bool:
        """Whether a process holds a role, and is not one that was replaced."""
        return any(role.holder is process for role in self.roles)

    # Endings

    def left(self, pserver: SimPserver, effect: Leave) -> None:
        """A coordinator leaves, and its pserver with it."""
        coordinator = pserver.coordinator
        assert coordinator is not None
        is_superseded = effect.reason == TAKEN_OVER
        has_failed = coordinator.machine.phase == "failed" and not self._may_fail(effect.reason)
        if has_failed and not is_superseded and self.is_needed(pserver):
            raise Broken(f"the job failed: {effect.reason}")
        pserver.later(0.1 * self.world.rng.random(), pserver.leave, effect.reason)

    def failed(self, process: Process, error: BiremeError) -> None:
        """A process exits with an error."""
        process.note(f"fails: {type(error).__name__}: {error.what}")
        if self.is_needed(process):
            raise Broken(f"{process.name} failed: {type(error).__name__}: {error.what}")
        self.world.kill(process, "failed")

    def stopped(self, trainer: SimTrainer, stop: m.Stop) -> None:
        """A trainer exits after the coordinator's Stop."""
        if stop.how != "finished" and not self._may_fail(stop.reason) and self.is_needed(trainer):
            raise Broken(f"{trainer.name} got a Stop, the job {stop.how}: {stop.reason}")
        self.world.kill(trainer, "left", is_own_will=True)
