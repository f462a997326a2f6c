"""A job that ends by its test costs ends with the same pass, whatever happens to it on the way."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.job.story import Story, leaves, pass_done

from bireme.job.coordination import messages as m
from bireme.job.coordination.effects import Base, Effect
from bireme.job.output.journal import JournalSummary, costs_in
from bireme.job.output.kept import early_end
from bireme.job.output.model import pass_name
from bireme.job.status import PassSummary

COSTS = [0.5, 0.3, 0.4, 0.3, 0.2]
"""After pass 1 two passes are no better, so with `no better for 2 passes` the last one is pass 3."""


def save(story: Story, pass_id: int, cost: float) -> list[Effect]:
    """A pass up to its model, with a test cost."""
    story.close_pass(pass_id)
    story.deliver(10, pass_done(0, pass_id, m.Sum(samples=1, cost=cost, evals={})))
    return story.deliver(10, m.Saved(trainer=0, pass_id=pass_id))


def walk(story: Story, begin: int = 0) -> int:
    """Passes until the job is over; the last one."""
    for pass_id in range(begin, len(COSTS)):
        if effects := [e for e in save(story, pass_id, COSTS[pass_id]) if story.machine.phase == "finished"]:
            assert leaves(effects).reason == "no better test cost for 2 passes"
            return pass_id
    raise AssertionError("it has not ended")


def test_a_job_ends_once_so_many_passes_are_no_better() -> None:
    assert walk(Story(passes=9, stop_after=2).train()) == 3


@pytest.mark.parametrize("saved", [0, 1, 2])
def test_a_job_that_resumes_ends_with_the_same_pass(saved: int) -> None:
    past = JournalSummary(saved, costs=dict(enumerate(COSTS[: saved + 1])))
    assert walk(Story(passes=9, stop_after=2).train(Base(None, (), past)), saved + 1) == 3


def test_a_job_that_was_over_ends_at_once_when_resumed() -> None:
    story = Story(passes=9, stop_after=2)
    story.gather()
    effects = story.load(Base(None, (), JournalSummary(3, costs=dict(enumerate(COSTS[:4])))))
    assert leaves(effects).reason == "no better test cost for 2 passes"


def test_without_the_rule_a_job_has_all_its_passes() -> None:
    story = Story(passes=len(COSTS)).train()
    for pass_id, cost in enumerate(COSTS[:-1]):
        save(story, pass_id, cost)
    assert story.machine.phase == "training"


def test_the_last_pass_is_all_passes_done() -> None:
    story = Story(passes=4, stop_after=2).train()
    assert leaves([e for pass_id in range(4) for e in save(story, pass_id, COSTS[pass_id])]).reason == "all passes done"


def test_a_cost_that_is_no_number_is_never_better() -> None:
    assert not early_end({0: None}, 1)
    assert early_end({0: None, 1: None}, 1)
    assert not early_end({0: None, 1: 9.0}, 1)


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=12), st.integers(1, 4))
def test_it_is_the_first_pass_after_so_many_that_are_no_better(costs: list[int | None], stop_after: int) -> None:
    by_pass = dict(enumerate(costs))
    values = [9 if cost is None else cost for cost in costs]
    worse = len(values) > stop_after and min(values[-stop_after:]) >= min(values[:-stop_after])
    assert bool(early_end(by_pass, stop_after)) == worse


def summary(pass_id: int, cost: float | None) -> PassSummary:
    return PassSummary(
        pass_id=pass_id, round=1, samples=1, samples_so_far=1, seconds=1.0, cost=1.0, evals={}, test_cost=cost
    )


def test_costs_are_read_beside_the_models_that_count(tmp_path: Path) -> None:
    for pass_id, cost in enumerate([0.1 + 0.2, None, 0.5]):
        (tmp_path / pass_name(pass_id)).mkdir()
        (tmp_path / pass_name(pass_id) / "done").touch()
        (tmp_path / pass_name(pass_id) / "metrics.json").write_bytes(msgspec.json.encode(summary(pass_id, cost)))
    assert costs_in(tmp_path, 1) == {0: 0.1 + 0.2, 1: None}
