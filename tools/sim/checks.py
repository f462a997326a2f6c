"""The invariants of every history, checked at each event.

1  A lane's value is that of the reference, for every round that it shows.
2  In one view no two processes hold the same role, all pservers are of one history, and nothing that came in an older
   view changes anything.
3  What was committed has all parts, of one moment, whatever a power cut takes; the newest never gets older.
4  The ledger has every shard of every pass once, with all its samples; models hold what they should.
5  If nothing fails any more the job ends in time (history.py), and not after one view upon the other.
6  The members that the status calls present were alive not long before; it names those that the job waits for.
7  Where updates come one by one each is applied exactly once, and none is staler than allowed.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from tools.sim.case import OUTPUT, SNAPSHOTS, Reference, Shape
from tools.sim.processes.values import saved_models, values_of
from tools.sim.world.clocks import FASTEST
from tools.sim.world.network import Broken, Process, World

from bireme.core.errors import BiremeError
from bireme.core.files import mounted
from bireme.job.coordination.status import SILENT_S, waits_for
from bireme.job.node.failure_reports import last_status
from bireme.job.output import snapshots
from bireme.job.output.manifest import Manifest
from bireme.ps.lanes.progress import agreed_counts
from bireme.ps.lanes.rounds import PassTotals
from bireme.ps.snapshot.snapshot_files import read_part
from bireme.ps.wire.frames import Head

if TYPE_CHECKING:
    from tools.sim.processes.coordination import SimCoordinatorService
    from tools.sim.processes.lanes import SimLane
    from tools.sim.processes.pserver import SimPserver

WIDTH = 64
"""Bits for the batches of one shard in one pass."""
MANY = 60
"""More views than a dozen faults can cause."""
LATE_S = 6.5 * FASTEST
"""How long a message may be under way, by any clock."""


class Checks:
    """The invariants of one history."""

    def __init__(self, shape: Shape, world: World) -> None:
        self._shape = shape
        self._world = world
        self._reference = None if shape.is_streamed else Reference(shape)
        self._roles: dict[tuple[int, str], Process] = {}
        self._incarnation = 0
        self._newest: Manifest | None = None
        self.commits = 0

    # 1, 2, 7: what lanes do

    def value(self, lane: SimLane) -> None:
        """A lane shows the parameters of its round."""
        if self._reference is not None:
            round_ = lane.rounds.round
            if lane.value != self._reference.value(round_, lane.number):
                raise Broken(f"1: lane {lane.number} holds something else than the reference after round {round_}")

    def origin(self, pserver: SimPserver, head: Head) -> None:
        """A frame is about to change something."""
        if head.view != pserver.authority.view:
            raise Broken(f"2: a frame of view {head.view:x} counts in view {pserver.authority.view:x}")

    def adds(self, lane: SimLane, rows: Collection[int], there: Collection[int]) -> None:
        """A lane is about to read rows of its inbox, which is as empty as when its view began but for those there."""
        if not set(rows) <= set(there):
            raise Broken(f"2: lane {lane.number} reads a gradient that went with an older view")

    def goes_on(self, pserver: SimPserver, history: int) -> None:
        """A pserver is about to enter a view with what it keeps."""
        if pserver.authority.history != history:
            kept = f"{pserver.authority.history:x}" if pserver.lanes else "none"
            raise Broken(f"2: {pserver.name} continues in history {history:x}, and keeps {kept}")

    def role(self, name: str, view: int, process: Process) -> None:
        """A process acts in a role in a view."""
        if view & 0xFFFFFFFF > MANY:
            raise Broken(f"5: there is one view after the other, now {view:x}")
        if self._roles.setdefault((view, name), process) is not process:
            raise Broken(f"2: two processes are {name} in view {view:x}")

    def incarnation(self, name: str, number: int) -> None:
        """A process has taken its number."""
        if number <= self._incarnation:
            raise Broken(f"2: {name} has incarnation {number} after {self._incarnation}")
        self._incarnation = number

    def applied(self, lane: SimLane, head: Head) -> int:
        """A push is about to be applied by itself: returns the set of those applied, with this one."""
        shape, pass_id, shard, q = self._shape, head.extra, head.lo, head.round
        bit = 1 << (pass_id * shape.shards + shard) * WIDTH + q
        if lane.value & bit:
            raise Broken(f"7: lane {lane.number} applies batch {q} of shard {shard}, pass {pass_id}, twice")
        done = [self._done(lane.value, pass_id, s) for s in range(shape.shards)]
        if q != done[shard]:
            raise Broken(f"7: lane {lane.number} applies batch {q} of shard {shard} after {done[shard]} others")
        slowest = min(n for s, n in enumerate(done) if n < shape.rounds(pass_id, s))
        if shape.mode == "bounded" and q - slowest > shape.staleness:
            raise Broken(f"7: shard {shard} is {q - slowest} batches ahead of the slowest on lane {lane.number}")
        return lane.value | bit

    def _done(self, value: int, pass_id: int, shard: int) -> int:
        offset = (pass_id * self._shape.shards + shard) * WIDTH
        return (value >> offset & (1 << WIDTH) - 1).bit_count()

    def totals(self, lane: SimLane, totals: PassTotals) -> None:
        """A lane has closed a pass: every sample counted, and where pushes are, every one of them."""
        shape, pass_id = self._shape, totals.pass_id
        for shard, counted in totals.shards.items():
            records = [shape.record(pass_id, shard, b) for b in range(shape.rounds(pass_id, shard))]
            if counted.samples != shape.samples[pass_id][shard] or counted.cost != sum(r.cost for r in records):
                raise Broken(f"4: lane {lane.number} counts {counted.samples} samples of shard {shard}, pass {pass_id}")
        if totals.samples != sum(map(sum, shape.samples[: pass_id + 1])):
            raise Broken(f"4: lane {lane.number} counts {totals.samples} samples up to pass {pass_id}")
        if lane.is_streamed and lane.value != self._all_pushes(pass_id):
            raise Broken(f"7: lane {lane.number} has not applied every push up to pass {pass_id}, or others")

    def _all_pushes(self, last_pass: int) -> int:
        shape, total = self._shape, 0
        for pass_id in range(last_pass + 1):
            for shard in range(shape.shards):
                offset = (pass_id * shape.shards + shard) * WIDTH
                total |= (1 << shape.rounds(pass_id, shard)) - 1 << offset
        return total

    # 3: snapshots

    def committed(self, pserver: SimPserver, manifest: Manifest) -> None:
        """A snapshot counts from now on."""
        pserver.note(f"has committed round {manifest.round} of history {manifest.view:x}")
        self.commits += 1
        self._whole(manifest)
        if self._newest is None or manifest.round > self._newest.round:
            self._newest = manifest

    def _whole(self, manifest: Manifest) -> None:
        """A part of every pserver is there, as it was written, and together they hold every lane at one moment."""
        shape, place = self._shape, self._world.disk.at(SNAPSHOTS) / manifest.name
        if [record.pserver for record in manifest.parts] != list(range(shape.pservers)):
            written = [record.pserver for record in manifest.parts]
            raise Broken(f"3: round {manifest.round} was committed with parts of pservers {written}")
        try:
            parts = [read_part(place / record.file, sha256=record.sha256) for record in manifest.parts]
            counts = agreed_counts(parts)
        except BiremeError as e:
            raise Broken(f"3: round {manifest.round} was committed, and cannot be loaded: {e.what}") from e
        if (counts.round, counts.samples) != (manifest.round, manifest.samples):
            raise Broken(f"3: the parts of round {manifest.round} are of round {counts.round}")
        if set(values_of(parts)) != set(range(shape.all_lanes)):
            raise Broken(f"3: round {manifest.round} was committed with lanes {sorted(values_of(parts))}")

    def counted(self, pass_id: int) -> None:
        """A pass is about to be in the ledger: where it would not come out alike once more, it must not be needed."""
        if self._shape.is_streamed and (self._newest is None or self._newest.pass_id <= pass_id):
            raise Broken(f"3: pass {pass_id} counts, and no snapshot holds its end")

    def spoiled(self, newest: Manifest, before: Manifest) -> None:
        """The newest snapshot is broken for good; the one before is what counts."""
        if self._newest is not None and self._newest.name == newest.name:
            self._newest = before

    def disk(self) -> None:
        """Check what a power cut would leave now: only what is synced."""
        if self._newest is None:
            return
        left = self._world.disk.worst()
        try:
            with mounted(left):
                newest, _ = snapshots.load_newest(left.at(SNAPSHOTS), None)
        except BiremeError as e:
            raise Broken(f"3: after a power cut nothing could be loaded: {e.what}") from e
        self._newest_is(newest)

    def chosen(self, base: Manifest | None) -> None:
        """Lanes are about to load a snapshot, or to begin at the beginning."""
        self._newest_is(base)
        if base is not None:  # its coordinator may have died between the commit and `committed`
            self._whole(base)
            self._newest = base

    def _newest_is(self, loaded: Manifest | None) -> None:
        if self._newest is None:
            return
        if loaded is None or loaded.round < self._newest.round:
            round_ = "nothing" if loaded is None else f"round {loaded.round}"
            raise Broken(f"3: round {self._newest.round} was committed, only {round_} could be loaded")

    # 6: the status

    def status(self, coordinating: SimCoordinatorService) -> None:
        """Check the status that the coordinator would send now."""
        machine, here, world_s = coordinating.machine, coordinating.pserver, self._world.now
        now_s, rate, stopped = here.monotonic(), here.clock.rate, []
        for name, member in machine.members.named():
            end = coordinating.connections.get(member.connection)
            # The machine of a paused process still accepts connections, and a coordinator that was paused itself reads
            # older messages first.
            since_s = max(end.peer.process.stopped_s, end.opened_s, here.woke_s) if end is not None else world_s
            gone_s = rate * (world_s - since_s)
            if now_s - member.heard_s < gone_s - LATE_S:
                raise Broken(f"6: {name} was heard after it had stopped")
            if gone_s > SILENT_S + 2 * LATE_S:
                stopped.append(name)
        if stopped and machine.phase == "training":
            texts = " ".join(waits_for(machine, now_s))
            for name in stopped:
                if name not in texts:
                    raise Broken(f"6: the job waits for {name}, and the status does not name it")

    # 4: what people see

    def end(self) -> None:
        """Check what a job has left that has ended."""
        shape, status = self._shape, last_status(self._world.disk.at(OUTPUT))
        if status.phase != "finished":
            raise Broken(f"the job {status.phase}: {status.reason}")
        for disk in (self._world.disk, self._world.disk.worst()):
            try:
                rows = [json.loads(line) for line in disk.at(f"{OUTPUT}/ledger.jsonl").read_bytes().splitlines()]
            except (OSError, ValueError) as e:
                raise Broken(f"4: the ledger cannot be read: {e}") from e
            keys = [(row["pass"], row["shard"]) for row in rows]
            if sorted(keys) != [(p, s) for p in range(shape.passes) for s in range(shape.shards)]:
                raise Broken(f"4: the ledger has (pass, shard) {keys}")
            for row in rows:
                samples = shape.samples[row["pass"]][row["shard"]]
                if (row["read"], row["trained"], row["applied"]) != (samples, samples, samples):
                    raise Broken(f"4: the ledger says {row}, there are {samples} samples")
            self._models(saved_models(disk.at(OUTPUT)))

    def _models(self, models: dict[int, str]) -> None:
        shape = self._shape
        if sorted(models) != list(range(shape.passes)):
            raise Broken(f"4: there are models of passes {sorted(models)}")
        for pass_id, text in models.items():
            values = [int(v) for v in text.strip("(),").split(",")]
            for lane, value in enumerate(values):
                if self._reference is not None:
                    is_right = value == self._reference.value(self._reference.ends[pass_id], lane)
                else:
                    wanted = self._all_pushes(pass_id)
                    is_right = value & wanted == wanted
                if not is_right:
                    raise Broken(f"4: the model of pass {pass_id} does not hold what lane {lane} had")
