"""The product, broken on purpose in one place: histories that do not notice are worth nothing.

Each mutant changes one decision while its context is open. The test of the simulator opens every one of them and
expects a history in which an invariant breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tools.sim import harness as harness_module
from tools.sim.processes import trainer as trainer_module
from tools.sim.processes.lanes import SimLane
from tools.sim.processes.pserver import SimPserver
from tools.sim.world.disk import Disk
from tools.sim.world.network import Process

from bireme.core import files
from bireme.job.coordination import coordinator as coordinator_module
from bireme.job.coordination import messages as m
from bireme.job.coordination.coordinator import Coordinator
from bireme.job.coordination.cuts import Cuts
from bireme.job.node import incarnations
from bireme.job.output import journal, snapshots
from bireme.job.output.manifest import MANIFEST, Manifest, seal
from bireme.ps.client.push_pull import Position
from bireme.ps.lanes.authority import Authority
from bireme.ps.lanes.rounds import LaneCounts, LaneMachine, LaneRounds, Late, Refuse, Take
from bireme.ps.lanes.stream import LaneStream
from bireme.ps.tree import Span
from bireme.ps.wire.frames import Head, Record

Mutant = Callable[[], AbstractContextManager[object]]
MUTANTS: dict[str, Mutant] = {}


def mutant(make: Mutant) -> Mutant:
    """Enter a mutant into the list under its name."""
    MUTANTS[make.__name__.replace("_", " ")] = make
    return make


# Views


@mutant
@contextmanager
def lanes_do_not_check_the_view() -> Iterator[None]:
    with patch.object(LaneMachine, "check", lambda self, head: None):
        yield


@mutant
@contextmanager
def a_new_view_keeps_the_inbox() -> Iterator[None]:
    def enter(self: LaneRounds, view: int) -> None:
        self.view = view

    with patch.object(LaneRounds, "enter", enter):
        yield


@mutant
@contextmanager
def a_pserver_obeys_an_older_coordinator() -> Iterator[None]:
    with patch.object(Authority, "_check_newer", lambda self, view: None):
        yield


@mutant
@contextmanager
def a_pserver_continues_in_another_history() -> Iterator[None]:
    real = Coordinator.lost

    def lost(self: Coordinator, connection: int, now_s: float) -> Any:
        effects = real(self, connection, now_s)
        self._must_rewind = self._must_rewind and not self.begun_s
        return effects

    with (
        patch.object(Coordinator, "lost", lost),
        patch.object(Authority, "check_enter", lambda self, view, history: None),
    ):
        yield


@mutant
@contextmanager
def incarnations_are_reused() -> Iterator[None]:
    def take(output: Path, who: str) -> int:
        return 2

    with patch.object(incarnations, "take", take):
        yield


@mutant
@contextmanager
def trainers_that_know_something_are_merely_replaced() -> Iterator[None]:
    with patch.object(coordinator_module, "has_private_state", lambda updates, wire: False):
        yield


# Rounds


@mutant
@contextmanager
def trainers_begin_at_the_newer_round() -> Iterator[None]:
    def newest(found: Sequence[Position]) -> Position:
        return max(found, key=lambda at: (at.pass_id, at.batch, at.round))

    with patch.object(trainer_module, "oldest", newest):
        yield


@mutant
@contextmanager
def readers_are_one_batch_off_after_a_restart() -> Iterator[None]:
    real = trainer_module.SimTrainer._pull_now

    def pull_now(self: Any, shard: int) -> Any:
        at = yield from real(self, shard)
        return at._replace(batch=at.batch - 1) if at.batch else at

    with patch.object(trainer_module.SimTrainer, "_pull_now", pull_now):
        yield


@mutant
@contextmanager
def a_repeat_of_a_closed_round_counts_again() -> Iterator[None]:
    real = LaneRounds.offer

    def offer(self: LaneRounds, head: Head, records: list[Record]) -> Any:
        verdict = real(self, head, records)
        return real(self, head._replace(round=self.round), records) if isinstance(verdict, Late) else verdict

    with patch.object(LaneRounds, "offer", offer):
        yield


@mutant
@contextmanager
def a_push_that_counted_is_applied_again() -> Iterator[None]:
    real = LaneStream.offer

    def offer(self: LaneStream, head: Head, records: list[Record]) -> Any:
        verdict = real(self, head, records)
        if isinstance(verdict, Late) and self._not_its_turn(head.lo) == "":
            self._flying[head.lo] = records[0]
            return Take(head.lo)
        return verdict

    with patch.object(LaneStream, "offer", offer):
        yield


@mutant
@contextmanager
def the_duplicate_filter_is_dropped_on_restart() -> Iterator[None]:
    real_enter, real_offer = LaneStream.enter, LaneStream.offer

    def enter(self: Any, view: int) -> None:
        real_enter(self, view)
        self.unknown = set(range(self.shards))

    def offer(self: Any, head: Head, records: list[Record]) -> Any:
        verdict = real_offer(self, head, records)
        if isinstance(verdict, Late) and head.lo in getattr(self, "unknown", ()) and not self._not_its_turn(head.lo):
            self._flying[head.lo] = records[0]
            verdict = Take(head.lo)
        if not isinstance(verdict, Refuse):
            getattr(self, "unknown", set()).discard(head.lo)
        return verdict

    with patch.object(LaneStream, "enter", enter), patch.object(LaneStream, "offer", offer):
        yield


@mutant
@contextmanager
def rounds_forget_on_restart_what_counted() -> Iterator[None]:
    real_enter, real_offer = LaneRounds.enter, LaneRounds.offer

    def enter(self: Any, view: int) -> None:
        real_enter(self, view)
        self.unknown = set(self.spans)

    def offer(self: Any, head: Head, records: list[Record]) -> Any:
        verdict, span = real_offer(self, head, records), Span(head.lo, head.hi)
        if span in getattr(self, "unknown", ()):
            self.unknown.discard(span)
            if isinstance(verdict, Late):
                return real_offer(self, head._replace(round=self.round), records)
        return verdict

    with patch.object(LaneRounds, "enter", enter), patch.object(LaneRounds, "offer", offer):
        yield


@mutant
@contextmanager
def late_pushes_are_refused_after_two_rounds() -> Iterator[None]:
    real = LaneRounds.offer

    def offer(self: LaneRounds, head: Head, records: list[Record]) -> Any:
        if head.view == self.view and head.round < self.round - 1:
            return Refuse("gone")
        return real(self, head, records)

    with patch.object(LaneRounds, "offer", offer):
        yield


@mutant
@contextmanager
def nothing_bounds_the_staleness() -> Iterator[None]:
    with patch.object(LaneStream, "_is_too_far", lambda self, shard: False):
        yield


@mutant
@contextmanager
def a_round_is_answered_before_it_is_applied() -> Iterator[None]:
    real = SimLane._apply

    def apply(self: SimLane, closing: Any) -> None:
        before, at = self.value, self.rounds.round
        self.rounds.round += 1
        self.answer()
        self.rounds.round = at
        assert self.value == before
        real(self, closing)

    with patch.object(SimLane, "_apply", apply):
        yield


# Cuts and snapshots


@mutant
@contextmanager
def lanes_cut_at_different_rounds() -> Iterator[None]:
    real = SimPserver.cut

    def cut(self: SimPserver, lane: SimLane, counts: LaneCounts, *, ends_pass: bool) -> None:
        now = lane.value
        if lane.number % 2 and not ends_pass:
            lane.value = lane._before
        real(self, lane, counts, ends_pass=ends_pass)
        lane.value = now

    with patch.object(SimPserver, "cut", cut):
        yield


@mutant
@contextmanager
def a_cut_holds_the_round_before() -> Iterator[None]:
    real = SimPserver.cut

    def cut(self: SimPserver, lane: SimLane, counts: LaneCounts, *, ends_pass: bool) -> None:
        now = lane.value
        lane.value = lane._before
        real(self, lane, counts, ends_pass=ends_pass)
        lane.value = now

    with patch.object(SimPserver, "cut", cut):
        yield


@mutant
@contextmanager
def a_cut_is_committed_before_all_parts_are_there() -> Iterator[None]:
    real = Cuts.add

    def add(self: Cuts, part: m.CutPart, pservers: int) -> Any:
        return real(self, part, max(pservers - 1, 1))

    with patch.object(Cuts, "add", add):
        yield


@mutant
@contextmanager
def files_are_renamed_before_they_are_synced() -> Iterator[None]:
    with patch.object(Disk, "sync", lambda self, f: None):
        yield


@mutant
@contextmanager
def directories_are_not_synced() -> Iterator[None]:
    real = Disk.sync_directory

    def sync_directory(self: Disk, path: Path) -> None:
        if str(path).startswith("/output/snapshots"):
            return
        real(self, path)

    with patch.object(Disk, "sync_directory", sync_directory):
        yield


@mutant
@contextmanager
def the_output_directory_is_not_synced_either() -> Iterator[None]:
    with patch.object(harness_module, "make_directory", lambda path: path.mkdir()):
        yield


@mutant
@contextmanager
def a_manifest_is_written_in_place() -> Iterator[None]:
    def commit(directory: Path, manifest: Manifest) -> Path:
        path = directory / manifest.name / MANIFEST
        with path.open("wb") as f:
            f.write(seal(manifest))
        return path

    with patch.object(snapshots, "commit", commit):
        yield


@mutant
@contextmanager
def the_newest_snapshot_is_not_kept() -> Iterator[None]:
    real = snapshots.keep

    def keep(directory: Path, count: int) -> list[str]:
        found, _ = snapshots.candidates(directory)
        if len(found) > 1:
            snapshots._remove(directory / found[0].name)
        return real(directory, count)

    with patch.object(snapshots, "keep", keep):
        yield


@mutant
@contextmanager
def snapshots_are_loaded_without_a_look_at_their_parts() -> Iterator[None]:
    with patch.object(snapshots._Check, "snapshot", lambda self, manifest: ""):
        yield


# Passes


@mutant
@contextmanager
def the_ledger_is_written_before_the_model_is_saved() -> Iterator[None]:
    real = Coordinator._close_pass

    def close_pass(self: Coordinator, pass_id: int, now_s: float) -> Any:
        effects = real(self, pass_id, now_s)
        if effects and self.passes._unsaved is not None:
            saved = m.Saved(trainer=0, pass_id=pass_id)
            effects = [*self.model_saved(self.members.trainers[0].connection, saved, now_s), *effects]
        return effects

    with patch.object(Coordinator, "_close_pass", close_pass):
        yield


@mutant
@contextmanager
def a_pass_is_closed_though_its_cut_is_lost() -> Iterator[None]:
    def cut_lost(self: Coordinator, failure: object, ended: int | None, now_s: float) -> Any:
        return [] if ended is None else self._settle(ended, now_s)

    with patch.object(Coordinator, "_cut_lost", cut_lost):
        yield


@mutant
@contextmanager
def a_pass_that_counts_is_closed_again() -> Iterator[None]:
    real = journal.repair_tail

    def mend(output: Path, shards: int, run: int) -> journal.JournalSummary:
        return real(output, shards, run)._replace(saved=-1)

    with patch.object(journal, "repair_tail", mend):
        yield


@mutant
@contextmanager
def torn_books_are_not_mended() -> Iterator[None]:
    real = files.write_atomic

    def write_atomic(path: Path, data: bytes) -> None:
        if path.name != journal.LEDGER:
            real(path, data)

    with patch.object(journal, "write_atomic", write_atomic):
        yield


@mutant
@contextmanager
def trainer_0_does_not_wait_until_a_pass_counts() -> Iterator[None]:
    real = trainer_module.SimTrainer._await

    def wait(self: Any, kind: Any, pass_id: int) -> Any:
        if kind is not m.Counted:
            yield from real(self, kind, pass_id)

    with patch.object(trainer_module.SimTrainer, "_await", wait):
        yield


@mutant
@contextmanager
def newer_orders_are_ignored_while_lanes_are_being_opened() -> Iterator[None]:
    real = trainer_module.SimTrainer._open

    def opening(self: Any, begin: m.Begin) -> None:
        orders = self._orders
        with patch.object(orders, "has_newer", lambda view: False):
            real(self, begin)

    with patch.object(trainer_module.SimTrainer, "_open", opening):
        yield


@mutant
@contextmanager
def a_finished_job_is_not_ended_by_the_next_coordinator() -> Iterator[None]:
    real = Coordinator.loaded

    def loaded(self: Coordinator, *args: Any) -> Any:
        with patch.object(Coordinator, "_end_if_done", lambda self, facts: []):
            return real(self, *args)

    with patch.object(Coordinator, "loaded", loaded):
        yield


# Clocks


@mutant
@contextmanager
def waits_are_timed_by_the_wall_clock() -> Iterator[None]:
    with patch.object(Process, "monotonic", Process.wall):
        yield


@mutant
@contextmanager
def the_newest_snapshot_is_the_one_of_the_latest_date() -> Iterator[None]:
    real = snapshots.candidates

    def candidates(directory: Path) -> tuple[list[Manifest], list[snapshots.BadSnapshot]]:
        found, problems = real(directory)
        return sorted(found, key=lambda manifest: manifest.created, reverse=True), problems

    with patch.object(snapshots, "candidates", candidates):
        yield
