"""The coordinator decides without I/O, so each story here is a few calls and the effects that follow.

Here: which view is made when. Who may join is in test_joining.py, passes and endings are in test_passes.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.job.story import (
    ADDRESSES,
    CUTS,
    Story,
    leaves,
    lines,
    manifest,
    messages_of,
    only,
    progress,
    sent,
    totals,
)

from bireme.job.coordination import coordinator as c
from bireme.job.coordination import messages as m
from bireme.job.coordination.effects import Base, Conclude, HangUp, Leave, Load, Reach
from bireme.job.output.journal import JournalSummary
from bireme.ps.tree import Span
from bireme.spec.model import Updates, Wire


def test_the_first_trainers_addresses_reach_the_pservers() -> None:
    story = Story()
    assert story.join(1) == [Reach(0, ADDRESSES[0]), Reach(1, ADDRESSES[1])]
    assert story.join(0) == [], "no pserver is reached for twice at a time"


def test_a_coordinator_without_addresses_looks_them_up() -> None:
    story = Story()
    join = m.Join(trainer=1, pid=1, host="h", facts=story.facts, pservers=(), incarnation=1)
    assert story.machine.joined(11, join, 1.0) == [Reach(0, None), Reach(1, None)]


@pytest.mark.parametrize("order", [("t1", "t0", "p0", "p1"), ("t0", "p1", "p0", "t1"), ("t1", "p0", "t0", "p1")])
def test_a_view_is_made_when_all_have_joined_in_any_order(order: tuple[str, ...]) -> None:
    story = Story(run_incarnation=4)
    steps = [(story.join if who[0] == "t" else story.reach)(int(who[1])) for who in order]
    assert [e for step in steps[:-1] for e in step if not isinstance(e, Reach)] == []
    load = only(Load, steps[-1])
    assert (load.view, load.newer_than) == (1 << 32 | 1, 4)
    assert load.inputs is not None and load.inputs.seed == 1
    assert story.machine.phase == "setting-up"


@pytest.mark.parametrize(
    ("changes", "newer_than", "has_inputs"),
    [({}, 4, True), ({"is_resumed": True}, 0, True), ({"is_resumed": True, "accepts_changes": True}, 0, False)],
)
def test_a_resume_takes_changed_inputs_only_if_accepted(
    changes: dict[str, bool], newer_than: int, has_inputs: bool
) -> None:
    load = only(Load, Story(run_incarnation=4, **changes).gather())
    assert (load.newer_than, load.inputs is not None) == (newer_than, has_inputs)


def test_training_begins_only_when_all_pservers_are_ready() -> None:
    story = Story()
    story.gather()
    story.load()
    view = story.machine.view
    assert story.deliver(21, m.Ready(pserver=1, view=view)) == []
    effects = story.deliver(20, m.Ready(pserver=0, view=view))
    begin = m.Begin(job=story.machine.job_id, view=view, shares=(Span(0, 2), Span(2, 3)), pservers=ADDRESSES, saved=-1)
    assert sent(effects) == [(10, begin), (11, begin)]
    (event,) = lines("metrics.jsonl", effects)
    assert (event["event"], event["kind"], event["t"]) == ("view", "begin", 0.0)
    assert story.machine.phase == "training"


def test_a_ready_of_another_view_or_sender_begins_nothing() -> None:
    story = Story()
    story.gather()
    story.load()
    view = story.machine.view
    story.deliver(20, m.Ready(pserver=0, view=view))
    assert story.deliver(21, m.Ready(pserver=1, view=view - 1)) == []
    assert story.deliver(20, m.Ready(pserver=1, view=view)) == []
    assert story.deliver(99, m.Ready(pserver=1, view=view)) == []
    assert story.machine.phase == "setting-up"


def test_lanes_keep_their_state_when_a_trainer_is_replaced() -> None:
    story = Story().train()
    first, history = story.machine.view, story.machine.history
    story.now_s += 5
    (event,) = lines("metrics.jsonl", story.lose(11))
    assert (event["event"], event["what"], event["t"]) == ("lost", "trainer 1 was lost", 5.0)
    assert (story.machine.phase, story.machine.missing()) == ("gathering", ["trainer 1"])
    change = m.ChangeView(view=first + 1, history=history)
    assert sent(story.join(1, connection=12, incarnation=2)) == [(20, change), (21, change)]
    effects = story.ready()
    assert {to: b.view for to, b in messages_of(m.Begin, effects).items()} == {10: first + 1, 12: first + 1}
    assert [line["kind"] for line in lines("metrics.jsonl", effects)] == ["mend"]
    assert (story.machine.phase, story.machine.history) == ("training", history)


def test_a_lost_pserver_rewinds_all_to_the_last_cut() -> None:
    story = Story(snapshots=CUTS).train()
    first = story.machine.view
    effects = story.lose(21)
    assert only(Reach, effects) == Reach(1, ADDRESSES[1])
    assert [line["what"] for line in lines("metrics.jsonl", effects)] == ["pserver 1 was lost"]
    assert only(Load, story.reach(1, connection=22)).view == first + 1
    assert story.machine.history == first + 1
    effects = story.load(Base(manifest(first), (("a", "b"),)))
    setups = messages_of(m.SetUp, effects)
    assert set(setups) == {20, 22}
    assert [(s.setup.view, s.setup.base) for s in setups.values()] == [(first + 1, (("a", "b"),))] * 2
    effects = story.ready()
    assert set(messages_of(m.Begin, effects)) == {10, 11}
    (event,) = lines("metrics.jsonl", effects)
    assert (event["kind"], event["round"]) == ("rewind", 5)


@pytest.mark.parametrize("has_loaded", [False, True])
def test_losing_a_pserver_in_the_setup_begins_it_again(has_loaded: bool) -> None:
    story = Story()
    story.gather()
    first = story.machine.view
    if has_loaded:
        story.load()
        story.deliver(20, m.Ready(pserver=0, view=first))
    story.lose(21)
    assert story.machine.phase == "gathering"
    assert story.machine.loaded(first, Base(None, ()), story.now_s) == [], "what was loaded for that view is not used"
    assert only(Load, story.reach(1, connection=22)).view == first + 1
    assert story.machine.loaded(first, Base(None, ()), story.now_s) == []
    assert set(messages_of(m.SetUp, story.load())) == {20, 22}
    assert story.deliver(22, m.Ready(pserver=1, view=first + 1)) == [], "pserver 0 was ready in the view before only"
    assert set(messages_of(m.Begin, story.deliver(20, m.Ready(pserver=0, view=first + 1)))) == {10, 11}


def test_a_pserver_lost_during_a_mend_makes_it_a_rewind() -> None:
    story = Story().train()
    story.lose(11)
    story.join(1, connection=12, incarnation=2)
    assert story.machine.phase == "setting-up"
    story.lose(20)
    assert only(Load, story.reach(0, connection=22)).view == story.machine.history


def test_losing_a_trainer_in_the_setup_begins_it_again() -> None:
    story = Story()
    story.gather()
    story.load()
    story.deliver(20, m.Ready(pserver=0, view=story.machine.view))
    assert lines("metrics.jsonl", story.lose(11)) == [], "the job's own time has not begun"
    late = story.deliver(21, m.Ready(pserver=1, view=story.machine.view))
    assert late == [] and story.machine.phase == "gathering"
    only(Load, story.join(1, connection=12, incarnation=2))
    story.load()
    assert set(messages_of(m.Begin, story.ready())) == {10, 12}


def test_a_trainer_lost_during_a_mend_makes_another_mend() -> None:
    story = Story().train()
    first = story.machine.view
    story.lose(11)
    story.join(1, connection=12, incarnation=2)
    story.lose(12)
    effects = story.join(1, connection=13, incarnation=3)
    assert {c.view for c in messages_of(m.ChangeView, effects).values()} == {first + 2}
    assert {c.history for c in messages_of(m.ChangeView, effects).values()} == {first}


@pytest.mark.parametrize(
    "changes", [{"updates": Updates(mode="local")}, {"wire": Wire(gradients="top_k")}], ids=["local", "top_k"]
)
def test_losing_a_trainer_with_state_of_its_own_is_a_rewind(changes: dict[str, Any]) -> None:
    story = Story(**changes).train()
    story.lose(11)
    only(Load, story.join(1, connection=12, incarnation=2))
    story.load()
    story.ready()
    story.deliver(10, m.LinkLost(trainer=0, view=story.machine.view, what="cut"))
    only(Load, story.wait(2.1))


@pytest.mark.parametrize("incarnation", [1, 2], ids=["itself", "its successor"])
def test_a_trainers_new_connection_replaces_its_old_one(incarnation: int) -> None:
    story = Story().train()
    effects = story.join(1, connection=12, incarnation=incarnation)
    assert effects[0] == HangUp(11)
    assert [line["what"] for line in lines("metrics.jsonl", effects)] == ["trainer 1 was replaced"]
    assert set(messages_of(m.ChangeView, effects)) == {20, 21}
    assert story.lose(11) == []
    assert set(messages_of(m.Begin, story.ready())) == {10, 12}


def test_a_lost_connection_to_a_lane_is_mended_after_a_moment() -> None:
    story = Story().train()
    view = story.machine.view
    effects = story.deliver(11, m.LinkLost(trainer=1, view=view, what="the lane hung up"))
    (event,) = lines("metrics.jsonl", effects)
    assert event["what"] == "trainer 1 lost a connection: the lane hung up"
    assert not messages_of(m.ChangeView, effects)
    assert story.wait(0.05) == []
    assert set(messages_of(m.ChangeView, story.wait(0.1))) == {20, 21}
    assert story.deliver(10, m.LinkLost(trainer=0, view=view, what="me too")) == [], "that view is over for all members"


def test_links_that_keep_breaking_back_off_and_end_the_job() -> None:
    story = Story().train()
    waits = []
    for _ in range(c.MAX_MENDS):
        story.deliver(11, m.LinkLost(trainer=1, view=story.machine.view, what="the cable"))
        began_s = story.now_s
        while not messages_of(m.ChangeView, story.wait(0.0625)):
            assert story.now_s - began_s < 3.0
        waits.append(story.now_s - began_s)
        story.ready()
    assert waits == sorted(waits) and waits[0] < 0.2 and 1.9 < waits[-1] < 2.2
    effects = story.deliver(11, m.LinkLost(trainer=1, view=story.machine.view, what="the cable"))
    assert leaves(effects) == Leave("trainer 1 cannot keep its connections: the cable")
    assert effects[0] == Conclude()


def test_a_round_after_a_mend_makes_the_past_forgotten() -> None:
    story = Story().train()
    for _ in range(c.MAX_MENDS + 5):
        story.deliver(11, m.LinkLost(trainer=1, view=story.machine.view, what="the cable"))
        story.wait(2.1)
        story.ready()
        assert lines("metrics.jsonl", story.deliver(10, progress(0, story.machine.view - 1)))[0]["event"] == "progress"
        recovered, _ = lines("metrics.jsonl", story.deliver(10, progress(0, story.machine.view)))
        assert (recovered["event"], recovered["round"]) == ("recovered", 2)
        assert recovered["after"] == ["trainer 1 lost a connection: the cable"]
    assert story.machine.phase == "training"


def test_a_silent_pserver_is_tried_again_at_every_tick() -> None:
    story = Story()
    story.join(0)
    story.join(1)
    story.reach(0)
    assert story.wait(0.1) == [], "it is being tried"
    assert story.machine.pserver_out_of_reach(1, "connection refused") == []
    assert story.wait(0.1) == [Reach(1, ADDRESSES[1])]
    assert story.machine.missing() == ["pserver 1 (connection refused)"]
    only(Load, story.reach(1))
    assert story.machine.missing() == []


def test_a_second_connection_to_a_pserver_is_closed() -> None:
    story = Story()
    story.gather()
    assert story.reach(1, connection=33) == [HangUp(33)]


@pytest.mark.parametrize(
    ("connection", "words"), [(11, "trainer 1"), (21, r"pserver 1 (no process is there)")], ids=["trainer", "pserver"]
)
def test_a_missing_member_is_named_when_patience_runs_out(connection: int, words: str) -> None:
    story = Story().train()
    story.lose(connection)
    story.machine.pserver_out_of_reach(1, "no process is there")
    assert not [e for e in story.wait(60.0) if isinstance(e, Leave)]
    effects = story.wait(1.0)
    assert leaves(effects) == Leave(f"waited 61 s for {words}")
    assert effects[0] == Conclude(own_fault="process")
    assert story.machine.phase == "failed"
    assert set(messages_of(m.Stop, effects)) == {10, 11, 20, 21} - {connection}
    assert story.wait(1.0) == []


def test_no_member_is_given_up_while_trainers_first_arrive() -> None:
    story = Story()
    story.join(0)
    assert story.wait(1e6) == []
    assert story.machine.phase == "gathering"


def test_waiting_ends_when_all_trainers_left_before_the_start() -> None:
    story = Story()
    story.join(0)
    story.join(1)
    story.reach(0)
    for connection in (10, 11):
        story.lose(connection)
    assert story.wait(600.0) == []
    story.join(0, connection=12)
    story.join(1, connection=13)
    story.wait(0.1)
    assert story.machine.phase == "gathering", story.machine.reason
    story.machine.pserver_out_of_reach(1, "no process is there")
    assert not [e for e in story.wait(59.0) if isinstance(e, Leave)]
    assert leaves(story.wait(1.0)).reason == "waited 60 s for pserver 1 (no process is there)"


def test_waiting_ends_when_the_only_trainer_left_in_the_setup() -> None:
    story = Story(trainers=1)
    story.gather()
    phases = [story.machine.phase]
    story.lose(10)
    story.lose(21)
    story.wait(600.0)
    story.join(0, connection=12)
    story.wait(0.1)
    phases.append(story.machine.phase)
    assert phases == ["setting-up", "gathering"], story.machine.reason


def test_slow_pservers_get_more_time_and_are_named_after_it() -> None:
    story = Story()
    story.gather()
    story.load()
    story.deliver(20, m.Ready(pserver=0, view=story.machine.view))
    assert story.wait(60.0 + c.SET_UP_PATIENCE_S) == []
    effects = story.wait(1.0)
    assert effects[0] == Conclude(own_fault="process")
    assert leaves(effects) == Leave("waited 361 s for pserver 1 to get ready")


def test_views_of_a_later_coordinator_are_always_higher() -> None:
    first, second = Story().train(), Story(incarnation=2).train()
    for _ in range(3):
        first.join(1, connection=12)
        first.ready()
    assert first.machine.view < second.machine.view
    assert first.machine.job_id == second.machine.job_id


def test_a_restarted_coordinator_continues_from_the_journal() -> None:
    story = Story(incarnation=7, snapshots=CUTS)
    story.gather()
    closed = m.PassClosed(pass_id=0, round=5, samples=33, samples_so_far=33, seconds=1.0, cost=2.0, evals={})
    story.load(Base(manifest(3, ended=totals()), (("a",),), JournalSummary(saved=0, elapsed_s=40.0, closed=(closed,))))
    effects = story.ready()
    (event,) = lines("metrics.jsonl", effects)
    assert (event["kind"], event["t"], event["round"]) == ("rewind", 40.0, 5)
    assert {b.saved for b in messages_of(m.Begin, effects).values()} == {0}
    recovered, _ = lines("metrics.jsonl", story.deliver(10, progress(0, story.machine.view)))
    assert recovered["after"] == ["the coordinator was lost"]
    assert story.machine.passes.closed == [closed]


def here(rank: int, incarnation: int, host: str = "elsewhere") -> m.Here:
    return m.Here(pserver=rank, address=m.Address(host=host, ports=(3, 4)), incarnation=incarnation)


def test_a_younger_pserver_elsewhere_replaces_a_silent_one() -> None:
    story = Story().train()
    effects = story.deliver(55, here(1, 9))
    assert effects[0] == HangUp(21)
    assert [line["what"] for line in lines("metrics.jsonl", effects)] == ["pserver 1 was replaced"]
    assert only(Reach, effects) == Reach(1, ADDRESSES[1])
    only(Load, story.reach(1, connection=31))


def test_an_older_pserver_has_nothing_to_say_any_more() -> None:
    story = Story().train()
    story.deliver(21, m.Ready(pserver=1, view=story.machine.view, incarnation=9))
    assert story.deliver(55, here(1, 8)) == []
    assert story.deliver(55, here(1, 9)) == [], "it is the very one"
    assert story.machine.phase == "training"


def test_a_pserver_at_its_old_address_changes_nothing() -> None:
    story = Story().train()
    assert story.deliver(55, here(1, 9, ADDRESSES[1].host)) == []


def test_an_unconnected_pserver_is_reached_in_its_turn() -> None:
    story = Story()
    story.join(0)
    assert story.deliver(55, here(1, 9)) == []
    assert story.machine.members.lives == {1: 9}
