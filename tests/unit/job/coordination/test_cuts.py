"""When a cut is complete, what it builds on, and which pservers get Committed."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.job.story import CUTS, Story, cut_part, messages_of, only, progress

from bireme.job.coordination import messages as m
from bireme.job.coordination.cuts import Cuts
from bireme.job.coordination.effects import Commit, Effect
from bireme.job.coordination.status import status_of
from bireme.job.output.manifest import Manifest
from bireme.ps.snapshot.snapshot_files import snapshot_name
from bireme.spec.model import Parameter, Rows, Updates

TABLES = (Parameter(name="w", shape=(4,)), Parameter(name="emb", shape=(50, 4), rows=Rows()))


def part(pserver: int, history: int, round_: int, *, is_delta: bool) -> m.CutPart:
    plain = cut_part(pserver, history, round_=round_, ends_pass=False)
    return msgspec.structs.replace(plain, is_delta=is_delta)


def cut(story: Story, round_: int, *, is_delta: tuple[bool, bool] = (False, False)) -> Manifest:
    """Both parts of a cut come in."""
    history = story.machine.history
    story.deliver(20, part(0, history, round_, is_delta=is_delta[0]))
    return only(Commit, story.deliver(21, part(1, history, round_, is_delta=is_delta[1]))).manifest


@pytest.fixture
def story() -> Story:
    return Story(snapshots=CUTS, parameters=TABLES).train()


def test_a_cut_with_an_unwritten_part_is_never_complete() -> None:
    cuts = Cuts()
    lost = msgspec.structs.replace(part(0, 1, 5, is_delta=False), sha256="")
    assert cuts.add(lost, 2) is None
    assert cuts.add(part(1, 1, 5, is_delta=False), 2) is None


def test_an_older_cut_is_forgotten_when_a_later_one_is_complete() -> None:
    cuts = Cuts()
    cuts.add(part(0, 1, 5, is_delta=False), 2)
    cuts.add(part(0, 1, 7, is_delta=False), 2)
    found = cuts.add(part(1, 1, 7, is_delta=False), 2)
    assert found is not None and [p.pserver for p in found] == [0, 1]
    assert cuts.add(part(1, 1, 5, is_delta=False), 2) is None


def test_a_delta_builds_on_the_newest_committed_chain(story: Story) -> None:
    view = story.machine.history
    first = cut(story, 5)
    assert first.base == ()
    story.machine.cut_settled(first, story.now_s)
    second = cut(story, 7, is_delta=(True, True))
    assert second.base == (snapshot_name(5, view),)
    story.machine.cut_settled(second, story.now_s)
    # One pserver has written everything again, the other has not.
    third = cut(story, 9, is_delta=(False, True))
    assert third.base == (snapshot_name(5, view), snapshot_name(7, view))
    story.machine.cut_settled(third, story.now_s)
    assert cut(story, 11).base == ()


def test_nothing_builds_on_a_cut_that_was_lost(story: Story) -> None:
    first, view = cut(story, 5), story.machine.history
    story.machine.cut_settled(first, story.now_s)
    second = cut(story, 7, is_delta=(True, True))
    assert story.machine.cut_settled(second, story.now_s, failure="the disk is full") == []
    assert cut(story, 9, is_delta=(True, True)).base == (snapshot_name(5, view),)


def test_pservers_with_tables_learn_which_cut_counts(story: Story) -> None:
    effects = story.machine.cut_settled(cut(story, 5), story.now_s)
    committed = m.Committed(history=story.machine.history, round=5)
    assert messages_of(m.Committed, effects) == {20: committed, 21: committed}
    effects = story.machine.cut_settled(cut(story, 7, is_delta=(True, False)), story.now_s)
    assert messages_of(m.Committed, effects)[20].chain == 1
    dense = Story(snapshots=CUTS).train()
    assert dense.machine.cut_settled(cut(dense, 5), dense.now_s) == []


def test_a_new_history_builds_on_nothing_before_it(story: Story) -> None:
    old = cut(story, 5)
    story.machine.cut_settled(old, story.now_s)
    story.lose(21)
    story.reach(1, connection=22)
    story.load()
    story.ready()
    assert story.machine.cut_settled(old, story.now_s) == [], "it is of the history before"
    history = story.machine.history
    story.deliver(20, part(0, history, 7, is_delta=False))
    assert only(Commit, story.deliver(22, part(1, history, 7, is_delta=False))).manifest.base == ()


def asked(effects: list[Effect]) -> set[int]:
    return set(messages_of(m.CutSoon, effects))


def test_a_client_about_to_leave_has_a_cut_made_at_once(story: Story) -> None:
    story.deliver(10, progress(0))
    assert asked(story.machine.snapshot_wanted(story.now_s)) == {20, 21}
    status = status_of(story.machine, story.now_s)
    assert (status.snapshot, status.snapshot_wanted) == (None, True)
    story.machine.cut_settled(cut(story, 1), story.now_s)
    assert story.machine.cuts.is_wanted, "that one was cut before"
    story.machine.cut_settled(cut(story, 3), story.now_s)
    status = status_of(story.machine, story.now_s)
    assert (status.snapshot, status.snapshot_wanted) == (3, False)


def test_a_cut_that_is_not_made_is_asked_for_again(story: Story) -> None:
    story.machine.snapshot_wanted(story.now_s)
    assert asked(story.machine.snapshot_wanted(story.now_s)) == set(), "several may leave at once"
    assert asked(story.wait(0.5)) == set()
    assert asked(story.wait(0.6)) == {20, 21}
    story.machine.cut_settled(cut(story, 3), story.now_s)
    assert asked(story.wait(5.0)) == set()


def test_a_cut_that_cannot_be_made_is_not_requested() -> None:
    gathering = Story(snapshots=CUTS)
    gathering.gather()
    nowhere = Story().train()
    apart = Story(snapshots=CUTS, updates=Updates(mode="async")).train()
    for story in (gathering, nowhere, apart):
        assert story.machine.snapshot_wanted(story.now_s) == []
        assert not story.machine.cuts.is_wanted


def test_a_wish_ends_with_the_history_that_it_was_about(story: Story) -> None:
    story.machine.snapshot_wanted(story.now_s)
    story.lose(21)
    story.reach(1)
    assert not story.machine.cuts.is_wanted


def fail(story: Story, round_: int) -> None:
    lost = msgspec.structs.replace(part(1, story.machine.history, round_, is_delta=False), sha256="", failure="no room")
    assert story.deliver(21, lost) == []


def warnings(story: Story) -> list[str]:
    return list(status_of(story.machine, story.now_s).warnings)


def test_a_failed_part_is_reported_until_a_later_cut_counts(story: Story) -> None:
    assert warnings(story) == []
    fail(story, 3)
    assert warnings(story) == ["no snapshot yet: pserver 1: no room"]
    story.machine.cut_settled(cut(story, 5), story.now_s)
    assert warnings(story) == []
    late = cut(story, 7)
    fail(story, 9)
    story.machine.cut_settled(late, story.now_s)
    assert warnings(story) == ["no snapshot since round 7: pserver 1: no room"]


def test_a_manifest_that_could_not_be_written_is_shown(story: Story) -> None:
    story.machine.cut_settled(cut(story, 5), story.now_s, failure="the disk is full")
    assert warnings(story) == ["no snapshot yet: the disk is full"]
    story.machine.cut_settled(cut(story, 7), story.now_s)
    assert warnings(story) == []


def test_a_failure_before_a_rewind_is_reported_until_a_new_cut(story: Story) -> None:
    fail(story, 9)
    story.lose(20)
    story.reach(0, connection=22)
    story.load()
    story.ready()
    assert warnings(story) == ["no snapshot yet: pserver 1: no room"]
    story.machine.cut_settled(cut(story, 5), story.now_s)
    assert warnings(story) == []
