"""Passes from their last round to their model, cuts from their parts to a commit, and the ways in which a job ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.job.story import (
    CUTS,
    Story,
    cut_part,
    leaves,
    lines,
    manifest,
    messages_of,
    only,
    pass_done,
    progress,
    sent,
    totals,
)

from bireme.job.coordination import messages as m
from bireme.job.coordination.effects import Base, Commit, Conclude, Effect, Leave, Send, Write
from bireme.job.coordination.passes import Passes
from bireme.ps.lanes.rounds import PassTotals, Totals
from bireme.spec.model import Updates


def gathered() -> Story:
    story = Story()
    story.gather()
    return story


def training() -> Story:
    return Story().train()


def with_cuts(**changes: Any) -> Story:
    """A job with snapshots, whose pass 0 is over for lanes and trainers."""
    story = Story(snapshots=CUTS, **changes).train()
    assert sent(story.close_pass(0)) == [], "the cut that ends the pass is not settled"
    return story


@pytest.mark.parametrize("order", ["lane first", "lane between", "lane last"])
def test_a_pass_closes_when_lane_and_trainers_have_reported(order: str) -> None:
    story = training()
    machine = story.machine
    steps: list[Callable[[], list[Effect]]] = [
        lambda: story.deliver(10, pass_done(0)),
        lambda: story.deliver(11, pass_done(1)),
    ]
    at = ["lane first", "lane between", "lane last"].index(order)
    steps.insert(at, lambda: machine.lane_passed(machine.history, totals(), story.now_s))
    story.now_s += 2
    effects = [step() for step in steps]
    assert effects[:2] == [[], []]
    ((to, closed),) = sent(effects[2])
    assert to == 10
    assert isinstance(closed, m.PassClosed)
    assert (closed.pass_id, closed.round, closed.samples, closed.samples_so_far) == (0, 5, 33, 33)
    assert (closed.cost, closed.evals, closed.seconds) == (2.0, {"error": 3.0 / 33}, 2.0)


def test_a_saved_pass_has_one_ledger_row_per_shard() -> None:
    story = training()
    assert lines("ledger.jsonl", story.close_pass(0)) == []
    effects = story.deliver(10, m.Saved(trainer=0, pass_id=0))
    assert lines("ledger.jsonl", effects) == [
        {"pass": 0, "shard": s, "read": 10 + s, "trained": 10 + s, "applied": 10 + s} for s in range(3)
    ]
    assert len([e for e in effects if isinstance(e, Write) and e.file == "ledger.jsonl"]) == 1, "in one piece"
    (event,) = lines("metrics.jsonl", effects)
    assert (event["event"], event["pass_id"], event["samples"]) == ("pass", 0, 33)
    assert (story.machine.passes.saved, [p.pass_id for p in story.machine.passes.closed]) == (0, [0])


def test_the_result_of_the_tester_is_in_the_closed_pass() -> None:
    story = training()
    story.machine.lane_passed(story.machine.history, totals(), story.now_s)
    story.deliver(11, pass_done(1))
    effects = story.deliver(10, pass_done(0, test=m.Sum(samples=4, cost=8.0, evals={"error": 1.0})))
    closed = messages_of(m.PassClosed, effects)[10]
    assert (closed.test_samples, closed.test_cost, closed.test_evals) == (4, 2.0, {"error": 0.25})


def test_a_closed_pass_has_staleness_and_the_worst_error() -> None:
    story = training()
    story.machine.lane_passed(story.machine.history, totals(staleness={1: 4, 0: 9}), story.now_s)
    story.deliver(11, msgspec.structs.replace(pass_done(1), wire_error=0.25))
    closed = messages_of(m.PassClosed, story.deliver(10, msgspec.structs.replace(pass_done(0), wire_error=0.125)))[10]
    assert (list(closed.staleness.items()), closed.wire_error) == ([("0", 9), ("1", 4)], 0.25)


def test_totals_of_another_history_close_nothing() -> None:
    story = training()
    for rank in range(2):
        story.deliver(10 + rank, pass_done(rank))
    assert story.machine.lane_passed(story.machine.history - 1, totals(), story.now_s) == []
    assert set(messages_of(m.PassClosed, story.machine.lane_passed(story.machine.history, totals(), story.now_s))) == {
        10
    }


@pytest.mark.parametrize("ends_pass", [False, True], ids=["within a pass", "at its end"])
def test_a_cut_is_committed_when_the_last_part_is_in(ends_pass: bool) -> None:
    story = with_cuts()
    history = story.machine.history
    assert story.deliver(21, cut_part(1, history, ends_pass=ends_pass)) == []
    (effect,) = story.deliver(20, cut_part(0, history, ends_pass=ends_pass))
    assert isinstance(effect, Commit)
    found = effect.manifest
    assert ([p.file for p in found.parts], found.view, found.round) == (["part-0.bin", "part-1.bin"], history, 5)
    assert (found.ended.totals() if found.ended else None) == (totals() if ends_pass else None)


def test_a_pass_is_closed_when_the_cut_that_ends_it_is_settled() -> None:
    story = with_cuts()
    history = story.machine.history
    story.deliver(20, cut_part(0, history))
    commit = only(Commit, story.deliver(21, cut_part(1, history)))
    assert set(messages_of(m.PassClosed, story.machine.cut_settled(commit.manifest, story.now_s))) == {10}


def test_a_failed_part_at_the_end_of_a_pass_is_not_awaited() -> None:
    story = with_cuts()
    history = story.machine.history
    assert story.deliver(20, cut_part(0, history, ends_pass=False, sha256="")) == []
    assert set(messages_of(m.PassClosed, story.deliver(20, cut_part(0, history, sha256="")))) == {10}
    assert story.deliver(21, cut_part(1, history)) == [], "a cut without one of its parts is none"


def test_in_async_mode_a_pass_without_a_cut_ends_the_job() -> None:
    story = with_cuts(updates=Updates(mode="async"))
    history = story.machine.history
    assert story.deliver(20, cut_part(0, history, ends_pass=False, sha256="")) == [], "within a pass it is left out"
    lost = msgspec.structs.replace(cut_part(0, history, sha256=""), failure="no room")
    effects = story.deliver(20, lost)
    assert only(Conclude, effects).own_fault == "storage"
    assert leaves(effects).reason == "there is no snapshot at the end of pass 0: pserver 0: no room"
    assert not messages_of(m.PassClosed, effects)


def test_so_does_one_whose_manifest_cannot_be_written() -> None:
    story = with_cuts(updates=Updates(mode="async"))
    for rank in (0, 1):
        effects = story.deliver(20 + rank, cut_part(rank, story.machine.history))
    effects = story.machine.cut_settled(only(Commit, effects).manifest, story.now_s, failure="no room")
    assert leaves(effects).reason == "there is no snapshot at the end of pass 0: no room"


def test_parts_and_commits_of_another_history_count_for_nothing() -> None:
    story = with_cuts()
    history = story.machine.history
    assert story.deliver(20, cut_part(0, history - 1, sha256="")) == []
    story.deliver(20, cut_part(0, history))
    story.lose(21)
    story.reach(1, connection=22)
    assert story.deliver(22, cut_part(1, history)) == [], "the other part is of the history before"
    assert story.machine.cut_settled(manifest(history, ended=totals()), story.now_s) == []


def test_a_pass_ended_at_the_cut_is_saved_again_after_a_rewind() -> None:
    story = with_cuts()
    story.lose(21)
    story.reach(1, connection=22)
    story.load(Base(manifest(story.machine.history, ended=totals()), (("a",),)))
    assert {b.saved for b in messages_of(m.Begin, story.ready()).values()} == {-1}
    assert story.deliver(11, pass_done(1)) == []
    assert messages_of(m.PassClosed, story.deliver(10, pass_done(0)))[10].samples == 33
    assert len(lines("ledger.jsonl", story.deliver(10, m.Saved(trainer=0, pass_id=0)))) == 3


def test_an_unsaved_pass_is_closed_again_for_a_new_trainer_0() -> None:
    story = training()
    story.close_pass(0)
    story.lose(10)
    story.join(0, connection=12, incarnation=2)
    assert {b.saved for b in messages_of(m.Begin, story.ready()).values()} == {-1}
    assert set(messages_of(m.PassClosed, story.deliver(12, pass_done(0)))) == {12}
    assert story.deliver(10, m.Saved(trainer=0, pass_id=0)) == [], "its predecessor has no say any more"
    assert len(lines("ledger.jsonl", story.deliver(12, m.Saved(trainer=0, pass_id=0)))) == 3
    assert story.machine.passes.saved == 0


def test_a_pass_that_ends_without_trainer_0_waits_for_the_next() -> None:
    story = training()
    story.machine.lane_passed(story.machine.history, totals(), story.now_s)
    story.deliver(10, pass_done(0))
    story.lose(10)
    assert story.deliver(11, pass_done(1)) == []
    story.join(0, connection=12, incarnation=2)
    story.ready()
    assert set(messages_of(m.PassClosed, story.deliver(12, pass_done(0)))) == {12}


def test_trainer_0_gets_a_saved_pass_as_it_was() -> None:
    story = training()
    story.save_pass(0)
    (closed,) = story.machine.passes.closed
    assert story.deliver(10, pass_done(0)) == [Send(10, closed)]
    assert story.deliver(11, pass_done(1)) == []
    assert story.deliver(10, m.Saved(trainer=0, pass_id=0)) == [Send(10, m.Counted(pass_id=0))]


def test_a_resumed_job_ends_after_its_own_passes() -> None:
    story = Story(start_pass=4, passes=6).train()
    for pass_id, is_over in ((4, False), (5, True)):
        story.save_pass(pass_id)
        assert (story.machine.phase == "finished") == is_over


def test_only_trainer_0_can_say_that_a_closed_pass_is_saved() -> None:
    story = training()
    assert story.deliver(10, m.Saved(trainer=0, pass_id=1)) == []
    story.close_pass(0)
    assert story.deliver(11, m.Saved(trainer=1, pass_id=0)) == []
    assert story.machine.passes.saved == -1


@pytest.mark.parametrize(("connection", "rank"), [(99, 1), (10, 1), (10, 9)])
def test_messages_on_a_foreign_connection_are_ignored(connection: int, rank: int) -> None:
    story = training()
    done = m.PassDone(trainer=rank, pass_id=0, round=1, read={}, trained={})
    lost = m.LinkLost(trainer=rank, view=story.machine.view, what="a lie")
    for message in (progress(rank), done, lost, m.Failed(trainer=rank, what="a lie")):
        assert story.deliver(connection, message) == []
    assert story.machine.phase == "training"
    assert all(trainer.progress is None for trainer in story.machine.members.trainers.values())


def test_a_coordinator_ignores_messages_of_its_own_kinds() -> None:
    story = training()
    assert story.deliver(10, m.Stop(reason="", how="failed")) == []
    assert story.machine.phase == "training"


def test_the_last_models_status_is_written_before_the_end() -> None:
    story = training()
    assert sent(story.save_pass(0)) == [(10, m.Counted(pass_id=0))]
    effects = story.save_pass(1)
    stop = m.Stop(reason="all passes done", how="finished")
    assert [type(e) for e in effects] == [Write, Write, Send, Conclude, Send, Send, Send, Send, Leave]
    noted_first, *others = sent(effects)
    assert noted_first == (10, m.Counted(pass_id=1))
    assert sorted(others) == [(to, stop) for to in (10, 11, 20, 21)]
    assert leaves(effects) == Leave("all passes done")
    assert (story.machine.phase, story.machine.passes.saved) == ("finished", 1)


def test_the_coordinator_fails_a_job_with_an_empty_pass() -> None:
    story = training()
    for rank in range(2):
        story.deliver(10 + rank, pass_done(rank))
    empty = PassTotals(0, 0, {s: Totals() for s in range(3)}, {})
    effects = story.machine.lane_passed(story.machine.history, empty, story.now_s)
    assert effects[0] == Conclude(own_fault="data"), "before any Stop"
    assert leaves(effects) == Leave("there is not one training sample in all shards")


def test_a_trainers_failure_stops_all_members_once() -> None:
    story = training()
    effects = story.deliver(11, m.Failed(trainer=1, what="a NaN"))
    assert leaves(effects) == Leave("trainer 1: a NaN")
    assert {message for _, message in sent(effects)} == {m.Stop(reason="trainer 1: a NaN", how="failed")}
    assert effects[0] == Conclude()
    assert story.machine.failed("again") == []
    assert (story.lose(11), story.lose(20), story.wait(1e6)) == ([], [], [])
    assert story.join(1, connection=12, incarnation=2)[0] != Conclude()
    assert story.machine.reason == "trainer 1: a NaN"


@pytest.mark.parametrize("make", [Story, gathered, training], ids=["alone", "gathered", "training"])
def test_a_cancelled_job_is_no_failure(make: Callable[[], Story]) -> None:
    story = make()
    effects = story.machine.cancelled()
    assert effects[0] == Conclude()
    assert leaves(effects) == Leave("stopped on request")
    assert story.machine.phase == "cancelled"
    assert story.machine.cancelled() == []


def test_a_coordinator_that_was_superseded_leaves_without_a_word() -> None:
    story = training()
    assert story.machine.superseded() == [Leave("another coordinator has taken over")]
    assert story.machine.superseded() == []
    assert (story.lose(11), story.wait(1e6), story.machine.cancelled()) == ([], [], [])


def test_a_lost_visitor_has_no_effect() -> None:
    assert training().lose(99) == []


def test_rewinding_never_takes_back_a_pass_that_was_saved() -> None:
    passes = Passes()
    passes.rewind(3, None)
    passes.rewind(1, totals(2))
    assert passes.saved == 3
    assert passes.totals(2) == totals(2)
    assert passes.close(2, Story().facts, 1.0) is None
    assert passes.save(2, 1.0) is None
